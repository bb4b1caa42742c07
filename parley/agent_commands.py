"""`status` and `top`, by addresses and for a cluster: what agents say of themselves. Nothing here needs textual: `--help` works without it, and
so does saying what is missing."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click

from hosting.options import (
    DEFAULT_AGENT,
    Address,
    agents_option,
    ca_option,
    scheduler_option,
    token_option,
    warn_of_plain_tokens,
)
from parley.reach.ports import Way
from parley.reach.ways import TEXT_OR_JSON, chosen_namespace, complete, namespace_options

if TYPE_CHECKING:
    from hosting.tls import Tls

MAX_TOP_AGENTS: Final = 64
PERIOD_S: Final = 1.0


@click.command()
@click.option(
    "--agent",
    "url",
    type=Address(),
    default=DEFAULT_AGENT,
    show_default=True,
    envvar="PARLEY_AGENT",
    show_envvar=True,
    help="The agent's address.",
)
@token_option
@ca_option
@TEXT_OR_JSON
def status(url: str, token: str | None, tls: "Tls | None", output: str) -> None:
    """Show what an agent's VMs have, want and may use, and why.

    Exit codes: 0; 1 when no agent answers, or not to us; 2 for a wrong command line; 130 after Ctrl-C; 141 when the reader of the output has gone.
    """
    from parley import status as program  # noqa: PLC0415 - `--version` should not load the client

    warn_of_plain_tokens([url], token)
    sys.exit(program.show(url, token, tls, output))


@click.command()
@agents_option
@scheduler_option
@token_option
@ca_option
def top(agents: tuple[str, ...], schedulers: tuple[str, ...], token: str | None, tls: "Tls | None") -> None:
    """Watch the VMs of one or several agents live. Each is shown with what it has, wants and may use, and why.

    Every agent is asked once a second. One that does not answer is named above the table and asked again, with growing waits; its VMs
    stay, in the state `away`. Above the table each node has a bar: the busy and the reserved part of the reservable amount, or of the
    permitted one while no scheduler answers. Below it are the load and the permit of the VM under the cursor over the last minutes, and
    the last events.

    \b
    Keys:
      s, S    sort by the next column, by the one before (or click on its head)
      r       reverse the order
      /       show only VMs whose name, state or reason holds all of some words
      escape  show all again; leave the details
      enter   details of a VM: its plan, the reasons, and what happened last
      q       end

    TEXTUAL_THEME chooses the colours (textual-light, nord, …), NO_COLOR=1 switches them off. Needs the extra `top`;
    `parley status` shows the same once and needs nothing.

    Exit codes: 0; 2 for a wrong command line, if there is no terminal, or if textual is not installed.
    """
    unique = tuple(dict.fromkeys(agents))
    if len(unique) > MAX_TOP_AGENTS:
        raise click.UsageError(f"at most {MAX_TOP_AGENTS} agents can be shown together")
    app = _loaded_app("parley")
    warn_of_plain_tokens(unique, token)
    from parley.reach.asking import DirectReach  # noqa: PLC0415 - `--version` should not load the client
    from parley.top.source import ReachSource  # noqa: PLC0415 - as above

    sys.exit(app.run(ReachSource(DirectReach(schedulers, unique, token, tls), period_s=PERIOD_S)))


def status_command(way: Way) -> click.Command:
    @click.command("status")
    @click.argument("nodes", metavar="[NODE]...", nargs=-1, shell_complete=complete(way, "nodes"))
    @namespace_options
    @TEXT_OR_JSON
    @way.options
    def status(nodes: tuple[str, ...], output: str, **options: Any) -> None:
        """Show what each VM has, wants and may use, and why. Their agents are asked. NODE may be a glob; all nodes without one, at
        most 1000.

        Exit codes: 0; 1 when an agent does not answer, or not to us; 2 for a wrong command line; 130 after Ctrl-C; 141 when the reader of the output has gone.
        """
        from parley import status as program  # noqa: PLC0415 - `--version` should not load the client

        chosen = chosen_namespace(way, options)
        sys.exit(program.show_nodes(way.reach(options), nodes, chosen, output))

    return status


def top_command(way: Way) -> click.Command:
    @click.command("top")
    @namespace_options
    @click.option(
        "--node",
        "nodes",
        multiple=True,
        shell_complete=complete(way, "nodes"),
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
        from parley.top.source import NoAgentsError, ReachSource  # noqa: PLC0415 - `--version` should not load the client

        chosen = chosen_namespace(way, options)
        source = ReachSource(way.reach(options), nodes, chosen)
        app = _loaded_app("kubectl parley")
        try:
            sys.exit(app.run(source))
        except NoAgentsError as error:
            click.echo(str(error), err=True)
            sys.exit(1)

    return top


def _loaded_app(program: str) -> ModuleType:
    """The module that draws. Ends the program if textual or a terminal is missing, and says which; `program` is what people typed before `top`."""
    try:
        from parley.top import app  # noqa: PLC0415 - optional, and slow to load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        click.echo(
            f"{program} top needs textual, which is not installed here. In Parley's directory, the extra `top`:\n"
            "  .venv/bin/pip install '.[top]'\n"
            f"Without it, `{program} status` shows the same once.",
            err=True,
        )
        sys.exit(2)
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        click.echo(f"{program} top needs a terminal; `{program} status` prints the same once.", err=True)
        sys.exit(2)
    return app
