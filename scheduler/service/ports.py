"""What the permit service needs of the world."""

from typing import Protocol

from protocol.wire import PodName
from scheduler.core import events


class ClusterUnreachableError(Exception):
    """The cluster cannot be read now; what was read before stays in force."""


class Cluster(Protocol):
    """A view of nodes, VMs and pods. Implementations are adapters; the core sees their events only."""

    async def refresh(self) -> tuple[events.Input, ...]:
        """Read the cluster and return what changed since the last call, ready to apply.

        Ends within `LOOK_DEADLINE_S`. Raises `ClusterUnreachableError`.
        """
        ...

    def look(self, pod: PodName) -> events.Look:
        """What the last `refresh` showed of one pod."""
        ...


LOOK_DEADLINE_S = 2.0
