"""The commands about VMs, nodes and pools for every way to reach the programs: `explain`, and the lists `nodes`, `pools`, `vms`, `history` and `watch`."""

import sys
from collections.abc import Callable
from typing import Any, Final

import click

from parley.reach.ports import Command, Way
from parley.reach.ways import TEXT_OR_JSON, chosen_namespace, complete, full_name, namespace_options, path_of


def explain_command(way: Way) -> click.Command:

    @click.command("explain")
    @click.argument("vm", metavar="[NAMESPACE/]NAME", shell_complete=complete(way, "vms"))
    @click.option("--namespace", "-n", help="The namespace of a VM that is named without one.")
    @click.option(
        "--decisions",
        type=click.IntRange(0, 16),
        default=0,
        show_default=True,
        help="List so many of the last decisions, too, the newest first.",
    )
    @TEXT_OR_JSON
    @way.options
    def explain(vm: str, namespace: str | None, decisions: int, output: str, **options: Any) -> None:
        """Say why a VM has the size that it has. The cause is told in two lines, then the facts behind it, in at most 12.

        The scheduler that leads and the VM's agent are both asked. If only one of them answers, that is said, and the other's part is
        left out.

        The code in brackets at the end of the first line is for scripts, as is `cause.code` in JSON.

        Exit codes: 0; 1 when nobody answers, or nobody who answers knows the VM; 2 for a wrong command line; 130 after Ctrl-C; 141 when the reader of the output has gone.
        """
        from parley.explain import program  # noqa: PLC0415 - `--version` should not load the client

        name = full_name(way, vm, namespace, options)
        if path_of(name) is None:
            raise click.UsageError(f"{vm!r} names no VM: give NAMESPACE/NAME, or NAME and --namespace")
        sys.exit(program.run(way.reach(options), name, decisions, output))

    return explain


_NODE_SORTS: Final = ("node", "reservable", "reserved", "free", "buffer", "pressure", "over-full")
_POOL_SORTS: Final = ("name", "units", "max", "vms", "waiting", "state")
_VM_SORTS: Final = (
    "namespace",
    "name",
    "node",
    "size",
    "permit",
    "wanted",
    "state",
    "limit",
    "pool",
    "asked",
)
_OUTCOMES: Final = ("permitted", "partial", "denied", "held", "refused", "migration")
_CODES: Final = "0; 1 when nobody answers; 2 for a wrong command line; 130 after Ctrl-C; 141 when the reader of the output has gone."
_WATCH_CODES: Final = _CODES.replace("130 after Ctrl-C; ", "").replace("0;", "0, after Ctrl-C, too;", 1)


def commands(way: Way) -> tuple[click.Command, ...]:
    return _nodes(way), _pools(way), _vms(way), _history(way), _watch(way)


def _output(*choices: str) -> Callable[[Command], Command]:
    return click.option(
        "--output",
        "-o",
        type=click.Choice(choices),
        default="table",
        show_default=True,
        help="A table, a wide one, or a document for scripts.",
    )


def _table_options(sorts: tuple[str, ...]) -> Callable[[Command], Command]:
    choices = (*sorts, *(f"-{each}" for each in sorts))

    def decorate(command: Command) -> Command:
        for option in (
            click.option("--no-headers", is_flag=True, help="Leave the heads of the columns out."),
            click.option(
                "--sort",
                type=click.Choice(choices),
                metavar="[-]COLUMN",
                help=f"Sort by a column, the largest first with a minus before it: {', '.join(sorts)}.",
            ),
            _output("table", "wide", "json"),
        ):
            command = option(command)
        return command

    return decorate


def _no_namespaces(command: Command) -> Command:
    """Options of namespaces for lists of objects without one: a user who types them for every command shall not be refused."""
    why = "Without effect: these are in no namespace."
    every = click.option("--all-namespaces", "-A", is_flag=True, expose_value=False, help=why)
    return click.option("--namespace", "-n", expose_value=False, help=why)(every(command))


def _nodes_option(way: Way) -> Callable[[Command], Command]:
    return click.option(
        "--node",
        "nodes",
        multiple=True,
        shell_complete=complete(way, "nodes"),
        help="On nodes whose names match this glob; may be given again.",
    )


def _outcomes_option(command: Command) -> Command:
    return click.option(
        "--outcome",
        "outcomes",
        multiple=True,
        type=click.Choice(_OUTCOMES),
        help="With this outcome; may be given again.",
    )(command)


def _nodes(way: Way) -> click.Command:
    @click.command("nodes", epilog=f"Exit codes: {_CODES}")
    @click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete(way, "nodes"))
    @click.option("--over-full", is_flag=True, help="Nodes with more reserved than may be.")
    @click.option(
        "--pressure", is_flag=True, help="Nodes with pressure: growth was denied there for want of room."
    )
    @_no_namespaces
    @_table_options(_NODE_SORTS)
    @way.options
    def nodes(
        names: tuple[str, ...], output: str, no_headers: bool, sort: str | None, **options: Any
    ) -> None:
        """List nodes: what may be reserved, what is, and what is free. Amounts are CPUs/memory. NAME may be a glob, such as 'big-*'.

        The filters together must all hold.
        """
        from parley.listing import program  # noqa: PLC0415 - `--version` should not load the client
        from parley.listing.core.tables import NodeFilter  # noqa: PLC0415 - as above

        style = program.Style(output, sort, has_heads=not no_headers)
        wanted = NodeFilter(names, options.pop("over_full"), options.pop("pressure"))
        sys.exit(program.nodes(way.reach(options), wanted, style))

    return nodes


def _pools(way: Way) -> click.Command:
    @click.command("pools", epilog=f"Exit codes: {_CODES}")
    @click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete(way, "pools"))
    @click.option(
        "--state",
        "states",
        multiple=True,
        help="In a state that matches this glob, such as Parked, in any case; may be given again.",
    )
    @_no_namespaces
    @_table_options(_POOL_SORTS)
    @way.options
    def pools(
        names: tuple[str, ...], output: str, no_headers: bool, sort: str | None, **options: Any
    ) -> None:
        """List pools: their units and limits, and if they admit more. NAME may be a glob.

        The filters together must all hold.
        """
        from parley.listing import program  # noqa: PLC0415 - `--version` should not load the client
        from parley.listing.core.tables import PoolFilter  # noqa: PLC0415 - as above

        style = program.Style(output, sort, has_heads=not no_headers)
        wanted = PoolFilter(names, options.pop("states"))
        sys.exit(program.pools(way.reach(options), wanted, style))

    return pools


def _vms(way: Way) -> click.Command:
    @click.command("vms", epilog=f"Exit codes: {_CODES}")
    @click.argument("names", metavar="[[NAMESPACE/]NAME]...", nargs=-1, shell_complete=complete(way, "vms"))
    @namespace_options
    @_nodes_option(way)
    @click.option(
        "--pool",
        "pools",
        multiple=True,
        shell_complete=complete(way, "pools"),
        help="In pools whose names match this glob; may be given again.",
    )
    @_outcomes_option
    @_table_options(_VM_SORTS)
    @way.options
    def vms(names: tuple[str, ...], output: str, no_headers: bool, sort: str | None, **options: Any) -> None:
        """List VMs: what each has, may have and asked for last. Amounts are CPUs/memory; beside the request is what became of it.

        NAME may be a glob, such as 'web-*'; with a slash it names the namespace, too: 'ci-*/web-*'. The filters together must all hold.
        """
        from parley.listing import program  # noqa: PLC0415 - `--version` should not load the client
        from parley.listing.core.decisions import VmFilter, outcomes_of  # noqa: PLC0415 - as above

        chosen = chosen_namespace(way, options)
        nodes, pools, outcomes = (options.pop(name) for name in ("nodes", "pools", "outcomes"))
        wanted = VmFilter(chosen, names, nodes, pools, outcomes_of(outcomes))
        style = program.Style(output, sort, has_heads=not no_headers)
        sys.exit(program.vms(way.reach(options), wanted, style))

    return vms


def _history(way: Way) -> click.Command:
    @click.command("history", epilog=f"Exit codes: {_CODES}")
    @click.argument("vm", metavar="[NAMESPACE/]NAME", shell_complete=complete(way, "vms"))
    @click.option("--namespace", "-n", help="The namespace of a VM that is named without one.")
    @_outcomes_option
    @click.option("--no-headers", is_flag=True, help="Leave the heads of the columns out.")
    @_output("table", "wide", "json")
    @way.options
    def history(
        vm: str,
        namespace: str | None,
        outcomes: tuple[str, ...],
        no_headers: bool,
        output: str,
        **options: Any,
    ) -> None:
        """List the last decisions on a VM, the oldest first. They are the scheduler's; the agent's last events are among them, if it
        answers.

        With --outcome only decisions are listed, and the scheduler must answer. A wide table has the events that come all the time, too.
        """
        from parley.listing import history as program  # noqa: PLC0415 - `--version` should not load the client

        name = full_name(way, vm, namespace, options)
        if path_of(name) is None:
            raise click.UsageError(f"{vm!r} names no VM: give NAMESPACE/NAME, or NAME and --namespace")
        wanted = program.HistoryOptions(name, outcomes, output, has_heads=not no_headers)
        sys.exit(program.run(way.reach(options), wanted))

    return history


def _watch(way: Way) -> click.Command:
    @click.command("watch", epilog=f"Exit codes: {_WATCH_CODES}")
    @click.argument("names", metavar="[[NAMESPACE/]NAME]...", nargs=-1, shell_complete=complete(way, "vms"))
    @namespace_options
    @_nodes_option(way)
    @_outcomes_option
    @click.option(
        "--since-start",
        is_flag=True,
        help="Begin with the decisions that the scheduler remembers, and not with the next one.",
    )
    @click.option("--count", type=click.IntRange(min=1), help="End after so many decisions.")
    @_output("table", "wide", "json")
    @way.options
    def watch(
        names: tuple[str, ...], since_start: bool, count: int | None, output: str, **options: Any
    ) -> None:
        """Watch decisions as they fall, one line each, until Ctrl-C. With --output json each is an object on one line.

        A wide line has the decision's number, its request's, the VM's uid, node and unit, too, when asking again may help, and messages uncut.

        NAME may be a glob, as with `vms`. A scheduler that does not answer is asked again with growing waits, and one that was restarted is followed anew; that,
        and decisions that were forgotten before they could be told, is said on standard error. The first call must be answered.
        """
        from parley.listing import watching as program  # noqa: PLC0415 - `--version` should not load the client

        chosen = chosen_namespace(way, options)
        wanted = program.WatchOptions(
            chosen,
            names,
            options.pop("nodes"),
            options.pop("outcomes"),
            output=output,
            is_from_start=since_start,
            count=count,
        )
        sys.exit(program.run(way.reach(options), wanted))

    return watch
