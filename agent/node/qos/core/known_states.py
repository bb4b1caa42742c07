"""What is known of the node and what is on it, and what a new reading changes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from agent.node.qos.core.states import NodeState, ObjectType, PodState, ScalingPolicyState, VmState

_SHARED: Final = ("labels", "annotations", "spec")
"""Fields that are mappings: whoever reads a value must not be able to change what others read."""


@dataclass(frozen=True, slots=True)
class KnownStates:
    """The newest reading of each kind; None before the first."""

    node: NodeState | None = None
    pods: tuple[PodState, ...] | None = None
    vms: tuple[VmState, ...] | None = None
    policies: tuple[ScalingPolicyState, ...] | None = None

    @property
    def missing(self) -> tuple[ObjectType, ...]:
        """The kinds that were not read yet."""
        found = (self.node, self.pods, self.vms, self.policies)
        return tuple(kind for kind, value in zip(ObjectType, found, strict=True) if value is None)

    def with_node(self, node: NodeState) -> "KnownStates":
        """With another reading of the node; this very value where nothing differs."""
        return self if node == self.node else replace(self, node=_frozen(node))

    def with_pods(self, pods: Iterable[PodState], *, is_healthy: bool) -> "KnownStates":
        """With another reading of the pods; this very value where nothing differs.

        No pods after some are believed only where the source is healthy: each of its calls since the last reading has
        succeeded. Of a source that is not, the pods that were there are kept.
        """
        read = tuple(sorted(pods, key=lambda pod: pod.uid))
        if read == self.pods or (not read and self.pods and not is_healthy):
            return self
        return replace(self, pods=tuple(_frozen(pod) for pod in read))

    def with_vms(self, vms: Iterable[VmState]) -> "KnownStates":
        """With another reading of the VMs; this very value where nothing differs."""
        read = tuple(sorted(vms, key=lambda vm: vm.name))
        return self if read == self.vms else replace(self, vms=read)

    def with_policies(self, policies: Iterable[ScalingPolicyState]) -> "KnownStates":
        """With another reading of the scaling policies; this very value where nothing differs."""
        read = tuple(sorted(policies, key=lambda policy: (policy.namespace, policy.name)))
        return (
            self if read == self.policies else replace(self, policies=tuple(_frozen(each) for each in read))
        )


def _frozen(value: Any) -> Any:
    """A value whose mappings nobody can change."""
    mappings = {name: frozen(getattr(value, name)) for name in _SHARED if hasattr(value, name)}
    return replace(value, **mappings)


def frozen(data: Any) -> Any:
    """Data of JSON's kinds that nobody can change: mappings are read-only, lists are tuples."""
    match data:
        case Mapping():
            return MappingProxyType({key: frozen(value) for key, value in data.items()})
        case list() | tuple():
            return tuple(frozen(value) for value in data)
        case _:
            return data
