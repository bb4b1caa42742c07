"""The command `explain`, for every way to reach the programs."""

import sys
from typing import Any

import click

from parley.agent_commands import TEXT_OR_JSON
from parley.reach.ports import Way
from parley.reach.ways import complete, full_name, path_of


def explain_command(way: Way) -> click.Command:
    """`explain`, which reaches the programs by `way`."""

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
