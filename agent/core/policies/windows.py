"""Time windows: floors and ceilings for the goal, in units. Pure: when each opened and closed last comes in.

A window opens with each `from` and closes with each `until`; the later of the two counts, and if both fall on one
moment it is closed. Cron expressions and time zones are read by `agent.daemon.windows`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.core.policies.values import MAX_UNITS, Goal, ResourceGoal, Sizing, moved
from protocol.texts import counted
from protocol.values import ComputeUnit


@dataclass(frozen=True, slots=True)
class UnitLimit:
    """A floor or a ceiling of a window: units of each resource; None if the window leaves that resource alone."""

    cpu: int | None = None
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The rules while a window is open; at least one number is set."""

    name: str
    floor: UnitLimit = UnitLimit()
    ceiling: UnitLimit = UnitLimit()


@dataclass(frozen=True, slots=True)
class Edges:
    """When a window opened and closed last, in seconds since the epoch; None if it never did."""

    opened_s: float | None
    closed_s: float | None

    def is_open(self) -> bool:
        return self.opened_s is not None and (self.closed_s is None or self.opened_s > self.closed_s)


@dataclass(frozen=True, slots=True)
class Bar:
    """The floor or the ceiling of one resource that holds now, and the name of its window."""

    units: int
    window: str


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    floor: Bar | None = None
    ceiling: Bar | None = None

    def merged(self, other: "ResourceLimits") -> "ResourceLimits":
        """The higher floor and the lower ceiling of both, ties to the first."""
        floors = [bar for bar in (self.floor, other.floor) if bar is not None]
        ceilings = [bar for bar in (self.ceiling, other.ceiling) if bar is not None]
        return ResourceLimits(
            max(floors, key=lambda bar: bar.units, default=None),
            min(ceilings, key=lambda bar: bar.units, default=None),
        )

    def apply(self, goal: ResourceGoal, least: int, most: int, word: str) -> ResourceGoal:
        """The goal within the ceiling, then at least the floor. A ceiling below `least` counts as `least`, a floor above
        `most` as `most`. `word` names the resource in the reason."""
        if self.ceiling is not None and goal.units is not None:
            top = max(self.ceiling.units, min(least, MAX_UNITS))
            if goal.units > top:
                goal = moved(goal, top, "ceiling", _reason("ceiling", self.ceiling, top, word))
        if self.floor is not None and goal.units is not None:
            base = min(self.floor.units, most)
            if goal.units < base:
                goal = moved(goal, base, "floor", _reason("floor", self.floor, base, word))
        return goal


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """The limits of the open windows for each resource: the highest floor and the lowest ceiling."""

    cpu: ResourceLimits = ResourceLimits()
    memory: ResourceLimits = ResourceLimits()

    def apply(self, goal: Goal, sizing: Sizing) -> Goal:
        """The goal within the limits of each resource; for a tied VM those of both count. The VM's bounds win."""
        step, least, most = sizing.unit.step, sizing.bounds.min, sizing.bounds.max
        # The most units that the minimum holds, and the least that hold the maximum: beyond them bounds alone count.
        low_cpu, low_memory = least.vcpu_milli // step.vcpu_milli, least.memory_bytes // step.memory_bytes
        high = ComputeUnit(step, is_apart=True).covering(most)
        if not sizing.unit.is_apart:
            limits = self.cpu.merged(self.memory)
            both = limits.apply(goal.cpu, min(low_cpu, low_memory), max(high.cpu, high.memory), "")
            return Goal(both, both)
        return Goal(
            self.cpu.apply(goal.cpu, low_cpu, high.cpu, " of CPU"),
            self.memory.apply(goal.memory, low_memory, high.memory, " of memory"),
        )


NO_LIMITS = WindowLimits()


def limits(windows: Iterable[tuple[Window, Edges]]) -> WindowLimits:
    """The limits that hold now: of the open windows the highest floor and the lowest ceiling, ties to the earlier."""
    cpu = memory = ResourceLimits()
    for window, edges in windows:
        if edges.is_open():
            floor, ceiling = window.floor, window.ceiling
            cpu = cpu.merged(_limits_of(window.name, floor.cpu, ceiling.cpu))
            memory = memory.merged(_limits_of(window.name, floor.memory, ceiling.memory))
    return WindowLimits(cpu, memory)


def _limits_of(name: str, floor: int | None, ceiling: int | None) -> ResourceLimits:
    return ResourceLimits(
        None if floor is None else Bar(floor, name), None if ceiling is None else Bar(ceiling, name)
    )


def _reason(sort: str, bar: Bar, units: int, word: str) -> str:
    asked = bar.units
    because = "" if asked == units else f" (it asks for {asked}, which the VM's bounds or size do not allow)"
    return f"window {bar.window}: the {sort} is {counted(units, 'unit')}{word}{because}"
