"""A node as its objects and pods show it at one moment: which CPUs are free, and what is left of its NUMA nodes."""

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from scheduler.placing.core.values import Status
from scheduler.placing.plugins.amounts import CPU, Amounts
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    CPUBindPolicy,
    CPUExclusivePolicy,
    CpuRequest,
    required_cpus,
)
from scheduler.placing.plugins.node_numa_resource.pod_notes import PodAllocation
from scheduler.placing.plugins.node_numa_resource.topology import (
    MILLI,
    CpuTopology,
    NodeCPUBindPolicy,
    NodeOptions,
    NodeTopology,
)
from scheduler.placing.plugins.topology_manager import NumaTopologyPolicy, NumaUse


@dataclass(frozen=True)
class NumaRequest:
    """What a pod asks of one node. `cpus` is None for a pod that shares its CPUs; `preferred` are CPUs that are kept for it there."""

    amounts: Amounts
    cpus: CpuRequest | None = None
    policy: NumaTopologyPolicy = NumaTopologyPolicy.NONE
    is_numa_exclusive: bool = False
    preferred: frozenset[int] = frozenset()

    @functools.cached_property
    def key(self) -> Hashable:
        amounts = tuple(sorted(self.amounts.items()))
        return amounts, self.cpus, self.policy, self.is_numa_exclusive, self.preferred


@dataclass(frozen=True)
class NumaView:
    """A node at one moment. `allocations` are those of its pods, by UID."""

    topology: NodeTopology
    options: NodeOptions
    allocations: Mapping[str, PodAllocation]

    @functools.cached_property
    def numa_nodes(self) -> tuple[int, ...]:
        known = self.topology.cpus.numa_nodes if self.topology.cpus is not None else {}
        return tuple(sorted({*self.topology.numa, *known}))

    @functools.cached_property
    def free_cpus(self) -> frozenset[int]:
        """The CPUs that no pod has for itself, and that are the scheduler's to give."""
        held = (each.cpus for each in self.allocations.values())
        return frozenset(self._cpus.cpus).difference(self.topology.taken, self.options.reserved, *held)

    @functools.cached_property
    def exclusives(self) -> Mapping[int, CPUExclusivePolicy]:
        return {cpu: each.exclusive for each in self.allocations.values() for cpu in each.cpus}

    @functools.cached_property
    def has_rules(self) -> bool:
        """Whether the node asks something even of pods that have no wishes."""
        topology, options = self.topology, self.options
        has_policy = bool(topology.policy or options.policy)
        has_bind_policy = topology.is_full_pcpus_only or options.bind_policy is not NodeCPUBindPolicy.NONE
        return has_policy or has_bind_policy or options.ratio != 1

    @functools.cached_property
    def amplification_milli(self) -> int:
        """How much more than their number the CPUs of pods' own count."""
        pinned_milli = MILLI * sum(len(each.cpus) for each in self.allocations.values())
        return amplified(pinned_milli, self.options.ratio) - pinned_milli

    @functools.cached_property
    def uses(self) -> Mapping[int, frozenset[NumaUse]]:
        found: dict[int, set[NumaUse]] = {}
        for each in self.allocations.values():
            touched = {*each.numa, *(self._cpus.cpus[cpu].numa_node for cpu in each.cpus & self._known)}
            for numa_node in touched:
                use = NumaUse.SINGLE if len(touched) == 1 else NumaUse.SHARED
                found.setdefault(numa_node, set()).add(use)
        return {numa_node: frozenset(uses) for numa_node, uses in found.items()}

    @functools.cached_property
    def numa_requested(self) -> Mapping[int, Amounts]:
        """The amounts that pods have of each NUMA node; CPUs of a pod's own count amplified."""
        found: dict[int, dict[str, int]] = {numa_node: {} for numa_node in self.numa_nodes}
        for each in self.allocations.values():
            used = {numa_node: dict(amounts) for numa_node, amounts in each.numa.items()}
            for numa_node, cpus in self._cpus.numa_nodes.items():
                if own := len(cpus & each.cpus):
                    used.setdefault(numa_node, {})[CPU] = amplified(own * MILLI, self.options.ratio)
            for numa_node, amounts in used.items():
                to = found.setdefault(numa_node, {})
                for name, amount in amounts.items():
                    to[name] = to.get(name, 0) + amount
        return found

    @functools.cached_property
    def numa_allocatable(self) -> Mapping[int, Amounts]:
        """As the zones say; CPU is amplified. Without zones, the CPUs of the topology."""
        if self.topology.numa:
            found = {numa_node: dict(amounts) for numa_node, amounts in self.topology.numa.items()}
        else:
            found = {each: {CPU: MILLI * len(cpus)} for each, cpus in self._cpus.numa_nodes.items()}
        for amounts in found.values():
            if CPU in amounts:
                amounts[CPU] = amplified(amounts[CPU], self.options.ratio)
        return found

    def available(self, wanted: NumaRequest) -> Mapping[int, Amounts]:
        """By NUMA node what is left; of CPU for a pinned pod as much as CPUs that it may have."""
        bind = None
        if wanted.cpus is not None:
            bind = wanted.cpus.bind if wanted.cpus.is_required else CPUBindPolicy.NONE
        if bind not in self._available:
            self._available[bind] = self._left(bind)
        return self._available[bind]

    def _left(self, bind: CPUBindPolicy | None) -> Mapping[int, Amounts]:
        """`bind` is None for pods that share their CPUs."""
        found = {
            numa_node: {
                name: amount - self.numa_requested.get(numa_node, {}).get(name, 0)
                for name, amount in amounts.items()
            }
            for numa_node, amounts in self.numa_allocatable.items()
        }
        if bind is not None:
            for numa_node, amounts in found.items():
                own = self.free_cpus & self._cpus.numa_nodes.get(numa_node, frozenset())
                most = MILLI * len(required_cpus(self._cpus, own, bind))
                left = amounts.get(CPU, most) * self.options.ratio.denominator
                amounts[CPU] = min(most, left // self.options.ratio.numerator)
        return found

    @functools.cached_property
    def _available(self) -> dict[CPUBindPolicy | None, Mapping[int, Amounts]]:
        return {}

    @functools.cached_property
    def requests(self) -> "dict[str, NumaRequest | Status]":
        """What pods ask here, by what they wish for; a rejection where that and the node's rules do not go together."""
        return {}

    @functools.cached_property
    def decided(self) -> "dict[Hashable, PodAllocation | tuple[str, ...]]":
        """What was decided here, by `NumaRequest.key`: pods are often alike, and most nodes stay as they are from one pod to the next."""
        return {}

    @property
    def _cpus(self) -> CpuTopology:
        return self.topology.cpus if self.topology.cpus is not None else _NO_CPUS

    @property
    def _known(self) -> frozenset[int]:
        return frozenset(self._cpus.cpus)


_NO_CPUS: Final = CpuTopology({})


def as_permitted(allocation: PodAllocation, permitted: Amounts) -> PodAllocation:
    """What a pod that grows has of its NUMA nodes by now: each of its parts grows alike. CPUs of its own are what they are."""
    grown = {numa_node: dict(amounts) for numa_node, amounts in allocation.numa.items()}
    for name, amount in permitted.items():
        told = sum(amounts.get(name, 0) for amounts in allocation.numa.values())
        if told <= 0 or (name == CPU and allocation.cpus):
            continue
        rest = amount
        for amounts in grown.values():
            amounts[name] = amounts.get(name, 0) * amount // told
            rest -= amounts[name]
        first = next(iter(grown))
        grown[first][name] += rest
    return replace(allocation, numa=grown)


def amplified(milli: int, ratio: Fraction) -> int:
    """CPUs times the ratio of a node, rounded up."""
    return -(-milli * ratio.numerator // ratio.denominator)
