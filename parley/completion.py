"""`parley completion`: the script by which a shell completes commands, options and names."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

_SHELLS = ("bash", "zsh", "fish")


def completion_command(program: str) -> click.Command:

    @click.command(
        "completion",
        epilog=f"bash: source <({program} completion bash); zsh: source <({program} completion zsh); fish: {program} completion fish | source",
    )
    @click.argument("shell", type=click.Choice(_SHELLS))
    @click.pass_context
    def completion(ctx: click.Context, shell: str) -> None:
        """Print the script by which SHELL completes our commands. Options are completed as well, and the names of VMs, nodes and pools.

        Names come from the scheduler, if it answers within a second; else there are none.
        """
        from parley.listing import output as outputs  # noqa: PLC0415 - `--version` should not load the client

        kind = get_completion_class(shell)
        assert kind is not None, shell
        script = kind(ctx.find_root().command, {}, program, variable(program)).source()

        def tell() -> int:
            click.echo(script)
            return 0

        sys.exit(outputs.ended(tell))

    return completion


def variable(program: str) -> str:
    """The variable by which the shell's script calls the program, as click names it."""
    return f"_{program.replace('-', '_').replace('.', '_')}_COMPLETE".upper()


KEEP_ORDER_NO_FILES: Final = ":36"
"""ShellCompDirectiveNoFileComp and ShellCompDirectiveKeepOrder."""
FILES: Final = ":0"
"""ShellCompDirectiveDefault: the shell completes names of files."""
DIRECTORIES: Final = ":16"
"""ShellCompDirectiveFilterDirs."""
_DIRECTIVES: Final = {"file": FILES, "dir": DIRECTORIES}


def answer(command: click.Command, words: Sequence[str]) -> Iterator[str]:
    """The lines for kubectl. Faults of what is typed so far lead to no choices."""
    *typed, incomplete = words or ("",)
    found = ShellComplete(command, {}, "kubectl parley", "_KUBECTL_PARLEY_COMPLETE").get_completions(
        list(typed), incomplete
    )
    directive = KEEP_ORDER_NO_FILES
    for each in found:
        if each.type in _DIRECTIVES:
            directive = _DIRECTIVES[each.type]
        elif each.value:
            meaning = " ".join((each.help or "").split())
            yield f"{each.value}\t{meaning}" if meaning else str(each.value)
    yield directive


def main() -> None:
    from parley.program import kubectl_main  # noqa: PLC0415 - the commands import much

    for line in answer(kubectl_main, sys.argv[1:]):
        print(line)
