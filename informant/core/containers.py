"""The figures of a pod that no kernel tells: totals of events over containers that come and go, and load averages.

A container that ends takes its cgroup and its counters along, and a restarted container begins at 0. The totals of a pod never
fall. cgroup v1 loses the last kill of a container in this way: the group is removed before anybody can read it. So a container
that vanishes right after its memory limit was reached, or that used nearly all of it, counts as killed.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

POD: Final = "pod"
"""The name of the pod's own cgroup among its groups."""
_FULL_SHARE: Final = 0.95
"""A container that used so much of its memory limit has probably not ended by itself."""

_LEAST_CPUS: Final = 0.01
"""A CPU limit is rounded to microseconds of a period, and is never smaller than this."""
_PAGE_BYTES: Final = 2**16
"""Memory is counted in whole pages."""


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """One cgroup that may have limits of its own, a container's or the whole pod's; None if there is no limit.

    `throttled` of `periods` had tasks waiting because the CPU limit was used up, for `throttled_s` in all. `hits` counts how often
    the memory limit was reached, `kills` the tasks killed for lack of memory. `used_bytes` is without reclaimable page cache.
    """

    quota_cpus: float | None = None
    period_s: float = 0.1
    periods: int = 0
    throttled: int = 0
    throttled_s: float = 0.0
    max_bytes: int | None = None
    used_bytes: int = 0
    hits: int = 0
    kills: int = 0

    @property
    def is_full(self) -> bool:
        """Whether nearly all of the memory limit is in use."""
        return self.max_bytes is not None and self.used_bytes >= _FULL_SHARE * self.max_bytes


@dataclass(frozen=True, slots=True)
class Behind:
    """Which resources the pod's own group allows less of than it should: than its containers' groups allow together, or than the size
    that was announced. A kubelet writes the pod's group first if limits grow, and last if they shrink: so this is no moment
    on the way, the pod's group was left as it was."""

    cpu: bool = False
    memory: bool = False

    def names(self) -> tuple[str, ...]:
        """The resources, as documents name them."""
        return tuple(name for name, is_so in (("cpu", self.cpu), ("memory", self.memory)) if is_so)


def behind(
    pod: ContainerReading, containers: Iterable[ContainerReading], cpus: float, memory_bytes: int
) -> Behind:
    """Compare the pod's group with those of its containers, and with the size that was announced (0: none was)."""
    each = tuple(containers)
    wants_cpus = max(cpus, sum(one.quota_cpus or 0.0 for one in each))
    wants_bytes = max(memory_bytes, sum(one.max_bytes or 0 for one in each))
    return Behind(
        pod.quota_cpus is not None and wants_cpus - pod.quota_cpus > max(_LEAST_CPUS, wants_cpus / 100),
        pod.max_bytes is not None and wants_bytes - pod.max_bytes > _PAGE_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a pod's cgroup and all containers that it ever had."""

    hits: int = 0
    kills: int = 0
    throttled_s: float = 0.0

    def plus(self, one: ContainerReading) -> "Totals":
        return Totals(
            self.hits + one.hits, self.kills + one.kills, self.throttled_s + max(0.0, one.throttled_s)
        )


@dataclass(frozen=True, slots=True)
class Containers:
    """The containers that were seen last, and the totals of those that have gone.

    `tells_kills` says that the pod's own group counts the kills in its containers (cgroup v2): then nothing is presumed, and
    the containers' own counts of kills are left out.
    """

    tells_kills: bool
    gone: Totals = Totals()
    last: Mapping[str, ContainerReading] = field(default_factory=dict)
    pod: ContainerReading = ContainerReading()

    def seen(self, pod: ContainerReading, now: Mapping[str, ContainerReading]) -> "Containers":
        """The containers after a reading of the pod's own group and of every container that is there."""
        gone, was_hit = self.gone, pod.hits > self.pod.hits
        for name in self.last.keys() - now.keys():
            ended = self.last[name]
            gone = gone.plus(self._counted(ended))
            if not self.tells_kills and (was_hit or ended.is_full):
                gone = replace(gone, kills=gone.kills + 1)
        return replace(self, gone=gone, last=now, pod=pod)

    def totals(self) -> Totals:
        total = self.gone.plus(self.pod)
        for each in self.last.values():
            total = total.plus(self._counted(each))
        return total

    def _counted(self, one: ContainerReading) -> ContainerReading:
        return replace(one, kills=0) if self.tells_kills else one


_OVER_S: Final = (60.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class DampedLoad:
    """Load averages over 1, 5 and 15 minutes at `at_s`, when `wanted_s` seconds of CPU had been used or kept back in all.

    Time in which a CPU limit holds tasks back counts as load: those tasks would run. In the kernel's load they count as well.
    """

    at_s: float
    wanted_s: float
    averages: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def after(self, now_s: float, wanted_s: float) -> "DampedLoad":
        """The averages at `now_s`; the same ones if no time has passed."""
        span_s = now_s - self.at_s
        if span_s <= 0:
            return self
        load = max(0.0, wanted_s - self.wanted_s) / span_s
        one, five, fifteen = (
            load + (average - load) * math.exp(-span_s / over_s)
            for average, over_s in zip(self.averages, _OVER_S, strict=True)
        )
        return DampedLoad(now_s, wanted_s, (one, five, fifteen))
