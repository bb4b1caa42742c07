"""What the framework extenders of all profiles share: error filters, forget handlers, nominations, monitor, diagnoses, services."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hosting import server
from scheduler.framework.core.extended import Reservation, SchedulerAdapter
from scheduler.framework.core.objects import PodInfo
from scheduler.framework.core.status import Status
from scheduler.framework.extension.extender import FrameworkExtender
from scheduler.ports import Births, Placements


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What plugins may reach through their handle. `clock` is monotonic; `reservations` are those of a node now."""

    placements: Placements
    births: Births
    clock: Callable[[], float]
    reservations: Callable[[str], Sequence[Reservation]]
    client_set: Any = None


class FrameworkExtenderFactory:
    """Makes the extender of each profile, and holds what they share."""

    def extender(self, registry: Any, profile: Any) -> FrameworkExtender:
        """Build the plugins of a profile. Raises as `SchedulingFramework` does."""
        raise NotImplementedError

    def use_scheduler(self, adapter: SchedulerAdapter) -> None:
        """From now on `ExtendedHandle.scheduler` answers."""
        raise NotImplementedError

    def next_pod(self) -> PodInfo | None:
        """The pod whose turn the first `NextPodPlugin` says it is; None where the queue decides."""
        raise NotImplementedError

    def dequeued(self, pod: PodInfo) -> None:
        """The pod left the queue; the monitor forgets it where no cycle begins soon."""
        raise NotImplementedError

    async def failed(self, pod: PodInfo, status: Status, handle: Callable[[], Awaitable[None]]) -> None:
        """The pod could not be scheduled or bound: the pre filters, `handle` unless one of them said True, and the post filters."""
        raise NotImplementedError

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod was assumed on that node and will not be bound: the ledger forgets it, and every forget handler is told."""
        raise NotImplementedError

    def routes(self) -> tuple[server.Route, ...]:
        """`/v1/scheduling/…`: the plugins' pages, nodes, diagnoses, debug flags. All but the flags only read."""
        raise NotImplementedError

    async def watch_cycles(self) -> None:
        """Log, and count, the cycles that take too long; runs until cancelled."""
        raise NotImplementedError
