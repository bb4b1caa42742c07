"""The CPUs and NUMA nodes of a node, and how it wants them given out, as its objects tell: NodeResourceTopology and Node.

Source: reference/koordinator.md 2.7; the shapes of annotations are those of Koordinator's `apis/extension`.
"""

import enum
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple

from hosting.kubernetes.koordinator import CPU_TOPOLOGY, NODE, POD_CPU_ALLOCS
from protocol import quantities
from protocol.cpu_lists import cpus_of
from scheduler.placing.plugins.amounts import CPU, Amounts
from scheduler.placing.plugins.topology_manager import NumaTopologyPolicy

KUBELET_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
SYSTEM_QOS: Final = NODE + "system-qos-resource"
NODE_RESERVATION: Final = NODE + "reservation"
AMPLIFICATION: Final = NODE + "resource-amplification-ratio"
CPU_BIND_POLICY: Final = NODE + "cpu-bind-policy"
NUMA_ALLOCATE_STRATEGY: Final = NODE + "numa-allocate-strategy"
NUMA_TOPOLOGY_POLICY: Final = NODE + "numa-topology-policy"
MILLI: Final = 1000
_ZONE: Final = "node-"
"""A zone of the type Node is named so, with the number of its NUMA node."""
_NUMA_NODES: Final = 1024
"""`MAX_NUMNODES` of the largest kernels."""
_SINGLE: Final = frozenset({"SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel"})


class NodeCPUBindPolicy(enum.StrEnum):
    """How a node has CPUs given out. Any but `NONE` pins every pod that asks for whole CPUs."""

    NONE = "None"
    FULL_PCPUS_ONLY = "FullPCPUsOnly"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"


class NUMAAllocateStrategy(enum.StrEnum):
    """Which NUMA nodes and sockets come first: those with the fewest free CPUs (`MOST_ALLOCATED`), or with the most."""

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"


class LogicalCpu(NamedTuple):
    """A CPU and its place. `core` is unique on the whole node: `socket << 16 | core`."""

    cpu: int
    core: int
    socket: int
    numa_node: int


@dataclass(frozen=True)
class CpuTopology:
    """All CPUs of a node."""

    cpus: Mapping[int, LogicalCpu]

    @classmethod
    def of(cls, detail: Iterable[tuple[int, int, int, int]]) -> "CpuTopology":
        """From (CPU, core within its socket, socket, NUMA node)."""
        return cls({cpu: LogicalCpu(cpu, at << 16 | core, at, numa) for cpu, core, at, numa in detail})

    @functools.cached_property
    def threads_per_core(self) -> int:
        return self._largest(lambda cpu: cpu.core)

    @functools.cached_property
    def cpus_per_numa_node(self) -> int:
        return self._largest(lambda cpu: cpu.numa_node)

    @functools.cached_property
    def cpus_per_socket(self) -> int:
        return self._largest(lambda cpu: cpu.socket)

    @functools.cached_property
    def cores(self) -> Mapping[int, tuple[int, ...]]:
        """The CPUs of each core, ascending."""
        return {key: tuple(found) for key, found in self.groups(self.cpus, lambda cpu: cpu.core).items()}

    @functools.cached_property
    def numa_nodes(self) -> Mapping[int, frozenset[int]]:
        """The CPUs of each NUMA node."""
        found = self.groups(self.cpus, lambda cpu: cpu.numa_node)
        return {key: frozenset(cpus) for key, cpus in sorted(found.items())}

    def groups(self, cpus: Iterable[int], key: Callable[[LogicalCpu], int]) -> dict[int, list[int]]:
        """These CPUs by `key`, ascending in each group."""
        found: dict[int, list[int]] = defaultdict(list)
        for cpu in sorted(cpus):
            found[key(self.cpus[cpu])].append(cpu)
        return found

    def _largest(self, key: Callable[[LogicalCpu], int]) -> int:
        return max(map(len, self.groups(self.cpus, key).values()), default=0)


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """What the NodeResourceTopology of a node says; nothing where there is none.

    `numa` has the allocatable amounts of each NUMA node. `taken` are CPUs that are not the scheduler's to give: those that the kubelet
    keeps or has given out itself, and those of the system alone. `fault` says why the object cannot be used.
    """

    cpus: CpuTopology | None = None
    numa: Mapping[int, Amounts] = field(default_factory=dict)
    taken: frozenset[int] = frozenset()
    policy: NumaTopologyPolicy = NumaTopologyPolicy.NONE
    is_full_pcpus_only: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What the labels and annotations of a Node say. `strategy` is None where the plugin's own counts; `ratio` multiplies its CPUs."""

    bind_policy: NodeCPUBindPolicy = NodeCPUBindPolicy.NONE
    strategy: NUMAAllocateStrategy | None = None
    policy: NumaTopologyPolicy = NumaTopologyPolicy.NONE
    ratio: Fraction = Fraction(1)
    reserved: frozenset[int] = frozenset()
    fault: str = ""


def read_topology(manifest: Mapping[str, Any]) -> NodeTopology:
    """Raises nothing: an object that cannot be read has a `fault`."""
    annotations = _texts(manifest, "annotations")
    try:
        detail = document(annotations, CPU_TOPOLOGY).get("detail") or ()
        cpus = CpuTopology.of(
            (int(each["id"]), int(each["core"]), int(each["socket"]), _numa_node(each["node"]))
            for each in detail
        )
        numa = {
            _numa_node(str(zone["name"]).removeprefix(_ZONE)): _zone_amounts(zone)
            for zone in manifest.get("zones") or ()
            if zone.get("type") == "Node"
        }
        kubelet = document(annotations, KUBELET_POLICY)
        system = document(annotations, SYSTEM_QOS)
        given = json.loads(annotations.get(POD_CPU_ALLOCS) or "[]")
        taken = cpus_of(str(kubelet.get("reservedCPUs") or ""))
        if system.get("cpusetExclusive", True):
            taken |= cpus_of(str(system.get("cpuset") or ""))
        for each in given:
            if each.get("managedByKubelet"):
                taken |= cpus_of(str(each.get("cpuset") or ""))
        policies = [str(each) for each in manifest.get("topologyPolicies") or ()]
        is_full_only = (kubelet.get("options") or {}).get("full-pcpus-only") == "true"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        return NodeTopology(fault=f"{type(error).__name__}: {error}")
    is_static = kubelet.get("policy") == "static"
    return NodeTopology(
        cpus if cpus.cpus else None,
        numa,
        taken,
        _policy_of(policies),
        is_full_pcpus_only=is_static and is_full_only,
    )


def read_options(manifest: Mapping[str, Any]) -> NodeOptions:
    """Raises nothing: a Node that cannot be read has a `fault`."""
    labels, annotations = _texts(manifest, "labels"), _texts(manifest, "annotations")
    strategy = labels.get(NUMA_ALLOCATE_STRATEGY)
    try:
        ratio = float(str(document(annotations, AMPLIFICATION).get("cpu", 1)))
        reserved = document(annotations, NODE_RESERVATION).get("reservedCPUs") or ""
        if not 1 <= ratio < math.inf:
            raise ValueError(f"{AMPLIFICATION}: cpu must be at least 1 and finite, found {ratio}")
        return NodeOptions(
            NodeCPUBindPolicy(labels.get(CPU_BIND_POLICY) or NodeCPUBindPolicy.NONE),
            NUMAAllocateStrategy(strategy) if strategy else None,
            NumaTopologyPolicy(labels.get(NUMA_TOPOLOGY_POLICY, "")),
            Fraction(str(ratio)),  # of the float: a text such as 1e5000000 would take seconds
            cpus_of(str(reserved)),
        )
    except (ValueError, TypeError, AttributeError) as error:
        return NodeOptions(fault=str(error))


def document(annotations: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """The JSON object in an annotation; empty without it. Raises `ValueError` for another text."""
    text = annotations.get(name)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: must be JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{name}: must be a JSON object")
    return found


def written_amounts(written: Mapping[str, Any]) -> dict[str, int]:
    """Amounts that are written as quantities. Raises `QuantityError`."""
    return {
        name: parsed.milli_value() if name == CPU else parsed.value()
        for name, parsed in ((name, quantities.parse(str(amount))) for name, amount in written.items())
    }


def _numa_node(written: Any) -> int:
    """The number of a NUMA node, which is a bit of masks. Raises `ValueError` for one that no kernel has."""
    found = int(written)
    if not 0 <= found < _NUMA_NODES:
        raise ValueError(f"a NUMA node's number must be below {_NUMA_NODES}, found {found}")
    return found


def _zone_amounts(zone: Mapping[str, Any]) -> dict[str, int]:
    return written_amounts({each["name"]: each["allocatable"] for each in zone.get("resources") or ()})


def _policy_of(policies: Iterable[str]) -> NumaTopologyPolicy:
    """The kubelet's policy as the object names it; the first that is known counts."""
    for each in policies:
        if each in _SINGLE:
            return NumaTopologyPolicy.SINGLE_NUMA_NODE
        if each in {NumaTopologyPolicy.BEST_EFFORT, NumaTopologyPolicy.RESTRICTED}:
            return NumaTopologyPolicy(each)
    return NumaTopologyPolicy.NONE


def _texts(manifest: Mapping[str, Any], part: str) -> Mapping[str, str]:
    return (manifest.get("metadata") or {}).get(part) or {}
