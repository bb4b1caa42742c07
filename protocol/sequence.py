"""Sequence numbers: the source that counts, and the two gates that check what arrives.

`AgentGate` is the scheduler's, one per pod: it orders the requests of one agent life and lets a life that started
later supersede. `AnswerGate` is the informant's: it orders an agent's answers. Both are values; checking never writes.
"""

import enum
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from protocol.fields import UINT64_MAX
from protocol.values import Value


@dataclass(frozen=True, slots=True)
class SequenceSource:
    """Hands out 1, 2, 3, … `last` is the last number given, 0 before the first."""

    last: int = 0

    def next(self) -> "SequenceSource":
        """The source after giving one more number, which is its `last`."""
        assert self.last < UINT64_MAX
        return SequenceSource(self.last + 1)

    def above(self, number: int) -> "SequenceSource":
        """A source whose next number lies above `number` (a 409 names it)."""
        return SequenceSource(max(self.last, number))


class Life(Value, frozen=True):
    """One life of a runner: its ID, and when it started (milliseconds of Unix time)."""

    agent_id: UUID
    started_at_ms: int


class Passed(enum.Enum):
    """A request may be taken into progress."""

    NEW = "new"
    """Its number is higher than the last one of its life, or the equal one ended undecided."""
    FIRST_LIFE = "first-life"
    """The first request for the pod."""
    SUPERSEDES = "supersedes"
    """The first request of a life that started later than the known one."""


class Retry(Value, frozen=True):
    """The request equals the last one, body included: it joins that one or gets its answer."""


class Stale(Value, frozen=True):
    """The number is below the last one (409)."""

    last: int


class Reused(Value, frozen=True):
    """The number equals the last one but the body differs (409)."""

    last: int


class Superseded(Value, frozen=True):
    """Another life that did not start earlier owns the pod (409)."""

    current: Life
    last: int


Judgement: TypeAlias = Passed | Retry | Stale | Reused | Superseded


class AgentGate(Value, frozen=True):
    """The scheduler's memory of one pod's requests: the current life, its last number and that request.

    `body` is the parsed request of `last` (compared by equality), `undecided` says that it ended without a decision,
    by our fault, so that the same number may be processed anew.
    """

    life: Life | None = None
    last: int = 0
    body: object = None
    undecided: bool = False

    def check(self, life: Life, number: int, body: object) -> Judgement:
        """The judgement on a request of `life` with `number`; nothing changes."""
        assert number >= 1, number
        known = self.life
        if known is None:
            return Passed.FIRST_LIFE
        if known is not life and known.agent_id != life.agent_id:
            if life.started_at_ms > known.started_at_ms:
                return Passed.SUPERSEDES
            return Superseded(known, self.last)
        if number > self.last:
            return Passed.NEW
        if number < self.last:
            return Stale(self.last)
        if body != self.body:
            return Reused(self.last)
        return Passed.NEW if self.undecided else Retry()

    def take(self, life: Life, number: int, body: object) -> "AgentGate":
        """The gate after a request that passed (`check`) was taken into progress."""
        return AgentGate(life, number, body)

    def fail(self) -> "AgentGate":
        """The gate after the request in progress ended without a decision."""
        return AgentGate(self.life, self.last, self.body, undecided=True)


class AnswerOrder(enum.Enum):
    """How an agent's answer stands to the ones before it."""

    FRESH = "fresh"
    OLD = "old"
    INVALID = "invalid"
    """Number 0, which no agent may send."""


@dataclass(frozen=True, slots=True)
class AnswerGate:
    """The last sequence number that an agent's answers carried; 0 before the first. Source: reference/neon.md 1.5."""

    last: int = 0

    def check(self, number: int) -> tuple[AnswerOrder, "AnswerGate"]:
        """Whether `number` is fresh, and the gate after it."""
        if number == 0:
            return AnswerOrder.INVALID, self
        if number <= self.last:
            return AnswerOrder.OLD, self
        return AnswerOrder.FRESH, AnswerGate(number)
