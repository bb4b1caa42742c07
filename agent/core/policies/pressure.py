"""`pressure`: grow while tasks wait for CPU or memory, by the kernel's pressure stall information (PSI).

It detects shortage, and not plenty: a step up under pressure, a step down when it is gone, else the size as
it is. It comes down only when the caller's window has passed (the highest goal of the window counts,
`agent.core.apply.goal_of`), and one step at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from agent.core.policies.values import (
    MAX_UNITS,
    MILLION,
    Goal,
    GoalPart,
    Load,
    Psi,
    Sizing,
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

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        """For each resource the higher result of its two figures."""
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
