"""`parley completion`: the script by which a shell completes commands, options and names."""

import sys

import click

_SHELLS = ("bash", "zsh", "fish")


def completion_command(program: str) -> click.Command:
    """`completion` for the command `program`, such as `parley`."""

    @click.command(
        "completion",
        epilog=f"bash: source <({program} completion bash); zsh: source <({program} completion zsh); fish: {program} completion fish | source",
    )
    @click.argument("shell", type=click.Choice(_SHELLS))
    @click.pass_context
    def completion(ctx: click.Context, shell: str) -> None:
        """Print the script by which SHELL completes our commands. Options are completed as well, and the names of VMs, nodes and pools.

        Names come from the scheduler, where it answers within a second; else there are none.
        """
        from click.shell_completion import get_completion_class  # noqa: PLC0415 - needed here only

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
