"""The knowledge of the states informer: the node, its pods, VMs and scaling policies, as immutable values that a new reading replaces."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

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
    `batch-memory`). `priority_class` is Koordinator's, such as `koord-prod`."""

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
    priority_class: str = ""

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


_SHARED: Final = ("labels", "annotations", "spec")
"""Fields that are mappings: the reader of a value must not be able to change the value for others."""


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The newest reading of each kind; None before the first."""

    node: NodeState | None = None
    pods: tuple[PodState, ...] | None = None
    vms: tuple[VmState, ...] | None = None
    policies: tuple[ScalingPolicyState, ...] | None = None

    @property
    def missing(self) -> tuple[ObjectType, ...]:
        found = (self.node, self.pods, self.vms, self.policies)
        return tuple(kind for kind, value in zip(ObjectType, found, strict=True) if value is None)

    def with_node(self, node: NodeState) -> "KnownStates":
        """With another reading of the node; this very value if nothing differs."""
        read = _frozen(node)
        return self if read == self.node else replace(self, node=read)

    def with_pods(self, pods: Iterable[PodState], *, is_healthy: bool) -> "KnownStates":
        """With another reading of the pods; this very value if nothing differs.

        No pods after some are believed only if the source is healthy: each of its calls since the last reading has
        succeeded. Of a source that is not, the pods that were there are kept.
        """
        read = tuple(_frozen(pod) for pod in sorted(pods, key=lambda pod: pod.uid))
        if read == self.pods or (not read and self.pods and not is_healthy):
            return self
        return replace(self, pods=read)

    def with_vms(self, vms: Iterable[VmState]) -> "KnownStates":
        """With another reading of the VMs; this very value if nothing differs."""
        read = tuple(sorted(vms, key=lambda vm: vm.name))
        return self if read == self.vms else replace(self, vms=read)

    def with_policies(self, policies: Iterable[ScalingPolicyState]) -> "KnownStates":
        """With another reading of the scaling policies; this very value if nothing differs."""
        ordered = sorted(policies, key=lambda policy: (policy.namespace, policy.name))
        read = tuple(_frozen(policy) for policy in ordered)
        return self if read == self.policies else replace(self, policies=read)


S = TypeVar("S", NodeState, PodState, ScalingPolicyState)


def _frozen(value: S) -> S:
    mappings: dict[str, Any] = {
        name: _read_only(getattr(value, name)) for name in _SHARED if hasattr(value, name)
    }
    return replace(value, **mappings)


def _read_only(data: Any) -> Any:
    """Data of JSON's kinds that nobody can change: mappings are read-only, lists are tuples."""
    match data:
        case Mapping():
            return MappingProxyType({key: _read_only(value) for key, value in data.items()})
        case list() | tuple():
            return tuple(_read_only(value) for value in data)
        case _:
            return data
