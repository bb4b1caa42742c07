"""`utilisation`, the default: as many units as keep CPU and memory at a target share of the size.

The goal does not depend on the size, so the same load leads to the same size from both sides; and it rests on held
means (`smoothing`), so it does not flip at every sample. Without CPU time it goes by the load averages.
"""

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from agent.core.policies.smoothing import Smoothing
from agent.core.policies.values import (
    MAX_MICRO,
    MILLION,
    Goal,
    GoalPart,
    Load,
    Sizing,
    highest,
    micro,
    units_for,
)
from agent.core.policies.zones import Zones, headroom
from protocol.values import MAX_MEMORY_BYTES

MIB: Final = 2**20
CPU_ZONES: Final = Zones(160_000, 160_000)
MEMORY_ZONES: Final = Zones(50_000, 50_000)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Targets and zones in parts per million; `memory_margin` in bytes is added to what the guest uses.

    `load_target` is the load average for each CPU where CPU time is not known: waiting tasks count there, so it is
    higher. The margin and that target are the published ones (reference/neon.md 6.2).
    """

    cpu_target: int = 750_000
    memory_target: int | None = 750_000
    """None: memory does not count."""
    load_target: int = 900_000
    memory_margin: int = 100 * MIB
    cpu_zones: Zones = CPU_ZONES
    memory_zones: Zones = MEMORY_ZONES
    window_s: float = 60.0

    @property
    def smoothing(self) -> Smoothing:
        """How the means that it rests on are held."""
        return _smoothing(self)

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """What CPU and memory need, each by itself."""
        return Goal(highest((self._cpu(load, sizing),)), highest((self._memory(load, sizing),)))

    def _cpu(self, load: Load, sizing: Sizing) -> GoalPart:
        busy, mean = load.busy(), _mean(load.busy_mean_micro, MAX_MICRO)
        zones, target, word = self.smoothing.busy, self.cpu_target, "CPUs busy"
        if busy is None and mean is None:
            busy = micro(load.load1)
            held = _mean(load.load_mean_micro, MAX_MICRO)
            mean = held if held is not None else micro(load.load5)
            zones, target, word = self.smoothing.load, self.load_target, "load"
        level = _level(busy, mean, zones)
        if level is None:
            return GoalPart("cpu", None, "neither CPU time nor load averages are known")
        units = units_for(level * 1000 / target, sizing.unit.step.vcpu_milli)
        return GoalPart(
            "cpu", units, f"{float(level / MILLION):.2f} {word}, {target / MILLION:.0%} is the target"
        )

    def _memory(self, load: Load, sizing: Sizing) -> GoalPart:
        if self.memory_target is None:
            return GoalPart("memory", None, "memory does not count")
        mean = _mean(load.memory_mean, MAX_MEMORY_BYTES)
        level = _level(load.memory_used(), mean, self.smoothing.memory)
        if level is None:
            return GoalPart("memory", None, "memory in use is not known")
        need = level + self.memory_margin
        units = units_for(need * MILLION / self.memory_target, sizing.unit.step.memory_bytes)
        share = f"{self.memory_target / MILLION:.0%}"
        return GoalPart("memory", units, f"{round(need / MIB)} MiB of memory needed, {share} is the target")


def _mean(value: int | None, most: int) -> int | None:
    return None if value is None or value < 0 else min(value, most)


def _level(value: int | None, mean: int | None, zones: Zones) -> Fraction | None:
    """What counts of a figure and its mean; either alone where the other is not known."""
    if value is not None and mean is not None:
        return zones.blend(value, mean)
    known = value if value is not None else mean
    return None if known is None else Fraction(known)


@functools.lru_cache(1024)
def _smoothing(policy: Utilisation) -> Smoothing:
    """Worked out once for each policy, not for each sample."""
    return Smoothing(
        policy.cpu_zones.within(headroom(policy.cpu_target)),
        policy.cpu_zones.within(headroom(policy.load_target)),
        policy.memory_zones.within(headroom(policy.memory_target or MILLION)),
        policy.window_s,
    )
