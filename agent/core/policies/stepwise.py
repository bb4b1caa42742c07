"""Policies that go step by step from the present size.

`load-average` is the published rule, doubling and halving by the one-minute load (reference/neon.md 3.4). `pressure` grows while tasks wait
for CPU or memory, by the kernel's pressure stall information (PSI).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from agent.core.policies.values import (
    MAX_UNITS,
    MILLION,
    Goal,
    GoalPart,
    Load,
    Psi,
    ResourceGoal,
    Sizing,
    highest,
    units_for,
    usable,
)
from protocol import float32
from protocol.texts import counted

MAX_FLOAT32: Final = 2.0**128 - 2.0**104


@dataclass(frozen=True, slots=True)
class LoadAverage:
    """Double above `high` of the CPUs, halve below `low`. Thresholds are shares of CPUs, not of units."""

    high: float = 0.9
    low: float = 0.4
    is_tied: ClassVar[bool] = True
    """One number of units is all that the published rule knows."""

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        found = self._both(load, sizing)
        return Goal(found, found)

    def _both(self, load: Load, sizing: Sizing) -> ResourceGoal:
        """The number by the load average, in single precision as published peers reckon."""
        found = usable(load.load1)
        if found is None:
            return ResourceGoal(None, "the load average is not known")
        load1 = float32.round32(min(found, MAX_FLOAT32))
        start = self.start(sizing)
        cpus = sizing.use.vcpu_milli / 1000
        if load1 > _product(self.high, cpus):
            return ResourceGoal(
                min(start * 2, MAX_UNITS),
                f"load {load1:.2f} is above {self.high:g} of {counted(cpus, 'CPU')}",
            )
        if load1 < _product(self.low, cpus):
            return ResourceGoal(
                start // 2, f"load {load1:.2f} is below {self.low:g} of {counted(cpus, 'CPU')}"
            )
        return ResourceGoal(start, f"load {load1:.2f} suits {counted(cpus, 'CPU')}")

    @staticmethod
    def start(sizing: Sizing) -> int:
        """The size in units; between the two if CPU and memory are out of ratio."""
        use, step = sizing.use, sizing.unit.step
        counts = (-(-use.vcpu_milli // step.vcpu_milli), -(-use.memory_bytes // step.memory_bytes))
        large = min(max(counts), MAX_UNITS)
        small = min(*counts, large)
        return small + (large - small + 1) // 2


def _product(share: float, cpus: float) -> float:
    """The product of two single-precision numbers, rounded once: exact in double precision before that."""
    return float32.round32(float32.round32(share) * float32.round32(cpus))


CALM: Final = 4
"""Pressure is gone below this fraction of its threshold, over ten seconds and over sixty."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Thresholds in per cent of the time. `step` is the share of the size, in parts per million, of one step.

    It detects shortage, and not plenty: a step up under pressure, a step down when it is gone, else the size as it is. It comes down only
    when the down window has passed (`agent.core.on_metrics.goal_of`), and one step at a time.
    """

    cpu_some: float = 40.0
    cpu_full: float = 10.0
    memory_some: float = 10.0
    memory_full: float = 5.0
    step: int = 250_000

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        size = sizing.units()
        return Goal(
            highest(self._parts("cpu", load.cpu_psi, (self.cpu_some, self.cpu_full), size.cpu)),
            highest(
                self._parts("memory", load.memory_psi, (self.memory_some, self.memory_full), size.memory)
            ),
        )

    def _parts(
        self, name: str, psi: Psi | None, thresholds: tuple[float, float], size: int
    ) -> Iterator[GoalPart]:
        found, (some, full) = psi if psi is not None else Psi(), thresholds
        yield self._part(f"{name} some", found.some_avg10, found.some_avg60, some, size)
        yield self._part(f"{name} full", found.full_avg10, found.full_avg60, full, size)

    def _part(
        self, name: str, avg10: float | None, avg60: float | None, threshold: float, size: int
    ) -> GoalPart:
        short, long = usable(avg10), usable(avg60)
        if short is None:
            return GoalPart(name, None, f"{name} pressure is not known")
        step = max(1, units_for(size * self.step, MILLION))
        shown = f"{name} pressure {min(short, 100):.1f}%"
        if short >= threshold:
            return GoalPart(name, min(size + step, MAX_UNITS), f"{shown} is at or above {threshold:g}%")
        if max(short, long or 0.0) * CALM >= threshold:
            return GoalPart(name, size, f"{shown} is below {threshold:g}%, but not gone for a minute")
        return GoalPart(name, max(0, size - step), f"{shown}: gone for a minute")
