"""The knowledge of the states informer: the node, its pods, VMs and scaling policies, as immutable values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from protocol.values import ZERO, Resources


class ObjectType(enum.StrEnum):
    """The kinds of objects for which callbacks are registered and sent."""

    NODE = "Node"
    ALL_PODS = "AllPods"
    ALL_VMS = "AllVMs"
    SCALING_POLICIES = "ScalingPolicies"


BEST_EFFORT_CLASS: Final = "BestEffort"
"""Kubernetes' own class of the pods that lie in the kubelet's best-effort group."""


class QosClass(enum.StrEnum):
    """How much a pod's work may be held back for others'. From the label `parley.dev/qos-class`, else from Kubernetes' own class:
    BestEffort there is best effort here, all else is latency sensitive."""

    LATENCY_SENSITIVE = "LS"
    BEST_EFFORT = "BE"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The node as its object (or the settings) says."""

    name: str
    capacity: Resources
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One container of a pod. A limit of 0 is none. `id` is the runtime's, without its prefix; empty before the container runs."""

    name: str
    requests: Resources
    limits: Resources
    id: str = ""


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the node. `kubernetes_class` is `Guaranteed`, `Burstable` or `BestEffort`. `controller_kind` is the kind of the owner that
    is the pod's controller, such as `ReplicaSet`; `Node` for a static pod's mirror; empty if the pod has no controller. `batch_requests` is
    the pod's request of the node's batch resources, which best-effort pods name instead of CPU and memory (Koordinator's `batch-cpu` and
    `batch-memory`)."""

    namespace: str
    name: str
    uid: str
    qos: QosClass
    kubernetes_class: str
    priority: int
    requests: Resources
    limits: Resources
    containers: tuple[ContainerState, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    is_finished: bool = False
    is_ending: bool = False
    controller_kind: str = ""
    batch_requests: Resources = ZERO

    @property
    def full_name(self) -> str:
        """`namespace/name`, as logs and people name the pod."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class VmState:
    """One VM of the agent: `namespace/name`, and its amounts as the runner knows them; 0 before there is a runner. `is_evicted_when_stuck`
    says that the agent itself evicts the pod when its needs are denied."""

    name: str
    pod_uid: str
    size: Resources
    target: Resources
    held: Resources
    desired: Resources
    is_evicted_when_stuck: bool = False


@dataclass(frozen=True, slots=True)
class ScalingPolicyState:
    """One ScalingPolicy object that matters to the node."""

    namespace: str
    name: str
    spec: Mapping[str, Any]
