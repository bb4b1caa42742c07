"""`parley status`: what the VMs of an agent have, and why."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from hosting import lifecycle, tokens
from hosting.client import HttpClient
from hosting.tls import Tls
from parley import layout, view
from parley.listing import output as outputs
from parley.top.source import DEADLINE_S, MAX_ANSWER_BYTES, vms_of
from parley.top.texts import MAX_LINE, clean


def show(url: str, token: str | None, tls: Tls | None, output: str) -> int:
    """Print the state of an agent's VMs; the exit code."""

    async def main(_: lifecycle.Stop) -> int:
        async with HttpClient(max_answer_bytes=MAX_ANSWER_BYTES, tls=tls) as client:
            outcome = await client.call(
                "GET", f"{url}/v1/vms", deadline_s=DEADLINE_S, headers=tokens.headers(token)
            )
        found = vms_of(outcome)
        if isinstance(found, str):
            click.echo(f"{url}: {clean(found, MAX_LINE)}", err=True)
            return outputs.NOBODY
        _print(url, found, output)
        return 0

    return outputs.run(main)


def _print(url: str, document: Mapping[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(document))
        return
    console = Console(file=sys.stdout)
    vms, node = view.vms(document), clean(document.get("node"))
    beside = [*view.beside(document)]
    if not vms:
        click.echo("\n".join((f"{node or url}: the agent answers, and has no VMs", *beside)))
    elif console.is_terminal:
        footer = [*beside, f"agent {clean(document.get('daemon'))} at {url}"]
        console.print(layout.screen(node, vms, footer, console.width))
    else:
        for line in (*map(view.line, vms), *beside):
            click.echo(line)
