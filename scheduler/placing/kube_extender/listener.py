"""The port that kube-scheduler calls, and its options on the command line. It is apart from the port of agents: its callers bind pods.

kube-scheduler can show a client certificate and nothing else, no token. So other machines are let in with a certificate of an authority that was
named for that, and without one the port is there for this machine only.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar

import click

from hosting.addresses import endpoint, is_own
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.options import FiniteRange
from hosting.server import Handler, HangUp, Reply, Request, Route, Server, ServerLimits, problem
from hosting.supervisor import Supervisor
from hosting.tls import Tls, TlsError, TlsFiles
from protocol.reasons import ErrorCode
from scheduler.placing.kube_extender.operations import VERBS
from scheduler.placing.kube_extender.service import HTTP_TIMEOUT_S, MAX_BODY_BYTES, PREFIX

LOOK_AT_FILES_S: Final = 30.0
"""How often certificates are looked at."""
TELL_REFUSED_EACH_S: Final = 10.0
"""How often connections without a certificate that is believed are told of, with their number since."""
MARGIN_S: Final = 1.0
"""How much longer than kube-scheduler waits a call is let go on, while its body is sent."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The address to listen on (port 0: any free one) and the certificates; without any it is plain HTTP, for this machine only.

    `timeout_s` is kube-scheduler's `httpTimeout`. Raises `ValueError` for a port that anybody could call.
    """

    port: int
    host: str = "127.0.0.1"
    files: TlsFiles | None = None
    timeout_s: float = HTTP_TIMEOUT_S

    def __post_init__(self) -> None:
        files = self.files
        if files is None and not is_own(self.host):
            raise ValueError(
                f"{self.host} is called by other machines: a certificate, its key, and the authority of clients are needed"
            )
        if files is not None and None in {files.certificate, files.key, files.client_ca}:
            raise ValueError("a certificate, its key, and the authority of clients are needed, all three")


class ExtenderListener:
    """The server of one process. It answers 503 while this process does not lead."""

    def __init__(self, settings: ListenerSettings, log: Logger) -> None:
        self._settings = settings
        self._log = log
        self._supervisor = Supervisor(log, random.Random())
        self._tls = Tls(settings.files, self._tell_refused) if settings.files is not None else None
        self._refused = 0
        self._told_refused_s = -TELL_REFUSED_EACH_S
        limits = ServerLimits(request_deadline_s=settings.timeout_s + MARGIN_S)
        self.server = Server(log, self._not_leading(), limits=limits)

    @property
    def address(self) -> str:
        return endpoint(self._settings.host, self._settings.port)

    async def open(self) -> int:
        """Listen; the port. Raises `OSError`, and `TlsError` for certificates that cannot be used."""
        settings, tls = self._settings, self._tls
        if tls is not None:
            tls.load()
        port = await self.server.start(
            settings.host, settings.port, tls.server() if tls is not None else None
        )
        if tls is not None:
            self._supervisor.start("certificates of the extender", self._follow_files)
        scheme = "https" if tls is not None else "http"
        self._log.info("listening", address=f"{scheme}://{endpoint(settings.host, port)}{PREFIX}")
        return port

    async def close(self) -> None:
        """Let calls in progress end, and close."""
        await self.server.close()
        await self._supervisor.stop()

    def answer_from(self, routes: tuple[Route, ...] | None) -> None:
        """Answer by these routes, those of an `ExtenderService`, from now on; None: this process does not lead."""
        if routes is None:
            self.server.route(self._not_leading())
            return
        self.server.route(
            tuple(replace(each, handler=partial(_without_origin, each.handler)) for each in routes)
        )

    def _tell_refused(self, why: str) -> None:
        """kube-scheduler is told of a certificate that is not believed as the end of the connection, and nothing more."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s - self._told_refused_s >= TELL_REFUSED_EACH_S:
            self._log.warning("connections refused", why=why, count=self._refused)
            self._refused, self._told_refused_s = 0, now_s

    async def _follow_files(self) -> None:
        faults = FaultLog(
            self._log, "certificates not usable, the old ones stay", "certificates usable again"
        )
        while (tls := self._tls) is not None:
            await asyncio.sleep(LOOK_AT_FILES_S)
            try:
                if await tls.refresh():
                    self._log.info("certificates renewed")
            except TlsError as error:
                faults.failed(error)
            else:
                faults.worked()

    def _not_leading(self) -> tuple[Route, ...]:
        return tuple(Route("POST", f"{PREFIX}/{verb}", _refuse, MAX_BODY_BYTES) for verb in VERBS)


async def _without_origin(handler: Handler, request: Request) -> Reply | HangUp:
    """A page in a browser on this machine, which may be anybody's, binds no pods."""
    if "origin" in request.headers:
        return problem(403, ErrorCode.FORBIDDEN, "web pages are not served")
    return await handler(request)


async def _refuse(_: Request) -> Reply:
    return problem(503, ErrorCode.NOT_LEADER, "this scheduler does not lead")


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
