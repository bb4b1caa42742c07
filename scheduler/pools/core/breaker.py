"""When to ask a service that may fail: a circuit breaker as a table machine, and a budget of retries. Pure values.

Who calls the service takes a `Pass` before each call and tells with it how the call ended, exactly once. `ask` and
`tell` give the breaker after that; what is not in `TABLE` does not happen.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias


class BreakerState(enum.StrEnum):
    """Whether the service is asked."""

    CLOSED = "closed"
    """Every call goes through."""
    OPEN = "open"
    """The service failed too often in a row: no call goes through until the pause is over."""
    HALF_OPEN = "half-open"
    """The pause is over: one call at a time goes through, as a probe."""


class BreakerEvent(enum.Enum):
    """What happens to a breaker: somebody wants to call, or a call has ended."""

    ASKED = "asked"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Nobody waited for its end (a cancellation, a deadline): it says nothing of the service."""


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`failures` in a row (1 or more) open the breaker for `open_s` seconds (above 0); then as many `probes` in a row
    (1 or more) must succeed before it closes, and one that fails opens it again.
    """

    failures: int = 5
    open_s: float = 5.0
    probes: int = 1

    def __post_init__(self) -> None:
        if self.failures < 1 or self.probes < 1 or not 0 < self.open_s < float("inf"):
            raise ValueError(f"not the rules of a breaker: {self}")


@dataclass(frozen=True, slots=True)
class Pass:
    """The right to make one call, in the `era` of the breaker that gave it."""

    era: int


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker at one moment. Times are seconds of the caller's monotonic clock.

    `failures` counts those in a row, those that opened it included; `proofs` the probes that succeeded since it is
    half-open, and `is_probing` whether one is under way. `opened_s` is when it opened last. Every change of state
    begins another `era`: the end of a call from an earlier one says nothing of the state now, and is ignored.
    """

    rules: BreakerRules = BreakerRules()
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    opened_s: float = 0.0
    proofs: int = 0
    is_probing: bool = False
    era: int = 0

    def ask(self, now_s: float) -> "tuple[Breaker, Pass | None]":
        """The breaker after somebody wanted to call, and the pass for it; None where the call must not be made."""
        after = TABLE[self.state, BreakerEvent.ASKED](self, now_s)
        match after.state:
            case BreakerState.CLOSED:
                return after, Pass(after.era)
            case BreakerState.HALF_OPEN if not self.is_probing:
                return after, Pass(after.era)
            case BreakerState.HALF_OPEN | BreakerState.OPEN:
                return after, None

    def tell(self, entry: Pass, event: BreakerEvent, now_s: float) -> "Breaker":
        """The breaker after the call with that pass has ended; the same one where the pass is of an earlier era."""
        if entry.era != self.era or (self.state, event) not in TABLE:
            return self
        return TABLE[self.state, event](self, now_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may go through again; 0 unless it is open and the pause lasts."""
        return max(self.opened_s + self.rules.open_s - now_s, 0.0) if self.state is BreakerState.OPEN else 0.0


Step: TypeAlias = Callable[[Breaker, float], Breaker]


def _same(breaker: Breaker, _: float) -> Breaker:
    return breaker


def _begin_probing(breaker: Breaker, now_s: float) -> Breaker:
    """From open: half-open with its first probe, once the pause is over."""
    if breaker.wait_s(now_s) > 0:
        return breaker
    return replace(breaker, state=BreakerState.HALF_OPEN, proofs=0, is_probing=True, era=breaker.era + 1)


def _probe_again(breaker: Breaker, _: float) -> Breaker:
    return breaker if breaker.is_probing else replace(breaker, is_probing=True)


def _forget_failures(breaker: Breaker, _: float) -> Breaker:
    return replace(breaker, failures=0) if breaker.failures else breaker


def _count_failure(breaker: Breaker, now_s: float) -> Breaker:
    counted = replace(breaker, failures=breaker.failures + 1)
    return _open(counted, now_s) if counted.failures >= breaker.rules.failures else counted


def _open(breaker: Breaker, now_s: float) -> Breaker:
    return replace(
        breaker, state=BreakerState.OPEN, opened_s=now_s, proofs=0, is_probing=False, era=breaker.era + 1
    )


def _reopen(breaker: Breaker, now_s: float) -> Breaker:
    return _open(replace(breaker, failures=breaker.failures + 1), now_s)


def _count_proof(breaker: Breaker, _: float) -> Breaker:
    """From half-open: closed with the last probe that was needed."""
    if breaker.proofs + 1 < breaker.rules.probes:
        return replace(breaker, proofs=breaker.proofs + 1, is_probing=False)
    return replace(
        breaker, state=BreakerState.CLOSED, failures=0, proofs=0, is_probing=False, era=breaker.era + 1
    )


def _end_probe(breaker: Breaker, _: float) -> Breaker:
    return replace(breaker, is_probing=False)


TABLE: Final[Mapping[tuple[BreakerState, BreakerEvent], Step]] = MappingProxyType(
    {
        (BreakerState.CLOSED, BreakerEvent.ASKED): _same,
        (BreakerState.CLOSED, BreakerEvent.SUCCEEDED): _forget_failures,
        (BreakerState.CLOSED, BreakerEvent.FAILED): _count_failure,
        (BreakerState.CLOSED, BreakerEvent.ABANDONED): _same,
        # Nothing else while it is open: then the breaker has given no pass of its era.
        (BreakerState.OPEN, BreakerEvent.ASKED): _begin_probing,
        (BreakerState.HALF_OPEN, BreakerEvent.ASKED): _probe_again,
        (BreakerState.HALF_OPEN, BreakerEvent.SUCCEEDED): _count_proof,
        (BreakerState.HALF_OPEN, BreakerEvent.FAILED): _reopen,
        (BreakerState.HALF_OPEN, BreakerEvent.ABANDONED): _end_probe,
    }
)

THOUSANDTHS: Final = 1000


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """How many retries may be made: each costs one, each answered question earns a share of one.

    All amounts are thousandths of a retry, from 0: `left` of at most `most`, `earned` per answer. So a service that
    fails gets at most `most` and then that share of retries, however many callers there are.
    """

    left: int
    most: int
    earned: int

    def __post_init__(self) -> None:
        if not (0 <= self.left <= self.most and self.earned >= 0):
            raise ValueError(f"not a budget of retries: {self}")

    @classmethod
    def full(cls, retries: int, share: float) -> "RetryBudget":
        """A budget of `retries` at first and at most, that earns `share` (0 to 1) of one with each answer."""
        return cls(retries * THOUSANDTHS, retries * THOUSANDTHS, round(share * THOUSANDTHS))

    def answered(self) -> "RetryBudget":
        """After a question that was answered."""
        if self.left == self.most:
            return self
        return replace(self, left=min(self.left + self.earned, self.most))

    def spent(self) -> "RetryBudget | None":
        """After one more retry; None where there is not enough for it."""
        return replace(self, left=self.left - THOUSANDTHS) if self.left >= THOUSANDTHS else None

    @property
    def retries(self) -> int:
        """Whole retries that are left."""
        return self.left // THOUSANDTHS
