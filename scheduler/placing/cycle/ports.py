"""What scheduling cycles need of a cluster, and what they tell of a pod that found no node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from scheduler.placing.core.objects import NodeSnapshot, PodInfo
from scheduler.placing.core.queue import Rejection
from scheduler.placing.core.status import Status, message_of

FailureReason: TypeAlias = Literal["Unschedulable", "SchedulerError"]
"""The reason in the pod's condition. Source: kube-scheduler."""
SCHEDULER_ERROR: Final[FailureReason] = "SchedulerError"


@dataclass(frozen=True, slots=True)
class CycleFailure:
    """Why a cycle has not bound its pod. Without a `rejection` something failed, and the pod is tried again after a back-off."""

    status: Status
    text: str
    rejection: Rejection | None = None

    @property
    def reason(self) -> FailureReason:
        """What the pod's condition says."""
        return "Unschedulable" if self.rejection is not None else SCHEDULER_ERROR

    @classmethod
    def of(cls, status: Status) -> "CycleFailure":
        """Something failed, or said no when it is too late to wait for an event."""
        return cls(status, message_of(status))


class PlacingPort(Protocol):
    """Pods and nodes as plugins see them. `scheduler.clusters.kubernetes.placing.PlacingView` is it."""

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        """A pod. Raises `ValueError` where nobody can say how much room it needs."""

    def snapshot(self) -> NodeSnapshot:
        """Every node, now."""

    def assume_pod(self, pod: PodInfo, node_name: str) -> None:
        """Show the pod on that node for as long as the ledger keeps room for it there."""


class OutcomeReporter(Protocol):
    """Tells people what became of pods. Calls never wait and never fail."""

    def scheduled(self, pod: PodInfo, node_name: str) -> None:
        """The pod was bound to that node."""

    def failed(self, pod: PodInfo, failure: CycleFailure) -> None:
        """The pod has no node."""
