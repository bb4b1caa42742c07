"""Seeded synthetic workloads: how much CPU and memory a guest wants at a moment. Pure functions of time, for demos and tests."""

import enum
import math
import random
from dataclasses import dataclass
from typing import Final

STEP_S: Final = 0.1
MAX_STEPS: Final = 6000
IDLE_BYTES: Final = 2**28
"""The memory that a guest wants whose workload is about CPU alone: 256 MiB."""


class Shape(enum.StrEnum):
    """How the wish for CPU and memory moves."""

    STEP = "step"
    """Low, then high, then low, each for half a period."""
    BURST = "burst"
    """Low, with short peaks."""
    DAY = "day"
    """A smooth day from night to noon and back, one period long."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A wish over time: between `low_cpus` and `high_cpus`, and between `low_bytes` and `high_bytes` of memory.

    The curve repeats every `period_s` seconds. One period began at `began_s`; None draws that moment from the seed.
    """

    shape: Shape
    seed: int
    low_cpus: float = 0.2
    high_cpus: float = 3.0
    period_s: float = 40.0
    low_bytes: int = IDLE_BYTES
    high_bytes: int = IDLE_BYTES
    began_s: float | None = None

    def demand(self, at_s: float) -> float:
        """The CPUs wanted at `at_s` seconds."""
        return self.low_cpus + (self.high_cpus - self.low_cpus) * self._height(at_s)

    def memory_bytes(self, at_s: float) -> int:
        return self.low_bytes + round((self.high_bytes - self.low_bytes) * self._height(at_s))

    def _height(self, at_s: float) -> float:
        """How high the curve is: 0 is low, 1 is high."""
        drawn_s = random.Random(self.seed).random() * self.period_s
        since_s = at_s + drawn_s if self.began_s is None else at_s - self.began_s
        part = (since_s % self.period_s) / self.period_s
        match self.shape:
            case Shape.STEP:
                return 1.0 if part >= 0.5 else 0.0
            case Shape.BURST:
                return 1.0 if part >= 0.8 else 0.0
            case Shape.DAY:
                return (1 - math.cos(2 * math.pi * part)) / 2

    def busy_seconds(self, from_s: float, to_s: float, size_cpus: float) -> float:
        """CPU time that a guest of `size_cpus` uses between two moments."""
        span_s = to_s - from_s
        if span_s <= 0:
            return 0.0
        steps = min(MAX_STEPS, max(1, math.ceil(span_s / STEP_S)))
        width_s = span_s / steps
        return sum(
            min(self.demand(from_s + (index + 0.5) * width_s), size_cpus) * width_s for index in range(steps)
        )
