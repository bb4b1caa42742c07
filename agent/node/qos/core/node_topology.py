"""The NodeResourceTopology of the node, and the CPUs that pods may run on: made of the CPUs that the kernel tells of, and of the pods.

The annotations and zones are the published ones. Source: reference/koordinator.md 2.7 and 3.5.
"""

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.node.qos.core.cpu_suppress import CpuPlace
from agent.node.qos.core.states import BEST_EFFORT_CLASS, PodState
from hosting.kubernetes.koordinator import (
    BE_CPU_SHARED_POOLS,
    CPU_SHARED_POOLS,
    CPU_TOPOLOGY,
    NODE_RESOURCE_TOPOLOGIES,
    POD_CPU_ALLOCS,
    QOS,
    PodCpus,
    QoS,
    cpus_told,
)
from protocol.cpu_lists import cpu_list
from protocol.values import Resources

MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class HostTopology:
    """The CPUs that are online, and the memory of each NUMA node."""

    cpus: tuple[CpuPlace, ...] = ()
    memory_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def all_cpus(self) -> frozenset[int]:
        return frozenset(place.cpu for place in self.cpus)


class CpusetReason(enum.StrEnum):
    """The decisions of the strategy that sets CPUs."""

    SET = "set"
    UNCHANGED = "unchanged"
    NOT_SYNCED = "not-synced"
    WRITE_FAILED = "write-failed"
    RECOVERED = "recovered"


def own_cpus(pod: PodState) -> PodCpus:
    """What the pod was told. One that requests no CPU has none of its own, whatever somebody has written to it."""
    told = cpus_told(pod.annotations)
    return told if pod.requests.vcpu_milli else PodCpus(numa_nodes=told.numa_nodes)


def cpus_wanted(host: HostTopology, pods: Iterable[PodState]) -> dict[str, frozenset[int]]:
    """The CPUs that the containers of each pod are to run on, by UID: its own, else those that are nobody's own; those of its NUMA nodes,
    where it has any. A pod for which none is left has no entry."""
    there = [pod for pod in pods if not pod.is_finished]
    told = {pod.uid: own_cpus(pod) for pod in there}
    shared, best_effort = _shared(host, there, told)
    wanted = {}
    for pod in there:
        own = told[pod.uid].cpus & host.all_cpus
        pool = best_effort if _is_best_effort(pod) else shared
        near = {place.cpu for place in host.cpus if place.numa_node in told[pod.uid].numa_nodes}
        found = own or (pool & near if near else pool)
        if found:
            wanted[pod.uid] = found
    return wanted


def topology_object(node: str, host: HostTopology, pods: Iterable[PodState]) -> dict[str, Any]:
    """The object, without an owner. What is allocatable of a zone is all of it: what the node keeps from pods is no NUMA node's."""
    there = sorted((pod for pod in pods if not pod.is_finished), key=lambda pod: pod.full_name)
    told = {pod.uid: own_cpus(pod) for pod in there}
    shared, best_effort = _shared(host, there, told)
    allocs = [
        {
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
            "cpuset": cpu_list(told[pod.uid].cpus),
        }
        for pod in there
        if told[pod.uid].cpus
    ]
    detail = [
        {"id": each.cpu, "core": each.core, "socket": each.socket, "node": each.numa_node}
        for each in host.cpus
    ]
    return {
        "apiVersion": NODE_RESOURCE_TOPOLOGIES.api_version,
        "kind": NODE_RESOURCE_TOPOLOGIES.kind,
        "metadata": {
            "name": node,
            "annotations": {
                CPU_TOPOLOGY: _json({"detail": detail}),
                POD_CPU_ALLOCS: _json(allocs),
                CPU_SHARED_POOLS: _json(_pools(host, shared)),
                BE_CPU_SHARED_POOLS: _json(_pools(host, best_effort)),
            },
        },
        "topologyPolicies": ["None"],
        "zones": [_zone(host, numa_node) for numa_node in sorted({each.numa_node for each in host.cpus})],
    }


def _shared(
    host: HostTopology, pods: Sequence[PodState], told: Mapping[str, PodCpus]
) -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs that are nobody's own, and those for best effort, which are all but those of LSE pods."""
    own = [told[pod.uid].cpus for pod in pods]
    alone = [told[pod.uid].cpus for pod in pods if pod.labels.get(QOS) == QoS.LSE]
    return host.all_cpus.difference(*own), host.all_cpus.difference(*alone)


def _is_best_effort(pod: PodState) -> bool:
    return pod.labels.get(QOS) == QoS.BE or pod.kubernetes_class == BEST_EFFORT_CLASS


def _pools(host: HostTopology, cpus: frozenset[int]) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for place in host.cpus:
        if place.cpu in cpus:
            groups.setdefault((place.socket, place.numa_node), []).append(place.cpu)
    return [
        {"socket": socket, "node": numa_node, "cpuset": cpu_list(found)}
        for (socket, numa_node), found in sorted(groups.items())
    ]


def _zone(host: HostTopology, numa_node: int) -> dict[str, Any]:
    milli = MILLI * sum(place.numa_node == numa_node for place in host.cpus)
    amounts = Resources(milli, host.memory_bytes.get(numa_node, 0)).written()
    return {
        "name": f"node-{numa_node}",
        "type": "Node",
        "resources": [
            {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
            for name, amount in amounts.items()
        ],
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
