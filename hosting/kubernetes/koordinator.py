"""Published names of Koordinator and of the community's scheduler plugins: types of objects, labels, annotations, and the classes of pods.

Sources: seed 002, reference/koordinator.md 2.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hosting.kubernetes.resources import Manifest, ResourceType
from protocol.cpu_lists import cpus_of

ELASTIC_QUOTAS: Final = ResourceType("scheduling.sigs.k8s.io", "v1alpha1", "elasticquotas", "ElasticQuota")
POD_GROUPS: Final = ResourceType("scheduling.sigs.k8s.io", "v1alpha1", "podgroups", "PodGroup")
NODE_METRICS: Final = ResourceType(
    "slo.koordinator.sh", "v1alpha1", "nodemetrics", "NodeMetric", is_namespaced=False
)
DEVICES: Final = ResourceType(
    "scheduling.koordinator.sh", "v1alpha1", "devices", "Device", is_namespaced=False
)
PUBLISHED_RESERVATIONS: Final = ResourceType(
    "scheduling.koordinator.sh", "v1alpha1", "reservations", "Reservation", is_namespaced=False
)
NODE_RESOURCE_TOPOLOGIES: Final = ResourceType(
    "topology.node.k8s.io", "v1alpha1", "noderesourcetopologies", "NodeResourceTopology", is_namespaced=False
)

PRIORITY_CLASS: Final = "koordinator.sh/priority-class"
"""Label of a pod: its `PriorityClass`, instead of that of its priority."""
QOS: Final = "koordinator.sh/qosClass"
"""Label of a pod: its `QoS`."""
SCHEDULING: Final = "scheduling.koordinator.sh/"
"""The prefix of annotations between the scheduler, its plugins and the node."""
NODE: Final = "node.koordinator.sh/"
"""The prefix of labels and annotations of nodes."""
RESOURCE_STATUS: Final = SCHEDULING + "resource-status"
"""Annotation of a pod, JSON: the CPUs of its own (`cpuset`), and its parts of NUMA nodes (`numaNodeResources`)."""
CPU_TOPOLOGY: Final = NODE + "cpu-topology"
"""Annotation of a NodeResourceTopology, JSON: `detail`, with `id`, `core`, `socket` and `node` of each CPU."""
POD_CPU_ALLOCS: Final = NODE + "pod-cpu-allocs"
"""Annotation of a NodeResourceTopology, a JSON list: pods with CPUs of their own; `managedByKubelet` where the kubelet has given them."""
CPU_SHARED_POOLS: Final = NODE + "cpu-shared-pools"
"""Annotation of a NodeResourceTopology, a JSON list: by `socket` and `node` the `cpuset` that is nobody's own."""
BE_CPU_SHARED_POOLS: Final = NODE + "be-cpu-shared-pools"
"""As `CPU_SHARED_POOLS`, for best effort: it may run on all CPUs but those of LSE pods."""


class PriorityClass(enum.StrEnum):
    """How much a pod matters."""

    PROD = "koord-prod"
    MID = "koord-mid"
    BATCH = "koord-batch"
    FREE = "koord-free"


class QoS(enum.StrEnum):
    """How a pod shares its node: alone on its CPUs (LSE, LSR), sensitive to latency (LS), best effort (BE), or a part of the system."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


@dataclass(frozen=True, slots=True)
class PodCpus:
    """What a scheduler has told a pod: CPUs of its own, and the NUMA nodes that its resources come from."""

    cpus: frozenset[int] = frozenset()
    numa_nodes: frozenset[int] = frozenset()


def cpus_told(annotations: Mapping[str, str]) -> PodCpus:
    """Nothing for a pod without the annotation `RESOURCE_STATUS`, and for one that cannot be read: it shares its CPUs then."""
    text = annotations.get(RESOURCE_STATUS)
    if not text:
        return PodCpus()
    try:
        found = json.loads(text)
        nodes = frozenset(int(each["node"]) for each in found.get("numaNodeResources") or ())
        return PodCpus(cpus_of(str(found.get("cpuset") or "")), nodes)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return PodCpus()


_BY_PRIORITY: Final = (
    (range(9000, 10_000), PriorityClass.PROD),
    (range(7000, 8000), PriorityClass.MID),
    (range(5000, 6000), PriorityClass.BATCH),
    (range(3000, 4000), PriorityClass.FREE),
)


def qos_of(pod: Manifest | Mapping[str, Any]) -> QoS | None:
    """The class of the pod's label; None without one, and if it names no class."""
    named = (pod.get("metadata") or {}).get("labels") or {}
    return QoS(named[QOS]) if named.get(QOS) in QoS.__members__ else None


def priority_class_of(pod: Manifest | Mapping[str, Any]) -> PriorityClass:
    """By the pod's label, else its priority, else how it shares its node: what is best effort is batch, all else is prod."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    if labels.get(PRIORITY_CLASS) in frozenset(PriorityClass):
        return PriorityClass(labels[PRIORITY_CLASS])
    priority = (pod.get("spec") or {}).get("priority")
    for numbers, found in _BY_PRIORITY:
        if isinstance(priority, int) and priority in numbers:
            return found
    qos = qos_of(pod)
    is_best_effort = qos is QoS.BE or (qos is None and _is_best_effort(pod))
    return PriorityClass.BATCH if is_best_effort else PriorityClass.PROD


def _is_best_effort(pod: Manifest | Mapping[str, Any]) -> bool:
    """Kubernetes' own class: nothing of CPU and memory is requested or limited."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        named = {*(resources.get("requests") or {}), *(resources.get("limits") or {})}
        if named & {"cpu", "memory"}:
            return False
    return True
