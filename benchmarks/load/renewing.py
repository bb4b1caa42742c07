"""Agents that renew their permits as real ones do: each every 15 s, over connections that come back after a cut.

On the wire an agent follows the protocol: the first request to another process names the old one (or
none) and is answered as unsettled with no more than what it claims; the agent asks again at once, with a higher number
and naming the new one. A request without an answer is sent again with the same number and the same bytes, unless it claims more
than the agent counts on by now.
"""

import asyncio
import heapq
import json
import random
import time
from collections import Counter, deque

from benchmarks.load import agents, http
from benchmarks.load.agents import NOBODY, Agent, Permit
from benchmarks.load.figures import Faults

RENEW_S = 15.0
JITTER = 0.1
BACK_OFF_S = (0.5, 5.0)
RECONNECT_S = (0.05, 0.25)
DEADLINE_S = 4.0
LEASE_S = 30.0
UNSETTLED_AGAIN_S = 0.2
TICK_S = 0.002
TURNED_AWAY = (429, 503)
_clock = time.monotonic


class Renewing(Agent):
    """An agent over time. `heard_of` is the instance that it heard from last, `settled_by` the one that settled it.

    `is_open` says that its last request has no answer yet; `sent_s` is when that was sent the last time, `lease_s` when
    the attempt that was answered last was sent.
    """

    __slots__ = ("heard_of", "is_open", "lease_s", "next_token", "sent_s", "settled_by", "wanted")

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.heard_of = NOBODY
        self.settled_by = NOBODY
        self.next_token = b""
        self.is_open = False
        self.sent_s = 0.0
        self.lease_s: float | None = None
        self.wanted: int | None = self.held
        """The amount that the next new request asks for; None for the next one of the mix."""

    def request(self, now_s: float) -> bytes:
        """The body to send now: the open request once more if it still says the truth, else a new one."""
        self.sent_s = now_s
        if self.is_open and self.claim <= self.held:
            return self.again()
        if self.is_open and self.wanted is None:
            self.wanted = self.want
        want = self.next_units() if self.wanted is None else self.wanted
        self.is_open, self.wanted, self.token = True, None, self.next_token
        return self.ask(want, self.heard_of)


class Renewals:
    """All agents, their connections and their results. Seconds are those of `time.monotonic`."""

    def __init__(self, fleet: list[Renewing], port: int, rng: random.Random, faults: Faults) -> None:
        self._fleet = fleet
        self._port = port
        self._rng = rng
        self._faults = faults
        self._due: list[tuple[float, int]] = []
        self._ready: deque[Renewing] = deque()
        self._idle: list[http.Connection] = []
        self._open: set[http.Connection] = set()
        self._closed: dict[http.Connection, asyncio.Event] = {}
        self._is_killed = False
        self._is_stopped = False
        self._swept_s = 0.0
        self.settled = 0
        self.first_correct_s: float | None = None
        self.all_settled = asyncio.Event()
        self.all_settled_s = 0.0
        self.longest_silence_s = 0.0
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------ from outside

    async def run(self, connections: int) -> None:
        """Keep the connections and send what is due; until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._keep())
            group.create_task(self._pump())

    def ask_at_once(self) -> None:
        """Let every agent make its first request as soon as a connection is free."""
        self._ready.extend(self._fleet)

    def killed(self) -> None:
        """The server was killed: when the first connection is cut, all agents notice; nobody counts as settled."""
        self._is_killed = True
        self._forget_settled()

    def _forget_settled(self) -> None:
        self.settled, self.first_correct_s = 0, None
        self.all_settled.clear()
        self.longest_silence_s = 0.0
        self.counts.clear()
        for agent in self._fleet:
            agent.settled_by = NOBODY

    async def stop(self, patience_s: float) -> int:
        """Start nothing new and wait for what is open; how many agents are left without a correct answer."""
        self._is_stopped = True
        limit_s = _clock() + patience_s
        while self._unanswered() and _clock() < limit_s:  # noqa: ASYNC110 - see below
            await asyncio.sleep(0.05)  # a look now and then, so that answers need not keep an event
        return sum(1 for agent in self._fleet if agent.is_open or agent.settled_by == NOBODY)

    def _unanswered(self) -> bool:
        return bool(self._ready) or any(agent.is_open for agent in self._fleet)

    # ------------------------------------------------------------ connections

    async def _keep(self) -> None:
        """One connection, made again whenever it is gone."""
        while True:
            try:
                connection = await http.connect(self, self._port)
            except OSError:
                self.counts["refused_connections"] += 1
            else:
                gone = self._closed[connection] = asyncio.Event()
                self._open.add(connection)
                self._idle.append(connection)
                self._serve()
                try:
                    await gone.wait()
                finally:
                    connection.abort()
            await asyncio.sleep(self._rng.uniform(*RECONNECT_S))

    def lost(self, connection: http.Connection) -> None:
        """A connection was cut: the requests under way on it will not be answered."""
        gone = self._closed.pop(connection, None)
        if gone is None:
            return  # cut before it was taken up
        gone.set()
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._is_killed:
            self._is_killed = False
            self._notice_kill(connection)
        elif connection.token is not None:
            self.counts["cut"] += 1
            self._back_off(connection.token)
        connection.token = None

    def _notice_kill(self, first: http.Connection) -> None:
        """Every agent plans its next attempt anew; the other connections will be cut with nobody on them."""
        for connection in (first, *self._open):
            connection.token = None
        now_s = _clock()
        self._ready.clear()
        self._due = [(now_s + self._rng.uniform(*BACK_OFF_S), agent.index) for agent in self._fleet]
        heapq.heapify(self._due)

    # ------------------------------------------------------------ sending

    async def _pump(self) -> None:
        while True:
            now_s = _clock()
            while self._due and self._due[0][0] <= now_s:
                agent = self._fleet[heapq.heappop(self._due)[1]]
                if not self._is_stopped or agent.is_open:
                    self._ready.append(agent)
            if not self._open:
                self._refuse(now_s)
            self._serve()
            if now_s - self._swept_s > 0.25:
                self._swept_s = now_s
                self._sweep(now_s)
            await asyncio.sleep(TICK_S)

    def _refuse(self, now_s: float) -> None:
        """There is nobody to connect to: the attempts of now fail."""
        for agent in self._ready:
            self.counts["refused"] += 1
            heapq.heappush(self._due, (now_s + self._rng.uniform(*BACK_OFF_S), agent.index))
        self._ready.clear()

    def _serve(self) -> None:
        now_s = _clock()
        while self._ready and self._idle:
            agent, connection = self._ready.popleft(), self._idle.pop()
            connection.token, connection.since = agent, now_s
            connection.send(agent.http(agent.request(now_s)))

    def _sweep(self, now_s: float) -> None:
        for connection in list(self._open):
            if connection.token is not None and now_s - connection.since > DEADLINE_S:
                self.counts["timed_out"] += 1
                connection.abort()

    def _back_off(self, agent: Renewing) -> None:
        heapq.heappush(self._due, (_clock() + self._rng.uniform(*BACK_OFF_S), agent.index))

    # ------------------------------------------------------------ answers

    def replied(self, connection: http.Connection, status: int, body: bytes) -> None:
        """An agent was answered."""
        agent: Renewing | None = connection.token
        connection.token = None
        self._idle.append(connection)
        if agent is not None:
            self._take(agent, status, body)
        self._serve()

    def _take(self, agent: Renewing, status: int, body: bytes) -> None:
        if status in TURNED_AWAY:  # the gate has not moved: the same request again
            self.counts["turned_away"] += 1
            self._back_off(agent)
            return
        try:
            permit = agents.read(json.loads(body)) if status == 200 else None
        except ValueError as error:
            self._faults.add(f"{error}: {body!r}")
            permit = None
        if permit is None or permit.number != agent.number:
            self._faults.add(f"request {agent.number} of VM {agent.index}: status {status}: {body!r}")
            agent.is_open = False
            self._back_off(agent)
            return
        self._heard(agent, permit)

    def _heard(self, agent: Renewing, permit: Permit) -> None:
        now_s = _clock()
        agent.is_open = False
        if agent.lease_s is not None:
            silence_s = now_s - agent.lease_s
            self.longest_silence_s = max(self.longest_silence_s, silence_s)
            self.counts["leases_lost"] += silence_s > LEASE_S
        agent.lease_s = agent.sent_s
        self.counts["answers"] += 1
        is_named = agent.instance == permit.instance
        is_known = agent.heard_of == permit.instance
        agent.heard_of, agent.next_token = permit.instance, permit.token
        if permit.units > agent.want or (permit.is_unsettled and permit.units > agent.claim):
            self._faults.add(f"VM {agent.index}: {permit} exceeds want {agent.want} or claim {agent.claim}")
        if permit.units < min(agent.want, agent.claim):
            self._faults.add(f"VM {agent.index}: {permit} is below claim {agent.claim}, want {agent.want}")
            self._back_off(agent)
            return
        agent.held = permit.units
        if permit.is_unsettled or not is_named:
            self.counts["unsettled"] += 1
            agent.wanted = agent.want
            if is_known and is_named:
                heapq.heappush(self._due, (now_s + UNSETTLED_AGAIN_S, agent.index))
            else:
                self._ready.append(agent)
            return
        self._settle(agent, permit, now_s)

    def _settle(self, agent: Renewing, permit: Permit, now_s: float) -> None:
        """A correct permit: the next request is due in 15 s; after the very first one somewhere within them."""
        is_first = agent.settled_by == NOBODY
        agent.settled_by = permit.instance
        if is_first:
            self.settled += 1
            if self.first_correct_s is None:
                self.first_correct_s = now_s
            if self.settled == len(self._fleet):
                self.all_settled_s = now_s
                self.all_settled.set()
        wait_s = RENEW_S * self._rng.uniform(1 - JITTER, 1 + JITTER)
        if agent.number <= 2:
            wait_s = RENEW_S * self._rng.random()
        heapq.heappush(self._due, (now_s + wait_s, agent.index))


def fleet(count: int) -> list[Renewing]:
    """So many agents."""
    return [Renewing(index) for index in range(count)]
