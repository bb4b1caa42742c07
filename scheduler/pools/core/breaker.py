"""When to ask a service that may fail: a circuit breaker, and a budget of retries. Pure values.

Who calls the service takes a `Pass` before each call and tells with it how the call ended, exactly once.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final


class BreakerState(enum.StrEnum):
    """Whether the service is asked."""

    CLOSED = "closed"
    """Every call goes through."""
    OPEN = "open"
    """The service failed too often in a row: no call goes through until the pause is over."""
    HALF_OPEN = "half-open"
    """The pause is over: one call at a time goes through, as a probe."""


class BreakerEvent(enum.Enum):
    """How a call has ended."""

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
        if self.state is BreakerState.CLOSED:
            return self, Pass(self.era)
        if self.is_probing or self.wait_s(now_s) > 0:
            return self, None
        after = self if self.state is BreakerState.HALF_OPEN else self._in(BreakerState.HALF_OPEN)
        return replace(after, is_probing=True), Pass(after.era)

    def tell(self, entry: Pass, event: BreakerEvent, now_s: float) -> "Breaker":
        """The breaker after the call with that pass has ended; the same one where the pass is of an earlier era."""
        if (
            entry.era != self.era or self.state is BreakerState.OPEN
        ):  # an open breaker gives no pass of its era
            return self
        is_probe = self.state is BreakerState.HALF_OPEN
        match event:
            case BreakerEvent.FAILED:
                failures = self.failures + 1
                if is_probe or failures >= self.rules.failures:
                    return replace(self._in(BreakerState.OPEN), failures=failures, opened_s=now_s)
                return replace(self, failures=failures)
            case BreakerEvent.SUCCEEDED if is_probe and self.proofs + 1 < self.rules.probes:
                return replace(self, proofs=self.proofs + 1, is_probing=False)
            case BreakerEvent.SUCCEEDED if is_probe:
                return replace(self._in(BreakerState.CLOSED), failures=0)
            case BreakerEvent.SUCCEEDED:
                return replace(self, failures=0) if self.failures else self
            case BreakerEvent.ABANDONED:
                return replace(self, is_probing=False) if is_probe else self

    def _in(self, state: BreakerState) -> "Breaker":
        return replace(self, state=state, proofs=0, is_probing=False, era=self.era + 1)

    def wait_s(self, now_s: float) -> float:
        """Seconds until a call may go through again; 0 unless it is open and the pause lasts."""
        return max(self.opened_s + self.rules.open_s - now_s, 0.0) if self.state is BreakerState.OPEN else 0.0


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
        if self.left == self.most:
            return self
        return replace(self, left=min(self.left + self.earned, self.most))

    def spent(self) -> "RetryBudget | None":
        """After one more retry; None where there is not enough for it."""
        return replace(self, left=self.left - THOUSANDTHS) if self.left >= THOUSANDTHS else None

    @property
    def retries(self) -> int:
        return self.left // THOUSANDTHS
