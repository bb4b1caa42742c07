"""`parley status` and `kubectl parley status`: the sizes of an agent's VMs, or of those of many nodes, and the reasons."""

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from typing import Final

import click
import msgspec
from rich.console import Console

from hosting import lifecycle
from hosting.tls import Tls
from parley import layout, view
from parley.listing import output as outputs
from parley.reach.asking import DirectReach
from parley.reach.ports import NoAnswer, Reach
from parley.top.source import NoAgentsError, chosen, vms_of, within
from parley.top.texts import MAX_LINE, clean
from protocol.agent_pages import AgentVms

AT_ONCE: Final = 16
MAX_AGENTS: Final = 1000
"""How many nodes are asked together: further ones want a glob."""
MAX_FAULT: Final = 1000


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


def show_nodes(
    way: AbstractAsyncContextManager[Reach], globs: tuple[str, ...], namespace: str | None, output: str
) -> int:
    """Print the state of the VMs of every node that matches one of `globs` (all without any), in one namespace (None: in all); the exit code."""
    told: dict[str, AgentVms] = {}
    faults: list[str] = []

    async def ask(reach: Reach) -> None:
        agents = await reach.agents()
        if isinstance(agents, NoAnswer):
            faults.append(agents.fault)
            return
        try:
            asked = chosen(agents, globs)
        except NoAgentsError as error:
            faults.append(str(error))
            return
        if len(asked) > MAX_AGENTS:
            faults.append(
                f"at most {MAX_AGENTS} nodes can be asked together, and there are {len(asked)}: choose some, such as '{asked[0][:3]}*'"
            )
            return
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(agent: str) -> None:
            async with gate:
                answer = await vms_of(reach, agent)
            if isinstance(answer, NoAnswer):
                faults.append(answer.fault)
            else:  # what is not shown is not kept: there may be many nodes
                told[agent] = within(answer, namespace)

        async with asyncio.TaskGroup() as tasks:
            for agent in asked:
                tasks.create_task(one(agent), name=f"status {agent}")

    async def main(_: lifecycle.Stop) -> int:
        async with way as reach:
            await ask(reach)
        _print_nodes([told[agent] for agent in sorted(told)], sorted(faults), output)
        return outputs.NOBODY if faults else 0

    return outputs.run(main)


def _print_nodes(documents: list[AgentVms], faults: list[str], output: str) -> None:
    if output == "json":
        click.echo(json.dumps({"agents": msgspec.to_builtins(documents)}))
    else:
        for document in documents:
            lines = [view.line(vm) for vm in document.vms]
            node = clean(document.node) or "?"
            for line in (f"{node}:", *(lines or ["no VMs"]), *view.notes(document)):
                click.echo(line)
    for fault in faults:
        click.echo(clean(fault, MAX_FAULT), err=True)
