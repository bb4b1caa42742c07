"""The agent's ports: a plain one for informants and for this machine, one with TLS for people on other machines, and a Unix socket for the
informant of the node's pods.

Published informants call back over plain HTTP, so that port stays plain in every configuration.
"""

import asyncio
import importlib.metadata
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hosting import openapi, tokens
from hosting.addresses import UNIX, Advertised, endpoint, is_loopback, is_own
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.metrics import Family, server_families
from hosting.server import Handler, HangUp, Reply, Request, Route, Server, ServerLimits, problem
from hosting.threads import SingleCall
from hosting.tls import Tls
from protocol.reasons import ErrorCode

LOOK_S: Final = 2.0
"""The file is read at most so often, with the requests that want the token."""
READ_DEADLINE_S: Final = 2.0
"""How long reading may take; a network's file system may hang."""
MAX_FILE_BYTES: Final = 4096


class TokenFileError(Exception):
    """The file holds no token; the message names the file and never quotes it."""


class ViewerToken:
    """The token of those who may see the agent's pages from elsewhere: in the file at `path`, which is read again, because it is renewed while
    the agent runs; without a path there is none. Call `load` once before anything else.

    With `may_be_missing` the file may be made later, and taken away: without it there is no token.
    """

    def __init__(self, path: Path | None = None, *, may_be_missing: bool = False) -> None:
        self._path = path
        self._may_be_missing = may_be_missing
        self._value: str | None = None
        self._look = SingleCall()
        self._look_at_s = -math.inf

    @property
    def value(self) -> str | None:
        return self._value

    @property
    def may_come_later(self) -> bool:
        """Whether there may be a token without a new start."""
        return self._may_be_missing

    def load(self) -> None:
        """Read the file. Raises `TokenFileError`."""
        self._value = self._read()

    async def refresh(self) -> None:
        """Read the file again, if that is due. Raises `TokenFileError`: then the token that was read before stays in force."""
        now_s = asyncio.get_running_loop().time()
        if self._path is None or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_S
        try:
            self._value = await self._look.run(self._read, READ_DEADLINE_S)
        except TimeoutError:
            raise TokenFileError(f"{self._path} could not be read in time") from None

    def _read(self) -> str | None:
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES)
        except FileNotFoundError:
            if self._may_be_missing:
                return None
            raise TokenFileError(f"{self._path} is missing") from None
        except OSError as error:
            raise TokenFileError(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            return tokens.parse(content)
        except ValueError as error:
            raise TokenFileError(f"{self._path} {error}") from None


MAX_CONNECTIONS: Final = 4096
"""Every informant keeps a connection open; with a lower limit, each call would close the connection of another."""


GUARDED: Final = (401, 403)
"""The errors of pages that are served to this machine and to callers with the token."""
_REFUSALS: Final = {
    401: "The caller shows another token than the agent's, or none.",
    403: "The page is served to this machine only, or with TLS only.",
}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The addresses of the agent: its own, the one that informants are told to call, and the rule for callers of `/v1/vms`.

    `tls_port` is the port with `tls`; None if there is none. `socket` is the path of the Unix socket for callbacks alone, if there is one.
    """

    host: str
    port: int
    advertised: Advertised
    token: ViewerToken
    tls: Tls
    tls_port: int | None = None
    socket: str | None = None


class AgentServer:
    """Serves `pages` to all callers, `private` pages to this machine and to callers with the token, `callbacks`
    without TLS."""

    def __init__(
        self,
        settings: ServerSettings,
        log: Logger,
        pages: Iterable[Route],
        private: Iterable[Route],
        callbacks: Iterable[Route],
    ) -> None:
        self._settings = settings
        self._log = log
        self._token_faults = FaultLog(
            log, "the token file cannot be used", "the token file can be used again"
        )
        self._is_warned = False
        open_to_all, private, callbacks = tuple(pages), tuple(private), tuple(callbacks)
        version = importlib.metadata.version("parley-autoscaler")
        described = openapi.route("Parley agent", version, (*open_to_all, *private), shared=_REFUSALS)
        open_to_all = (*open_to_all, described)
        limits = ServerLimits(connections=MAX_CONNECTIONS)
        guarded = (self._guarded(route, self._plain_refusal) for route in private)
        self._plain = Server(log, (*open_to_all, *guarded, *callbacks), limits=limits)
        guarded = (self._guarded(route, self._refusal) for route in private)
        self._protected = Server(log, (*open_to_all, *guarded)) if settings.tls_port is not None else None
        self._at_socket = Server(log, callbacks, limits=limits) if settings.socket is not None else None

    async def open(self) -> tuple[int, str | None]:
        """Listen. Returns the plain port, and the address with TLS or None. Raises `OSError` that names the address."""
        settings = self._settings
        port = await self._listen(self._plain, settings.host, settings.port)
        if self._at_socket is not None:
            await self._listen(self._at_socket, f"{UNIX}{settings.socket}")
        self._warn_of_token()
        if self._protected is None:
            return port, None
        tls_port = await self._listen(self._protected, settings.host, settings.tls_port or 0, with_tls=True)
        return port, f"https://{endpoint(settings.host, tls_port)}"

    def _warn_of_token(self) -> None:
        """Warn once of a token that travels unprotected, and again if there was none in between: it may come while the agent runs."""
        settings = self._settings
        is_bare = self._protected is None and settings.token.value is not None and not is_own(settings.host)
        if is_bare and not self._is_warned:
            self._log.warning(
                "the token travels unprotected: set `tls` (certificate, key, port), or serve loopback"
            )
        self._is_warned = is_bare

    async def _listen(self, server: Server, host: str, port: int = 0, *, with_tls: bool = False) -> int:
        try:
            return await server.start(host, port, self._settings.tls.server() if with_tls else None)
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

    def _guarded(self, route: Route, refusal: Callable[[Request], Reply | None]) -> Route:
        async def guarded(request: Request) -> Reply | HangUp:
            await self._read_token()
            refused = refusal(request)
            return await handler(request) if refused is None else refused

        handler: Handler = route.handler
        return replace(route, handler=guarded)

    def _plain_refusal(self, request: Request) -> Reply | None:
        """Why a private page is refused at the plain port; None if the page is served."""
        if not is_loopback(request.peer):
            if self._settings.token.value is None:
                return self._to_this_machine_only()
            if self._protected is not None:
                told = "served to other machines with TLS only, at the port of `tls` in the agent's settings"
                return problem(403, ErrorCode.FORBIDDEN, told)
        return self._refusal(request)

    def _refusal(self, request: Request) -> Reply | None:
        """Why a private page is refused to a caller who may reach this port; None if the page is served."""
        token = self._settings.token.value
        if token is None:
            return None if is_loopback(request.peer) else self._to_this_machine_only()
        if tokens.is_shown(token, request.headers):
            return None
        return problem(401, ErrorCode.UNAUTHORISED, "a token is needed (--token-file)")

    def _to_this_machine_only(self) -> Reply:
        later = "; its file is missing" if self._settings.token.may_come_later else ""
        told = f"served to this machine only, unless --token-file is given{later}"
        return problem(403, ErrorCode.FORBIDDEN, told)

    async def _read_token(self) -> None:
        try:
            await self._settings.token.refresh()
        except TokenFileError as error:
            self._token_faults.failed(error)
        else:
            self._token_faults.worked()
            self._warn_of_token()
