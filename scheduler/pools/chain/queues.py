"""What waits for pools: the waiters, the line of each pool, and the round that is being asked."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from scheduler.core import events
from scheduler.core.ledger import PoolAccount
from scheduler.core.model import Holder, VmSpec
from scheduler.pools.chain.calls import Call, Steps
from scheduler.pools.chain.manager import PluginManager
from scheduler.pools.core.admission_state import Part, PoolAdmissionState, Question
from scheduler.pools.core.claims import Claims
from scheduler.pools.core.probe import ProbeResult
from scheduler.pools.core.values import Context, Member, Pool

Answer: TypeAlias = Callable[[events.PoolVerdict], object]


class Pools(Protocol):
    """The pools as they are described now."""

    def find(self, name: str) -> Pool | None:
        """One pool; its `replicas` are of no account."""
        ...


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits, until `deadline_s`, for the word that `answer` takes."""

    needed: events.AdmissionCallNeeded
    deadline_s: float
    answer: Answer
    timer: asyncio.TimerHandle | None = None
    is_done: bool = False

    def tell(self, word: events.PoolVerdict) -> None:
        """Answer, once."""
        if not self.is_done:
            self.end()
            self.answer(word)

    def end(self) -> None:
        """Nobody waits for it any more."""
        self.is_done = True
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True)
class PoolQueue:
    """What waits for one pool. `alone` are waiters who are asked about one by one, because one of them is to blame."""

    name: str
    waiting: deque[Waiter] = field(default_factory=deque)
    alone: int = 0
    standing: PoolAdmissionState = field(default_factory=PoolAdmissionState)
    claims: Claims = field(default_factory=Claims)
    members: dict[Holder, Member] = field(default_factory=dict)
    specs: dict[str, VmSpec] = field(default_factory=dict)
    """Of parked VMs, as they were described then."""
    account: PoolAccount | None = None
    """Whose rows `members` are."""
    is_busy: bool = False
    task: asyncio.Task[None] | None = None
    round: "ProbeBatch | None" = None
    """The round that waits for something."""
    unbegun: "tuple[ProbeBatch, Call] | None" = None
    """What `task` is to begin with, until it has."""


@dataclass(slots=True)
class ProbeBatch:
    """One question for everybody in `waiters`."""

    waiters: list[Waiter]
    parts: tuple[Part, ...]
    asked: Question
    manager: PluginManager
    pool: Pool
    ctx: Context
    steps: Steps[ProbeResult]
    grants: int
    """How many grants any pool had been given when the round began."""
    cut: "asyncio.Future[None] | None" = None
    """Is done as soon as the round is of no use any more."""

    def parts_of(self, waiters: list[Waiter]) -> tuple[Part, ...]:
        """The parts of some of its waiters, in their order."""
        by_ticket = dict(zip((waiter.needed.ticket for waiter in self.waiters), self.parts, strict=True))
        return tuple(by_ticket[waiter.needed.ticket] for waiter in waiters)

    @property
    def deadline_s(self) -> float:
        """The earliest one of its waiters."""
        assert self.ctx.deadline_s is not None
        return self.ctx.deadline_s


def cut(line: PoolQueue) -> None:
    """What is being asked is of no use any more."""
    if line.round is not None and line.round.cut is not None and not line.round.cut.done():
        line.round.cut.set_result(None)


def identity(pool: Pool) -> tuple[str, int]:
    """What tells one description of a pool from another one, and from that of a pool made anew under its name."""
    return pool.uid, pool.generation
