"""`parley status`: ask an agent what its VMs have and why."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from hosting import lifecycle
from hosting.client import Answered, Client, Unanswered
from parley import view


async def _fetch(url: str) -> Mapping[str, Any] | str:
    """The agent's document, or what went wrong."""
    async with Client(max_answer_bytes=4 * 2**20) as client:
        outcome = await client.call("GET", f"{url.rstrip('/')}/v1/vms", deadline_s=5.0)
    match outcome:
        case Unanswered(_, message):
            return f"no agent answers at {url}: {message}"
        case Answered(200, body, _):
            try:
                document = json.loads(body)
                return document if isinstance(document, dict) and "vms" in document else f"{url} is no agent"
            except ValueError:
                return f"{url} is no agent: its answer is not JSON"
        case Answered(status, _, _):
            return f"{url} is no agent: it answered with status {status}"


def show(url: str, output: str) -> int:
    """Print the state of an agent's VMs; 1 when it does not answer."""
    url = url if "://" in url else f"http://{url}"
    found: list[Mapping[str, Any] | str] = []

    async def fetch(_: lifecycle.Stop) -> int:
        found.append(await _fetch(url))
        return 0

    code = lifecycle.run(fetch)
    if code:
        return code
    document = found[0]
    if isinstance(document, str):
        click.echo(document, err=True)
        return 1
    if output == "json":
        click.echo(json.dumps(document))
        return 0
    console = Console(file=sys.stdout)
    if console.is_terminal:
        found_by = f"agent {document['daemon']}"
        console.print(view.table(document["node"], document["vms"], [], found_by, console.width))
    else:
        for vm in document["vms"]:
            click.echo(view.line(vm))
    return 0
