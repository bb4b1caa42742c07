"""The known states of the node and its objects, and the changes by a new reading."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from agent.node.qos.core.states import NodeState, ObjectType, PodState, ScalingPolicyState, VmState

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
