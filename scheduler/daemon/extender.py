"""The extender on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import click

from hosting.options import FiniteRange
from hosting.tls import TlsFiles
from scheduler.placing.kube_extender.listener import ListenerSettings
from scheduler.placing.kube_extender.service import HTTP_TIMEOUT_S

F = TypeVar("F", bound=Callable[..., Any])
LOOPBACK: Final = "127.0.0.1"
FILE: Final = click.Path(path_type=Path, dir_okay=False)


class ExtenderOptions(TypedDict):
    """The options of `extender_options`."""

    mode: str
    extender_port: int | None
    extender_host: str
    extender_certificate: Path | None
    extender_key: Path | None
    extender_client_ca: Path | None
    extender_timeout_s: float


def extender_options(command: F) -> F:
    for option in reversed(
        (
            click.option(
                "--mode",
                type=click.Choice(["permits", "extender", "full"]),
                default="extender",
                show_default=True,
                help="What is decided on Kubernetes: growth only; also where pods go, for an unmodified kube-scheduler; or that, and "
                "pods that name this scheduler are placed and bound here.",
            ),
            click.option(
                "--extender-port",
                type=click.IntRange(0, 65535),
                help="Port for the calls of kube-scheduler (0: any free); without it there are none.",
            ),
            click.option(
                "--extender-host",
                default=LOOPBACK,
                show_default=True,
                help="Address to listen on for them. Beyond this machine's own, the next three are needed.",
            ),
            click.option("--extender-certificate", type=FILE, help="Certificate (PEM) of that port."),
            click.option("--extender-key", type=FILE, help="Its key (PEM)."),
            click.option(
                "--extender-client-ca",
                type=FILE,
                help="Authorities (PEM) of those who may call: their certificate lets anybody bind pods.",
            ),
            click.option(
                "--extender-timeout",
                "extender_timeout_s",
                type=FiniteRange(min=1, max=60),
                default=HTTP_TIMEOUT_S,
                show_default=True,
                metavar="SECONDS",
                help="The httpTimeout of kube-scheduler's configuration; answers are given in 80 % of that.",
            ),
        )
    ):
        command = option(command)
    return command


def listener_settings(options: ExtenderOptions) -> ListenerSettings | None:
    """The extender's listener; None if it does not listen. Raises `click.UsageError` if options do not go together."""
    certificate, key = options["extender_certificate"], options["extender_key"]
    authority, port = options["extender_client_ca"], options["extender_port"]
    files = TlsFiles(certificate, key, client_ca=authority)
    if port is None:
        if files.paths():
            raise click.UsageError(
                "--extender-certificate, --extender-key, --extender-client-ca: only with --extender-port"
            )
        if options["extender_host"] != LOOPBACK:
            raise click.UsageError("--extender-host: only with --extender-port")
        return None
    if options["mode"] == "permits":
        raise click.UsageError("--extender-port: not with --mode permits")
    try:
        return ListenerSettings(
            port, options["extender_host"], files if files.paths() else None, options["extender_timeout_s"]
        )
    except ValueError as error:
        needed = "--extender-certificate, --extender-key, --extender-client-ca"
        raise click.UsageError(f"--extender-host: {error} ({needed})") from None
