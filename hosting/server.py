"""The only HTTP server here: aiohttp's parser and writer with the limits that it lacks.

* A connection cap; at the cap the longest-idle connection of the peer with the most is closed for a new one.
* Limits for each peer (`hosting.peers`), if they are set: connections and handshakes of an address, requests of a caller.
* One sweeper that aborts requests which are not done `request_deadline_s` after their first byte (aiohttp has no
  header or body deadline): a half-sent header, a slow body and a reader that does not read are all cut. A route may take
  longer, once its request was read (`Route.deadline_s`).
* A body limit per route, checked while reading. A packed body is refused: none of our peers sends any.
* A request that cannot be parsed is one log line and a 400, not a traceback.
* A peer that ends its side after a whole request gets its answer (aiohttp takes it for gone); not over TLS, which has no half
  of a connection. Nobody can tell it from one that has closed: a handler is cancelled for a peer that resets, or by the sweeper.
* A gate (`hosting.access`) is asked who calls before a body is read: a caller that is refused sends none.
* Drain: `close` stops accepting, lets requests in progress end, then closes.

Handlers know nothing of aiohttp: they take a frozen `Request` and return a `Reply`, or `HangUp` to close the
connection without a reply.
"""

import asyncio
import itertools
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, cast

import msgspec
from aiohttp import HttpVersion11, web

from hosting import fairness, http_bytes, problems
from hosting.access import AccessRefused, AccessScope, Caller, Gate, Refusals, RequestHead
from hosting.addresses import UNIX
from hosting.aiohttp_private import ConnectionServer, OneWrite, ServedConnection, connection_of
from hosting.fairness import HANDSHAKE_S, TOO_MANY, TOO_MUCH, Acceptor, Turns
from hosting.listening import listen, listen_unix
from hosting.logs import Logger
from hosting.peers import UNIT_BYTES, PeerLimits, PeerTable
from hosting.problems import Operation
from protocol.reasons import ErrorCode
from protocol.values import Value

SWEEP_S: Final = 0.5
BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read in full. `headers` go by their names in lower case; `parameters` are the path's named parts.

    `peer` is the address of the other side, without its port; `unix` for a Unix socket, empty if the peer was gone at once. `is_cut`: the body was longer than its route reads. `waited_s` is
    for how long it was held before its handler got it. `caller` is None for a server without a gate.
    """

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    peer: str = ""
    is_cut: bool = False
    waited_s: float = 0.0
    caller: Caller | None = None


class Reply(Value, frozen=True):
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection without an answer."""


Handler: TypeAlias = Callable[[Request], Awaitable[Reply | HangUp]]


def text(status: int, message: str) -> Reply:
    return Reply(status, message.encode() + b"\n", "text/plain; charset=utf-8")


def problem(
    status: int,
    code: ErrorCode,
    detail: str,
    faults: Iterable[str] = (),
    *,
    headers: Mapping[str, str] = {},
    leader: str | None = None,
    biz_code: str = "",
) -> Reply:
    """An error as a problem document. `detail` is for people, `code` for scripts; `faults` are all things that are wrong, each with its path."""
    content = problems.problem(status, code, detail, faults, leader=leader, biz_code=biz_code)
    return Reply(status, msgspec.json.encode(content), problems.CONTENT_TYPE, headers)


def refused(refusal: AccessRefused) -> Reply:
    """The answer to a caller that is not let in."""
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    return problem(refusal.status, refusal.code, refusal.message, headers=headers)


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of `method` ("*": every method without a route of its own) on `path` (parts in braces are parameters).

    A body above `max_body_bytes` is refused with 413, or, if the route `cuts`, read as far as that. `about` is the route's part of the
    OpenAPI document. `deadline_s` is how long a request may take after it was read; None: as long as any other. `scope` is the right
    that a caller needs; None: that of a page, or of a change if the method is one.
    """

    method: str
    path: str
    handler: Handler
    max_body_bytes: int = 4096
    cuts: bool = False
    about: Operation | None = None
    deadline_s: float | None = None
    scope: AccessScope | None = None

    @property
    def right(self) -> AccessScope:
        if self.scope is not None:
            return self.scope
        return AccessScope.PAGES if self.method in ("GET", "HEAD") else AccessScope.WRITE


@dataclass(frozen=True, slots=True)
class ServerLimits:
    connections: int = 512
    request_deadline_s: float = 5.0
    drain_s: float = 5.0
    peers: PeerLimits | None = None
    """Without them no peer has limits of its own."""


_NOT_HTTP: Final = "not a well-formed HTTP request"
_CLOSE: Final = {"Connection": "close"}
_UNITS: Final = {AccessScope.PAGES: 20.0, AccessScope.METRICS: 100.0}
"""The cost of a request by its right; of others 1. A page tells of a whole cluster."""


class _Router:
    """Finds the route of a request; the first matching one wins."""

    def __init__(self, routes: tuple[Route, ...], fallback: Route | None) -> None:
        self._exact = {
            (route.method, route.path): route for route in reversed(routes) if "{" not in route.path
        }
        self._patterns = [(route, _pattern(route.path)) for route in routes if "{" in route.path]
        self._fallback = fallback

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | Reply:
        exact = self._exact.get((method, path)) or self._exact.get(("*", path))
        if exact is not None:
            return exact, {}
        allowed = {known for known, other in self._exact if other == path}
        for route, pattern in self._patterns:
            if found := pattern.fullmatch(path):
                if route.method in (method, "*"):
                    return route, found.groupdict()
                allowed.add(route.method)
        if self._fallback is not None:
            return self._fallback, {}
        if allowed:
            methods = ", ".join(sorted(allowed))
            detail = f"{method[:20]} is not served here; use {methods}"
            return problem(405, ErrorCode.WRONG_METHOD, detail, headers={"Allow": methods})
        return problem(404, ErrorCode.NOT_FOUND, f"there is nothing at {path[:200]}")


def _pattern(path: str) -> re.Pattern[str]:
    """Matches the paths of a route; the parts in braces are named groups."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]*)", re.escape(path)))


class Server:
    """One listening server. `stats` are plain counters for the metrics endpoint."""

    def __init__(
        self,
        log: Logger,
        routes: tuple[Route, ...],
        *,
        fallback: Route | None = None,
        limits: ServerLimits = ServerLimits(),
        gate: Gate | None = None,
    ) -> None:
        """Without a `gate` every caller may use every route."""
        self._log = log
        self._gate = gate
        self._router = _Router(routes, fallback)
        self._limits = limits
        self._most_connections = limits.connections
        self._open = PeerTable[ServedConnection]()
        self.refusals = Refusals(log)
        """Those by limits for peers."""
        peers = limits.peers
        self._turns = Turns(peers) if peers is not None else None
        self._busy: dict[float, dict[ServedConnection, float]] = {}
        """By deadline, those with a request that is not done, and when it must be; the first one first. So a sweep looks at few of them."""
        self._runner: web.ServerRunner | None = None
        self._listening: asyncio.Server | Acceptor | None = None
        self.is_unix = False
        self._sweeper: asyncio.Task[None] | None = None
        self.stats = {"requests": 0, "aborted": 0, "unparsable": 0, "evicted": 0, "faults": 0, "waited": 0}

    def route(self, routes: tuple[Route, ...], fallback: Route | None = None) -> None:
        """Answer by these routes from the next request on."""
        self._router = _Router(routes, fallback)

    async def start(self, host: str, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Listen on `host` and `port` (0: the kernel chooses), with TLS if it is given; the port. Raises `OSError`.

        A `host` such as `unix:/run/parley/agent.sock` is a Unix socket for this user alone, and has no port: 0. One that a dead process has
        left is replaced.
        """
        server = ConnectionServer(self, self._serve)
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=self._limits.drain_s)
        await self._runner.setup()
        is_unix = self.is_unix = host.startswith(UNIX)
        listening = listen_unix(Path(host.removeprefix(UNIX))) if is_unix else listen(host, port)
        peers = self._limits.peers if not is_unix else None  # a socket has one peer: its own user
        if peers is not None:
            accept_limits = fairness.AcceptLimits.of(peers, self._limits.connections, is_tls=tls is not None)
            self._most_connections = max(self._limits.connections - accept_limits.waiting, 1)
            pace = fairness.Pace(peers, self.now, is_tls=tls is not None)
            rules = fairness.AcceptRules(pace.name, pace.seconds, self._expect, self._tell)
            acceptor = Acceptor(listening, tls, accept_limits, rules, server.expect, self._unmade)
            acceptor.open(BACKLOG)
            self._listening = acceptor
        else:
            loop = asyncio.get_running_loop()
            self._listening = await (loop.create_unix_server if is_unix else loop.create_server)(
                server,
                sock=listening,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
            )
        self._sweeper = asyncio.create_task(self._sweep(), name="server sweeper")
        return 0 if is_unix else int(listening.getsockname()[1])

    async def close(self) -> None:
        """Stop accepting, let requests in progress end within the drain time, close every connection."""
        if self._listening is not None:
            self._listening.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])

    @property
    def gate(self) -> Gate | None:
        return self._gate

    def open_connections(self) -> int:
        return len(self._open)

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return asyncio.get_running_loop().time()

    def _expect(self, peer: str) -> bool:
        """Whether the peer's connection may be made, which is counted then. A peer with too many gives up its longest-idle one for it."""
        limits = self._limits.peers
        assert limits is not None
        if peer and self._open.count(peer) >= limits.connections:
            oldest = next((each for each in self._open.of(peer) if each.deadline_s is None), None)
        elif self._open.total >= self._most_connections:
            oldest = self._first_to_go()
        else:
            self._open.reserve(peer)
            return True
        if oldest is None:
            self._tell(peer, TOO_MANY)
            return False
        self._evict(oldest)
        self._open.reserve(peer)
        return True

    def _first_to_go(self) -> ServedConnection | None:
        """The longest-idle connection of the peer with the most; None if there are only some that are about to be made."""
        idle = (each for each in self._open.of_largest() if each.deadline_s is None)
        return next(idle, None) or next(self._open.of_largest(), None)

    def _tell(self, peer: str, refusal: AccessRefused) -> None:
        self.refusals.add(peer or "this machine", AccessScope.OPEN, refusal)

    def _unmade(self, peer: str, connection: asyncio.Protocol) -> None:
        """A connection that was counted has not been made, or has been and is gone."""
        assert isinstance(connection, ServedConnection)
        if connection.wire is None:
            self._open.release(peer)
        connection.is_counted = False

    def _evict(self, connection: ServedConnection) -> None:
        self.stats["evicted"] += 1
        self.forget(connection)
        connection.cut()

    def admit(self, connection: ServedConnection) -> None:
        """Count a new connection; at the cap the longest-idle one of the peer with the most is closed for it."""
        if not connection.is_counted:
            if self._open.total >= self._most_connections and (oldest := self._first_to_go()) is not None:
                self._evict(oldest)
            self._open.reserve(connection.peer)
        self._open.add(connection, connection.peer)

    def began(self, connection: ServedConnection) -> None:
        """The first bytes of a request have come."""
        self._allow(connection, self._limits.request_deadline_s)

    def _allow(self, connection: ServedConnection, deadline_s: float) -> None:
        """The connection's request must be done within so long from now on."""
        self._end_deadline(connection)
        if connection in self._open:  # else it was cut meanwhile
            connection.deadline_s = deadline_s
            self._busy.setdefault(deadline_s, {})[connection] = self.now() + deadline_s

    def _end_deadline(self, connection: ServedConnection) -> None:
        if connection.deadline_s is not None:
            del self._busy[connection.deadline_s][connection]
            connection.deadline_s = None

    def rested(self, connection: ServedConnection) -> None:
        """A request is done: its connection has now been idle for the shortest time."""
        self._end_deadline(connection)
        self._open.rest(connection)

    def forget(self, connection: ServedConnection) -> None:
        self._end_deadline(connection)
        self._open.remove(connection)

    def report(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """The reply to a request that could not be parsed (4xx) or whose handler failed (500), logged once."""
        if status < 500:
            self.stats["unparsable"] += 1
            self._log.warning("request not parsable", peer=request.remote, error=type(error).__name__)
            return http_bytes.response(problem(status, ErrorCode.MALFORMED, _NOT_HTTP))
        self.stats["faults"] += 1
        self._log.error("handler failed", path=request.path, error=repr(error), exc_info=error)
        return http_bytes.response(problem(500, ErrorCode.INTERNAL, "internal error"))

    def end_long_head(self, connection: ServedConnection) -> None:
        """Refuse a request whose head is too long before it is parsed, and close. Only the first of a connection's requests is answered."""
        self.stats["unparsable"] += 1
        self._log.warning("request not parsable", peer=connection.peer, error="HeadTooLong")
        if not connection.unanswered and connection.wire is not None:
            connection.wire.write(
                http_bytes.written(problem(400, ErrorCode.MALFORMED, _NOT_HTTP, headers=_CLOSE))
            )
        connection.force_close()

    def fail(self, error: object, *said: object) -> None:
        """Log a fault beside handlers, once."""
        self.stats["faults"] += 1
        fault = {"exc_info": error} if isinstance(error, BaseException) else {}
        self._log.error("connection failed", error=repr(error), said=" ".join(map(str, said)), **fault)

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        self.stats["requests"] += 1
        connection = connection_of(request)
        if connection.deadline_s is None:  # a pipelined request, whose bytes came with an earlier request
            self.began(connection)
            await asyncio.sleep(0)  # others have their turn between the two
        found = self._router.find(request.method, request.path)
        if isinstance(found, Reply):
            paid_bytes = connection.take_received()
            over = await self._limited(request, connection, connection.peer, AccessScope.OPEN, paid_bytes)
            return over if over is not None else http_bytes.response(found)
        route, parameters = found
        caller = await self._caller(request, connection, route.right)
        if isinstance(caller, web.Response):
            return caller
        payer = caller.name if caller is not None and caller.is_identified else connection.peer
        received = connection.take_received()
        paid_bytes = max(received, fairness.to_read_bytes(request, route.max_body_bytes, cuts=route.cuts))
        over = await self._limited(request, connection, payer, route.right, paid_bytes)
        if over is not None:
            return over
        try:
            body = await http_bytes.read_body(request, route.max_body_bytes, cuts=route.cuts)
        except (web.RequestPayloadError, ConnectionError) as error:
            # The peer left within its body, was cut off, or sent a body that cannot be unpacked: no fault of ours.
            connection.end_with_answer()
            reply = self.report(request, 400, error)
            reply.force_close()
            return reply
        finally:
            received += connection.take_received()
            if self._turns is not None and received > paid_bytes and fairness.is_limited(payer, route.right):
                self._turns.charge(payer, (received - paid_bytes) / UNIT_BYTES)
        if body is None:
            connection.end_with_answer()
            detail = f"the body must not exceed {route.max_body_bytes} bytes"
            return http_bytes.response(problem(413, ErrorCode.TOO_LARGE, detail), close=True)
        if route.deadline_s is not None:
            self._allow(connection, route.deadline_s)
        is_cut = len(body) > route.max_body_bytes
        body = body[: route.max_body_bytes]
        query = dict(request.query) if "?" in request.raw_path else {}
        read = Request(
            request.method,
            request.path,
            body,
            request.headers,
            parameters,
            query,
            connection.address,
            is_cut,
            caller=caller,
        )
        try:
            answer = await route.handler(read)
        except TimeoutError as error:  # aiohttp would hide it behind a 504
            connection.end_with_answer()
            return self.report(request, 500, error)
        if isinstance(answer, HangUp):
            connection.hang_up()
            return web.Response()
        is_plain = request.keep_alive and request.version == HttpVersion11 and not is_cut
        if is_plain and request.method in ("GET", "POST"):
            return cast("web.Response", OneWrite(connection, http_bytes.written(answer)))
        return http_bytes.response(answer, close=is_cut)

    async def _caller(
        self, request: web.BaseRequest, connection: ServedConnection, right: AccessScope
    ) -> Caller | web.Response | None:
        """Who calls, by the gate; the answer to a caller that it does not let in."""
        gate = self._gate
        if gate is None or right is AccessScope.OPEN:
            return None
        head = RequestHead(connection.address, request.headers, connection.certificate())
        admission = gate.admit(head, right)
        if not isinstance(admission, Caller | AccessRefused):
            admission = await admission
        if isinstance(admission, AccessRefused):
            gate.refusals.add(head.peer or "unknown address", right, admission)
            connection.end_with_answer()
            return http_bytes.response(refused(admission), close=True)
        return admission

    async def _limited(
        self,
        request: web.BaseRequest,
        connection: ServedConnection,
        payer: str,
        right: AccessScope,
        paid_bytes: int,
    ) -> web.Response | None:
        """The answer to a caller that asks for more than its share, or sends a packed body; None, after its turn has come, for others."""
        if self._turns is not None and fairness.is_limited(payer, right):
            turn = self._turns.take(payer, _UNITS.get(right, 1.0) + paid_bytes / UNIT_BYTES)
            if not isinstance(turn, bool):
                self.stats["waited"] += 1
                if not await turn:
                    return self._over(request, connection, payer, right, TOO_MUCH)
                self._allow(connection, self._limits.request_deadline_s)
        if fairness.is_packed(request):
            return self._over(request, connection, payer or "this machine", right, fairness.PACKED)
        return None

    def _over(
        self,
        request: web.BaseRequest,
        connection: ServedConnection,
        caller: str,
        right: AccessScope,
        refusal: AccessRefused,
    ) -> web.Response:
        """The answer to a request whose body is not read. The connection stays if there is nothing left to read."""
        self.refusals.add(caller, right, refusal)
        is_read = request.content.is_eof()
        if not is_read:
            connection.end_with_answer()
        return http_bytes.response(refused(refusal), close=not is_read)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(self.now())

    def sweep(self, now_s: float) -> None:
        """Abort the requests that are over their deadline at `now_s` of the loop's clock."""
        for busy in self._busy.values():
            overdue = list(itertools.takewhile(lambda each: busy[each] < now_s, busy))  # noqa: B023 - used at once
            for connection in overdue:
                self.stats["aborted"] += 1
                self.forget(connection)
                connection.cut()
