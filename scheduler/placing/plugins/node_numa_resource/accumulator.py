"""The CPU accumulator: which CPUs of a node a pod gets for itself.

Each CPU is given to one pod at most; the published sharing of CPUs by a reference count is not there. Exclusive policies are preferences:
CPUs beside pods of the same policy are taken last. Source: reference/koordinator.md 2.7, `takeCPUs`.
"""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from scheduler.placing.plugins.node_numa_resource.topology import (
    CpuTopology,
    LogicalCpu,
    NUMAAllocateStrategy,
)


class CPUBindPolicy(enum.StrEnum):
    """Which threads of cores a pod gets: both of whole cores, or those of different cores."""

    NONE = ""
    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"
    """The pod bursts inside the shared CPUs, and has none of its own."""


class CPUExclusivePolicy(enum.StrEnum):
    """What a pod would rather not share with pods of the same policy: a core, or a NUMA node."""

    UNSET = ""
    NONE = "None"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


PINNING: Final = frozenset({CPUBindPolicy.FULL_PCPUS, CPUBindPolicy.SPREAD_BY_PCPUS})


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """`is_required` makes the bind policy a condition: without it, CPUs that do not follow it are better than none."""

    count: int
    bind: CPUBindPolicy = CPUBindPolicy.FULL_PCPUS
    is_required: bool = False
    exclusive: CPUExclusivePolicy = CPUExclusivePolicy.NONE
    strategy: NUMAAllocateStrategy = NUMAAllocateStrategy.MOST_ALLOCATED


def take_cpus(
    topology: CpuTopology,
    free: frozenset[int],
    wanted: CpuRequest,
    exclusives: Mapping[int, CPUExclusivePolicy] | None = None,
) -> frozenset[int] | None:
    """Exactly `wanted.count` of the free CPUs; None where the request cannot be met. `exclusives` are the policies of the CPUs that are
    given out."""
    free &= topology.cpus.keys()
    if wanted.is_required:
        free = required_cpus(topology, free, wanted.bind)
        if wanted.bind is CPUBindPolicy.FULL_PCPUS and wanted.count % topology.threads_per_core:
            return None
    if wanted.count > len(free):
        return None
    shunned = _shunned(topology, exclusives or {}, wanted.exclusive)
    taken = frozenset(_Taking(topology, wanted, set(free), shunned).take())
    is_lawful = not wanted.is_required or required_cpus(topology, taken, wanted.bind) == taken
    return taken if is_lawful and len(taken) == wanted.count else None


def take_preferred_cpus(
    topology: CpuTopology,
    free: frozenset[int],
    preferred: frozenset[int],
    wanted: CpuRequest,
    exclusives: Mapping[int, CPUExclusivePolicy] | None = None,
) -> frozenset[int] | None:
    """As `take_cpus`, with as many of `preferred` (those of a reservation) as can be; the rest from the other free ones."""
    first = preferred & free & topology.cpus.keys()
    if wanted.is_required:
        first = required_cpus(topology, first, wanted.bind)
    count = min(wanted.count, len(first))
    taken = take_cpus(topology, first, replace(wanted, count=count), exclusives)
    rest = take_cpus(topology, free - first, replace(wanted, count=wanted.count - count), exclusives)
    if taken is not None and rest is not None:
        both = taken | rest
        if not wanted.is_required or required_cpus(topology, both, wanted.bind) == both:
            return both
    return take_cpus(topology, free, wanted, exclusives)


def required_cpus(topology: CpuTopology, free: frozenset[int], bind: CPUBindPolicy) -> frozenset[int]:
    """The free CPUs that follow a bind policy: those of entirely free cores, or the lowest free thread of each core."""
    if bind is CPUBindPolicy.FULL_PCPUS:
        return frozenset(cpu for cpus in topology.cores.values() if free.issuperset(cpus) for cpu in cpus)
    if bind is CPUBindPolicy.SPREAD_BY_PCPUS:
        return frozenset(cpus[0] for cpus in topology.groups(free, lambda cpu: cpu.core).values())
    return free


def _shunned(
    topology: CpuTopology, exclusives: Mapping[int, CPUExclusivePolicy], policy: CPUExclusivePolicy
) -> frozenset[int]:
    """The CPUs that lie beside pods of the same exclusive policy."""
    if policy not in {CPUExclusivePolicy.PCPU_LEVEL, CPUExclusivePolicy.NUMA_NODE_LEVEL}:
        return frozenset()
    key = _core if policy is CPUExclusivePolicy.PCPU_LEVEL else _numa_node
    held = {
        key(topology.cpus[cpu]) for cpu, of in exclusives.items() if of is policy and cpu in topology.cpus
    }
    return frozenset(place.cpu for place in topology.cpus.values() if key(place) in held)


def _core(cpu: LogicalCpu) -> int:
    return cpu.core


def _numa_node(cpu: LogicalCpu) -> int:
    return cpu.numa_node


def _socket(cpu: LogicalCpu) -> int:
    return cpu.socket


@dataclass(slots=True)
class _Taking:
    """One request on its way. There are enough free CPUs for it."""

    topology: CpuTopology
    wanted: CpuRequest
    free: set[int]
    shunned: frozenset[int]
    taken: set[int] = field(default_factory=set)

    @property
    def rest(self) -> int:
        return self.wanted.count - len(self.taken)

    def take(self) -> set[int]:
        is_whole = self.wanted.bind is CPUBindPolicy.FULL_PCPUS
        if (is_whole or self.topology.threads_per_core == 1) and self._take_cores():
            return self.taken
        if not is_whole and self._take_from_one(self._single, is_spread=True):
            return self.taken
        for cpus in self._passes(frozenset(self.free)):
            self._add(self._spread(sorted(cpus & self.free, key=self._fallback_key()))[: self.rest])
        return self.taken

    def _take_cores(self) -> bool:
        """Whole free cores only. Whether that was enough."""
        if self._take_from_one(self._whole, is_spread=False):
            return True
        for cpus in self._passes(frozenset(self.free)):
            left = []
            for group in sorted(self._groups(self._whole(cpus), _socket), key=lambda group: -len(group)):
                if len(group) <= self.rest:
                    self._add(group)
                else:
                    left.append(group)
            for group in sorted(left, key=len):
                self._add(self._cores_of(group))
        return self.rest == 0

    def _cores_of(self, group: Sequence[int]) -> list[int]:
        """As many whole cores of the group as do not exceed the rest."""
        found = list[int]()
        for cpus in self.topology.groups(group, _core).values():
            if len(found) + len(cpus) <= self.rest:
                found += cpus
        return found

    def _take_from_one(
        self,
        usable: Callable[[frozenset[int]], frozenset[int]],
        *,
        is_spread: bool,
    ) -> bool:
        """All of it from one NUMA node, else from one socket: the first with enough, in the order of the strategy."""
        levels = ((_numa_node, self.topology.cpus_per_numa_node), (_socket, self.topology.cpus_per_socket))
        for level, size in levels:
            if self.rest > size:
                continue
            for cpus in self._passes(frozenset(self.free)):
                for group in self._in_order(self._groups(usable(cpus), level)):
                    if len(group) >= self.rest:
                        self._add((self._spread(group) if is_spread else group)[: self.rest])
                        return True
        return False

    def _passes(self, cpus: frozenset[int]) -> Iterator[frozenset[int]]:
        """First without the CPUs that the exclusive policy shuns, then all of them."""
        if self.shunned:
            yield cpus - self.shunned
        yield cpus

    def _add(self, cpus: Sequence[int]) -> None:
        self.taken.update(cpus)
        self.free.difference_update(cpus)

    def _whole(self, cpus: frozenset[int]) -> frozenset[int]:
        return required_cpus(self.topology, cpus & self.free, CPUBindPolicy.FULL_PCPUS)

    def _single(self, cpus: frozenset[int]) -> frozenset[int]:
        return cpus & self.free

    def _groups(self, cpus: frozenset[int], key: Callable[[LogicalCpu], int]) -> list[list[int]]:
        """By NUMA node or socket, ascending; in each the cores in their order."""
        found = self.topology.groups(cpus, key)
        place = self.topology.cpus
        return [sorted(found[each], key=lambda cpu: (place[cpu].core, cpu)) for each in sorted(found)]

    def _in_order(self, groups: list[list[int]]) -> list[list[int]]:
        is_most = self.wanted.strategy is NUMAAllocateStrategy.MOST_ALLOCATED
        return sorted(groups, key=lambda group: len(group) if is_most else -len(group))

    def _spread(self, cpus: Sequence[int]) -> list[int]:
        """One thread of each core in turn; cores in the order in which the CPUs come."""
        cores: dict[int, list[int]] = {}
        for cpu in cpus:
            cores.setdefault(self.topology.cpus[cpu].core, []).append(cpu)
        return [cpu for turn in zip_longest(*cores.values()) for cpu in turn if cpu is not None]

    def _fallback_key(self) -> Callable[[int], tuple[int, ...]]:
        """Sockets that the pod has CPUs of already, then by the strategy; cores that others use already before entirely free ones."""
        place = self.topology.cpus
        own = self.topology.groups(self.taken, _socket)
        free = {key: self.topology.groups(self.free, key) for key in (_socket, _numa_node, _core)}
        sign = 1 if self.wanted.strategy is NUMAAllocateStrategy.MOST_ALLOCATED else -1

        def key(cpu: int) -> tuple[int, ...]:
            at = place[cpu]
            return (
                -len(own.get(at.socket, ())),
                sign * len(free[_socket][at.socket]),
                sign * len(free[_numa_node][at.numa_node]),
                len(free[_core][at.core]),
                at.socket,
                at.core,
                cpu,
            )

        return key
