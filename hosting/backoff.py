"""Jittered exponential back-off as a value: how long to wait after the n-th failure in a row."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: `base_s` after the first failure, `factor` times more after each, at most `cap_s`.

    `jitter` (0 to 1) is the share of a delay that chance may take away, so that peers do not retry in step.
    """

    base_s: float = 0.5
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.base_s <= self.cap_s and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise ValueError(f"not a back-off: {self}")

    def delay_s(self, failures: int, chance: float) -> float:
        """The wait after `failures` failures in a row (1 or more). `chance` (0 to 1) draws the jitter: 0 takes nothing away."""
        assert failures >= 1, failures
        # 64 doublings exceed every cap; a larger exponent would only overflow.
        try:
            full = min(self.cap_s, self.base_s * self.factor ** min(failures - 1, 64))
        except OverflowError:  # a large factor exceeds every cap sooner
            full = self.cap_s
        return full * (1 - self.jitter * chance)
