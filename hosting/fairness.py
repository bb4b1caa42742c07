"""The limits of peers at work (`hosting.peers`): connections are refused before a handshake, and callers take turns."""

import asyncio
import itertools
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from hosting.access import AccessRefused
from hosting.peers import PeerLimits
from protocol.reasons import ErrorCode

AT_ONCE: Final = 16
"""Connections that are accepted before others have their turn."""
HANDSHAKES_AT_ONCE: Final = 2
"""Of one peer. Each takes this process a millisecond or more at one go; the peer's others wait in the kernel."""
PAUSE_S: Final = 1.0
"""After a connection that could not be accepted, for want of a file or of memory."""

TOO_MANY: Final = AccessRefused(429, "connections", "too many connections of one address are open and busy")
TOO_FAST: Final = AccessRefused(429, "connects", "too many new connections of one address")
TOO_MUCH: Final = AccessRefused(
    429, "rate", "too many requests of one caller", ErrorCode.OVERLOADED, retry_after_s=5
)


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


class Acceptor:
    """Accepts connections for a server that has limits for peers.

    asyncio's own server asks nobody before a handshake. `admit` is told the address, and names the peer and the seconds to wait if the
    connection may be made: then `make` gives its protocol, and `fail` is told of the peer if it was not made after all,
    with the protocol if there was one already.
    """

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        admit: Callable[[str], tuple[str, float] | None],
        make: Callable[[str], asyncio.Protocol],
        fail: Callable[[str, asyncio.Protocol | None], None],
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._handshake_s = handshake_s
        self._admit = admit
        self._make = make
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._begun: dict[str, set[asyncio.Task[None]]] = {}
        self._waiting: dict[str, deque[tuple[socket.socket, float]]] = {}
        """By peer: its connections without a handshake yet, and when that may begin."""
        self._pause: asyncio.TimerHandle | None = None

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
        for peer, waiting in self._waiting.items():
            while waiting:
                self._drop(waiting.popleft()[0], peer)
        for task in itertools.chain.from_iterable(self._begun.values()):
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
            admitted = self._admit(address[0])
            if admitted is None:
                connected.close()
                continue
            connected.setblocking(False)
            peer, wait_s = admitted
            self._waiting.setdefault(peer, deque()).append((connected, self._loop.time() + wait_s))
            begun = self._begun.setdefault(peer, set())
            if len(begun) < HANDSHAKES_AT_ONCE:
                begun.add(self._loop.create_task(self._connect_waiting(peer)))

    async def _connect_waiting(self, peer: str) -> None:
        """Make the peer's connections that wait, one after the other."""
        waiting, begun = self._waiting[peer], self._begun[peer]
        try:
            while waiting:
                await self._connect(*waiting.popleft(), peer)
        finally:
            task = asyncio.current_task()
            assert task is not None
            begun.discard(task)
            if not begun:
                del self._begun[peer], self._waiting[peer]

    async def _connect(self, connected: socket.socket, begin_s: float, peer: str) -> None:
        made, protocol = False, None
        try:
            wait_s = begin_s - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            left_s = self._handshake_s + min(wait_s, 0.0)  # the peer's others may have taken its time
            if left_s > 0:
                protocol = self._make(peer)
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    connected,
                    ssl=self._tls,
                    ssl_handshake_timeout=left_s if self._tls is not None else None,
                )
                made = True
        except Exception:  # noqa: BLE001, S110 - the handshake failed or took too long, in the words of either event loop
            pass
        finally:
            if not made:
                self._drop(connected, peer, protocol)

    def _drop(self, connected: socket.socket, peer: str, protocol: asyncio.Protocol | None = None) -> None:
        self._fail(peer, protocol)
        connected.close()
