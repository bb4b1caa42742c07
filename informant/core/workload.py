"""Seeded synthetic workloads: how many CPUs a guest wants at a moment. Pure functions of time, for demos and tests."""

import enum
import math
import random
from dataclasses import dataclass
from typing import Final

STEP_S: Final = 0.1
MAX_STEPS: Final = 6000


class Shape(enum.StrEnum):
    """How the wish for CPU moves."""

    STEP = "step"
    """Low, then high, then low, each for half a period."""
    BURST = "burst"
    """Low, with short peaks."""
    DAY = "day"
    """A smooth day from night to noon and back, one period long."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A wish for CPU over time: between `low_cpus` and `high_cpus`, repeating every `period_s` seconds."""

    shape: Shape
    seed: int
    low_cpus: float = 0.2
    high_cpus: float = 3.0
    period_s: float = 40.0

    def demand(self, at_s: float) -> float:
        """The CPUs wanted at `at_s` seconds."""
        offset_s = random.Random(self.seed).random() * self.period_s
        part = ((at_s + offset_s) % self.period_s) / self.period_s
        span = self.high_cpus - self.low_cpus
        match self.shape:
            case Shape.STEP:
                return self.high_cpus if part >= 0.5 else self.low_cpus
            case Shape.BURST:
                return self.high_cpus if part >= 0.8 else self.low_cpus
            case Shape.DAY:
                return self.low_cpus + span * (1 - math.cos(2 * math.pi * part)) / 2

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
