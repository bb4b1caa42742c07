"""One VM: its size, the work that waits, its memory, and its informant's wishes and approvals. Time is virtual.

CPU demand above the size waits and is worked off as soon as there is room. Memory demand above the size is out of memory:
the workload begins anew. Both are followed in ticks of half a second, which is how often an informant looks.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.policies_parts.families import Demand
from benchmarks.policies_parts.score import Tally
from informant.core.guard import GuardSettings
from informant.core.limits import SPARE, Thresholds
from informant.core.sessions import WishTiming
from protocol.values import Resources
from protocol.wire import MoreResources

PERIOD_S: Final = 5
"""Seconds between two readings of the metrics."""
TICK_S: Final = 0.5
TICKS: Final = 10
MIB: Final = 2**20
_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True)
class GuestRules:
    """The wishes of an informant, and the amounts that it keeps. Memory is short with less than `reserve_bytes` and the share left of
    the size; a downscale must leave `margin_bytes` more. The growth by a wish is kept for `hold_s`."""

    wishes_cpu: bool = True
    wishes_memory: bool = True
    reserve_bytes: int = SPARE.left_bytes
    reserve_share: float = SPARE.left_share
    margin_bytes: int = SPARE.margin_bytes
    hold_s: float = GuardSettings().hold_s

    def least_bytes(self, size_bytes: int) -> float:
        """The part of a size of memory that must be left."""
        return max(self.reserve_bytes, self.reserve_share * size_bytes)


OURS: Final = GuestRules()
PUBLISHED: Final = GuestRules(False, True, 300 * MIB, 0.0, 100 * MIB, 0.0)
"""Of reference/neon.md 4.2 and 4.3: memory.high lies 300 MiB below the size."""
SILENT: Final = GuestRules(False, False, 0, 0.0, 0, 0.0)
"""There is no informant."""


class Informant:
    """Wishes of one guest, with the limits of `informant.core.shortage` and the times of `informant.core.sessions`."""

    limits: Final = Thresholds()
    timing: Final = WishTiming()

    def __init__(self, rules: GuestRules) -> None:
        self.rules = rules
        self.cpu_needed_s: float | None = None
        self.memory_needed_s: float | None = None
        self.cpu_held_until_s = self.memory_held_until_s = float("-inf")
        self._told = (False, False)
        self._repeat_s = float("inf")
        self._cpu_from_s = float("-inf")
        self._seen: list[tuple[float, float, float]] = []

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wished for."""
        return self.cpu_needed_s is None and self.memory_needed_s is None

    def calmed(self, now_s: float, waited_s: float, busy_s: float, cpus: float) -> None:
        """Nothing was short for a while, and nobody looked: the counters until now, after `cpus` were busy."""
        ages = np.arange(self.limits.cpu_over_s, -TICK_S, -TICK_S).tolist()
        self._seen = [(now_s - age_s, waited_s, busy_s - cpus * age_s) for age_s in ages]

    def look(
        self, now_s: float, waited_s: float, busy_s: float, size: Resources, used_bytes: float
    ) -> MoreResources | None:
        """Look at the guest; the message to the agent, None if the agent knows."""
        rules, limits = self.rules, self.limits
        self._seen.append((now_s, waited_s, busy_s))
        if rules.wishes_cpu and self._is_cpu_short(now_s, size):
            self.cpu_needed_s = now_s
        if rules.wishes_memory and size.memory_bytes - used_bytes < rules.least_bytes(size.memory_bytes):
            self.memory_needed_s = now_s
        if len(self._seen) > 8 * limits.cpu_over_s:
            del self._seen[: -int(4 * limits.cpu_over_s)]
        if self.cpu_needed_s is not None and now_s >= self.cpu_needed_s + self.timing.calm_s:
            self.cpu_needed_s = None
        if self.memory_needed_s is not None and now_s >= self.memory_needed_s + self.timing.calm_s:
            self.memory_needed_s = None
        return self._next_call(now_s)

    def _is_cpu_short(self, now_s: float, size: Resources) -> bool:
        over_s = self.limits.cpu_over_s
        _, waited_s, busy_s = self._seen[-1]
        for at_s, waited, busy in reversed(self._seen):
            if at_s <= now_s - over_s and at_s >= self._cpu_from_s:
                span_s = now_s - at_s
                return (
                    waited_s - waited >= self.limits.cpu_waiting_share * span_s
                    or busy_s - busy >= self.limits.cpu_busy_share * span_s * size.vcpu_milli / 1000
                )
        return False

    def _next_call(self, now_s: float) -> MoreResources | None:
        wished = (self.cpu_needed_s is not None, self.memory_needed_s is not None)
        if wished == self._told and now_s < self._repeat_s:
            return None
        self._told = wished
        self._repeat_s = now_s + self.timing.expires_s if any(wished) else float("inf")
        return MoreResources(*wished)

    def arrived(self, now_s: float, *, cpu: bool, memory: bool) -> MoreResources | None:
        """More has come, so the wish ends. Returns the message to the agent."""
        if cpu:
            self._cpu_from_s = now_s
            if self.cpu_needed_s is not None:
                self.cpu_held_until_s = now_s + self.rules.hold_s
            self.cpu_needed_s = None
        if memory:
            if self.memory_needed_s is not None:
                self.memory_held_until_s = now_s + self.rules.hold_s
            self.memory_needed_s = None
        return self._next_call(now_s)

    def approves(self, size: Resources, wanted: Resources, used_bytes: float, now_s: float) -> bool:
        """Whether the guest can live in `wanted`."""
        if wanted.vcpu_milli < size.vcpu_milli and now_s < self.cpu_held_until_s:
            return False
        if wanted.memory_bytes >= size.memory_bytes:
            return True
        if now_s < self.memory_held_until_s:
            return False
        left = self.rules.least_bytes(wanted.memory_bytes) + self.rules.margin_bytes
        return used_bytes + left <= wanted.memory_bytes


class Guest:
    """The workload in a VM, and its counts from `counted_from_s` on."""

    def __init__(self, demand: Demand, size: Resources, tally: Tally, counted_from_s: float) -> None:
        self._demand = demand
        self._memory = demand.memory.copy()
        self._tally = tally
        self._counted_from_s = counted_from_s
        self._cpu_list: list[float] = demand.cpu.tolist()
        self._memory_list: list[float] = self._memory.tolist()
        by_period = demand.cpu.reshape(-1, PERIOD_S)
        self._cpu_most: list[float] = by_period.max(axis=1).tolist()
        self._cpu_sum: list[float] = by_period.sum(axis=1).tolist()
        by_period = self._memory.reshape(-1, PERIOD_S)
        self._memory_most: list[float] = by_period.max(axis=1).tolist()
        self._memory_sum: list[float] = by_period.sum(axis=1).tolist()
        self.backlog_s = 0.0
        self.busy_s = 0.0
        """CPU time used so far."""
        self.waited_s = 0.0
        """Time in which tasks waited for a CPU."""
        self.was_out_of_memory = False
        self.size = size

    @property
    def size(self) -> Resources:
        return self._size

    @size.setter
    def size(self, size: Resources) -> None:
        self._size = size
        self._cpus = size.vcpu_milli / 1000
        self._bytes = float(size.memory_bytes)

    def is_calm(self, period: int, cpu_share: float, left_bytes: float) -> bool:
        """Whether nothing happens in a period: all demand is covered, and the rest of the size is enough."""
        return (
            self.backlog_s == 0.0
            and self._cpu_most[period] <= cpu_share * self._cpus
            and self._memory_most[period] <= self._bytes - left_bytes
        )

    def mean_cpus(self, period: int) -> float:
        return self._cpu_sum[max(0, period)] / PERIOD_S

    def pass_period(self, period: int) -> None:
        """A calm period passes."""
        busy_s = self._cpu_sum[period]
        self.busy_s += busy_s
        tally = self._tally
        if period * PERIOD_S >= self._counted_from_s:
            tally.counted_s += PERIOD_S
            tally.cpu_slack_s += PERIOD_S - busy_s / self._cpus
            tally.memory_slack_s += PERIOD_S - self._memory_sum[period] / self._bytes

    def advance(self, from_s: float, to_s: float) -> None:
        """Time passes, within one second."""
        second, span_s, cpus = int(from_s), to_s - from_s, self._cpus
        demand, used = self._cpu_list[second], self._memory_list[second]
        if used > self._bytes:
            self._run_out(second)
            used = self._memory_list[second]
        work_s, room_s = self.backlog_s + demand * span_s, cpus * span_s
        done_s = min(work_s, room_s)
        left_s = work_s - done_s
        if left_s > _EPSILON:
            short_s = span_s
        elif self.backlog_s > 0:
            left_s, short_s = 0.0, min(span_s, self.backlog_s / (cpus - demand)) if cpus > demand else span_s
        else:
            left_s = short_s = 0.0
        late_s = max(0.0, left_s - self.backlog_s)
        self.backlog_s = left_s
        self.busy_s += done_s
        self.waited_s += short_s
        if from_s >= self._counted_from_s:
            tally = self._tally
            tally.counted_s += span_s
            tally.insufficient_s += short_s
            tally.late_cpu_s += late_s
            tally.cpu_slack_s += span_s - done_s / cpus
            tally.memory_slack_s += span_s - used * span_s / self._bytes

    def used_bytes(self, at_s: float) -> float:
        """Memory in use just before `at_s`."""
        return min(self._bytes, self._memory_list[max(0, -int(-at_s // 1) - 1)])

    def runnable(self, at_s: float) -> float:
        """Tasks that run or wait just before `at_s`: a second of work that waits is one more."""
        return self._cpu_list[max(0, -int(-at_s // 1) - 1)] + self.backlog_s

    def _run_out(self, second: int) -> None:
        """Out of memory: the workload begins anew, and grows until it has the size that it would have without that."""
        self.was_out_of_memory = True
        if second >= self._counted_from_s:
            self._tally.out_of_memory += 1
        rest = self._memory[second:]
        ramp = self._demand.base_bytes + self._demand.regrowth * np.arange(len(rest))
        reached = np.flatnonzero(ramp >= rest)
        end = second + (int(reached[0]) if len(reached) else len(rest))
        self._memory[second:end] = ramp[: end - second]
        self._memory_list[second:end] = self._memory[second:end].tolist()
        first, last = second // PERIOD_S, -(-end // PERIOD_S)
        by_period = self._memory[first * PERIOD_S : last * PERIOD_S].reshape(-1, PERIOD_S)
        self._memory_most[first:last] = by_period.max(axis=1).tolist()
        self._memory_sum[first:last] = by_period.sum(axis=1).tolist()
