"""The needs of the live view: textual, which is optional and slow to load, and a terminal."""

import sys
from types import ModuleType

import click


def loaded_app(program: str) -> ModuleType:
    """The module that draws. Ends the program if something is missing, and says what; `program` is what people typed before `top`."""
    try:
        from parley.top import app  # noqa: PLC0415 - see the module
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
