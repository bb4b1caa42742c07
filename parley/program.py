"""The commands `parley` and `kubectl parley`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hosting.asking import DEFAULT_AGENT, Address, ca_option, token_option, warn_of_plain_tokens
from hosting.options import FiniteRange
from parley.top.command import top

if TYPE_CHECKING:
    from hosting.tls import Tls

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or scripts.",
)


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="parley-autoscaler")
def main() -> None:
    """Parley: a vertical autoscaler that negotiates."""


@click.group("kubectl-parley", context_settings=_CONTEXT)
@click.version_option(package_name="parley-autoscaler")
def kubectl_main() -> None:
    """Parley from kubectl (`kubectl parley …`): show an agent's VMs, by its address."""


@main.command()
@click.option(
    "--vms",
    type=click.IntRange(1, 64),
    default=5,
    show_default=True,
    help="How many VMs, `this-machine` among them.",
)
@click.option(
    "--seconds", type=FiniteRange(min=1), help="End by itself so many seconds after the agent's first answer."
)
@click.option(
    "--load", is_flag=True, help="Keep every core busy for a while, to watch `this-machine` grow and shrink."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the synthetic workloads.")
@click.option("--quiet", is_flag=True, help="Print the summary only.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep files, logs and VMs there (a temporary directory otherwise).",
)
@click.option(
    "--cluster",
    type=click.Choice(["kube", "node"]),
    help="On a control plane of Kubernetes: pods on a hollow node (kube), whose load is made up, or on a real one (node).",
)
@_OUTPUT
def demo(**options: Any) -> None:
    """Watch VMs being scaled by negotiation, on this machine.

    Starts a scheduler, an agent and an informant per VM as processes on loopback. `this-machine` has the real load of
    this machine (its resize is simulated); the others follow seeded workloads. Ctrl-C stops everything.

    With --cluster the VMs are pods that kubelets resize in place; all of them follow workloads, and --load means nothing. `make
    kube-assets` builds what that needs, once; a real node needs root.

    Exit codes: 0; 1 when the programs did not come up, or the output cannot be written; 2 for a wrong command line, or a
    directory that another demo runs in or has left its VMs in; 3 when a node was overcommitted, which must never happen; 4 when nobody knows, because the change log was removed.
    """
    from parley import demo as program  # noqa: PLC0415 - `--version` should not load the demo

    sys.exit(program.run(program.DemoOptions(**options)))


@click.command()
@click.option(
    "--agent", "url", type=Address(), default=DEFAULT_AGENT, show_default=True, help="The agent's address."
)
@token_option
@ca_option
@_OUTPUT
def status(url: str, token: str | None, tls: "Tls | None", output: str) -> None:
    """Show what an agent's VMs have, want and may use, and why.

    Exit codes: 0; 1 when no agent answers, or not to us; 2 for a wrong command line.
    """
    from parley import status as program  # noqa: PLC0415 - `--version` should not load the client

    warn_of_plain_tokens([url], token)
    sys.exit(program.show(url, token, tls, output))


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@_OUTPUT
def replay(directory: Path, output: str) -> None:
    """Take a scheduler's journal through the same core again: the same decisions, or the first that differs.

    Exit codes: 0 when every decision is the same; 1 when one differs; 2 when the journal cannot be read; 3 when none
    differs, but there was nothing to replay, or not all of it: a gap, or a line that is only half written.
    """
    from parley import replay as program  # noqa: PLC0415 - `--version` should not load the core

    sys.exit(program.run(directory, output))


main.add_command(status)
main.add_command(top)
kubectl_main.add_command(status)
kubectl_main.add_command(top)
