"""The down window: a goal falls only to the highest goal of the last while, for each resource.

Goals are kept as amounts, so that they mean the same after the compute unit has changed. A goal that a later one reaches
can never be the highest again and is forgotten, so a few are left however long the window is.
"""

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from agent.core.policies.values import MAX_UNITS, Goal, ResourceGoal, moved
from protocol.values import ComputeUnit

MAX_GOALS: Final = 8
"""Goals of one resource that are kept; with more of them the oldest is taken for as late as the one after it."""


@dataclass(frozen=True, slots=True)
class PastGoal:
    """The goal of one resource at `at_s`: milli-CPU or bytes, and why."""

    at_s: float
    amount: int
    reason: str


PastGoals: TypeAlias = tuple[PastGoal, ...]
"""Oldest first, each lower than the one before."""


@dataclass(frozen=True, slots=True)
class DownWindow:
    """The goals of the window that count. `latest` is the last goal with all its parts, in units of its time."""

    cpu: PastGoals = ()
    memory: PastGoals = ()
    latest: Goal | None = None

    def add(self, goal: Goal, unit: ComputeUnit, at_s: float, window_s: float) -> "DownWindow":
        """The window with one more goal, made at `at_s` in steps of `unit`."""
        amount = unit.amount(goal.units())
        return DownWindow(
            _add(self.cpu, PastGoal(at_s, amount.vcpu_milli, goal.cpu.reason), window_s),
            _add(self.memory, PastGoal(at_s, amount.memory_bytes, goal.memory.reason), window_s),
            goal,
        )

    def highest(self, unit: ComputeUnit) -> Goal | None:
        """The highest goal of the window for each resource, in steps of `unit`; None before the first goal."""
        latest = self.latest
        if latest is None:
            return None
        return Goal(
            _highest(latest.cpu, self.cpu[0], unit.step.vcpu_milli),
            _highest(latest.memory, self.memory[0], unit.step.memory_bytes),
        )


def _add(past: PastGoals, goal: PastGoal, window_s: float) -> PastGoals:
    kept = [
        each for each in past if each.amount > goal.amount and goal.at_s - window_s < each.at_s <= goal.at_s
    ]
    if len(kept) >= MAX_GOALS:
        kept[:2] = [replace(kept[0], at_s=kept[1].at_s)]
    return (*kept, goal)


def _highest(latest: ResourceGoal, past: PastGoal, step: int) -> ResourceGoal:
    units = min(-(-past.amount // step), MAX_UNITS)
    return latest if units == latest.units else moved(latest, units, "down window", past.reason)
