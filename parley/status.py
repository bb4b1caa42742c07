"""`parley status`: the sizes of an agent's VMs, and the reasons."""

import sys

import click
import msgspec
from rich.console import Console

from hosting import lifecycle
from hosting.tls import Tls
from parley import layout, view
from parley.listing import output as outputs
from parley.reach.direct import DirectReach
from parley.reach.ports import NoAnswer
from parley.top.source import vms_of
from parley.top.texts import MAX_LINE, clean
from protocol.agent_pages import AgentVms


def show(url: str, token: str | None, tls: Tls | None, output: str) -> int:
    """Print the state of an agent's VMs; the exit code."""

    async def main(_: lifecycle.Stop) -> int:
        async with DirectReach((), (url,), token, tls) as reach:
            found = await vms_of(reach, url)
        if isinstance(found, NoAnswer):
            click.echo(clean(found.fault, MAX_LINE), err=True)
            return outputs.NOBODY
        _print(url, found, output)
        return 0

    return outputs.run(main)


def _print(url: str, document: AgentVms, output: str) -> None:
    if output == "json":
        click.echo(msgspec.json.encode(document).decode())
        return
    console = Console(file=sys.stdout)
    notes = [*view.notes(document)]
    if not document.vms:
        click.echo("\n".join((f"{document.node or url}: the agent answers, and has no VMs", *notes)))
    elif console.is_terminal:
        footer = [*notes, f"agent {document.daemon} at {url}"]
        console.print(layout.screen(document.node, document.vms, footer, console.width))
    else:
        for line in (*map(view.line, document.vms), *notes):
            click.echo(line)
