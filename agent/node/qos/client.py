"""What strategies may do to the node, behind small ports, each of which may be missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.node.qos.core.actions import CgroupResource, CgroupUpdate, EvictOutcome, WriteOutcome
from agent.node.qos.core.states import PodState


class CgroupPort(Protocol):
    """Writes cgroups. Called from any thread."""

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """As `NodeClient.write`."""

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """As `NodeClient.read`."""


class EvictionPort(Protocol):
    """Evicts pods. Called from any thread."""

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """As `NodeClient.evict`."""

    def recommend(self, pod: PodState, reason: str) -> EvictOutcome:
        """Say that the pod would be evicted, and do nothing."""


class EventPort(Protocol):
    """Reports Events. Called from any thread, and never blocks."""

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool) -> None:
        """An Event of a pod, or of the node where `pod` is None."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """What the daemon gives: any may be missing, and then what needs it is `unavailable`."""

    executor: CgroupPort | None = None
    evictor: EvictionPort | None = None
    events: EventPort | None = None
