"""Time windows: floors and ceilings for the goal, in units. Pure: when each opened and closed last comes in.

A window opens with each `from` and closes with each `until`; the later of the two counts, and where both fall on one
moment it is closed. Cron expressions and time zones are read by `agent.daemon.windows`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.core.policies.values import MAX_UNITS, Goal, Sizing, moved


@dataclass(frozen=True, slots=True)
class Window:
    """What holds while a window is open; at least one of the two is set."""

    name: str
    floor: int | None = None
    ceiling: int | None = None


@dataclass(frozen=True, slots=True)
class Edges:
    """When a window opened and closed last, in seconds since the epoch; None where it never did."""

    opened_s: float | None
    closed_s: float | None

    def is_open(self) -> bool:
        """Whether it opened after it closed last."""
        return self.opened_s is not None and (self.closed_s is None or self.opened_s > self.closed_s)


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """The floor and the ceiling of the windows that are open: the highest and the lowest, each with its window."""

    floor: Window | None = None
    ceiling: Window | None = None

    def apply(self, goal: Goal, sizing: Sizing) -> Goal:
        """The goal within the ceiling, then at least the floor. The VM's bounds win over both."""
        unit, bounds = sizing.unit, sizing.bounds
        # The most units that the minimum holds, and the least that hold the maximum: beyond them bounds alone count.
        least = min(
            bounds.min.vcpu_milli // unit.vcpu_milli, bounds.min.memory_bytes // unit.memory_bytes, MAX_UNITS
        )
        most = min(bounds.max.units(unit), MAX_UNITS)
        if self.ceiling is not None and self.ceiling.ceiling is not None:
            top = max(self.ceiling.ceiling, least)
            if goal.units > top:
                goal = moved(
                    goal, top, "ceiling", _reason("ceiling", self.ceiling, self.ceiling.ceiling, top)
                )
        if self.floor is not None and self.floor.floor is not None:
            base = min(self.floor.floor, most)
            if goal.units < base:
                goal = moved(goal, base, "floor", _reason("floor", self.floor, self.floor.floor, base))
        return goal


NO_LIMITS = WindowLimits()


def limits(windows: Iterable[tuple[Window, Edges]]) -> WindowLimits:
    """What holds now: of the open windows the highest floor and the lowest ceiling, ties to the earlier."""
    found = [window for window, edges in windows if edges.is_open()]
    floors = [(window.floor, window) for window in found if window.floor is not None]
    ceilings = [(window.ceiling, window) for window in found if window.ceiling is not None]
    return WindowLimits(
        max(floors, key=lambda pair: pair[0])[1] if floors else None,
        min(ceilings, key=lambda pair: pair[0])[1] if ceilings else None,
    )


def _reason(sort: str, window: Window, asked: int, units: int) -> str:
    because = "" if asked == units else f" (it asks for {asked}, which the VM's bounds or size do not allow)"
    return f"window {window.name}: the {sort} is {units} units{because}"
