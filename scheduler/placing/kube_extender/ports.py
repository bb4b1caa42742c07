"""What the extender service needs of the scheduler around it."""

from typing import Protocol

from hosting.kubernetes.resources import Manifest
from protocol.wire import PodName
from scheduler.placing.core.objects import NodeSnapshot, PodInfo
from scheduler.placing.cycle.binding import Assumptions
from scheduler.placing.cycle.framework import SchedulingFramework


class Scheduling(Assumptions, Protocol):
    """The scheduler's profiles, and the cluster as it is now. Only `read_pod` and `catch_up` wait."""

    def framework_of(self, scheduler_name: str) -> SchedulingFramework:
        """The profile of that name; the extender's default profile where there is none."""

    def snapshot(self) -> NodeSnapshot:
        """All nodes that the ledger knows, as they are now."""

    def pod_info(self, manifest: Manifest) -> PodInfo:
        """A pod as plugins see it. Raises `ValueError` for one that cannot be read."""

    async def read_pod(self, pod: PodName) -> Manifest | None:
        """The pod as the API server has it now. Raises `ClusterUnreachableError`."""

    async def catch_up(self) -> None:
        """Bring the ledger up to date with what the cluster has accepted by now; as it is, where that takes too long."""
