"""The limits of peers at work (`hosting.peers`): connections are refused before a handshake, and callers take turns."""

import asyncio
import itertools
import select
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from hosting.access import AccessRefused, AccessScope
from hosting.addresses import is_loopback
from hosting.peers import PeerLimits, PeerTable, peer_of
from protocol.reasons import ErrorCode

AT_ONCE: Final = 16
"""Connections that are accepted before others have their turn."""
HANDSHAKES_AT_ONCE: Final = 2
"""Of one peer, as long as they do not stall. Each takes this process a millisecond or more at one go."""
STALLED_S: Final = 0.2
"""A handshake that takes longer waits for its caller, and no longer holds up the peer's next ones."""
HANDSHAKE_S: Final = 5.0
"""How long a TLS handshake may take."""
WAITING_SHARE: Final = 8
"""One in so many connections may be before its handshake: the others have the rest."""
PAUSE_S: Final = 1.0
"""After a connection that could not be accepted, for want of a file or of memory."""

PACKED: Final = AccessRefused(
    415, "packed", "a body must not be packed (Content-Encoding)", ErrorCode.MALFORMED
)
TOO_MANY: Final = AccessRefused(429, "connections", "too many connections of one address are open and busy")
TOO_FAST: Final = AccessRefused(429, "connects", "too many new connections of one address")
TOO_MUCH: Final = AccessRefused(
    429, "rate", "too many requests of one caller", ErrorCode.OVERLOADED, retry_after_s=5
)


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    handshake_s: float
    """For so long a caller may send nothing, and then for so long its handshake may last."""
    longest_wait_s: float
    """A caller that has sent something waits no longer for its handshake: less than callers' patience."""
    waiting: int
    """Connections before their handshake."""
    waiting_of_peer: int

    @classmethod
    def of(cls, peers: PeerLimits, connections: int, *, is_tls: bool) -> "AcceptLimits":
        waiting = max(connections // WAITING_SHARE, 1) if is_tls else 0
        return cls(HANDSHAKE_S, peers.longest_handshake_wait_s, waiting, peers.connections)


@dataclass(frozen=True, slots=True)
class AcceptRules:
    name: Callable[[str], str]
    """The peer at an address; those of the empty one are not counted apart."""
    pace: Callable[[str], float]
    """The seconds until the peer may make a connection; 0: now, and it is charged."""
    admit: Callable[[str], bool]
    """Whether the peer may have one more connection, which is counted then."""
    tell: Callable[[str, AccessRefused], None]
    """A connection of the peer was refused."""


class Pace:
    """Names peers, and spaces the connections of each."""

    def __init__(self, limits: PeerLimits, now: Callable[[], float], *, is_tls: bool) -> None:
        self._spares_loopback = limits.spares_loopback
        self._clock = limits.handshakes() if is_tls else limits.new_connections()
        self._now = now

    def name(self, address: str) -> str:
        """The peer at the address; empty for one that is spared."""
        peer = peer_of(address)
        return "" if self._spares_loopback and is_loopback(peer) else peer

    def seconds(self, peer: str) -> float:
        """Until the peer may make a connection; 0: now, and it is charged."""
        if not peer:
            return 0.0
        now_s = self._now()
        wait_s = self._clock.wait_s(peer, now_s)
        if wait_s == 0.0:
            self._clock.charge(peer, 1.0, now_s)
        return wait_s


def is_limited(payer: str, right: AccessScope) -> bool:
    """kube-scheduler calls for everybody; a peer without a name is spared, or has a Unix socket."""
    return payer != "" and right is not AccessScope.EXTENDER


def is_packed(headers: Mapping[str, str]) -> bool:
    return "content-encoding" in headers and headers["content-encoding"].lower() != "identity"


def declared_bytes(headers: Mapping[str, str]) -> int:
    """The length of the body by the head, which the parser has checked; 0 for one in chunks."""
    return int(headers.get("content-length", 0))


def to_read_bytes(headers: Mapping[str, str], max_body_bytes: int, *, cuts: bool) -> int:
    """So much of the body will be read, as far as the head tells: nothing of one that is refused, whatever its length claims to be."""
    length = declared_bytes(headers)
    if is_packed(headers) or (length > max_body_bytes and not cuts):
        return 0
    return min(length, max_body_bytes)


class Turns:
    """Lets each caller do at most one request in each turn of the event loop, and as much as its limits allow.

    So a caller with hundreds of requests at once delays those of others by one of its own at a time.
    """

    def __init__(self, limits: PeerLimits) -> None:
        self._sustained, self._peak = limits.sustained(), limits.peak()
        self._longest_wait_s = limits.longest_wait_s
        self._served: set[str] = set()
        """The callers that have had this turn of the loop."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_due = False

    def take(self, caller: str, cost_units: float) -> Awaitable[bool] | bool:
        """Whether the caller's request may go on; it is awaited if the request must wait for that.

        A request that is given up while it waits has cost as much as one that was served: its head was read.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        wait_s = self._sustained.turn(caller, cost_units, now_s)
        if wait_s is not None:
            wait_s = max(wait_s, self._peak.turn(caller, cost_units, now_s) or 0.0)
        if wait_s == 0.0 and caller not in self._served:
            self._serve(caller, loop)
            return True
        return self._wait(caller, wait_s)

    def charge(self, caller: str, cost_units: float) -> None:
        """A request that went on has cost so much more."""
        now_s = asyncio.get_running_loop().time()
        self._sustained.charge(caller, cost_units, now_s)
        self._peak.charge(caller, cost_units, now_s)

    async def _wait(self, caller: str, wait_s: float | None) -> bool:
        if wait_s is None:
            await asyncio.sleep(self._longest_wait_s)  # an answer at once would be asked for again at once
            return False
        if wait_s:
            await asyncio.sleep(wait_s)
        loop = asyncio.get_running_loop()
        if caller not in self._served:
            self._serve(caller, loop)
            return True
        turn = loop.create_future()
        self._queues.setdefault(caller, deque()).append(turn)
        await turn
        return True

    def _serve(self, caller: str, loop: asyncio.AbstractEventLoop) -> None:
        self._served.add(caller)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the next turn with the first that waits of each caller."""
        self._is_due = False
        self._served.clear()
        for caller, queue in list(self._queues.items()):
            while queue:
                turn = queue.popleft()
                if not turn.done():  # else it was given up
                    turn.set_result(None)
                    self._serve(caller, asyncio.get_running_loop())
                    break
            else:
                del self._queues[caller]


@dataclass(slots=True, eq=False)
class Newcomer:
    """A connection before its handshake, and when it is given up."""

    socket: socket.socket
    peer: str
    end: asyncio.TimerHandle | None = None

    def has_left(self) -> bool:
        """Whether the caller has closed or reset, also with its first bytes still unread."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


class Acceptor:
    """Accepts connections for a server that has limits for peers: asyncio's own server asks nobody before a handshake.

    A handshake begins when the caller has sent something, the peer's newest first: in an overload the oldest are those whose callers are about
    to give up. One that has left costs nothing.
    """

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        limits: AcceptLimits,
        rules: AcceptRules,
        make: Callable[[str], asyncio.Protocol],
        fail: Callable[[str, asyncio.Protocol], None],
    ) -> None:
        """`make` gives the protocol of a connection; `fail` is told of one that was counted and not made after all."""
        self._listening = listening
        self._tls = tls
        self._limits = limits
        self._rules = rules
        self._make = make
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._waiting = PeerTable[Newcomer]()
        self._ready: dict[str, dict[Newcomer, None]] = {}
        """Those of the waiting that have sent something, the newest last."""
        self._workers: dict[str, set[asyncio.Task[None]]] = {}
        self._connecting: set[asyncio.Task[bool]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Connections before their handshake."""
        return len(self._waiting)

    def open(self, backlog: int) -> None:
        self._listening.setblocking(False)
        self._listening.listen(backlog)
        self._resume()

    def close(self) -> None:
        """Accept no more, and end the handshakes that are under way."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()
        for newcomer in list(self._waiting):
            self._drop(newcomer)
        for task in [*itertools.chain.from_iterable(self._workers.values()), *self._connecting]:
            task.cancel()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connected, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listening.fileno())
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            connected.setblocking(False)
            peer = self._rules.name(address[0])
            if self._tls is not None:
                self._wait(Newcomer(connected, peer))
            elif self._rules.pace(peer) > 0:
                connected.close()
                self._rules.tell(peer, TOO_FAST)
            else:
                self._begin(connected, peer)

    def _wait(self, newcomer: Newcomer) -> None:
        """Wait until the caller sends something. Where too many wait already, the oldest of this peer, or of the one with the most, is dropped."""
        peer, limits = newcomer.peer, self._limits
        oldest = None
        if peer and self._waiting.count(peer) >= limits.waiting_of_peer:
            oldest = next(self._waiting.of(peer))
        elif len(self._waiting) >= limits.waiting:
            oldest = next(self._waiting.of_largest())
        if oldest is not None:
            self._drop(oldest, TOO_MANY)
        self._waiting.reserve(peer)
        self._waiting.add(newcomer, peer)
        newcomer.end = self._loop.call_later(limits.handshake_s, self._drop, newcomer)
        self._loop.add_reader(newcomer.socket.fileno(), self._heard, newcomer)

    def _heard(self, newcomer: Newcomer) -> None:
        self._loop.remove_reader(newcomer.socket.fileno())
        if newcomer.has_left():
            self._drop(newcomer)
            return
        assert newcomer.end is not None
        newcomer.end.cancel()
        newcomer.end = self._loop.call_later(self._limits.longest_wait_s, self._drop, newcomer, TOO_FAST)
        self._ready.setdefault(newcomer.peer, {})[newcomer] = None
        workers = self._workers.setdefault(newcomer.peer, set())
        if len(workers) < HANDSHAKES_AT_ONCE:
            workers.add(self._loop.create_task(self._work(newcomer.peer)))

    def _drop(self, newcomer: Newcomer, refusal: AccessRefused | None = None) -> None:
        self._take(newcomer)
        newcomer.socket.close()
        if refusal is not None:
            self._rules.tell(newcomer.peer, refusal)

    def _take(self, newcomer: Newcomer) -> None:
        """End its waiting."""
        self._loop.remove_reader(newcomer.socket.fileno())
        self._waiting.remove(newcomer)
        if newcomer.end is not None:
            newcomer.end.cancel()
        if (ready := self._ready.get(newcomer.peer)) is not None:
            ready.pop(newcomer, None)
            if not ready:
                del self._ready[newcomer.peer]

    async def _work(self, peer: str) -> None:
        """Make the peer's connections that wait, at its pace."""
        try:
            while ready := self._ready.get(peer):
                newest = next(reversed(ready))
                if newest.has_left():
                    self._drop(newest)
                elif (wait_s := self._rules.pace(peer)) > 0:
                    await asyncio.sleep(min(wait_s, self._limits.longest_wait_s))
                else:
                    self._take(newest)
                    if (task := self._begin(newest.socket, peer)) is not None:
                        await asyncio.wait((task,), timeout=STALLED_S)
        finally:
            worker = asyncio.current_task()
            assert worker is not None
            workers = self._workers[peer]
            workers.discard(worker)
            if not workers:
                del self._workers[peer]

    def _begin(self, connected: socket.socket, peer: str) -> asyncio.Task[bool] | None:
        if not self._rules.admit(peer):
            connected.close()
            return None
        protocol = self._make(peer)
        task = self._loop.create_task(self._connect(connected, protocol))
        self._connecting.add(task)
        task.add_done_callback(lambda done: self._ended(done, connected, peer, protocol))
        return task

    async def _connect(self, connected: socket.socket, protocol: asyncio.Protocol) -> bool:
        """Whether the connection was made."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connected,
                ssl=self._tls,
                ssl_handshake_timeout=self._limits.handshake_s if self._tls is not None else None,
            )
        except Exception:  # noqa: BLE001 - the handshake failed or took too long, in the words of either event loop
            return False
        return True

    def _ended(
        self, task: asyncio.Task[bool], connected: socket.socket, peer: str, protocol: asyncio.Protocol
    ) -> None:
        self._connecting.discard(task)
        if task.cancelled() or not task.result():
            self._fail(peer, protocol)
            connected.close()
