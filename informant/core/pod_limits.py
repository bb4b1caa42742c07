"""The reasons, by the limits of a pod and of its containers, why more of a resource would help at once.

The kernel stops the tasks of a group whose CPU limit is used up until the next period. A group is short of CPU when that happened in
a share of the periods. Memory is short when a limit is reached, or nearly, with memory that cannot be dropped, or when
the kernel has killed a container. A container whose limits stay when the pod is resized (a sidecar with a share of 0) gains
nothing by a larger pod: its limits give no reason. Which containers these are is learnt by watching resizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from informant.core.containers import POD, ContainerReading
from informant.core.limits import MIB, Thresholds
from informant.core.report import PodReading
from protocol.texts import counted

_SHOWN: Final = 24
"""So many characters of a container's name are told."""
_Points: TypeAlias = tuple[tuple[float, Mapping[str, int]], ...]
"""The throttled periods of each group that were counted at some moments, the oldest first."""


@dataclass(frozen=True, slots=True)
class Following:
    """The limits of groups at the last reading, and the containers whose limits stayed when another limit changed."""

    limits: Mapping[str, float] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()

    def seen(self, limits: Mapping[str, float]) -> "Following":
        """The groups after a reading. The kubelet writes the limits one by one: a late one follows all the same."""
        if limits == self.limits:
            return self
        both = limits.keys() & self.limits.keys()
        moved = {name for name in both if limits[name] != self.limits[name]}
        stayed = both - moved - {POD} if moved else set()
        return Following(limits, (self.fixed - moved | stayed) & limits.keys())


@dataclass(frozen=True, slots=True)
class Held:
    """Why CPU and memory cannot wait, empty if they can; `after` is the knowledge from then on. `is_hit` says that a memory limit was
    reached.

    `is_elsewhere` says that tasks wait because of a CPU limit that does not follow the pod's size: then waiting is no reason.
    """

    after: "PodLimits"
    cpu: str = ""
    memory: str = ""
    is_hit: bool = False
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The knowledge from earlier readings of a pod's groups."""

    throttled: _Points = ()
    quotas: Following = Following()
    limits: Following = Following()
    hits: Mapping[str, int] = field(default_factory=dict)
    kills: int | None = None

    def see(
        self,
        pod: PodReading,
        kills: int | None,
        now_s: float,
        cpu_from_s: float,
        coming_bytes: int,
        at: Thresholds,
    ) -> Held:
        """The resources that are held back by this reading. `kills` are those of the pod's whole life.

        Throttling before `cpu_from_s`, when CPU grew last, says nothing of the present; `coming_bytes` of memory were announced.
        """
        groups = pod.groups
        quotas = self.quotas.seen(
            {name: each.quota_cpus for name, each in groups.items() if each.quota_cpus is not None}
        )
        limits = self.limits.seen(
            {name: each.max_bytes for name, each in groups.items() if each.max_bytes is not None}
        )
        points = self._points(groups, now_s, at.throttled_over_s)
        hits = {name: each.hits for name, each in groups.items()}
        after = PodLimits(points, quotas, limits, hits, self.kills if kills is None else kills)
        told = _throttled(points, groups, now_s, cpu_from_s, at)
        cpu = max(((share, name) for name, share in told if name not in quotas.fixed), default=None)
        is_elsewhere = any(name in quotas.fixed for name, _ in told)
        hit = self._hit(groups, limits.fixed, at)
        memory = (hit if not coming_bytes else "") or _left(groups, limits.fixed, coming_bytes, at)
        if self.kills is not None and kills is not None and kills > self.kills:
            memory = "a container was killed for lack of memory"
        return Held(after, _told(cpu, groups, at), memory, bool(hit), is_elsewhere)

    def _points(self, groups: Mapping[str, ContainerReading], now_s: float, over_s: float) -> _Points:
        """The counts from `over_s` ago on. Between two points they did not change, because each change is looked at."""
        now = {name: each.throttled for name, each in groups.items() if each.quota_cpus is not None}
        older = [point for point in self.throttled if point[0] < now_s]
        if len(older) > 1 and older[-1][1] == older[-2][1] == now:
            older.pop()
        first = max((at for at, (at_s, _) in enumerate(older) if at_s <= now_s - over_s), default=0)
        return (*older[first:], (now_s, now))

    def _hit(self, groups: Mapping[str, ContainerReading], fixed: frozenset[str], at: Thresholds) -> str:
        """The limit that was reached with memory that cannot be dropped; one that is full of page cache is no shortage."""
        for name, each in groups.items():
            more = each.hits - self.hits.get(name, each.hits)
            if more <= 0 or name in fixed:
                continue
            if each.max_bytes is None or each.max_bytes - each.used_bytes >= at.spare.free_bytes(
                each.max_bytes
            ):
                continue
            return f"{_name(name)} reached its memory limit of {each.max_bytes // MIB} MiB {counted(more, 'time')}"
        return ""


def _throttled(
    points: _Points, groups: Mapping[str, ContainerReading], now_s: float, from_s: float, at: Thresholds
) -> list[tuple[str, float]]:
    """The groups that were throttled in too large a share of the periods, each with that share."""
    past = [counts for at_s, counts in points if from_s <= at_s <= now_s - at.throttled_over_s]
    if not past:
        return []
    before, found = past[-1], []
    for name, count in points[-1][1].items():
        periods = at.throttled_over_s / groups[name].period_s
        share = min(1.0, (count - before.get(name, count)) / periods)
        if share >= at.throttled_share:
            found.append((name, share))
    return found


def _left(
    groups: Mapping[str, ContainerReading], fixed: frozenset[str], coming_bytes: int, at: Thresholds
) -> str:
    for name, each in groups.items():
        if each.max_bytes is None or name in fixed:
            continue
        most = each.max_bytes + coming_bytes
        least = at.spare.least_bytes(most)
        if most - each.used_bytes < least:
            return f"{_name(name)} needs {each.used_bytes // MIB} of {most // MIB} MiB, {least // MIB} should be left"
    return ""


def _told(worst: tuple[float, str] | None, groups: Mapping[str, ContainerReading], at: Thresholds) -> str:
    if worst is None:
        return ""
    share, name = worst
    return (
        f"{_name(name)} was held back by its CPU limit of {groups[name].quota_cpus:g} in {share:.0%} of the periods "
        f"in {at.throttled_over_s:g} s"
    )


def _name(name: str) -> str:
    return "the pod" if name == POD else f"container {name[:_SHOWN]}"
