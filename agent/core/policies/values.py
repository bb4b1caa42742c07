"""The input and output of policies: the load of a VM, its size, a goal and its parts.

Amounts are whole numbers: busy CPUs in millionths, memory in bytes, shares in parts per million. Figures as the guest
counts them (load averages, stall shares) are floats until `micro`, `load_average` or `share` has judged them.
"""

import math
from collections.abc import Iterable
from typing import Final, Protocol

from protocol.values import MAX_MEMORY_BYTES, Bounds, ComputeUnit, Resources, Units, Value

MILLION: Final = 10**6
MAX_MICRO: Final = 2**53 * 1000
"""The most CPUs that are believed, in millionths; more counts as this much."""
MAX_UNITS: Final = 2**31 - 1
"""No goal is higher: every maximum binds long before."""
MAX_TEXT: Final = 300
"""Reasons end here; those of outside policies may have any length."""


def usable(number: float | None) -> float | None:
    """`number` if it can be a measurement, which is finite and not negative; else None."""
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def micro(cpus: float | None) -> int | None:
    """CPUs (or a load average) in whole millionths, to the nearest; None if it is no measurement."""
    found = usable(cpus)
    if found is None:
        return None
    if found >= MAX_MICRO / MILLION:
        return MAX_MICRO
    # As `round(Fraction(found) * MILLION)`, of which each sample of each VM takes two.
    numerator, denominator = found.as_integer_ratio()
    whole, rest = divmod(numerator * MILLION, denominator)
    is_up = 2 * rest > denominator or (2 * rest == denominator and whole % 2 == 1)
    return whole + is_up


class Psi(Value, frozen=True):
    """Pressure stall information of one resource: per cent of the time that some or all tasks waited for it."""

    some_avg10: float | None = None
    some_avg60: float | None = None
    full_avg10: float | None = None
    full_avg60: float | None = None


class Load(Value, frozen=True):
    """The load of a VM; None if it is not known.

    `busy_micro` are the CPUs that were busy over the last period, in millionths. Means, tails and `memory_rise` (bytes for
    each second) come from `remembered.remember` and earlier samples; a load without them is judged by its last
    period alone.
    """

    busy_micro: int | None = None
    busy_mean_micro: int | None = None
    load1: float | None = None
    load5: float | None = None
    load_mean_micro: int | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    memory_mean: int | None = None
    busy_tail_micro: int | None = None
    memory_tail: int | None = None
    memory_rise: int = 0
    memory_surge: int | None = None
    cpu_psi: Psi | None = None
    memory_psi: Psi | None = None
    answers: "tuple[PluginAnswer, ...]" = ()
    """The last answers of the policies in processes of their own."""

    def busy(self) -> int | None:
        """The busy CPUs, if that can be a measurement."""
        return None if self.busy_micro is None or self.busy_micro < 0 else min(self.busy_micro, MAX_MICRO)

    def memory_used(self) -> int | None:
        """The part of the memory that is not available; None if the guest did not say, or contradicts itself."""
        total, available = self.memory_total, self.memory_available
        if total is None or available is None or not 0 <= available <= total <= MAX_MEMORY_BYTES:
            return None
        return total - available


class Sizing(Value, frozen=True):
    """The VM that a goal is for. `use` is the amount in use."""

    use: Resources
    unit: ComputeUnit
    bounds: Bounds

    def units(self) -> Units:
        """The units that cover the amount in use, at most `MAX_UNITS`; of a tied VM the larger number for both."""
        found = self.unit.covering(self.use)
        return Units(min(found.cpu, MAX_UNITS), min(found.memory, MAX_UNITS))


class GoalPart(Value, frozen=True):
    """The goal of one policy for one resource, or by one of its figures. `units` is None if the policy cannot tell."""

    policy: str
    units: int | None
    reason: str


class ResourceGoal(Value, frozen=True):
    """Whole units of one resource and why; `units` is None if the policy cannot tell from this load.

    `parts` are all parts that were compared, the binding part first.
    """

    units: int | None
    reason: str
    parts: tuple[GoalPart, ...] = ()


class Goal(Value, frozen=True):
    """A goal for each resource. If all policies together cannot tell about a resource, its size stays."""

    cpu: ResourceGoal
    memory: ResourceGoal

    def units(self) -> Units:
        """The units of a goal that is known for both resources, as that of `combined.Combined` always is."""
        assert self.cpu.units is not None, self.cpu.reason
        assert self.memory.units is not None, self.memory.reason
        return Units(self.cpu.units, self.memory.units)

    @property
    def reason(self) -> str:
        """Both reasons in one text; a reason that both resources share comes once."""
        if self.cpu.reason == self.memory.reason:
            return self.cpu.reason
        return f"CPU: {self.cpu.reason}; memory: {self.memory.reason}"


class PluginAnswer(Value, frozen=True):
    """The answer of the policy plugin `plugin`: a goal in the units of the question, or None. `error` names the fault of the answer, or
    says why there is none."""

    plugin: str
    goal: Goal | None
    error: str = ""


class Policy(Protocol):
    """Turns load into a goal. A policy keeps no state and reads no clock: history comes with the load.

    A policy that knows one number of units only has the attribute `is_tied = True`: it gives that number to both
    resources, and its VMs are tied. One that knows which part of its goal is comfort has a method `need` beside `goal`, which leaves that out;
    all that another one wants is needed.
    """

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """The goal for this load, at least 0 units of each resource; the plan applies the bounds."""


def units_for(need: int, unit: int) -> int:
    """The least number of `unit` that covers `need`, from 0 to `MAX_UNITS`."""
    return max(0, min(-(-need // unit), MAX_UNITS))


def highest(parts: Iterable[GoalPart]) -> ResourceGoal:
    """The highest of several parts of one resource, ties to the earlier; every part is kept, the binding part first."""
    listed = tuple(parts)
    binding: GoalPart | None = None
    most = -1
    for part in listed:
        if part.units is not None and part.units > most:
            binding, most = part, part.units
    if binding is None:
        reason = "; ".join(part.reason for part in listed)[:MAX_TEXT] or "there is no policy"
        return ResourceGoal(None, reason, listed)
    if binding is not listed[0]:
        listed = (binding, *(part for part in listed if part is not binding))
    return ResourceGoal(most, binding.reason, listed)


def moved(goal: ResourceGoal, units: int, name: str, reason: str) -> ResourceGoal:
    """`goal`, moved to `units` by a limit outside the policies, whose reason becomes the binding one."""
    return ResourceGoal(units, reason, (GoalPart(name, units, reason), *goal.parts))
