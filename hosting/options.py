"""Options of the command line that several programs have: types with clear errors, the options of every daemon, and those of commands
that call agents and schedulers."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload
from urllib.parse import urlsplit

import click

from hosting import addresses, tokens
from hosting.addresses import is_own
from protocol import quantities

if TYPE_CHECKING:
    from hosting.tls import Tls


class FiniteRange(click.FloatRange):
    """A finite number within a range; click's own range lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails for anything else."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class MemoryAmount(click.ParamType[int]):
    """An amount of memory as a quantity; the value is in bytes."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes. Fails if the text is no whole number of bytes, or below zero."""
        if isinstance(value, int):
            return value
        try:
            found = quantities.parse(str(value)).exact_value()
        except quantities.QuantityError:
            found = None
        if found is None or found < 0:
            self.fail(f"{value!r} is no amount of memory, such as 512Mi or 6Gi", param, ctx)
        return found


@overload
def daemon(default_port: int) -> Callable[[Callable[..., None]], click.Command]: ...
@overload
def daemon(default_port: int, *, is_group: Literal[True]) -> Callable[[Callable[..., None]], click.Group]: ...
def daemon(default_port: int, *, is_group: bool = False) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function the command of a daemon, with the options of every daemon: version, host, port, log level and format.

    With `is_group` there are commands beside it; without one of them the function serves as the daemon.
    """

    from hosting import logs  # noqa: PLC0415 - commands that only ask should not load it

    def decorate(function: Callable[..., None]) -> click.Command:
        port = click.IntRange(0, 65535)
        for option in (
            click.option(
                "--log-format",
                type=click.Choice(logs.FORMATS),
                callback=lambda _, __, value: value or "auto",
                show_default="console on a terminal, else json",
                help="How log lines are written: for people, or as one JSON object each.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(logs.LEVELS),
                default="info",
                show_default=True,
                help="The least level of log lines that are written.",
            ),
            click.option(
                "--port", type=port, default=default_port, show_default=True, help="Port; 0: any free."
            ),
            click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
            click.version_option(package_name="parley-autoscaler"),
        ):
            function = option(function)
        context = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        if not is_group:
            return click.command(context_settings=context)(function)
        group = click.group(
            context_settings=context, invoke_without_command=True, subcommand_metavar="[COMMAND [ARGS]...]"
        )
        return group(function)

    return decorate


class Advertise(click.ParamType[str]):
    """The setting `advertise`, as `settings.AdvertiseSetting` reads it from a file."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The setting. Fails for an address that peers cannot call."""
        try:
            return addresses.checked_advertise(str(value))
        except addresses.AddressError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class TokenFile(click.Path):
    """A file with a bearer token, which is read at once."""

    name = "file"

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, readable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The token. Fails if the file holds none; never quotes its content."""
        path = Path(str(super().convert(value, param, ctx)))
        try:
            with path.open("rb") as file:
                content = file.read(4096)
        except OSError as error:
            self.fail(f"{path} cannot be read: {error.strerror}", param, ctx)
        try:
            return tokens.parse(content)
        except ValueError as error:
            self.fail(f"{path} {error}", param, ctx)


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
    type=TokenFile(),
    help=f"Show the token in this file ({tokens.RULE}), which the agent was started with as --token-file.",
)
certificate_option = click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Show this certificate (PEM) to a scheduler that knows its callers (parley certs).",
)
key_option = click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its key (PEM); left out if it is in the same file.",
)
ca_option = click.option(
    "--ca-file",
    "tls",
    type=CaFile(),
    help="Trust the authorities in this file (PEM) where the address is https://, instead of the system's.",
)


def with_certificate(tls: "Tls | None", certificate: Path | None, key: Path | None) -> "Tls | None":
    """TLS that shows this certificate, too. Raises `click.UsageError`."""
    if certificate is None:
        if key is not None:
            raise click.UsageError("--key: goes with --certificate")
        return tls
    from hosting.tls import Tls, TlsError, TlsFiles  # noqa: PLC0415 - `--version` should not load it

    shown = Tls(TlsFiles(certificate, key, tls.files.ca if tls is not None else None))
    try:
        shown.load()
    except TlsError as error:
        raise click.UsageError(f"--certificate: {error}") from None
    return shown


def warn_of_plain_tokens(urls: Sequence[str], token: str | None) -> None:
    """Warn on standard error if a token is about to travel unprotected."""
    for url in urls:
        parts = urlsplit(url)
        if token is not None and parts.scheme == "http" and not is_own(parts.hostname or ""):
            click.echo(f"the token travels unprotected to {url}; https:// would protect it", err=True)
