"""Detects shortages: from readings, the reason why each resource cannot wait.

Memory is short when the workload's group hits its limit (memory.events) with memory that cannot be dropped, when little is left of that
limit or of the machine's memory, or when tasks wait for memory for a share of the time (PSI). CPU is short when tasks wait for a CPU, or
every CPU is busy, over a configured time. Load averages do not count: they lag by a minute, and more CPUs do not lower them for a busy
loop. Of a pod, the resources that its limits hold back are looked at first (`pod_limits`). Source: reference/real-vm.md section 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from informant.core.limits import MIB, Thresholds
from informant.core.pod_limits import PodLimits
from informant.core.report import Reading
from protocol.texts import counted
from protocol.wire import MoreResources

_MOST_POINTS: Final = 64


@dataclass(frozen=True, slots=True)
class _Point:
    """Totals at one moment, in seconds: CPU time, and waiting in the workload's group and in the machine."""

    at_s: float
    busy_s: float
    own_s: Mapping[str, float]
    machine_s: Mapping[str, float]


_Span: TypeAlias = tuple[_Point, _Point, float]
"""Two moments, and the seconds between them."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why each resource is short, empty if there is none. `is_hit` says that the workload runs into its limit."""

    cpu: str = ""
    memory: str = ""
    is_hit: bool = False

    def resources(self) -> MoreResources:
        return MoreResources(cpu=bool(self.cpu), memory=bool(self.memory))


@dataclass(frozen=True, slots=True)
class ShortageDetector:
    """Past readings. `cpu_from_s` and `memory_from_s` are when either resource grew last: waiting before that says nothing of
    the present. The guest had so many `cpus` last; a change of them is a beginning, too. Memory was `announced_s` last. The group's limit
    should have been `limit_bytes` at the last look."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    points: tuple[_Point, ...] = ()
    hits: int | None = None
    limit_bytes: int | None = None
    cpus: float | None = None
    cpu_from_s: float = float("-inf")
    memory_from_s: float = float("-inf")
    announced_s: float = float("-inf")
    pod: PodLimits = field(default_factory=PodLimits)

    def grown(self, resources: MoreResources, now_s: float) -> "ShortageDetector":
        return replace(
            self,
            cpu_from_s=now_s if resources.cpu else self.cpu_from_s,
            memory_from_s=now_s if resources.memory else self.memory_from_s,
            announced_s=now_s if resources.memory else self.announced_s,
        )

    def see(
        self, reading: Reading, limit_bytes: int | None, now_s: float, coming_bytes: int = 0
    ) -> tuple["ShortageDetector", Shortage]:
        """The shortages in this reading. `limit_bytes` is the limit that the workload's group should keep.

        `coming_bytes` were announced and have not arrived. For a while they count as present, and waiting meanwhile says nothing
        of later; a hit of the limit is a hit all the same.
        """
        coming = coming_bytes if now_s < self.announced_s + self.thresholds.arrival_s else 0
        from_s = now_s if coming else self.memory_from_s
        point = _point(reading, now_s)
        keep_s = max(self.thresholds.cpu_over_s, self.thresholds.memory_over_s)
        older = [known for known in self.points if known.at_s < point.at_s]
        if len(older) > 1 and older[-1].at_s - older[-2].at_s < keep_s / (_MOST_POINTS // 2):
            older.pop()  # a flood of readings must not push out the reading from `keep_s` ago
        first = max((at for at, known in enumerate(older) if known.at_s <= now_s - keep_s), default=0)
        points = (*older[first:], point)[-_MOST_POINTS:]
        cpu_from_s = self.cpu_from_s if reading.cpus == self.cpus else now_s
        after = replace(self, points=points, memory_from_s=from_s, cpus=reading.cpus, cpu_from_s=cpu_from_s)
        stalled = self._stalled(points, from_s)
        if reading.pod is not None:
            held = self.pod.see(
                reading.pod, reading.oom_kills, now_s, self.cpu_from_s, coming, self.thresholds
            )
            cpu = held.cpu if held.cpu or held.is_elsewhere else self._cpu(points, reading.cpus, cpu_from_s)
            # A larger pod cannot cure a shortage of the whole node.
            memory = held.memory or (stalled if reading.pod.is_full else "")
            after = replace(after, pod=held.after, hits=reading.pod.hits)
            return after, Shortage(cpu, memory, held.is_hit)
        hits = _hits(reading)
        hits = self.hits if hits is None else hits  # not told this time
        later = None if limit_bytes is None else limit_bytes + coming
        hit = self._hit(reading, limit_bytes, hits)
        memory = (hit if not coming else "") or self._left(reading, later, coming) or stalled
        after = replace(after, hits=hits, limit_bytes=limit_bytes)
        return after, Shortage(self._cpu(points, reading.cpus, cpu_from_s), memory, bool(hit))

    def strain(self, before: Reading, after: Reading, over_s: float) -> str:
        """Why a workload cannot do without the page cache that was taken between two readings; empty if it can."""
        first, last = _point(before, 0.0), _point(after, over_s)
        waiting = _waited(first, last, "memory_waiting") if over_s > 0 else None
        if waiting is None or waiting < self.thresholds.memory_waiting_share:
            return ""
        return (
            f"without the page cache that this takes, tasks waited for memory {waiting:.0%} of {over_s:.1f} s"
        )

    def recovering(self, now_s: float) -> "ShortageDetector":
        """The workload gets back the page cache that a trial took: waiting for that, for a while, is no shortage."""
        return replace(self, memory_from_s=now_s + self.thresholds.memory_over_s)

    def _cpu(self, points: tuple[_Point, ...], cpus: float, from_s: float) -> str:
        at = self.thresholds
        span = _span(points, at.cpu_over_s, from_s)
        if span is None:
            return ""
        first, last, over_s = span
        waiting = _waited(first, last, "cpu_waiting")
        if waiting is not None and waiting >= at.cpu_waiting_share:
            return f"tasks waited for a CPU {waiting:.0%} of {over_s:.1f} s"
        busy = min(1.0, (last.busy_s - first.busy_s) / over_s / (cpus or 1))  # it is counted in whole ticks
        if busy >= at.cpu_busy_share:
            whole = "1 CPU was" if cpus == 1 else f"all {cpus:g} CPUs were"
            return f"{whole} busy {busy:.0%} of {over_s:.1f} s"
        return ""

    def _hit(self, reading: Reading, limit_bytes: int | None, hits: int | None) -> str:
        if hits is None or self.hits is None or hits <= self.hits:
            return ""
        if limit_bytes is not None and self.limit_bytes is not None and limit_bytes > self.limit_bytes:
            return ""  # memory has arrived, and the lower limit was hit
        needed = reading.cgroup.needed_bytes if reading.cgroup is not None else None
        has_room = (
            needed is not None
            and limit_bytes is not None
            and limit_bytes - needed >= self.thresholds.spare.free_bytes(limit_bytes)
        )
        if has_room:
            return ""
        return f"the cgroup reached its limit {counted(hits - self.hits, 'time')}"

    def _left(self, reading: Reading, limit_bytes: int | None, coming_bytes: int) -> str:
        """Why too little is left of the machine's memory, or of the group's limit."""
        at = self.thresholds
        total, available = (
            each + coming_bytes for each in (reading.memory_total_bytes, reading.memory_available_bytes)
        )
        least = at.spare.least_bytes(total)
        if available < least:
            return f"{available // MIB} MiB are available, {least // MIB} MiB should be"
        needed = reading.cgroup.needed_bytes if reading.cgroup is not None else None
        if limit_bytes is not None and needed is not None:
            least = at.spare.least_bytes(limit_bytes)
            if limit_bytes - needed < least:
                return f"the cgroup needs {needed // MIB} of {limit_bytes // MIB} MiB, {least // MIB} should be left"
        return ""

    def _stalled(self, points: tuple[_Point, ...], from_s: float) -> str:
        """Why tasks have waited for memory too long."""
        span = _span(points, self.thresholds.memory_over_s, from_s)
        if span is None:
            return ""
        first, last, over_s = span
        waiting = _waited(first, last, "memory_waiting")
        if waiting is not None and waiting >= self.thresholds.memory_waiting_share:
            return f"tasks waited for memory {waiting:.0%} of {over_s:.1f} s"
        return ""


def _point(reading: Reading, now_s: float) -> _Point:
    own: Mapping[str, float] = reading.cgroup.pressure_s if reading.cgroup is not None else {}
    return _Point(now_s, reading.cpu_busy_s, own, reading.pressure_s)


def _hits(reading: Reading) -> int | None:
    """How often the group has reached a limit since it was made."""
    if reading.cgroup is None or not reading.cgroup.events:
        return None
    events = reading.cgroup.events
    return sum(events.get(name, 0) for name in ("high", "max", "oom", "oom_kill"))


def _span(points: tuple[_Point, ...], over_s: float, from_s: float) -> _Span | None:
    """The latest point, the newest one that is `over_s` older, and the seconds between them; None before there is such a pair."""
    last = points[-1]
    first = next((at for at in reversed(points) if at.at_s <= last.at_s - over_s and at.at_s >= from_s), None)
    return None if first is None else (first, last, last.at_s - first.at_s)


def _waited(first: _Point, last: _Point, name: str) -> float | None:
    """The share of the time spent waiting: in the workload's group if both points have that, else in the machine.

    Totals of the group and of the machine are never compared with each other.
    """
    for one, other in ((first.own_s, last.own_s), (first.machine_s, last.machine_s)):
        if name in one and name in other:
            return min(1.0, (other[name] - one[name]) / (last.at_s - first.at_s))
    return None
