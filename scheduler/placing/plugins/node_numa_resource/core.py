"""What a pod gets of a node's CPUs and NUMA nodes. Pure: the node comes in as a `NumaView`. Source: reference/koordinator.md 2.7.

The published even split sorts NUMA nodes by the availability at their position in a list; here each has its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from scheduler.placing.plugins.amounts import CPU, Amounts
from scheduler.placing.plugins.base import remembered
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    CPUBindPolicy,
    CPUExclusivePolicy,
    CpuRequest,
    required_cpus,
    take_cpus,
    take_preferred_cpus,
)
from scheduler.placing.plugins.node_numa_resource.pod_notes import PodAllocation
from scheduler.placing.plugins.node_numa_resource.topology import MILLI, CpuTopology
from scheduler.placing.plugins.node_numa_resource.view import NumaRequest, NumaView, amplified
from scheduler.placing.plugins.topology_manager import (
    MAX_NUMA_NODES,
    HintProvider,
    Hints,
    NumaHint,
    NumaTopologyPolicy,
    admit,
    masks,
    nodes_in,
)

INTEGER: Final = "the requested CPUs must be integer"
NO_TOPOLOGY: Final = "node(s) CPU Topology not found"
INVALID_TOPOLOGY: Final = "node(s) invalid CPU Topology"
SMT_ALIGNMENT: Final = "node(s) requested cpus not multiple cpus per core"
BIND_CONFLICT: Final = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
POLICY_CONFLICT: Final = "node(s) not match NUMA topology"
NO_CPUS: Final = "not enough cpus available to satisfy request"
AMPLIFIED_CPU: Final = "Insufficient amplified cpu"
TOO_MANY_NUMA_NODES: Final = f"more than {MAX_NUMA_NODES} NUMA nodes, of which no policy can choose"


def allocate(
    view: NumaView, wanted: NumaRequest, numa_nodes: Sequence[int] | None = None
) -> PodAllocation | tuple[str, ...]:
    """What the pod would get, of these NUMA nodes (None: of any, and no amounts are split); or why nothing."""
    topology, cpus = view.topology.cpus, wanted.cpus
    exclusive = cpus.exclusive if cpus is not None else CPUExclusivePolicy.NONE
    split: dict[int, dict[str, int]] = {}
    if numa_nodes is not None:
        unit = 1
        if cpus is not None and topology is not None:
            is_whole = cpus.is_required and cpus.bind is CPUBindPolicy.FULL_PCPUS
            unit = MILLI * (topology.threads_per_core if is_whole else 1)
        available = view.available(wanted)
        known = {each: available[each] for each in numa_nodes if each in available}
        asked = {name: amount for name, amount in wanted.amounts.items() if name in _names(known.values())}
        split, lacking = distribute_evenly(known, asked, {CPU: unit})
        if lacking:
            return tuple(f"Insufficient NUMA {name}" for name in lacking)
    if cpus is None:
        return PodAllocation(numa=split)
    if topology is None:
        return (NO_TOPOLOGY,)
    if numa_nodes is None:
        taken = take_preferred_cpus(topology, view.free_cpus, wanted.preferred, cpus, view.exclusives)
        return (NO_CPUS,) if taken is None else PodAllocation(taken, exclusive)
    found: frozenset[int] = frozenset()
    for numa_node, amounts in split.items():
        part = replace(cpus, count=amounts.get(CPU, 0) // MILLI)
        own = view.free_cpus & topology.numa_nodes.get(numa_node, frozenset())
        taken = take_cpus(topology, own, part, view.exclusives)
        if taken is None:
            return (NO_CPUS,)
        found |= taken
    return PodAllocation(found, exclusive, split) if len(found) == cpus.count else (NO_CPUS,)


def distribute_evenly(
    available: Mapping[int, Amounts], wanted: Amounts, units: Mapping[str, int]
) -> tuple[dict[int, dict[str, int]], tuple[str, ...]]:
    """Each NUMA node's part of each amount, in whole units of the resource; and the resources of which there is too little.

    The NUMA nodes with the least give first, so that what they lack falls to those with more.
    """
    split: dict[int, dict[str, int]] = {}
    lacking = []
    for name, amount in wanted.items():
        unit, rest = units.get(name, 1), amount
        order = sorted(available, key=lambda numa_node: (available[numa_node].get(name, 0), numa_node))
        for index, numa_node in enumerate(order):
            most = max(0, available[numa_node].get(name, 0)) // unit * unit
            part = min(most, rest // (len(order) - index) // unit * unit)
            rest -= part
            if part:
                split.setdefault(numa_node, {})[name] = part
        if rest > 0:
            lacking.append(name)
    return split, tuple(lacking)


def hints_of(view: NumaView, wanted: NumaRequest, score: "HintScore") -> Hints | tuple[str, ...]:
    """The sets of NUMA nodes from which the pod could really be served; or why no set could do it.

    A set with a NUMA node that has nothing left of an asked resource is none. The narrowest sets are preferred, and under `Restricted` all.
    """
    known = _names(view.numa_allocatable.values())
    asked = [name for name, amount in wanted.amounts.items() if amount > 0 and name in known]
    available = view.available(wanted)
    feasible = [
        mask
        for mask in masks(view.numa_nodes)
        if all(available[each].get(name, 0) > 0 for each in nodes_in(mask) for name in asked)
        and isinstance(allocate(view, wanted, tuple(nodes_in(mask))), PodAllocation)
    ]
    if not feasible:
        reasons = allocate(view, wanted, view.numa_nodes)
        return reasons if isinstance(reasons, tuple) else (NO_CPUS,)
    narrowest = feasible[0].bit_count()
    is_restricted = wanted.policy is NumaTopologyPolicy.RESTRICTED
    found = [
        NumaHint(mask, is_restricted or mask.bit_count() == narrowest, score(view, wanted, mask))
        for mask in feasible
    ]
    return {name: found if name in asked else None for name in wanted.amounts}


def decide(
    view: NumaView, wanted: NumaRequest, score: "HintScore", others: Sequence[HintProvider] = ()
) -> PodAllocation | tuple[str, ...]:
    """What the pod would get under its NUMA policy, which `others` have a say in; or why nothing. Nothing at all for a pod without wishes.

    A view is asked with one `score` only: it remembers the answers that are about nothing else than itself.
    """
    if not wanted.policy and wanted.cpus is None:
        return PodAllocation()
    if others:
        return _decided(view, wanted, score, others)
    return remembered(view.decided, wanted.key, lambda: _decided(view, wanted, score))


def _decided(
    view: NumaView, wanted: NumaRequest, score: "HintScore", others: Sequence[HintProvider] = ()
) -> PodAllocation | tuple[str, ...]:
    if not wanted.policy:
        return allocate(view, wanted)
    found = PodAllocation()

    def take(hint: NumaHint) -> tuple[str, ...]:
        nonlocal found
        numa_nodes = view.numa_nodes if hint.mask is None else tuple(nodes_in(hint.mask))
        result = allocate(view, wanted, numa_nodes)
        if isinstance(result, PodAllocation):
            found = result
            return ()
        return result

    provider = HintProvider(lambda: hints_of(view, wanted, score), take)
    uses = view.uses if wanted.is_numa_exclusive else None
    return admit(wanted.policy, view.numa_nodes, [provider, *others], uses).reasons or found


class HintScore:
    """Scores sets of NUMA nodes, and nodes, by a published scoring strategy: the fuller (`MostAllocated`) or the emptier the better."""

    def __init__(self, weights: Mapping[str, int], *, is_most: bool) -> None:
        self._weights = weights
        self._weight_sum = sum(weights.values())
        self._is_most = is_most

    def __call__(self, view: NumaView, wanted: NumaRequest, mask: int) -> int:
        numa_nodes = tuple(nodes_in(mask))
        requested = summed(view.numa_requested.get(each, {}) for each in numa_nodes)
        asked = dict(wanted.amounts)
        if wanted.cpus is not None:
            asked[CPU] = amplified(asked.get(CPU, 0), view.options.ratio)
        return self.of(
            summed((requested, asked)), summed(view.numa_allocatable.get(each, {}) for each in numa_nodes)
        )

    def of(self, requested: Amounts, allocatable: Amounts) -> int:
        """0 to 100; a resource of which more is asked for than there is, or of which there is none, counts 0."""
        total = 0
        for name, weight in self._weights.items():
            most, used = allocatable.get(name, 0), requested.get(name, 0)
            if most > 0 and used <= most:
                total += weight * (100 * (used if self._is_most else most - used) // most)
        return total // self._weight_sum


def _names(amounts: Iterable[Amounts]) -> frozenset[str]:
    return frozenset(name for each in amounts for name in each)


def summed(amounts: Iterable[Amounts]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in amounts:
        for name, amount in each.items():
            found[name] = found.get(name, 0) + amount
    return found


# ------------------------------------------------------------ growing in place


def resized(view: NumaView, uid: str, milli: int) -> tuple[PodAllocation, str]:
    """What a pod with CPUs of its own has once it needs so much, and why that is less; empty if it is enough.

    It gets whole free cores of the NUMA nodes where it has CPUs, as many as there are, and gives back the highest of its cores.
    """
    held, topology = view.allocations[uid], view.topology.cpus
    if topology is None or not held.cpus <= topology.cpus.keys():
        return held, NO_TOPOLOGY if topology is None else INVALID_TOPOLOGY
    per_core, own = topology.threads_per_core, held.cpus
    lacks = -(-milli // MILLI) - len(own)
    if lacks <= 0:
        ordered = sorted(own, key=lambda cpu: (topology.cpus[cpu].core, cpu))
        return _with_cpus(held, frozenset(ordered[: len(own) - -lacks // per_core * per_core]), topology), ""
    at = sorted({topology.cpus[cpu].numa_node for cpu in own})
    near = view.free_cpus & frozenset(cpu for each in at for cpu in topology.numa_nodes[each])
    free = required_cpus(topology, near, CPUBindPolicy.FULL_PCPUS)
    needed = -(-lacks // per_core) * per_core
    left = view.available(NumaRequest({}, CpuRequest(needed, CPUBindPolicy.FULL_PCPUS, is_required=True)))
    promised = frozenset[int]()
    for each in at:
        there = sorted(free & topology.numa_nodes[each], key=lambda cpu: (topology.cpus[cpu].core, cpu))
        most = max(left.get(each, {}).get(CPU, MILLI * len(there)), 0) // MILLI // per_core * per_core
        promised |= frozenset(there[most:])
    free -= promised
    count = min(needed, len(free))
    wanted = CpuRequest(count, CPUBindPolicy.FULL_PCPUS, is_required=True, exclusive=held.exclusive)
    more = take_cpus(topology, free, wanted, view.exclusives) if count else None
    found = _with_cpus(held, own | (more or frozenset()), topology)
    if len(found.cpus) == len(own) + needed:
        return found, ""
    named = f"NUMA node{'s' if len(at) > 1 else ''} {', '.join(map(str, at))}"
    others = f" ({len(promised)} are promised to pods that share them)" if promised else ""
    return (
        found,
        f"{named} of the pod has {len(free)} CPUs of free cores{others}, and {needed} more are needed",
    )


def _with_cpus(held: PodAllocation, cpus: frozenset[int], topology: CpuTopology) -> PodAllocation:
    """The allocation with other CPUs, which its parts of NUMA nodes tell as well."""
    numa = {
        each: {**of, CPU: MILLI * len(cpus & topology.numa_nodes.get(each, frozenset()))} if CPU in of else of
        for each, of in held.numa.items()
    }
    return replace(held, cpus=cpus, numa=numa)
