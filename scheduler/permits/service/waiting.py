"""The requests that wait for an answer: for a look at the cluster, or for the verdict of a pool; and how many may."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import AgentIdentity
from scheduler.permits.service.answers import Outcome
from scheduler.ports import LOOK_DEADLINE_S

Report: TypeAlias = Callable[[bool | Exception], object]
"""Gets whether the cluster could be read, or our own fault."""
_Key = TypeVar("_Key")


MOST_LATER: Final = 512
"""Pods of one read for which nobody waits: when all VMs fall silent, looks for requests go between."""


class Looks:
    """Owns the reads. `read` makes one of some pods and says whether the cluster could be read."""

    def __init__(self, read: Callable[[Collection[PodName]], Awaitable[bool]]) -> None:
        self._read = read
        self._waiting: dict[PodName, list[Report]] = {}
        self._later: dict[PodName, list[Report]] = {}
        self._reading: asyncio.Task[None] | None = None

    def fresh(self, pod: PodName, report: Report) -> None:
        """Report whether a read of `pod` that began after this call has ended well; within two look deadlines, or at
        `close`. A report must not raise."""
        self._begin(self._waiting, pod, report)

    def later(self, pod: PodName, report: Report) -> None:
        """As `fresh`, without a deadline: nobody waits."""
        self._begin(self._later, pod, report)

    def _begin(self, waiting: dict[PodName, list[Report]], pod: PodName, report: Report) -> None:
        waiting.setdefault(pod, []).append(report)
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all(), name="looks at the cluster")

    async def close(self) -> None:
        """End the read under way: nobody gets a look any more."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read_all(self) -> None:
        waiting: dict[PodName, list[Report]] = {}
        try:
            while self._waiting or self._later:
                waiting, self._waiting = self._waiting, {}
                for pod in list(islice(self._later, MOST_LATER)):
                    waiting.setdefault(pod, []).extend(self._later.pop(pod))
                outcome = await self._outcome(waiting)
                reports, waiting = waiting, {}
                _report(reports, outcome)
        finally:
            self._reading = None
            for left in (waiting, self._waiting, self._later):
                reports = dict(left)
                left.clear()
                _report(reports, False)

    async def _outcome(self, pods: Collection[PodName]) -> bool | Exception:
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                return await self._read(pods)
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours: each request meets it as its own
            return error


def _report(waiting: dict[PodName, list[Report]], outcome: bool | Exception) -> None:
    for reports in waiting.values():
        for report in reports:
            report(outcome)


MAX_WAITING: Final = 256
"""Calls of pools that requests may wait for at the same time; a request and its duplicates wait for one."""
POOL_SHARE: Final = 192
"""Of these, calls of one pool: a pool that hangs must leave room for the others."""
AGENT_SHARE: Final = 160
"""Of `MAX_WAITING`, calls on behalf of one agent that has shown who it is."""
AGENT_POOL_SHARE: Final = 96
"""Of `POOL_SHARE`, the same: no agent takes a pool from the others, and each has a place for most VMs of a node."""
SURE_SHARE: Final = 8
"""Calls of each pool that may be waited for, however many of others are: one that hangs holds up its own alone."""
MAX_JOINED: Final = 8
"""Duplicates of a request that may wait for its answer with it."""
MAX_LOOKING: Final = 256
"""Requests with the extension that may wait for a look at the cluster."""
AGENT_LOOKING: Final = 32
"""Of these, requests of one agent that has shown who it is: names of pods are easily invented."""


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request whose answer is not there yet. Its answer is due at `due_s`, in seconds of the service's clock.

    `arrived` is its last pass through the core, `looks` how many looks were made for it. `pool` is the pool whose verdict it waits for,
    `call` the ticket of the request for which that pool was asked, `holder` the pool whose answer, or "" for a look, may make the
    request held, `is_held` that it was told as held; `outcome` the answer once it is there, told to `future` if somebody has begun
    to wait.
    """

    arrived: events.RequestArrived
    body: bytes
    since_s: float
    due_s: float
    looks: int = 0
    is_looking: bool = False
    pool: str | None = None
    call: int = 0
    holder: str | None = None
    is_held: bool = False
    outcome: Outcome | None = None
    future: asyncio.Future[Outcome] | None = None

    @property
    def for_extension(self) -> bool:
        return self.arrived.request.extension is not None


@dataclass(slots=True)
class _PoolCall:
    """A call that `callers` requests wait for; it counts for the agent that began to wait first."""

    pool: str
    identity: AgentIdentity | None
    callers: int = 0


class WaitingRequests:
    """All pending requests by ticket, and how many wait for what. `released` is told of each that was held and waits no more, however that ended."""

    def __init__(self, released: Callable[[WaitingRequest], None]) -> None:
        self._released = released
        self._pending: dict[int, WaitingRequest] = {}
        self._calls: dict[int, _PoolCall] = {}
        self._pools: Counter[str] = Counter()
        self._agents: Counter[AgentIdentity] = Counter()
        self._agents_of_pools: Counter[tuple[AgentIdentity, str]] = Counter()
        self.looking = 0
        """Requests with the extension that wait for a look."""
        self._agents_looking: Counter[AgentIdentity] = Counter()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def waiting(self) -> int:
        """Calls of pools that requests wait for."""
        return len(self._calls)

    @property
    def is_busy(self) -> bool:
        """Whether so many wait that a request may have to be turned away."""
        least = min(AGENT_POOL_SHARE, AGENT_SHARE, POOL_SHARE, MAX_WAITING)
        return self.waiting >= least or self.looking >= min(AGENT_LOOKING, MAX_LOOKING)

    def is_looking_full(self, identity: AgentIdentity | None) -> bool:
        """Whether no more requests with the extension, or no more of that agent, may wait for a look."""
        if identity is not None and self._agents_looking[identity] >= AGENT_LOOKING:
            return True
        return self.looking >= MAX_LOOKING

    def find(self, ticket: int) -> WaitingRequest | None:
        """The request of a ticket; None once it is answered, or its caller has gone."""
        return self._pending.get(ticket)

    def add(self, pending: WaitingRequest) -> None:
        self._pending[pending.arrived.ticket] = pending

    def looks(self, pending: WaitingRequest) -> None:
        if not pending.is_looking and pending.for_extension:
            pending.is_looking = True
            self._count_look(pending, 1)

    def asks(self, pending: WaitingRequest, pool: str, call: int) -> None:
        """It waits for the answer of `pool` to that call, which has one place however many wait for it."""
        self._looked(pending)
        pending.pool, pending.call = pool, call
        known = self._calls.get(call)
        if known is None:
            known = self._calls[call] = _PoolCall(pool, pending.arrived.identity)
            self._count(known, 1)
        known.callers += 1

    def settle(self, ticket: int, outcome: Outcome) -> None:
        pending = self._pending.get(ticket)
        if pending is None:
            return
        self.drop(ticket)
        pending.outcome = outcome
        if pending.future is not None and not pending.future.done():
            pending.future.set_result(outcome)

    def drop(self, ticket: int) -> None:
        """Nobody waits for the answer any more."""
        pending = self._pending.pop(ticket, None)
        if pending is None:
            return
        self._looked(pending)
        if pending.is_held:
            self._released(pending)
        if pending.pool is not None:
            call = self._calls[pending.call]
            call.callers -= 1
            if not call.callers:
                del self._calls[pending.call]
                self._count(call, -1)

    def is_full(self, pool: str, identity: AgentIdentity | None) -> bool:
        """Whether the pool may not be asked for one more VM, or not for one more VM of that agent."""
        waits = self._pools[pool]
        is_crowded = self.waiting >= MAX_WAITING
        if identity is not None:
            if self._agents_of_pools[identity, pool] >= AGENT_POOL_SHARE:
                return True
            is_crowded = is_crowded or self._agents[identity] >= AGENT_SHARE
        return waits >= POOL_SHARE or (is_crowded and waits >= SURE_SHARE)

    def _count(self, call: _PoolCall, change: int) -> None:
        _add(self._pools, call.pool, change)
        if call.identity is not None:
            _add(self._agents, call.identity, change)
            _add(self._agents_of_pools, (call.identity, call.pool), change)

    def _looked(self, pending: WaitingRequest) -> None:
        if pending.is_looking:
            pending.is_looking = False
            self._count_look(pending, -1)

    def _count_look(self, pending: WaitingRequest, change: int) -> None:
        self.looking += change
        if pending.arrived.identity is not None:
            _add(self._agents_looking, pending.arrived.identity, change)


def _add(counts: Counter[_Key], key: _Key, change: int) -> None:
    """No zero stays behind: keys come and go with callers."""
    counts[key] += change
    if not counts[key]:
        del counts[key]
