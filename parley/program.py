"""The commands `parley` and `kubectl parley`."""

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hosting.options import FiniteRange
from labs.vms.command import vm
from parley.agent_commands import status, status_command, top, top_command
from parley.certs.commands import certs
from parley.commands import commands, explain_command
from parley.completion import completion_command
from parley.reach.ways import TEXT_OR_JSON, ByAddress, ByCluster
from parley.vm_choice import QemuGuests, VmsOption

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="parley-autoscaler")
def main() -> None:
    """Parley: a vertical autoscaler that negotiates."""


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


_BY_ADDRESS, _BY_CLUSTER = ByAddress(), ByCluster()


@click.group("kubectl parley", cls=OptionsFirstGroup, context_settings=_CONTEXT)
@click.version_option(package_name="parley-autoscaler", prog_name="kubectl parley")
@_BY_CLUSTER.options
@click.option("--namespace", "-n", help="The namespace of VMs, where the command is about any.")
@click.option(
    "--all-namespaces", "-A", is_flag=True, help="VMs of all namespaces, where the command lists any."
)
def kubectl_main(**_: object) -> None:
    """Why every VM has the size that it has, by kubeconfig and context, as kubectl has them.

    The options may be given here or after the command, whose own ones count first.

    Schedulers and agents are reached through the API server, which needs the rights of the Role parley-viewer in parley-system.
    """


@main.command()
@click.option(
    "--vms",
    type=VmsOption(),
    default=5,
    show_default=True,
    help="How many VMs, `this-machine` among them; or qemu[:N] for N real guests under QEMU (2 unless told otherwise, 4 at most).",
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
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the live view there at the end, as an SVG; the name must end in .svg.",
)
@click.option(
    "--cluster",
    type=click.Choice(["kube", "node"]),
    help="On a control plane of Kubernetes: pods on a hollow node (kube), whose load is made up, or on a real one (node).",
)
@TEXT_OR_JSON
def demo(vms: int | QemuGuests, cluster: str | None, **options: Any) -> None:
    """Watch VMs being scaled by negotiation, on this machine.

    Starts a scheduler, an agent and an informant per VM as processes on loopback. `this-machine` has the real load of
    this machine (its resize is simulated); the others follow seeded workloads. Ctrl-C stops everything.

    With --cluster the VMs are pods that kubelets resize in place; all of them follow workloads, and --load means nothing. `make
    kube-assets` builds what that needs, once; a real node needs root.

    With --vms qemu the VMs are Linux guests under QEMU, whose vCPUs and memory are plugged, and taken back, while they run. Load
    generators inside follow a script, and --load means nothing. `make vm-assets` gets what that needs, once; root and KVM are not needed.

    Exit codes: 0; 1 when the programs did not come up, or the output cannot be written; 2 for a wrong command line, or a
    directory that another demo runs in or has left its VMs in; 3 when a node was overcommitted, which must never happen; 4 when nobody knows, because the change log was removed.
    """
    from parley import demo as program  # noqa: PLC0415 - `--version` should not load the demo

    picture = options["picture"]
    if picture is not None and picture.suffix.lower() != ".svg":
        raise click.UsageError(f"--picture {picture}: the picture is an SVG. Give a name that ends in .svg")
    if picture is not None and not picture.parent.is_dir():
        raise click.UsageError(f"--picture {picture}: there is no directory {picture.parent}")
    if cluster is not None and isinstance(vms, QemuGuests):
        raise click.UsageError(
            "--vms qemu and --cluster exclude each other: guests under QEMU are in no cluster. Give a number of pods, or no --cluster"
        )
    sys.exit(program.run(program.DemoOptions(vms=vms, cluster=cluster, **options)))


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@TEXT_OR_JSON
def replay(directory: Path, output: str) -> None:
    """Decide again what a scheduler's journal holds. The same core makes the same decisions, or the first that differs is told.

    Exit codes: 0 when every decision is the same; 1 when one differs; 2 when the journal cannot be read; 3 when none
    differs, but there was nothing to replay, or not all of it: a gap, or a line that is only half written.
    """
    from parley import replay as program  # noqa: PLC0415 - `--version` should not load the core

    sys.exit(program.run(directory, output))


for _command in (
    status,
    top,
    vm,
    certs,
    explain_command(_BY_ADDRESS),
    *commands(_BY_ADDRESS),
    completion_command("parley"),
):
    main.add_command(_command)
for _command in (
    explain_command(_BY_CLUSTER),
    *commands(_BY_CLUSTER),
    status_command(_BY_CLUSTER),
    top_command(_BY_CLUSTER),
):
    kubectl_main.add_command(_command)


def kubectl_plugin() -> None:
    """The program `kubectl-parley`, which people call as `kubectl parley`: so do its help and its faults."""
    kubectl_main(prog_name="kubectl parley")
