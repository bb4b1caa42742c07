"""Options of the commands that call agents: an address, a token, the authorities that are trusted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from hosting import options, tokens
from hosting.addresses import is_own

DEFAULT_AGENT: Final = "http://127.0.0.1:10300"
DEFAULT_SCHEDULER: Final = "http://127.0.0.1:10299"


class Address(click.ParamType[str]):
    """The address of an agent, or of `whom`: a URL, or host and port."""

    name = "url"

    def __init__(self, whom: str = "an agent", example: str = DEFAULT_AGENT) -> None:
        self._whom, self._example = whom, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The address as a URL without a path. Fails for anything else."""
        url = str(value) if "://" in str(value) else f"http://{value}"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            self.fail(f"{value!r} is no address of {self._whom}: {str(error).lower()}", param, ctx)
        plain = parts.path in {"", "/"} and not parts.query and not parts.fragment
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc or not plain:
            self.fail(f"{value!r} is no address of {self._whom}, such as {self._example}", param, ctx)
        if not url.isascii() or not url.isprintable() or " " in url or port == 0:
            self.fail(f"{value!r} is no address of {self._whom}, such as {self._example}", param, ctx)
        return f"{parts.scheme}://{parts.netloc}"


class CaFile(click.Path):
    """A file with the certificates of the authorities that are trusted for https://."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """TLS with these authorities. Fails if the file cannot be used."""
        from hosting.tls import Tls, TlsError, TlsFiles  # noqa: PLC0415 - `--version` should not load it

        tls = Tls(TlsFiles(ca=Path(str(super().convert(value, param, ctx)))))
        try:
            tls.load()
        except TlsError as error:
            self.fail(str(error), param, ctx)
        return tls


scheduler_option = click.option(
    "--scheduler",
    "schedulers",
    type=Address("a scheduler", DEFAULT_SCHEDULER),
    multiple=True,
    default=(DEFAULT_SCHEDULER,),
    show_default=True,
    envvar="PARLEY_SCHEDULER",
    show_envvar=True,
    help="The address of a scheduler; give it again for each further one: the one that leads is asked.",
)
agents_option = click.option(
    "--agent",
    "agents",
    type=Address(),
    multiple=True,
    default=(DEFAULT_AGENT,),
    show_default=True,
    envvar="PARLEY_AGENT",
    show_envvar=True,
    help="The address of an agent; give it again for each further one.",
)
"""Of commands that ask several agents."""

token_option = click.option(
    "--token-file",
    "token",
    type=options.TokenFile(),
    help=f"Show the token in this file ({tokens.RULE}), which the agent was started with as --token-file.",
)
ca_option = click.option(
    "--ca-file",
    "tls",
    type=CaFile(),
    help="Trust the authorities in this file (PEM) where the address is https://, instead of the system's.",
)


def warn_of_plain_tokens(urls: Sequence[str], token: str | None) -> None:
    """Warn on standard error if a token is about to travel unprotected."""
    for url in urls:
        parts = urlsplit(url)
        if token is not None and parts.scheme == "http" and not is_own(parts.hostname or ""):
            click.echo(f"the token travels unprotected to {url}; https:// would protect it", err=True)
