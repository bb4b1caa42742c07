"""Sends a workload: in a closed loop (each connection asks again when it was answered) or at a pace (open loop)."""

import abc
import asyncio
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.load import http
from benchmarks.load.figures import Faults

DRAIN_S = 30.0
ENDLESS_S = 120.0
_clock = time.perf_counter


class Workload(Protocol):
    """The requests that are sent, and the judgement of the answers."""

    def next(self) -> tuple[bytes, Any] | None:
        """The next request and a value to remember with it; None if there is nothing to ask now."""
        ...

    def done(self, token: Any, status: int, body: bytes) -> int:
        """Check the answer; how many decisions it holds."""
        ...


@dataclass(slots=True)
class Run:
    """The result of a drive. `late_s` is the generator's own delay behind its schedule, for each request.

    Latencies of a paced run hold it too: if it is large, something else had the generator's core.
    """

    seconds: float = 0.0
    decisions: int = 0
    latencies_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    generator_cpu_s: float = 0.0

    @property
    def per_s(self) -> float:
        """Decisions per second."""
        return self.decisions / self.seconds if self.seconds else 0.0


class _Drive(abc.ABC):
    """The shared part of both ways: connections, replies, the end."""

    def __init__(self, workload: Workload, faults: Faults) -> None:
        self._workload = workload
        self._faults = faults
        self._connections: list[http.Connection] = []
        self._idle: list[http.Connection] = []
        self._is_ending = False
        self._ended = asyncio.Event()
        self.run = Run()

    async def over(self, port: int, connections: int) -> Run:
        for _ in range(connections):
            self._connections.append(await http.connect(self, port))
        self._idle = list(self._connections)
        began_s, began_cpu_s = _clock(), time.process_time()
        try:
            async with asyncio.timeout(self.limit_s()):
                self.begin()
                await self._ended.wait()
        except TimeoutError:
            self._faults.add(f"there were no answers at the end: given up after {self.limit_s():g} s")
        finally:
            self._is_ending = True
            for connection in self._connections:
                connection.abort()
        self.run.seconds = _clock() - began_s
        self.run.generator_cpu_s = time.process_time() - began_cpu_s
        return self.run

    @abc.abstractmethod
    def begin(self) -> None:
        """Start sending."""

    @abc.abstractmethod
    def limit_s(self) -> float:
        """When to give up on a server that does not answer any more, in seconds from the start."""

    @abc.abstractmethod
    def go_on(self, connection: http.Connection) -> None:
        """Handle an answer on a connection."""

    def send(self, connection: http.Connection, since_s: float) -> bool:
        """Send the next request, whose latency counts from `since_s`; False if there is none now."""
        found = self._workload.next()
        if found is None:
            return False
        request, connection.token = found
        connection.since = since_s
        connection.send(request)
        return True

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        run = self.run
        run.latencies_s.append(_clock() - connection.since)
        run.decisions += self._workload.done(connection.token, status, body)
        self.go_on(connection)

    def lost(self, connection: http.Connection) -> None:
        """A connection has ended, which it never should before the end of the drive."""
        if self._is_ending:
            return
        self._faults.add("the server closed a connection")
        self._connections.remove(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self.end_when_idle()

    def end_when_idle(self) -> None:
        """Note the end once nothing is under way and nothing more will be sent."""
        if not any(connection.is_open and connection.is_busy for connection in self._connections):
            self._ended.set()


class Closed(_Drive):
    """Each connection sends its next request when the last one is answered, until the time is over.

    `seconds` may be infinite: then the drive ends when the workload has nothing more.
    """

    def __init__(self, workload: Workload, faults: Faults, seconds: float = math.inf) -> None:
        super().__init__(workload, faults)
        self._seconds = seconds
        self._until_s = math.inf

    def limit_s(self) -> float:
        """The time itself and some patience."""
        return self._seconds + DRAIN_S if math.isfinite(self._seconds) else ENDLESS_S

    def begin(self) -> None:
        self._until_s = _clock() + self._seconds
        for connection in self._connections:
            self.go_on(connection)

    def go_on(self, connection: http.Connection) -> None:
        now_s = _clock()
        if now_s >= self._until_s or not self.send(connection, now_s):
            self.end_when_idle()


class Paced(_Drive):
    """Requests arrive evenly at `rate` per second, at any speed of the server.

    A latency counts from the moment the schedule named, so that a stall of the server counts against every request
    that fell into it, sent or not. A request that finds no idle connection waits for one.
    """

    def __init__(self, workload: Workload, faults: Faults, rate: float, seconds: float) -> None:
        super().__init__(workload, faults)
        self._gap_s = 1.0 / rate
        self._total = round(rate * seconds)
        self._arrived = 0
        self._began_s = 0.0
        self._waiting: deque[float] = deque()

    def limit_s(self) -> float:
        """The whole schedule and some patience."""
        return self._total * self._gap_s + DRAIN_S

    def begin(self) -> None:
        """Start the schedule."""
        self._began_s = _clock()
        self._spin()

    def _spin(self) -> None:
        """Let arrive what is due. It spins, because the loop's timers are only as fine as a millisecond."""
        now_s = _clock()
        while self._arrived < self._total:
            due_s = self._began_s + self._arrived * self._gap_s
            if due_s > now_s:
                break
            self._arrived += 1
            self._waiting.append(due_s)
            self.run.late_s.append(now_s - due_s)
        self._serve()
        if not self._ended.is_set() and not self._is_ending:
            asyncio.get_running_loop().call_soon(self._spin)

    def _serve(self) -> None:
        while self._waiting and self._idle:
            if not self.send(self._idle[-1], self._waiting[0]):
                break
            self._idle.pop()
            self._waiting.popleft()
        if not self._waiting and self._arrived == self._total:
            self.end_when_idle()

    def go_on(self, connection: http.Connection) -> None:
        self._idle.append(connection)
        if self._waiting:
            self._serve()
