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
from parley import view
from parley.top.source import DEADLINE_S, MAX_ANSWER_BYTES, vms_of


def show(url: str, token: str | None, tls: Tls | None, output: str) -> int:
    """Print the state of an agent's VMs; 1 when it does not answer."""
    found: list[Mapping[str, Any] | str] = []

    async def fetch(_: lifecycle.Stop) -> int:
        async with HttpClient(max_answer_bytes=MAX_ANSWER_BYTES, tls=tls) as client:
            outcome = await client.call(
                "GET", f"{url}/v1/vms", deadline_s=DEADLINE_S, headers=tokens.headers(token)
            )
        found.append(vms_of(outcome))
        return 0

    code = lifecycle.run(fetch)
    if code:
        return code
    document = found[0]
    if isinstance(document, str):
        click.echo(f"{url}: {document}", err=True)
        return 1
    if output == "json":
        click.echo(json.dumps(document))
        return 0
    console = Console(file=sys.stdout)
    beside = [*view.beside(document)]
    if not document["vms"]:
        click.echo("\n".join((f"{document.get('node', url)}: the agent answers, and has no VMs", *beside)))
    elif console.is_terminal:
        footer = [*beside, f"agent {document['daemon']} at {url}"]
        console.print(view.screen(document["node"], document["vms"], footer, console.width))
    else:
        for vm in document["vms"]:
            click.echo(view.line(vm))
        for each in beside:
            click.echo(each)
    return 0
