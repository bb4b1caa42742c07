"""`load-average`: the published rule, doubling and halving by the one-minute load. Source: reference/neon.md 3.4."""

from dataclasses import dataclass
from typing import ClassVar, Final

from agent.core.policies.values import MAX_UNITS, Goal, Load, ResourceGoal, Sizing, usable
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
        """The same number of both resources, by the load average."""
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
