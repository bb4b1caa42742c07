"""The common part of the frameworks of all profiles of a scheduler: handlers, nominations, monitor, diagnoses, pages.

The plugins of any profile reach it through their handle; the cycle and the daemon call it themselves.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from hosting import server
from hosting.logs import Logger
from hosting.metrics import AnyFamily, Family
from scheduler.placing.core.diagnosis import (
    PERIOD_S,
    DebugFlags,
    DiagnosisStore,
    SchedulingMonitor,
    SlowCycle,
)
from scheduler.placing.core.handle import ErrorHandlerFilter, ForgetPodHandler, SchedulerAdapter
from scheduler.placing.core.informers import Informers, LeasedInformers, NothingWatched
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, NominatedPods, PodInfo, Reservation
from scheduler.placing.core.plugin import Controller, ControllerProvider, NextPodPlugin, Plugin
from scheduler.placing.core.values import RejectionClass, Status
from scheduler.placing.cycle.calls import Timings
from scheduler.placing.cycle.context import WaitingPods
from scheduler.placing.cycle.pages import PluginServices, SchedulingPages
from scheduler.ports import Binder, OwnCpus, PlacementAdmission, Placements

H = TypeVar("H", bound=Callable[..., object])


def _plain(handler: H) -> H:
    """The handler. A coroutine would count as True, and do nothing."""
    if inspect.iscoroutinefunction(handler):
        raise ValueError(f"handler {handler!r} must not be a coroutine function: nobody waits for it")
    return handler


class ErrorHandlers:
    """The filters around the default handling of a failure, in the order of registration."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._pre: list[ErrorHandlerFilter] = []
        self._post: list[ErrorHandlerFilter] = []

    def register(self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None) -> None:
        """Add a pair; either may be None. Raises `ValueError` for a coroutine function."""
        if pre is not None:
            self._pre.append(_plain(pre))
        if post is not None:
            self._post.append(_plain(post))

    async def handle(self, pod: PodInfo, status: Status, default: Callable[[], Awaitable[None]]) -> None:
        """The pre filters until one says True, `default` unless one did, then the post filters until one says True.

        The post filters run even where `default` raises or is cancelled; that goes on to the caller.
        """
        try:
            if not self._is_taken(self._pre, pod, status):
                await default()
        finally:
            self._is_taken(self._post, pod, status)

    def _is_taken(self, filters: list[ErrorHandlerFilter], pod: PodInfo, status: Status) -> bool:
        return any(self._says_true(each, pod, status) for each in filters)

    def _says_true(self, each: ErrorHandlerFilter, pod: PodInfo, status: Status) -> bool:
        try:
            return each(pod, status) is True
        except Exception:  # noqa: BLE001 - a plugin's own: whatever it raises
            self._log.exception("an error handler filter of a plugin failed", pod=pod.name)
            return False


class ForgetHandlers:
    """The handlers of pods that were assumed and are forgotten."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._handlers: list[ForgetPodHandler] = []

    def register(self, handler: ForgetPodHandler) -> None:
        """Add a handler. Raises `ValueError` for a coroutine function."""
        self._handlers.append(_plain(handler))

    def forget(self, pod: PodInfo, node_name: str, give_back: Callable[[], None]) -> None:
        """Give the pod's room back, and call every handler, also where that raises; what it raises goes on to the caller."""
        try:
            give_back()
        finally:
            for handler in self._handlers:
                try:
                    handler(pod, node_name)
                except Exception:  # noqa: BLE001 - a plugin's own: whatever it raises
                    self._log.exception("a forget handler of a plugin failed", pod=pod.name, node=node_name)


def no_reservations(node_name: str) -> Sequence[Reservation]:
    del node_name
    return ()


@dataclass(frozen=True, slots=True)
class ExtenderPorts:
    """The ports that plugins may reach through their handle.

    `clock` is monotonic; `reservations` are those of a node now; `binder` is None where somebody else binds, and `client_set` where
    there is no API server, of which `informers` then show nothing. `nodes` are those of now; `own_cpus` is None where nothing grows.
    """

    placements: Placements
    placement_admission: PlacementAdmission
    clock: Callable[[], float]
    reservations: Callable[[str], Sequence[Reservation]] = no_reservations
    binder: Binder | None = None
    client_set: Any = None
    informers: Informers = field(default_factory=NothingWatched)
    nodes: Callable[[], NodeSnapshot] = NodeSnapshot
    own_cpus: OwnCpus | None = None
    are_reservations: Callable[[], bool] = lambda: True
    """Whether there may be any."""


class SharedHooks:
    """The common part of the frameworks. The queue and its cycles tell it of pods; `nominations` are theirs to write."""

    def __init__(
        self,
        ports: ExtenderPorts,
        log: Logger,
        *,
        monitor: SchedulingMonitor | None = None,
        before: "SharedHooks | None" = None,
    ) -> None:
        """`before` is what other profiles shared, whose place these take: what is known of pods stays, what plugins have registered
        does not."""
        self.ports: Final = ports
        self.log: Final = log
        self.monitor: Final[SchedulingMonitor] = monitor or (
            before.monitor if before else SchedulingMonitor()
        )
        self.waiting_pods: Final[WaitingPods] = before.waiting_pods if before else WaitingPods()
        self.timings: Final[Timings] = before.timings if before else Timings()
        self.nominations: Final[NominatedPods] = before.nominations if before else NominatedPods()
        self.diagnoses: Final[DiagnosisStore] = before.diagnoses if before else DiagnosisStore()
        self.flags: Final[DebugFlags] = before.flags if before else DebugFlags()
        self.rejections: Final[Counter[RejectionClass]] = (
            before.rejections if before else Counter(dict.fromkeys(RejectionClass, 0))
        )
        """Pods that no node was found for, each time, by class."""
        self.error_handlers: Final = ErrorHandlers(log)
        self.forget_handlers: Final = ForgetHandlers(log)
        self.informers: Final = LeasedInformers(ports.informers)
        self.controllers: Final[dict[str, Controller]] = {}
        """Those of plugins, by `PLUGIN/NAME`."""
        self._services: Final = PluginServices(log)
        self._next_pod: NextPodPlugin | None = None
        self._scheduler: SchedulerAdapter | None = None

    # ------------------------------------------------------------ while the frameworks are built

    def take_up(self, plugin: Plugin) -> None:
        """A plugin was built. Of all profiles, the first plugin that says whose turn it is counts, and of the plugins with one name the
        controllers of the first. Raises what its `endpoints` and `new_controllers` do, and `ValueError` for pages that cannot be served."""
        self._services.add(plugin)
        if isinstance(plugin, ControllerProvider):
            for each in plugin.new_controllers():
                self.controllers.setdefault(f"{plugin.name()}/{each.name}", each)
        if self._next_pod is None and isinstance(plugin, NextPodPlugin):
            self._next_pod = plugin

    def use_scheduler(self, adapter: SchedulerAdapter) -> None:
        """The frameworks were built; from now on plugins may ask for the scheduler."""
        self._scheduler = adapter

    def scheduler(self) -> SchedulerAdapter:
        """The scheduler around the plugins. Raises `RuntimeError` before `use_scheduler`."""
        if self._scheduler is None:
            raise RuntimeError(
                "there is no scheduler to ask yet: a plugin asks its handle for the scheduler each time, not while it is made"
            )
        return self._scheduler

    # ------------------------------------------------------------ pods

    def next_pod(self) -> PodInfo | None:
        """The pod of the queue whose turn it is, as a plugin says; None where the queue decides."""
        if self._next_pod is None:
            return None
        try:
            pod = self._next_pod.next_pod()
            if not isinstance(pod, PodInfo | None):
                raise TypeError(f"next_pod must return a PodInfo or None, not {pod!r}")
            return pod
        except Exception:
            self.log.exception("next_pod of a plugin failed", plugin=self._next_pod.name())
            return None

    def dequeued(self, pod: PodInfo) -> None:
        """The pod left the queue. If no cycle begins for it soon, the monitor drops it."""
        self.monitor.dequeued(pod.uid, pod.name, self.ports.clock())

    async def failed(self, pod: PodInfo, status: Status, handle: Callable[[], Awaitable[None]]) -> None:
        """The pod could not be scheduled or bound: the error handler filters of plugins, around `handle`, the default handling."""
        try:
            await self.error_handlers.handle(pod, status, handle)
        finally:
            self._end(pod)

    def completed(self, pod: PodInfo) -> None:
        """The pod was bound: nothing is left to say of why it could not be."""
        self.diagnoses.drop(pod)
        self._end(pod)

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod was assumed and will not be bound: give its room back, and call every forget handler."""
        self.forget_handlers.forget(pod, node_name, lambda: self.ports.placements.forget(pod.holder))

    def gone(self, pod: PodInfo) -> None:
        """The pod is gone, or is being deleted: nobody waits for it any more."""
        self.nominations.remove(pod.uid)
        self.diagnoses.drop(pod)
        self.monitor.completed(pod.uid, self.ports.clock())

    # ------------------------------------------------------------ watching

    async def watch_cycles(self) -> None:
        """Log the cycles that take too long; runs until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            for slow in self.monitor.check(self.ports.clock()):
                self._warn(slow)

    def _end(self, pod: PodInfo) -> None:
        slow = self.monitor.completed(pod.uid, self.ports.clock())
        if slow is not None:
            self._warn(slow)

    def _warn(self, slow: SlowCycle) -> None:
        self.log.warning(
            "a scheduling cycle takes too long",
            pod=slow.pod,
            took_s=round(slow.took_s, 1),
            has_ended=slow.has_ended,
        )

    def routes(self, nodes: Callable[[], Mapping[str, NodeInfo]]) -> tuple[server.Route, ...]:
        """`/v1/scheduling/…`. `nodes` are those of the last cycle. Call it once the frameworks are built."""
        return SchedulingPages(
            self._services,
            self.flags,
            self.diagnoses,
            self.nominations,
            nodes,
            self.ports.reservations,
            self.ports.clock,
            self.log,
        ).routes()

    def families(self) -> tuple[AnyFamily, ...]:
        return (
            *self.timings.families(),
            Family(
                "counter",
                "parley_scheduler_slow_cycles",
                "Scheduling cycles that were found to take too long, each time they were",
                (),
                (((), float(self.monitor.timeouts)),),
            ),
            Family(
                "counter",
                "parley_scheduler_rejections",
                "Pods that were rejected, each time, by the class of the rejection: who can help",
                ("class",),
                tuple(((each.value,), float(count)) for each, count in self.rejections.items()),
            ),
            Family(
                "counter",
                "parley_scheduler_unhandled_pods",
                "Pods that left the queue and for which no cycle began",
                (),
                (((), float(self.monitor.drops)),),
            ),
        )


SharedExtension: TypeAlias = SharedHooks
"""The name by which authors of plugins import it (`parley.scheduling`)."""


class PortsHandle:
    """The part of a framework's handle (`ExtendedHandle`) that is the ports of `shared`."""

    def __init__(self, shared: SharedHooks) -> None:
        self.shared: Final = shared

    def nodes_now(self) -> NodeSnapshot:
        return self.shared.ports.nodes()

    @property
    def own_cpus(self) -> OwnCpus | None:
        return self.shared.ports.own_cpus

    @property
    def placements(self) -> Placements:
        return self.shared.ports.placements

    @property
    def placement_admission(self) -> PlacementAdmission:
        return self.shared.ports.placement_admission

    @property
    def binder(self) -> Binder | None:
        return self.shared.ports.binder

    def reservations(self, node_name: str) -> Sequence[Reservation]:
        return self.shared.ports.reservations(node_name)

    def are_reservations(self) -> bool:
        return self.shared.ports.are_reservations()

    def now_s(self) -> float:
        return self.shared.ports.clock()
