"""Policies: load in, goal out. Pure; a goal is a number of compute units with the reason for it."""

import math
from dataclasses import dataclass
from typing import Protocol

from agent.core.model import Load
from protocol.values import Resources


@dataclass(frozen=True, slots=True)
class Goal:
    """What a policy wants: whole compute units, and why."""

    units: int
    reason: str


class Policy(Protocol):
    """Turns load into a goal. `size` is what is in use, `unit` the compute unit; both are positive."""

    def goal(self, load: Load, size: Resources, unit: Resources) -> Goal:
        """The goal for this load. Never negative; bounds are applied by the plan."""
        ...


@dataclass(frozen=True, slots=True)
class LoadAverage:
    """The published rule: double above 0.9 of the CPUs, halve below 0.4. Source: reference/neon.md 3.4."""

    high: float = 0.9
    low: float = 0.4

    def goal(self, load: Load, size: Resources, unit: Resources) -> Goal:
        """The goal by the one-minute load average."""
        small = min(-(-size.vcpu_milli // unit.vcpu_milli), -(-size.memory_bytes // unit.memory_bytes))
        large = size.units(unit)
        # Between the two, when CPU and memory are out of ratio; never a decrease by rounding alone.
        start = small + (large - small + 1) // 2 if small != large else large
        cpus = size.vcpu_milli / 1000
        if load.load1 > self.high * cpus:
            return Goal(start * 2, f"load {load.load1:.2f} is above {self.high:g} of {cpus:g} CPUs")
        if load.load1 < self.low * cpus:
            return Goal(start // 2, f"load {load.load1:.2f} is below {self.low:g} of {cpus:g} CPUs")
        return Goal(start, f"load {load.load1:.2f} suits {cpus:g} CPUs")


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Keep busy CPUs at `target` of the size; without CPU time, go by the load averages."""

    target: float = 0.75
    fallback: LoadAverage = LoadAverage()

    def goal(self, load: Load, size: Resources, unit: Resources) -> Goal:
        """The units with which the busy CPUs would be `target` of the size."""
        if load.busy_cpus is None:
            return self.fallback.goal(load, size, unit)
        # A guest may count anything; beyond this many units every maximum binds, and infinity has no ceiling.
        units = math.ceil(min(load.busy_cpus * 1000 / self.target / unit.vcpu_milli, 2.0**31))
        return Goal(units, f"{load.busy_cpus:.2f} CPUs busy, {self.target:.0%} is the target")
