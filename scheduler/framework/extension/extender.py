"""The framework extender: the modern runtime with what seed 002 puts around its runs.

A `FrameworkExtender` is a `SchedulingFramework`, so the cycle and the extender service call it as one, and it is the handle that
the factories of its plugins get. `FrameworkExtenderFactory` holds what all profiles share. Source: reference/koordinator.md 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.framework.core.extended import (
    ErrorHandlerFilter,
    ForgetPodHandler,
    PluginToReservationScores,
    Reservation,
    ReservationNominator,
    SchedulerAdapter,
)
from scheduler.framework.core.objects import NodeInfo, PodInfo
from scheduler.framework.core.plugin import CycleContext, PostFilterResult, PreFilterResult
from scheduler.framework.core.status import Status
from scheduler.ports import Births, Placements


class FrameworkExtender:
    """The framework of one profile, with transformers, reservations and diagnosis around its runs.

    The runs have the names of `SchedulingFramework`; those below differ from its runs, or are new. One cycle, in order:
    `begin_cycle`, pre-filter, filter for each node (post-filter where none is left), pre-score, score, `nominate_reservation`,
    `run_resize_pod`, reserve, permit, wait, pre-bind, bind, post-bind, `end_cycle`.
    """

    # ------------------------------------------------------------ what plugins ask for (ExtendedHandle)

    def scheduler(self) -> SchedulerAdapter:
        """The scheduler around the plugins. Raises `RuntimeError` while there is none."""
        raise NotImplementedError

    def client_set(self) -> Any:
        """The client of the API server; None without one."""
        raise NotImplementedError

    def get_reservation_nominator(self) -> ReservationNominator | None:
        """The last plugin that is one."""
        raise NotImplementedError

    def register_error_handler_filters(
        self, pre: ErrorHandlerFilter | None, post: ErrorHandlerFilter | None
    ) -> None:
        """Filters for the pods of every profile, in the order of registration."""
        raise NotImplementedError

    def register_forget_pod_handler(self, handler: ForgetPodHandler) -> None:
        """A handler for the pods of every profile."""
        raise NotImplementedError

    def reservations(self, node_name: str) -> Sequence[Reservation]:
        """The reservations of a node now."""
        raise NotImplementedError

    @property
    def placements(self) -> Placements:
        """Room in the ledger, live."""
        raise NotImplementedError

    @property
    def births(self) -> Births:
        """Who has a say before a pod of a pool is placed."""
        raise NotImplementedError

    def now_s(self) -> float:
        """The monotonic clock."""
        raise NotImplementedError

    # ------------------------------------------------------------ one cycle

    def begin_cycle(self, context: CycleContext, pod: PodInfo) -> None:
        """A cycle for the pod begins: an empty diagnosis goes into its context, and the monitor counts the time from now."""
        raise NotImplementedError

    def end_cycle(self, pod: PodInfo) -> None:
        """The pod was bound, or failed and went through `FrameworkExtenderFactory.failed`."""
        raise NotImplementedError

    async def run_pre_filter_plugins(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """before_pre_filter of each, the native run, after_pre_filter of each, find_one_node, prefer_nodes."""
        raise NotImplementedError

    async def run_filter_plugins(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """before_filter of each, then the filters: with the pods that are nominated for the node, and without them."""
        raise NotImplementedError

    async def run_post_filter_plugins(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """The native run; then the diagnosis is kept, its suggestion goes into the status, and after_post_filter of each."""
        raise NotImplementedError

    async def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Reservation | None, Status | None]:
        """Once the node was chosen, also where it was the only one. A failure fails the cycle, as a scheduling error."""
        raise NotImplementedError

    async def run_resize_pod(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[PodInfo, Status | None]:
        """The pod that is to be reserved for. A failure ends the cycle, after unreserve."""
        raise NotImplementedError

    async def run_reserve_plugins_reserve(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> Status | None:
        """The native run; the pod's nomination is deleted then, whatever came of it."""
        raise NotImplementedError

    async def run_pre_bind_plugins(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> Status | None:
        """The native run on a copy of the manifest, then `apply_patch` of each until one says Success."""
        raise NotImplementedError

    # ------------------------------------------------------------ reservations

    async def run_reservation_extension_pre_restore_reservation(
        self, context: CycleContext, pod: PodInfo
    ) -> Status | None:
        """pre_restore_reservation of each; ends at the first that is no Success."""
        raise NotImplementedError

    async def run_reservation_extension_restore_reservation(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> tuple[Mapping[str, Any], Status | None]:
        """restore_reservation of each for one node: what each plugin keeps of it, by plugin."""
        raise NotImplementedError

    async def run_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """filter_reservation of each; ends at the first that is no Success."""
        raise NotImplementedError

    async def run_nominate_reservation_filter_plugins(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """filter_nominate_reservation of each, where a plugin has that; ends at the first that is no Success."""
        raise NotImplementedError

    async def run_reservation_score_plugins(
        self, context: CycleContext, pod: PodInfo, reservations: Sequence[Reservation], node_name: str
    ) -> tuple[PluginToReservationScores, Status | None]:
        """score_reservation and normalize_reservation_score of each; a score outside 0 to 100 is a failure then."""
        raise NotImplementedError
