"""The agent's ports: a plain one for informants and for this machine, one with TLS for people on other machines, and a Unix socket for the
informant of the node's pods.

Published informants call back over plain HTTP, so that port stays plain in every configuration.
"""

import asyncio
import importlib.metadata
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from hosting import openapi, tokens
from hosting.access import AccessRefused, AccessScope, Admission, Caller, Refusals, RequestHead
from hosting.addresses import UNIX, Advertised, endpoint, is_own
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.metrics import Family, server_families
from hosting.peers import DEFAULT_PEER_LIMITS
from hosting.server import Route, Server, ServerLimits
from hosting.tls import Tls
from hosting.tokens import FileToken, TokenFileError
from protocol.reasons import ErrorCode

MAX_CONNECTIONS: Final = 4096
"""Every informant keeps a connection open; with a lower limit, each call would close the connection of another."""


GUARDED: Final = (401, 403)
"""The errors of pages that are served to this machine and to callers with the token."""
LOOPBACK: Final = "127.0.0.1"
_REFUSALS: Final = {
    401: "The caller shows another token than the agent's, or none.",
    403: "The page is served to this machine only, or with TLS only.",
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The addresses of the agent: its own, and the one that informants are told to call; and the tokens of other machines: `token` opens the
    pages, `metrics_token` the metrics alone.

    `tls_port` is the port with `tls`; None if there is none. `plain_http` says that the plain port may listen beyond this machine. `socket` is
    the path of the Unix socket for callbacks alone, if there is one.
    """

    host: str
    port: int
    advertised: Advertised
    token: FileToken
    tls: Tls
    tls_port: int | None = None
    metrics_token: FileToken = field(default_factory=FileToken)
    plain_http: bool = False
    scheduler_token: FileToken = field(default_factory=FileToken)
    """Shown to the scheduler."""
    socket: str | None = None

    @property
    def plain_host(self) -> str:
        """The address that the plain port listens on."""
        return self.host if self.plain_http or is_own(self.host) else LOOPBACK

    def fault(self) -> str | None:
        """Why these settings cannot be used; None if they can."""
        if self.plain_host == self.host or (self.tls_port is not None and is_own(self.advertised.host)):
            return None
        return (
            f"--host {self.host}: informants of guests call in the clear there; say so with --plain-http, or serve pages with TLS alone "
            "(`tls.port` of the settings file, and `advertise: 127.0.0.1` for informants of this machine)"
        )


class PageGate:
    """Who may read pages and metrics at a port of the agent: this machine, and others with a token; pages with a token only, once there is
    one. `tokens_travel` is false for the plain port beside one with TLS: no token of another machine is taken there."""

    def __init__(self, settings: ServerSettings, refusals: Refusals, *, tokens_travel: bool) -> None:
        self._settings = settings
        self._refusals = refusals
        self._tokens_travel = tokens_travel
        self._faults = FaultLog(
            refusals.log, "the token file cannot be used", "the token file can be used again"
        )
        self.renewed: Callable[[], object] = lambda: None

    @property
    def refusals(self) -> Refusals:
        return self._refusals

    def admit(self, head: RequestHead, scope: AccessScope) -> Admission | Awaitable[Admission]:
        """The caller, at once unless a token file is due to be read."""
        now_s = asyncio.get_running_loop().time()
        settings = self._settings
        if settings.token.is_due(now_s) or settings.metrics_token.is_due(now_s):
            return self._refreshed(head, scope)
        return self._admitted(head, scope)

    async def _refreshed(self, head: RequestHead, scope: AccessScope) -> Admission:
        for token in (self._settings.token, self._settings.metrics_token):
            try:
                await token.refresh()
            except TokenFileError as error:
                self._faults.failed(error, str(token.path))
            else:
                self._faults.worked(str(token.path))
        self.renewed()
        return self._admitted(head, scope)

    def _admitted(self, head: RequestHead, scope: AccessScope) -> Admission:
        is_here = head.is_from_here
        everything = frozenset((AccessScope.PAGES, AccessScope.METRICS))
        token, for_metrics = self._settings.token.value, self._settings.metrics_token.value
        if is_here and (scope is AccessScope.METRICS or token is None):
            return Caller(head.peer, everything)
        if not is_here and not self._tokens_travel and (token is not None or for_metrics is not None):
            told = "served to other machines with TLS only, at the port of `tls` in the agent's settings"
            return AccessRefused(403, "plain", told)
        opened: list[tuple[str, frozenset[AccessScope]]] = []
        if token is not None:
            opened.append((token, everything))
        if scope is AccessScope.METRICS and for_metrics is not None:
            opened.append((for_metrics, frozenset((AccessScope.METRICS,))))
        if not opened:
            return self._to_this_machine_only(scope)
        for each, gives in opened:
            if tokens.is_shown(each, head.headers):
                return Caller(head.peer, gives, is_identified=True)
        named = "--token-file" if scope is AccessScope.PAGES else "--metrics-token-file"
        return AccessRefused(401, "token", f"a token is needed ({named})", ErrorCode.UNAUTHORISED)

    def _to_this_machine_only(self, scope: AccessScope) -> AccessRefused:
        needed = self._settings.token if scope is AccessScope.PAGES else self._settings.metrics_token
        option = "--token-file" if scope is AccessScope.PAGES else "--metrics-token-file"
        later = "; its file is missing" if needed.may_come_later else ""
        return AccessRefused(403, "address", f"served to this machine only, unless {option} is given{later}")


class AgentServer:
    """Serves `pages` and `callbacks` in the clear, and `pages` with TLS if that is wanted. The callbacks have proofs of their own."""

    def __init__(
        self,
        settings: ServerSettings,
        log: Logger,
        pages: Iterable[Route],
        callbacks: Iterable[Route],
    ) -> None:
        self._settings = settings
        self._log = log
        self._is_warned = False
        pages = tuple(pages)
        version = importlib.metadata.version("parley-autoscaler")
        described = openapi.route("Parley agent", version, pages, shared=_REFUSALS)
        has_tls = settings.tls_port is not None
        refusals = Refusals(log)
        gate = PageGate(settings, refusals, tokens_travel=not has_tls)
        gate.renewed = self._warn_of_token
        callbacks = tuple(replace(each, scope=AccessScope.OPEN) for each in callbacks)
        # A guest has a share of this port; programs of this machine have no limits.
        limits = ServerLimits(
            connections=MAX_CONNECTIONS, peers=replace(DEFAULT_PEER_LIMITS, spares_loopback=True)
        )
        self._plain = Server(log, (*pages, described, *callbacks), limits=limits, gate=gate)
        self._protected: Server | None = None
        if has_tls:
            gate = PageGate(settings, refusals, tokens_travel=True)
            self._protected = Server(
                log, (*pages, described), limits=ServerLimits(peers=limits.peers), gate=gate
            )
        self._at_socket = Server(log, callbacks, limits=limits) if settings.socket is not None else None

    async def open(self) -> tuple[int, str | None]:
        """Listen. Returns the plain port, and the address with TLS or None. Raises `OSError` that names the address."""
        settings = self._settings
        port = await self._listen(self._plain, settings.plain_host, settings.port)
        if self._at_socket is not None:
            await self._listen(self._at_socket, f"{UNIX}{settings.socket}")
        self._warn_of_token()
        if self._protected is None:
            return port, None
        tls_port = await self._listen(
            self._protected, settings.host, settings.tls_port or 0, settings.tls.server()
        )
        return port, f"https://{endpoint(settings.host, tls_port)}"

    def who_may(self) -> dict[str, str]:
        """Who may call, in words for the log: by port."""
        settings = self._settings
        here = "this machine" if is_own(settings.plain_host) else "everybody who reaches it"
        shown = settings.token.value is not None or settings.token.may_come_later
        people = "this machine, and others with a token" if shown else "this machine"
        told = {
            "callbacks": here,
            "pages": people if self._protected is None else f"{people}, with TLS",
            "health": here if self._protected is None else "everybody who reaches it",
        }
        counted = shown or settings.metrics_token.value is not None or settings.metrics_token.may_come_later
        return {**told, "metrics": "this machine, and others with a token" if counted else "this machine"}

    def _warn_of_token(self) -> None:
        """Warn once of a token that travels unprotected, and again if there was none in between: it may come while the agent runs."""
        settings = self._settings
        is_bare = (
            self._protected is None and settings.token.value is not None and not is_own(settings.plain_host)
        )
        if is_bare and not self._is_warned:
            self._log.warning(
                "the token travels unprotected: set `tls` (certificate, key, port), or serve loopback"
            )
        self._is_warned = is_bare

    async def _listen(
        self, server: Server, host: str, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> int:
        try:
            return await server.start(host, port, tls)
        except OSError as error:
            where = host if host.startswith(UNIX) else endpoint(host, port)
            raise OSError(error.errno, f"cannot listen on {where}: {error.strerror}") from None

    async def close(self) -> None:
        """Stop accepting, let requests in progress end, close every connection."""
        for each in self._servers():
            await each.close()

    def families(self) -> tuple[Family, ...]:
        return server_families(*self._servers())

    def _servers(self) -> list[Server]:
        return [each for each in (self._plain, self._protected, self._at_socket) if each is not None]
