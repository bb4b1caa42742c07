"""What the extender service needs of the scheduler around it."""

from collections.abc import Mapping
from typing import Protocol

from hosting.kubernetes.resources import Manifest
from protocol.wire import PodName
from scheduler.framework.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.framework.core.status import Status
from scheduler.framework.cycle.binding import Assumptions, BindingRuns
from scheduler.framework.cycle.passes import NodePasses
from scheduler.framework.runtime.context import CycleState


class ExtenderFramework(NodePasses, BindingRuns, Protocol):
    """The runs of a profile that the verbs go through: `FrameworkExtender` has them."""

    def score_weights(self) -> Mapping[str, int]:
        """The weight of each plugin that scores."""

    async def run_pre_filter_extension_remove_pod(
        self, context: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        """The plugins' notes as if `other` were not on the node."""


class Scheduling(Assumptions, Protocol):
    """The scheduler's profiles, and the cluster as it is now. Only `read_pod` waits."""

    def framework_of(self, scheduler_name: str) -> ExtenderFramework:
        """The profile of that name; the extender's default profile where there is none."""

    def snapshot(self) -> NodeSnapshot:
        """All nodes that the ledger knows, as they are now."""

    def pod_info(self, manifest: Manifest) -> PodInfo:
        """A pod as plugins see it. Raises `ValueError` for one that cannot be read."""

    async def read_pod(self, pod: PodName) -> Manifest | None:
        """The pod as the API server has it now. Raises `ClusterUnreachableError`."""
