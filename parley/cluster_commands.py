"""`kubectl parley status` and `kubectl parley top`: what agents on any node say of themselves."""

import asyncio
import json
import sys
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from parley.listing.namespaces import chosen_namespace, namespace_options
from parley.reach.ports import NoAnswer, Reach, Way
from parley.reach.vm_names import complete_nodes

if TYPE_CHECKING:
    from protocol.agent_pages import AgentVms


class OptionsFirstGroup(click.Group):
    """Hands what is given before the command down to it, as the default of its own option of that name; the command's own word goes before it.

    A command without such an option ignores it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As every group; the commands' defaults are known afterwards, for the completion of a shell as well."""
        rest = super().parse_args(ctx, args)
        given = {
            name: value
            for name, value in ctx.params.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        ctx.default_map = dict.fromkeys(self.commands, given)
        return rest


AT_ONCE: Final = 16
MAX_AGENTS: Final = 1000
"""How many nodes `status` asks: further ones want a glob."""
MAX_FAULT: Final = 1000


def status_command(way: Way) -> click.Command:
    """`status`, which reaches the agents by `way`."""

    @click.command("status")
    @click.argument("nodes", metavar="[NODE]...", nargs=-1, shell_complete=complete_nodes(way))
    @namespace_options
    @click.option(
        "--output",
        "-o",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="For people or scripts.",
    )
    @way.options
    def status(nodes: tuple[str, ...], output: str, **options: Any) -> None:
        """Show what each VM has, wants and may use, and why. Their agents are asked. NODE may be a glob; all nodes without one, at
        most 1000.

        Exit codes: 0; 1 when an agent does not answer, or not to us; 2 for a wrong command line; 130 after Ctrl-C; 141 when the reader of the output has gone.
        """
        chosen = chosen_namespace(way, options)
        sys.exit(_show(way.reach(options), nodes, chosen, output))

    return status


def top_command(way: Way) -> click.Command:
    """`top`, which reaches the agents by `way`."""

    @click.command("top")
    @namespace_options
    @click.option(
        "--node",
        "nodes",
        multiple=True,
        shell_complete=complete_nodes(way),
        help="On nodes whose names match this glob; may be given again.",
    )
    @way.options
    def top(nodes: tuple[str, ...], **options: Any) -> None:
        """Watch the VMs live: what each has, wants and may use, and why. Every agent is asked every other second.
        The nodes are those that have an agent at the start, at most 64: call it again to see one that comes later.

        The keys are those of `parley top`: s and S sort, r reverses, / filters, enter shows a VM, q ends. Needs the extra `top`;
        `kubectl parley status` shows the same once and needs nothing.

        Exit codes: 0; 1 when no agent can be reached; 2 for a wrong command line, if there is no terminal, or if textual is not installed.
        """
        from parley.top.needs import loaded_app  # noqa: PLC0415 - `--version` should not load it
        from parley.top.source import NoAgentsError, ReachSource  # noqa: PLC0415 - as above

        chosen = chosen_namespace(way, options)
        source = ReachSource(way.reach(options), nodes, chosen)
        app = loaded_app("kubectl parley")
        try:
            sys.exit(app.run(source))
        except NoAgentsError as error:
            click.echo(str(error), err=True)
            sys.exit(1)

    return top


def _show(
    way: AbstractAsyncContextManager[Reach], globs: tuple[str, ...], namespace: str | None, output: str
) -> int:
    from hosting import lifecycle  # noqa: PLC0415 - `--version` should not load the client
    from parley.listing import output as outputs  # noqa: PLC0415 - as above
    from parley.top.source import NoAgentsError, chosen, vms_of, within  # noqa: PLC0415 - as above

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
        _print([told[agent] for agent in sorted(told)], sorted(faults), output)
        return outputs.NOBODY if faults else 0

    return outputs.run(main)


def _print(documents: "list[AgentVms]", faults: list[str], output: str) -> None:
    import msgspec  # noqa: PLC0415 - `--version` should not load it

    from parley import view  # noqa: PLC0415 - as above
    from parley.top.texts import clean  # noqa: PLC0415 - as above

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
