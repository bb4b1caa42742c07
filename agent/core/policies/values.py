"""What policies see and give: the load of a VM, its size, a goal and its parts.

Amounts are whole numbers: busy CPUs in millionths, memory in bytes, shares in parts per million. Figures as the guest
counts them (load averages, stall shares) are floats until `micro`, `load_average` or `share` has judged them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Protocol, TypeAlias

from protocol.values import MAX_MEMORY_BYTES, Bounds, Resources

MILLION: Final = 10**6
MAX_MICRO: Final = 2**53 * 1000
"""The most CPUs that are believed, in millionths; what is above counts as this much."""
MAX_UNITS: Final = 2**31 - 1
"""No goal is higher: every maximum binds long before."""
MAX_TEXT: Final = 300
"""Reasons end here; those of outside policies may have any length."""


def usable(number: float | None) -> float | None:
    """`number` where it can be a measurement: finite and not negative."""
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def micro(cpus: float | None) -> int | None:
    """CPUs (or a load average) in whole millionths, to the nearest; None for what is no measurement."""
    found = usable(cpus)
    if found is None:
        return None
    return MAX_MICRO if found >= MAX_MICRO / MILLION else round(Fraction(found) * MILLION)


@dataclass(frozen=True, slots=True)
class Psi:
    """Pressure stall information of one resource: per cent of the time that some or all tasks waited for it."""

    some_avg10: float | None = None
    some_avg60: float | None = None
    full_avg10: float | None = None
    full_avg60: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a VM; None where it is not known.

    `busy_micro` are the CPUs that were busy over the last period, in millionths. The means are what `smoothing.smooth`
    remembers of each figure; a load without them is judged by its last period alone.
    """

    busy_micro: int | None = None
    busy_mean_micro: int | None = None
    load1: float | None = None
    load5: float | None = None
    load_mean_micro: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    memory_mean: int | None = None
    cpu_psi: Psi | None = None
    memory_psi: Psi | None = None

    def busy(self) -> int | None:
        """The busy CPUs, where that can be a measurement."""
        return None if self.busy_micro is None or self.busy_micro < 0 else min(self.busy_micro, MAX_MICRO)

    def memory_used(self) -> int | None:
        """What is not available of the memory; None where the guest did not say, or contradicts itself."""
        total, available = self.memory_total, self.memory_available
        if total is None or available is None or not 0 <= available <= total <= MAX_MEMORY_BYTES:
            return None
        return total - available


@dataclass(frozen=True, slots=True)
class Sizing:
    """The VM that a goal is for. `use` is what is in use."""

    use: Resources
    unit: Resources
    bounds: Bounds

    def units(self) -> int:
        """The units that cover what is in use."""
        return self.use.units(self.unit)


@dataclass(frozen=True, slots=True)
class GoalPart:
    """The goal of one policy, or by one of its figures. `units` is None where the policy could not tell."""

    policy: str
    units: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Goal:
    """Whole compute units and why. `parts` are all parts that were compared, the binding part first."""

    units: int
    reason: str
    parts: tuple[GoalPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A policy cannot tell from this load. Others decide; where none can, the size stays."""

    reason: str


PolicyResult: TypeAlias = Goal | Unknown


class Policy(Protocol):
    """Turns load into a goal. A policy keeps no state and reads no clock: history comes with the load."""

    def goal(self, load: Load, sizing: Sizing) -> PolicyResult:
        """The goal for this load, at least 0 units; the plan applies the bounds."""


def units_for(need: Fraction, unit: int) -> int:
    """The least number of `unit` that covers `need`, from 0 to `MAX_UNITS`."""
    return max(0, min(math.ceil(need / unit), MAX_UNITS))


def highest(parts: Iterable[GoalPart]) -> PolicyResult:
    """The highest of several parts, ties to the earlier; every part is kept, the binding part first."""
    listed = tuple(parts)
    binding = max(
        (part for part in listed if part.units is not None), key=lambda part: part.units or 0, default=None
    )
    if binding is None or binding.units is None:
        return Unknown("; ".join(part.reason for part in listed)[:MAX_TEXT] or "there is no policy")
    rest = tuple(part for part in listed if part is not binding)
    return Goal(binding.units, binding.reason, (binding, *rest))


def moved(goal: Goal, units: int, name: str, reason: str) -> Goal:
    """`goal`, moved to `units` by a limit outside the policies, whose reason becomes the binding one."""
    return replace(goal, units=units, reason=reason, parts=(GoalPart(name, units, reason), *goal.parts))
