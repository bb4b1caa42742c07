"""The command `parley top`. Nothing here needs textual: `--help` works without it, and so does saying what is missing."""

import sys
from typing import TYPE_CHECKING, Final

import click

from hosting.asking import DEFAULT_AGENT, Address, ca_option, token_option, warn_of_plain_tokens

if TYPE_CHECKING:
    from hosting.tls import Tls

MAX_AGENTS: Final = 64


@click.command()
@click.option(
    "--agent",
    "agents",
    type=Address(),
    multiple=True,
    default=(DEFAULT_AGENT,),
    show_default=True,
    help="The address of an agent; give it again for each further one.",
)
@token_option
@ca_option
def top(agents: tuple[str, ...], token: str | None, tls: "Tls | None") -> None:
    """Watch the VMs of one or several agents live: what each has, wants and may use, and why.

    Every agent is asked once a second. One that does not answer is named above the table and asked again, with growing
    waits; its VMs stay, in the state `away`.

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

    Exit codes: 0; 2 for a wrong command line, where there is no terminal, or where textual is not installed.
    """
    unique = tuple(dict.fromkeys(agents))
    if len(unique) > MAX_AGENTS:
        raise click.UsageError(f"at most {MAX_AGENTS} agents can be shown together")
    try:
        from parley.top import app  # noqa: PLC0415 - textual is optional and slow to load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "textual":
            raise
        click.echo(
            "parley top needs textual, which is not installed here. In Parley's directory, the extra `top`:\n"
            "  .venv/bin/pip install '.[top]'\n"
            "Without it, `parley status` shows the same once.",
            err=True,
        )
        sys.exit(2)
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        click.echo("parley top needs a terminal; `parley status` prints the same once.", err=True)
        sys.exit(2)
    warn_of_plain_tokens(unique, token)
    sys.exit(app.run(unique, token, tls))
