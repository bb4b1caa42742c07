"""The command `parley top`. Nothing here needs textual: `--help` works without it, and so does saying what is missing."""

import sys
from typing import TYPE_CHECKING, Final

import click

from hosting.options import (
    agents_option,
    ca_option,
    scheduler_option,
    token_option,
    warn_of_plain_tokens,
)
from parley.top.needs import loaded_app

if TYPE_CHECKING:
    from hosting.tls import Tls

MAX_AGENTS: Final = 64
PERIOD_S: Final = 1.0


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
    if len(unique) > MAX_AGENTS:
        raise click.UsageError(f"at most {MAX_AGENTS} agents can be shown together")
    app = loaded_app("parley")
    warn_of_plain_tokens(unique, token)
    from parley.reach.direct import DirectReach  # noqa: PLC0415 - `--version` should not load the client
    from parley.top.source import ReachSource  # noqa: PLC0415 - as above

    sys.exit(app.run(ReachSource(DirectReach(schedulers, unique, token, tls), period_s=PERIOD_S)))
