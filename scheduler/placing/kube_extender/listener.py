"""The port that kube-scheduler calls. It is apart from the port of agents: whoever may call it binds pods.

kube-scheduler can show a client certificate and nothing else, no token. So other machines are let in with a certificate of an authority that was
named for that, and without one the port is there for this machine only.
"""

import asyncio
import random
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hosting.addresses import endpoint, is_own
from hosting.fault_log import FaultLog
from hosting.logs import Logger
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
    """Where to listen (port 0: any free one), and with which certificates; without any it is plain HTTP, for this machine only.

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
        self.server.route(tuple(map(_guarded, routes)) if routes is not None else self._not_leading())

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


def _guarded(route: Route) -> Route:
    return replace(route, handler=partial(_without_origin, route.handler))


async def _without_origin(handler: Handler, request: Request) -> Reply | HangUp:
    """A page in a browser on this machine, which may be anybody's, binds no pods."""
    if "origin" in request.headers:
        return problem(403, ErrorCode.FORBIDDEN, "web pages are not served")
    return await handler(request)


async def _refuse(_: Request) -> Reply:
    return problem(503, ErrorCode.NOT_LEADER, "this scheduler does not lead")
