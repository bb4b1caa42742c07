"""`pressure`: grow while tasks wait for CPU or memory, by the kernel's pressure stall information (PSI).

It knows what is too little, not what is enough: a step up under pressure, a step down when it is gone, else the size as
it is. It comes down only when the caller's window has passed (the highest goal of the window counts,
`agent.core.apply.goal_of`), and one step at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from agent.core.policies.values import (
    MAX_UNITS,
    MILLION,
    Goal,
    GoalPart,
    Load,
    PolicyResult,
    Psi,
    Sizing,
    Unknown,
    highest,
    units_for,
    usable,
)

CALM: Final = 4
"""Pressure is gone below this fraction of its threshold, over ten seconds and over sixty."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Thresholds in per cent of the time. `step` is the share of the size, in parts per million, of one step."""

    cpu_some: float = 40.0
    cpu_full: float = 10.0
    memory_some: float = 10.0
    memory_full: float = 5.0
    step: int = 250_000

    def goal(self, load: Load, sizing: Sizing) -> PolicyResult:
        """The highest result of the four figures."""
        parts = tuple(self._parts(load, sizing))
        result = highest(parts)
        if isinstance(result, Goal):
            return result
        return Unknown("the guest shows no pressure figures")

    def _parts(self, load: Load, sizing: Sizing) -> Iterator[GoalPart]:
        for name, psi, some, full in (
            ("cpu", load.cpu_psi, self.cpu_some, self.cpu_full),
            ("memory", load.memory_psi, self.memory_some, self.memory_full),
        ):
            found = psi if psi is not None else Psi()
            yield self._part(f"{name} some", found.some_avg10, found.some_avg60, some, sizing)
            yield self._part(f"{name} full", found.full_avg10, found.full_avg60, full, sizing)

    def _part(
        self, name: str, avg10: float | None, avg60: float | None, threshold: float, sizing: Sizing
    ) -> GoalPart:
        short, long = usable(avg10), usable(avg60)
        if short is None:
            return GoalPart(name, None, f"{name} pressure is not known")
        size = min(sizing.units(), MAX_UNITS)
        step = max(1, units_for(Fraction(size * self.step, MILLION), 1))
        shown = f"{name} pressure {min(short, 100):.1f}%"
        if short >= threshold:
            return GoalPart(name, min(size + step, MAX_UNITS), f"{shown} is at or above {threshold:g}%")
        if max(short, long or 0.0) * CALM >= threshold:
            return GoalPart(name, size, f"{shown} is below {threshold:g}%, but not gone for a minute")
        return GoalPart(name, max(0, size - step), f"{shown}: gone for a minute")
