"""The command `parley top`. Nothing here needs textual: `--help` works without it, and so does saying what is missing."""

import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

DEFAULT_AGENT: Final = "http://127.0.0.1:10300"
MAX_AGENTS: Final = 64


class Address(click.ParamType[str]):
    """The address of an agent: a URL, or host and port."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as a URL without a path. Fails for what is none."""
        url = str(value) if "://" in str(value) else f"http://{value}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            self.fail(f"{value!r} is no address of an agent: {str(error).lower()}", param, ctx)
        plain = parts.path in {"", "/"} and not parts.query and not parts.fragment
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or not plain:
            self.fail(f"{value!r} is no address of an agent, such as {DEFAULT_AGENT}", param, ctx)
        if not url.isascii() or not url.isprintable() or " " in url or port == 0:
            self.fail(f"{value!r} is no address of an agent, such as {DEFAULT_AGENT}", param, ctx)
        return f"{parts.scheme}://{parts.netloc}"


class TokenFile(click.Path):
    """A file with a bearer token, read at once."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The token. Fails where the file holds none; never quotes what it holds."""
        path = Path(str(super().convert(value, param, ctx)))
        try:
            with path.open("rb") as file:
                token = file.read(4096).decode("ascii").strip()
        except OSError as error:
            self.fail(f"{path} cannot be read: {error.strerror}", param, ctx)
        except UnicodeDecodeError:
            self.fail(f"{path} must hold a token of 16 to 512 printable characters", param, ctx)
        if not 16 <= len(token) <= 512 or not token.isprintable() or " " in token:
            self.fail(f"{path} must hold a token of 16 to 512 printable characters", param, ctx)
        return token


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
@click.option(
    "--token-file",
    "token",
    type=TokenFile(),
    help="Show the token in this file to the agents (what they were started with as --token-file).",
)
def top(agents: tuple[str, ...], token: str | None) -> None:
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
            "parley top needs textual, which is not installed here. Install Parley with the extra `top`:\n"
            "  pip install 'parley-autoscaler[top]'\n"
            "Without it, `parley status` shows the same once.",
            err=True,
        )
        sys.exit(2)
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        click.echo("parley top needs a terminal; `parley status` prints the same once.", err=True)
        sys.exit(2)
    sys.exit(app.run(unique, token))
