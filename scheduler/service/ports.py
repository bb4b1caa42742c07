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


class Journal(Protocol):
    """Where what goes through the core is recorded. Calls never wait and never fail."""

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """An input that is no request, and what came of it."""
        ...

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        """A request with the bytes that it came as, and what came of it."""
        ...


class NoJournal:
    """Records nothing."""

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """Nothing."""

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        """Nothing."""
