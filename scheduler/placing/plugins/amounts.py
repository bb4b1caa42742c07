"""What a pod needs, and what a node has and has given away, of every resource: CPU and memory by the ledger, all else by the manifests.

The ledger knows what is permitted: a VM or pod that grows counts with its size now, and not only with what it requested. CPU is in
milli-CPU, memory in bytes, everything else in whole units.
"""

from collections.abc import Mapping
from typing import Final

from protocol.quantities import QuantityError
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.plugins.base import NodeCache
from scheduler.placing.plugins.node_resources import allocatable, requests, total

CPU: Final = "cpu"
MEMORY: Final = "memory"
Amounts = Mapping[str, int]


def pod_amounts(pod: PodInfo) -> dict[str, int]:
    """The needs of a pod. Raises `QuantityError` for requests that cannot be read."""
    return {**_of_the_ledger(pod.amount.vcpu_milli, pod.amount.memory_bytes), **requests(pod)}


def readable_amounts(pod: PodInfo) -> dict[str, int]:
    """As `pod_amounts`, with CPU and memory alone of a pod that cannot be read."""
    try:
        return pod_amounts(pod)
    except QuantityError:
        return _of_the_ledger(pod.amount.vcpu_milli, pod.amount.memory_bytes)


class NodeAmounts:
    """The amounts of nodes, put together once for each value of a node, and read again only where its manifest or its pods have changed."""

    def __init__(self) -> None:
        self._allocatable: NodeCache[Mapping[str, object], Amounts] = NodeCache(allocatable)
        self._total: NodeCache[tuple[PodInfo, ...], Amounts] = NodeCache(total)
        self._all_allocatable: NodeCache[NodeInfo, Amounts] = NodeCache(self._read_allocatable)
        self._all_requested: NodeCache[NodeInfo, Amounts] = NodeCache(self._read_requested)

    def allocatable(self, node: NodeInfo) -> Amounts:
        """All that can be given away on a node."""
        return self._all_allocatable.of(node.name, node)

    def requested(self, node: NodeInfo) -> Amounts:
        """All that is given away on a node, with the number of its pods as `pods`."""
        return self._all_requested.of(node.name, node)

    def _read_allocatable(self, node: NodeInfo) -> Amounts:
        most = node.reservable
        others = self._allocatable.of(node.name, node.manifest)
        return {**_of_the_ledger(most.vcpu_milli, most.memory_bytes), **others}

    def _read_requested(self, node: NodeInfo) -> Amounts:
        kept = node.reserved
        others = self._total.of(node.name, node.pods)
        return {**_of_the_ledger(kept.vcpu_milli, kept.memory_bytes), **others}


def _of_the_ledger(vcpu_milli: int, memory_bytes: int) -> dict[str, int]:
    found = {CPU: vcpu_milli, MEMORY: memory_bytes}
    return {name: amount for name, amount in found.items() if amount}
