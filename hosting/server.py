"""The only HTTP server here: httptools' parser under an asyncio protocol of our own, with the limits that public servers lack.

* A connection cap; at the cap the longest-idle connection of the peer with the most is closed for a new one.
* Limits for each peer (`hosting.peers`), if they are set: connections and handshakes of an address, requests of a caller.
* One sweeper that aborts requests which are not done `request_deadline_s` after their first byte: a half-sent header, a slow body and
  a reader that does not read are all cut. A route may take longer, once its request was read (`Route.deadline_s`).
* A body limit per route, checked while reading. A packed body is refused: none of our peers sends any.
* A request that cannot be parsed is one log line and a 400, not a traceback.
* A peer that ends its side after a whole request gets its answer; not over TLS, which has no half of a connection. Nobody can tell it
  from one that has closed: a handler is cancelled for a peer that resets, or by the sweeper.
* A gate (`hosting.access`) is asked who calls before a body is read: a caller that is refused sends none.
* Drain: `close` stops accepting, lets requests in progress end, then closes.

A request goes through `serve`, `_admitted`, `_in_turn`, `_read` and `_whole`. Each step goes on at once if nothing must be waited for: then an answer
costs no task ([decision 54](../docs/decisions/0054-one-protocol-on-httptools.md)).
"""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import parse_qsl

from hosting import fairness
from hosting.access import AccessRefused, AccessScope, Admission, Caller, Gate, Refusals, RequestHead
from hosting.addresses import UNIX
from hosting.fairness import HANDSHAKE_S, TOO_MANY, TOO_MUCH, Acceptor, Turns
from hosting.http_connection import ServedConnection
from hosting.http_exchange import Exchange, NotHttpError
from hosting.listening import listen, listen_unix
from hosting.logs import Logger
from hosting.peers import UNIT_BYTES, PeerLimits, PeerTable
from hosting.routes import (
    Handler,
    HangUp,
    Outcome,
    Reply,
    Request,
    Route,
    Router,
    answered,
    problem,
    refused,
    text,
)
from protocol.reasons import ErrorCode

__all__ = [
    "Handler",
    "HangUp",
    "Outcome",
    "Reply",
    "Request",
    "Route",
    "Server",
    "ServerLimits",
    "problem",
    "refused",
    "text",
]

_Step: TypeAlias = Callable[[Exchange], Outcome | Awaitable[Outcome]]

SWEEP_S: Final = 0.5
BACKLOG: Final = 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    connections: int = 512
    request_deadline_s: float = 5.0
    drain_s: float = 5.0
    peers: PeerLimits | None = None
    """Without them no peer has limits of its own."""


KEEP_ALIVE_S: Final = 75.0
"""A connection that is idle for longer is closed."""
LOOK_FOR_IDLE_S: Final = 5.0
_NOT_HTTP: Final = "not a well-formed HTTP request"
_UNITS: Final = {AccessScope.PAGES: 20.0, AccessScope.METRICS: 100.0}
"""The cost of a request by its right; of others 1. A page tells of a whole cluster."""


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
        self._router = Router(routes, fallback)
        self._limits = limits
        self._most_connections = limits.connections
        self._open = PeerTable[ServedConnection]()
        self.refusals = Refusals(log)
        """Those by limits for peers."""
        peers = limits.peers
        self._turns = Turns(peers) if peers is not None else None
        self._busy: dict[float, dict[ServedConnection, float]] = {}
        """By deadline, those with a request that is not done, and when it must be; the first one first. So a sweep looks at few of them."""
        self._listening: asyncio.Server | Acceptor | None = None
        self.is_unix = False
        self._sweeper: asyncio.Task[None] | None = None
        self._outbox: list[tuple[ServedConnection, bytes]] = []
        self._rest: asyncio.Future[None] | None = None
        """`close` waits for it."""
        self.stats = {"requests": 0, "aborted": 0, "unparsable": 0, "evicted": 0, "faults": 0, "waited": 0}

    def route(self, routes: tuple[Route, ...], fallback: Route | None = None) -> None:
        """Answer by these routes from the next request on."""
        self._router = Router(routes, fallback)

    async def start(self, host: str, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Listen on `host` and `port` (0: the kernel chooses), with TLS if it is given; the port. Raises `OSError`.

        A `host` such as `unix:/run/parley/agent.sock` is a Unix socket for this user alone, and has no port: 0. One that a dead process has
        left is replaced.
        """
        is_unix = self.is_unix = host.startswith(UNIX)
        listening = listen_unix(Path(host.removeprefix(UNIX))) if is_unix else listen(host, port)
        peers = self._limits.peers if not is_unix else None  # a socket has one peer: its own user
        if peers is not None:
            accept_limits = fairness.AcceptLimits.of(peers, self._limits.connections, is_tls=tls is not None)
            self._most_connections = max(self._limits.connections - accept_limits.waiting, 1)
            pace = fairness.Pace(peers, self.now, is_tls=tls is not None)
            rules = fairness.AcceptRules(pace.name, pace.seconds, self._expect, self._tell)
            acceptor = Acceptor(listening, tls, accept_limits, rules, self._connection, self._unmade)
            acceptor.open(BACKLOG)
            self._listening = acceptor
        else:
            loop = asyncio.get_running_loop()
            self._listening = await (loop.create_unix_server if is_unix else loop.create_server)(
                self._connection,
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
        for connection in list(self._open):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain_s):
                while any(each.is_serving for each in self._open):
                    await self._next_rest()
        self.flush()
        tasks = [each.task for each in self._open if each.task is not None]
        for connection in list(self._open):
            self.forget(connection)
            connection.cut()
        for task in tasks:
            task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
            tasks.append(self._sweeper)
        if tasks:
            await asyncio.wait(tasks)

    async def _next_rest(self) -> None:
        """Until a connection has answered or is gone."""
        self._rest = asyncio.get_running_loop().create_future()
        await self._rest

    def _connection(self, peer: str | None = None) -> ServedConnection:
        return ServedConnection(self, peer)

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
        if connection.transport is None:
            self._open.release(peer)
        connection.is_counted = False

    def _evict(self, connection: ServedConnection) -> None:
        self.stats["evicted"] += 1
        self.flush()
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
        if connection.deadline_s is not None:
            self._end_deadline(connection)
        connection.rested_s = connection.loop.time()
        self._open.rest(connection)
        self._tell_drain()

    def send(self, connection: ServedConnection, content: bytes) -> None:
        """Write an answer at the end of the loop's turn, with those of others: the kernel wakes a peer for its first answer, which costs more
        than the answer, and then finds it awake."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append((connection, content))

    def flush(self) -> None:
        """Write the answers of this turn."""
        outbox, self._outbox = self._outbox, []
        for connection, content in outbox:
            connection.write(content)

    def _tell_drain(self) -> None:
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    def forget(self, connection: ServedConnection) -> None:
        self._end_deadline(connection)
        self._open.remove(connection)
        self._tell_drain()

    def unparsable(self, connection: ServedConnection, why: str) -> Reply:
        """The reply to bytes that are no request, logged once."""
        self.stats["unparsable"] += 1
        self._log.warning("request not parsable", peer=connection.address, error=why)
        return problem(400, ErrorCode.MALFORMED, _NOT_HTTP)

    def failed(self, exchange: Exchange, error: Exception) -> Reply:
        """The reply to a request whose body cannot be read (400), or whose handler failed (500), logged once."""
        if isinstance(error, NotHttpError):
            return self.unparsable(exchange.connection, str(error))
        self.stats["faults"] += 1
        self._log.error("handler failed", path=exchange.path, error=repr(error), exc_info=error)
        return problem(500, ErrorCode.INTERNAL, "internal error")

    # ------------------------------------------------------------ the way of a request

    def serve(self, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        """Find the route, and who calls."""
        self.stats["requests"] += 1
        found = self._router.find(exchange.method, exchange.path)
        if isinstance(found, Reply):
            exchange.payer = exchange.connection.peer
            exchange.paid_bytes = exchange.connection.take_received()
            return self._in_turn(exchange, AccessScope.OPEN, lambda _: found)
        exchange.route, exchange.parameters = route, _ = found
        gate, right = self._gate, route.right
        if gate is None or right is AccessScope.OPEN:
            return self._admitted(exchange, route, None)
        connection = exchange.connection
        head = RequestHead(connection.address, exchange.headers, connection.certificate)
        admission = gate.admit(head, right)
        if isinstance(admission, Caller | AccessRefused):
            return self._admitted(exchange, route, admission)
        return self._admitted_later(exchange, route, admission)

    async def _admitted_later(
        self, exchange: Exchange, route: Route, admission: Awaitable[Admission]
    ) -> Outcome:
        return await answered(self._admitted(exchange, route, await admission))

    def _admitted(
        self, exchange: Exchange, route: Route, admission: Admission | None
    ) -> Outcome | Awaitable[Outcome]:
        connection = exchange.connection
        if isinstance(admission, AccessRefused):
            assert self._gate is not None
            self._gate.refusals.add(connection.address or "unknown address", route.right, admission)
            exchange.keeps = False
            return refused(admission)
        exchange.caller = admission
        is_identified = admission is not None and admission.is_identified
        exchange.payer = admission.name if admission is not None and is_identified else connection.peer
        if self._turns is not None:
            received = exchange.received_bytes = connection.take_received()
            to_read = fairness.to_read_bytes(exchange.headers, route.max_body_bytes, cuts=route.cuts)
            exchange.paid_bytes = max(received, to_read)
        return self._in_turn(exchange, route.right, self._read)

    def _in_turn(self, exchange: Exchange, right: AccessScope, go_on: _Step) -> Outcome | Awaitable[Outcome]:
        """`go_on` once it is the caller's turn."""
        if self._turns is not None and fairness.is_limited(exchange.payer, right):
            units = _UNITS.get(right, 1.0) + exchange.paid_bytes / UNIT_BYTES
            turn = self._turns.take(exchange.payer, units)
            if not isinstance(turn, bool):
                self.stats["waited"] += 1
                return self._in_turn_later(exchange, right, turn, go_on)
        return self._unpacked(exchange, right, go_on)

    async def _in_turn_later(
        self, exchange: Exchange, right: AccessScope, turn: Awaitable[bool], go_on: _Step
    ) -> Outcome:
        if not await turn:
            return self._over(exchange, right, TOO_MUCH)
        self._allow(exchange.connection, self._limits.request_deadline_s)
        return await answered(self._unpacked(exchange, right, go_on))

    def _unpacked(self, exchange: Exchange, right: AccessScope, go_on: _Step) -> Outcome | Awaitable[Outcome]:
        """`go_on` unless the body is packed."""
        if fairness.is_packed(exchange.headers):
            return self._over(exchange, right, fairness.PACKED)
        return go_on(exchange)

    def _over(self, exchange: Exchange, right: AccessScope, refusal: AccessRefused) -> Reply:
        """The answer to a request whose body is not read. The connection stays if there is nothing left to read."""
        self.refusals.add(exchange.payer or "this machine", right, refusal)
        exchange.keeps = exchange.keeps and exchange.is_whole
        return refused(refusal)

    def _read(self, exchange: Exchange) -> Outcome | Awaitable[Outcome]:
        route = exchange.route
        assert route is not None
        declared_bytes = 0 if exchange.is_whole else fairness.declared_bytes(exchange.headers)
        body = exchange.read(route.max_body_bytes, declared_bytes, cuts=route.cuts)
        if body is None or isinstance(body, bytes):
            self._charge_more(exchange, route.right)
            return self._whole(exchange, route, body)
        return self._read_later(exchange, route, body)

    async def _read_later(
        self, exchange: Exchange, route: Route, awaited: Awaitable[bytes | None]
    ) -> Outcome:
        try:
            body = await awaited
        finally:
            self._charge_more(exchange, route.right)
        return await answered(self._whole(exchange, route, body))

    def _charge_more(self, exchange: Exchange, right: AccessScope) -> None:
        """The caller has sent more than was paid for before its body was read."""
        if self._turns is not None and fairness.is_limited(exchange.payer, right):
            received = exchange.received_bytes + exchange.connection.take_received()
            if received > exchange.paid_bytes:
                self._turns.charge(exchange.payer, (received - exchange.paid_bytes) / UNIT_BYTES)

    def _whole(self, exchange: Exchange, route: Route, body: bytes | None) -> Outcome | Awaitable[Outcome]:
        """The body was read, as far as its route reads it."""
        connection = exchange.connection
        if body is None:
            exchange.keeps = False
            detail = f"the body must not exceed {route.max_body_bytes} bytes"
            return problem(413, ErrorCode.TOO_LARGE, detail)
        if route.deadline_s is not None:
            self._allow(connection, route.deadline_s)
        is_cut = len(body) > route.max_body_bytes
        if is_cut:
            exchange.keeps = False
            body = body[: route.max_body_bytes]
        request = Request(
            exchange.method,
            exchange.path,
            body,
            exchange.headers,
            exchange.parameters,
            dict(parse_qsl(exchange.query, keep_blank_values=True)) if exchange.query else {},
            connection.address,
            is_cut,
            caller=exchange.caller,
        )
        return route.handler(request)

    # ------------------------------------------------------------ deadlines

    async def _sweep(self) -> None:
        look_s = self.now() + LOOK_FOR_IDLE_S
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(now_s := self.now())
            if now_s >= look_s:
                look_s = now_s + LOOK_FOR_IDLE_S
                self.close_idle(now_s)

    def sweep(self, now_s: float) -> None:
        """Abort the requests that are over their deadline at `now_s` of the loop's clock."""
        for busy in self._busy.values():
            overdue = list(itertools.takewhile(lambda each: busy[each] < now_s, busy))  # noqa: B023 - used at once
            for connection in overdue:
                self.stats["aborted"] += 1
                self.forget(connection)
                connection.cut()

    def close_idle(self, now_s: float) -> None:
        """Close the connections that are idle for too long at `now_s` of the loop's clock."""
        for connection in [each for each in self._open if each.deadline_s is None]:
            if now_s - connection.rested_s > KEEP_ALIVE_S:
                connection.cut()
