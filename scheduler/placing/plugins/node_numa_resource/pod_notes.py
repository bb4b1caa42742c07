"""The annotations of pods: what they ask for, and what they were told that they have. Source: reference/koordinator.md 2.7."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hosting.kubernetes.koordinator import (
    RESOURCE_STATUS,
    SCHEDULING,
    PriorityClass,
    QoS,
    priority_class_of,
    qos_of,
)
from protocol import quantities
from protocol.cpu_lists import cpu_list, cpus_of
from scheduler.placing.plugins.amounts import CPU, Amounts
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    PINNING,
    CPUBindPolicy,
    CPUExclusivePolicy,
)
from scheduler.placing.plugins.node_numa_resource.topology import (
    MILLI,
    NodeCPUBindPolicy,
    document,
    written_amounts,
)
from scheduler.placing.plugins.topology_manager import NumaTopologyPolicy

RESOURCE_SPEC: Final = SCHEDULING + "resource-spec"
NUMA_TOPOLOGY_SPEC: Final = SCHEDULING + "numa-topology-spec"


@dataclass(frozen=True, slots=True)
class NumaWish:
    """What a pod's annotations ask for, and whether its class (LSE or LSR, and prod) lets it have CPUs of its own."""

    required: CPUBindPolicy = CPUBindPolicy.NONE
    preferred: CPUBindPolicy = CPUBindPolicy.NONE
    exclusive: CPUExclusivePolicy = CPUExclusivePolicy.NONE
    policy: NumaTopologyPolicy = NumaTopologyPolicy.NONE
    is_numa_exclusive: bool = False
    may_be_pinned: bool = False


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """What a pod has: CPUs of its own, and amounts of NUMA nodes."""

    cpus: frozenset[int] = frozenset()
    exclusive: CPUExclusivePolicy = CPUExclusivePolicy.NONE
    numa: Mapping[int, Amounts] = field(default_factory=dict)

    def has_same_parts(self, other: "PodAllocation") -> bool:
        """Whether both would be written alike."""
        return self.cpus == other.cpus and self.numa == other.numa


def read_wish(manifest: Mapping[str, Any]) -> NumaWish:
    """Raises `ValueError` for annotations that break their rules."""
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    spec, numa = document(annotations, RESOURCE_SPEC), document(annotations, NUMA_TOPOLOGY_SPEC)
    may_be_pinned = (
        qos_of(manifest) in {QoS.LSE, QoS.LSR} and priority_class_of(manifest) is PriorityClass.PROD
    )
    return NumaWish(
        CPUBindPolicy(spec.get("requiredCPUBindPolicy", "")),
        CPUBindPolicy(spec.get("preferredCPUBindPolicy", "")),
        CPUExclusivePolicy(spec.get("preferredCPUExclusivePolicy", "")),
        NumaTopologyPolicy(numa.get("numaTopologyPolicy", "")),
        numa.get("singleNUMANodeExclusive") == "Required",
        may_be_pinned,
    )


def read_allocation(manifest: Mapping[str, Any]) -> PodAllocation | None:
    """What a pod was told that it has; None without the annotation, and for one that cannot be read."""
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    if RESOURCE_STATUS not in annotations:
        return None
    try:
        status = document(annotations, RESOURCE_STATUS)
        spec = document(annotations, RESOURCE_SPEC)
        return PodAllocation(
            cpus_of(str(status.get("cpuset") or "")),
            CPUExclusivePolicy(spec.get("preferredCPUExclusivePolicy", "")),
            {
                int(each["node"]): {
                    name: max(amount, 0)
                    for name, amount in written_amounts(each.get("resources") or {}).items()
                }
                for each in status.get("numaNodeResources") or ()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def written_status(allocation: PodAllocation) -> str:
    """The annotation `resource-status`."""
    found: dict[str, Any] = {}
    if allocation.cpus:
        found["cpuset"] = cpu_list(allocation.cpus)
    if allocation.numa:
        found["numaNodeResources"] = [
            {
                "node": numa_node,
                "resources": {name: _quantity(name, amounts[name]) for name in sorted(amounts)},
            }
            for numa_node, amounts in sorted(allocation.numa.items())
        ]
    return json.dumps(found, separators=(",", ":"))


def _quantity(name: str, amount: int) -> str:
    if name == CPU:
        return quantities.from_milli(amount).canonical()
    return quantities.from_value(amount, binary=name == "memory").canonical()


_BIND_OF_NODE: Final = {
    NodeCPUBindPolicy.FULL_PCPUS_ONLY: CPUBindPolicy.FULL_PCPUS,
    NodeCPUBindPolicy.SPREAD_BY_PCPUS: CPUBindPolicy.SPREAD_BY_PCPUS,
}


def bind_of(
    wish: NumaWish, node: NodeCPUBindPolicy, default: CPUBindPolicy, milli: int
) -> tuple[CPUBindPolicy, bool]:
    """The bind policy of a pod on a node, and whether it is required; `NONE` for a pod that shares its CPUs.

    The node's policy pins every pod that asks for whole CPUs, of any class, and wins over what a pod prefers.
    """
    of_node = _BIND_OF_NODE.get(node, CPUBindPolicy.NONE)
    required = default if wish.required is CPUBindPolicy.DEFAULT else wish.required
    preferred = default if wish.preferred in {CPUBindPolicy.DEFAULT, CPUBindPolicy.NONE} else wish.preferred
    if milli <= 0 or milli % MILLI:
        return CPUBindPolicy.NONE, False
    if wish.may_be_pinned and required in PINNING:
        return required, True
    if of_node:
        return of_node, True
    if wish.may_be_pinned and preferred in PINNING:
        return preferred, False
    return CPUBindPolicy.NONE, False


def must_be_pinned(wish: NumaWish, default: CPUBindPolicy) -> bool:
    """Whether a pod has CPUs of its own on every node."""
    return bind_of(wish, NodeCPUBindPolicy.NONE, default, MILLI)[0] in PINNING
