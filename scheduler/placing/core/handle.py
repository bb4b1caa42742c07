"""The framework as plugins may ask it, and what it keeps of them. Sources: seeds 001 and 002."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from hosting.kubernetes.resources import ResourceType
from scheduler.placing.core.diagnosis import Diagnosis
from scheduler.placing.core.informers import Informer
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo, Reservation
from scheduler.placing.core.plugin import CycleContext, Plugin, ReservationNominator
from scheduler.placing.core.values import SchedulingEvent, Status


class WaitingPod(Protocol):
    """A pod that waits for its permit. Source: seed 001; plugins by name since 1.18.

    `scheduler.placing.cycle.context` has it. The first signal counts and is kept, also before anybody waits for it.
    """

    def get_pod(self) -> PodInfo:
        """The pod."""

    def pending_plugins(self) -> tuple[str, ...]:
        """The plugins that still make it wait, sorted."""

    def allow(self, plugin: str | None = None) -> bool:
        """`plugin` makes the pod wait no longer; with the last one the pod goes on. None speaks for all of them, as in the seed.

        Whether that changed anything: False where the pod does not wait, or not for this plugin.
        """

    def reject(self, message: str, plugin: str = "") -> bool:
        """The pod is not bound. Anybody may reject. Whether that changed the outcome."""


class FrameworkHandle(Protocol):
    """The framework as plugins may ask it; their factories get it, and keep it. Source: seed 001."""

    def node_info_snapshot(self) -> NodeSnapshot:
        """The nodes as they were when the cycle began; outside of a cycle, as they were in the newest one. What runs after Reserve
        must not rely on it."""

    def iterate_over_waiting_pods(self, callback: Callable[[WaitingPod], object]) -> None:
        """Call `callback` for every pod that waits now. It may allow, reject, and whatever else it likes."""

    def get_waiting_pod(self, uid: str) -> WaitingPod | None:
        """The pod of that UID, where it waits."""


RawArgs: TypeAlias = Any
"""The args of a plugin as the configuration has them; None without any."""


PluginFactory: TypeAlias = Callable[[RawArgs, Any], Plugin]
"""Makes a plugin from its args and the handle. Raises `ValueError` for args that it cannot use. Source: seed 001.

The handle is a `FrameworkHandle`; in a scheduler it is an `ExtendedHandle`, which is one too.
"""


class SchedulerCache(Protocol):
    """The pods that were given a node and are not seen there yet. To forget one, call `ExtendedHandle.forget_pod`."""

    def is_assumed_pod(self, uid: str) -> bool:
        """Whether room is held for that pod."""


class SchedulingQueue(Protocol):
    """The pods that wait for their turn."""

    def activate(self, pods: Sequence[PodInfo]) -> None:
        """Give these pods their turn as soon as possible, whatever they wait for."""

    def move_all(self, event: SchedulingEvent) -> None:
        """Something happened: pods that it may help get their turn."""


class SchedulerAdapter(Protocol):
    """The scheduler around the plugins. Source: seed 002, `Scheduler`."""

    def get_cache(self) -> SchedulerCache:
        """The pods that were given a node."""

    def get_scheduling_queue(self) -> SchedulingQueue:
        """The pods that wait for a node."""


PluginToReservationScores: TypeAlias = Mapping[str, Mapping[str, int]]
"""By plugin and UID of the reservation, with weights. Source: seed 002."""


ErrorHandlerFilter: TypeAlias = Callable[[PodInfo, Status], bool]
"""Sees a pod that could not be scheduled; True ends the chain. Is no coroutine. Source: seed 002, `RegisterErrorHandlerFilters`."""


ForgetPodHandler: TypeAlias = Callable[[PodInfo, str], object]
"""Is told, with the node, of a pod that was assumed and will not be bound. Is no coroutine. Source: seed 002."""


class ExtendedHandle(FrameworkHandle, Protocol):
    """The framework with what a plugin may ask beside that. Source: seed 002. The factories of a scheduler get it.

    `nodes_now`, `own_cpus`, `placements`, `placement_admission`, `binder`, `reservations`, `are_reservations` and `now_s` are Parley's own.
    """

    def scheduler(self) -> SchedulerAdapter:
        """The scheduler around it: its cache and its queue. Raises `RuntimeError` while plugins are being built, and where
        kube-scheduler has the queue; ask for it whenever it is needed."""

    def client_set(self) -> Any:
        """The client of the API server (`hosting.kubernetes.api.KubernetesApi`); None without one."""

    def shared_informer(self, type_: ResourceType) -> Informer:
        """The objects of a type: one watch for all plugins that ask, which begins with the first. Without an API server there are none.

        A plugin asks while it is made. Raises `ValueError` if plugins watch too many types. Source: seed 002, the shared informer factories.
        """

    def numa_hint_providers(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, numa_nodes: Sequence[int], policy: str
    ) -> Sequence[Any]:
        """The providers of all plugins that have a say in which NUMA nodes a pod gets (`NumaHintPlugin`)."""

    def get_reservation_nominator(self) -> ReservationNominator | None:
        """The last plugin that is one."""

    def register_error_handler_filters(
        self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None
    ) -> None:
        """`pre` runs before the default handling of a failure, which it may prevent; `post` after it.

        Raises `ValueError` for a coroutine function.
        """

    def register_forget_pod_handler(self, handler: ForgetPodHandler) -> None:
        """`handler` is called for each pod that was assumed and is forgotten; all handlers are, whatever one raises.

        Raises `ValueError` for a coroutine function.
        """

    def forget_pod(self, pod: PodInfo, node_name: str) -> None:
        """The pod was assumed on that node and will not be bound: give its room back, and tell every handler."""

    def reservations(self, node_name: str) -> Sequence[Reservation]:
        """The reservations of a node now."""

    def are_reservations(self) -> bool:
        """Whether any node may have reservations now: most clusters have none, and every node would be looked at for each pod."""

    def diagnosis(self, context: CycleContext, pod: PodInfo) -> Diagnosis:
        """The findings of this cycle so far on why the pod has no node; `suggest` adds what somebody could do."""

    def nodes_now(self) -> NodeSnapshot:
        """The nodes as they are now: for what runs beside the cycles, such as controllers."""

    @property
    def own_cpus(self) -> Any:
        """Growth of VMs with CPUs of their own (`scheduler.ports.OwnCpus`); None where nothing grows."""

    @property
    def placements(self) -> Any:
        """Room in the ledger, live (`scheduler.ports.Placements`)."""

    @property
    def placement_admission(self) -> Any:
        """Who has a say before a pod of a pool is placed (`scheduler.ports.PlacementAdmission`)."""

    @property
    def binder(self) -> Any:
        """The binder of pods (`scheduler.ports.Binder`); None if somebody else does."""

    def now_s(self) -> float:
        """The monotonic clock."""


class FrameworkExtender(ExtendedHandle, Protocol):
    """The framework for a plugin that works on reservations: the runs of all plugins that do. Source: seed 002.

    The handle that factories get is one.
    """

    async def run_reservation_extension_pre_restore_reservation(
        self, context: CycleContext, pod: PodInfo
    ) -> Status | None:
        """`pre_restore_reservation` of each; ends at the first that is no Success."""

    async def run_reservation_extension_restore_reservation(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> tuple[Mapping[str, Any], Status | None]:
        """`restore_reservation` of each for one node: what each plugin keeps of it, by plugin."""

    async def run_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """`filter_reservation` of each; ends at the first that is no Success."""

    async def run_nominate_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """`filter_nominate_reservation` of each; ends at the first that is no Success."""

    async def run_reservation_score_plugins(
        self, context: CycleContext, pod: PodInfo, reservations: Sequence[Reservation], node_name: str
    ) -> tuple[PluginToReservationScores, Status | None]:
        """`score_reservation` and `normalize_reservation_score` of each; a score outside 0 to 100 is a failure then."""
