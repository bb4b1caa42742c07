"""What the framework extender adds: interfaces that plugins may implement, and the handle. Source: seed 002,
reference/koordinator.md 1.2 and 1.3.

A plugin takes part by having the methods. Transformers run in the order of the profile's list of the point that they belong to, and
only where their plugin is enabled there; reservation plugins in the order in which the configuration first names them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from protocol.values import ZERO, Resources
from scheduler.permits.core.model import Holder, Kind, ReservationOwner
from scheduler.placing.core.diagnosis import Diagnosis
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import (
    CycleContext,
    FrameworkHandle,
    MaybeAwaited,
    Plugin,
    PreFilterResult,
    SchedulingEvent,
)
from scheduler.placing.core.status import Status


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that a `RESERVATION` holder of the ledger keeps on a node for pods that match one of `owners`.

    `allocatable` is what it was made for, `allocated` what pods have taken of it by now; the rest is its row. A reservation to
    `allocate_once` serves one pod only. Those with an `order` above 0 are taken before others, the lowest one first.
    """

    uid: str
    name: str
    node: str
    allocatable: Resources
    allocated: Resources = ZERO
    owners: tuple[ReservationOwner, ...] = ()
    allocate_once: bool = True
    is_available: bool = True
    order: int = 0

    @property
    def holder(self) -> Holder:
        """The owner of its row."""
        return Holder(Kind.RESERVATION, self.uid)

    @property
    def available(self) -> Resources:
        """What pods can still take."""
        return (self.allocatable - self.allocated).max(ZERO)

    @property
    def is_matchable(self) -> bool:
        """Whether any pod can use it now."""
        return self.is_available and not (self.allocate_once and self.allocated != ZERO)

    def matches(self, pod: PodInfo) -> bool:
        return self.is_matchable and any(_is_owner(owner, pod) for owner in self.owners)


def _is_owner(owner: ReservationOwner, pod: PodInfo) -> bool:
    has_labels = all(pod.labels.get(key) == value for key, value in owner.labels)
    return has_labels and owner.namespace in {None, pod.pod.namespace}


@runtime_checkable
class SchedulingTransformer(Plugin, Protocol):
    """The parent of the transformers. Source: seed 002."""


@runtime_checkable
class PreFilterTransformer(SchedulingTransformer, Protocol):
    """Changes the pod before the pre-filter plugins see it."""

    def before_pre_filter(
        self, context: CycleContext, pod: PodInfo
    ) -> MaybeAwaited[tuple[PodInfo | None, Status | None]]:
        """A changed pod, or None. Anything but Success ends the cycle with that status."""

    def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> MaybeAwaited[Status | None]:
        """After pre-filter plugins that all agreed. Anything but Success ends the cycle."""


@runtime_checkable
class FilterTransformer(SchedulingTransformer, Protocol):
    """Changes pod and node before the filters of one node see them."""

    def before_filter(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[tuple[PodInfo | None, NodeInfo | None, Status | None]]:
        """What is changed, else None. Anything but Success is that node's status."""


@runtime_checkable
class ScoreTransformer(SchedulingTransformer, Protocol):
    """Changes pod and nodes before they are scored."""

    def before_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> MaybeAwaited[tuple[PodInfo | None, Sequence[NodeInfo] | None, Status | None]]:
        """What is changed, else None. Anything but Success ends the cycle."""


@runtime_checkable
class PostFilterTransformer(SchedulingTransformer, Protocol):
    """Is told how the filters ended, when no node was left."""

    def after_post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> MaybeAwaited[None]:
        """Cannot change the outcome."""


@runtime_checkable
class ReservationRestorePlugin(Plugin, Protocol):
    """Gives back, on trial, what matching reservations hold of a node."""

    def pre_restore_reservation(self, context: CycleContext, pod: PodInfo) -> MaybeAwaited[Status | None]:
        """Once in a cycle, before any node."""

    def restore_reservation(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> MaybeAwaited[tuple[Any, Status | None]]:
        """For each node: what the plugin keeps of it, for its filters."""


@runtime_checkable
class ReservationFilterPlugin(Plugin, Protocol):
    """Which reservations a pod may use."""

    def filter_reservation(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> MaybeAwaited[Status | None]:
        """Whether the pod may use it."""


@runtime_checkable
class ReservationNominateFilterPlugin(Plugin, Protocol):
    """Which reservations of the node that was chosen may be nominated for a pod."""

    def filter_nominate_reservation(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> MaybeAwaited[Status | None]:
        """Asked of those that passed `filter_reservation` already."""


@runtime_checkable
class ReservationScorePlugin(Plugin, Protocol):
    """How good a reservation is for a pod."""

    def score_reservation(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> MaybeAwaited[tuple[int, Status | None]]:
        """Any number where the plugin normalises (`normalize_reservation_score`), else 0 to 100."""


@runtime_checkable
class ReservationScoreExtensions(Plugin, Protocol):
    """A reservation score plugin that brings its scores into the range 0 to 100."""

    def normalize_reservation_score(
        self, context: CycleContext, pod: PodInfo, scores: dict[str, int]
    ) -> MaybeAwaited[Status | None]:
        """Change `scores` (by UID of the reservation) in place."""


@runtime_checkable
class ReservationNominator(Plugin, Protocol):
    """Picks the reservation that a pod uses on the node that was chosen, and remembers it until the pod was reserved for."""

    def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> MaybeAwaited[tuple[Reservation | None, Status | None]]:
        """The best one; None where the pod uses none there."""

    def nominated_reservation(self, pod: PodInfo, node_name: str) -> Reservation | None:
        """What was nominated and not deleted since."""

    def delete_nominated_reservation(self, pod: PodInfo) -> None:
        """Forget what was nominated for the pod."""


@runtime_checkable
class FindOneNodePlugin(Plugin, Protocol):
    """Names the node itself. Only the first plugin that has this is asked, after the pre-filter plugins of a profile."""

    def find_one_node(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> MaybeAwaited[tuple[str, Status | None]]:
        """With Success, the only node that is looked at; an empty name is a failure. Skip: no opinion."""


@runtime_checkable
class PreferNodesPlugin(Plugin, Protocol):
    """Names nodes to try first. Only the first plugin that has this is asked, after `find_one_node`."""

    def prefer_nodes(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> MaybeAwaited[tuple[Sequence[str], Status | None]]:
        """With Success, the first of these nodes that passes the filters is the only one that is looked at; where none does, all
        are. Skip: no opinion."""


@runtime_checkable
class NextPodPlugin(Plugin, Protocol):
    """Says whose turn it is, before the queue is asked. The first plugin of the process that has this is asked."""

    def next_pod(self) -> PodInfo | None:
        """A pod of the queue; None for no opinion."""


@runtime_checkable
class PreBindExtensions(Plugin, Protocol):
    """Writes in one call what the pre-bind plugins changed. Runs where the plugin is enabled at the pre-bind point."""

    def apply_patch(
        self, context: CycleContext, original: Mapping[str, Any], modified: Mapping[str, Any]
    ) -> MaybeAwaited[Status | None]:
        """The manifest of the pod as it was and as it is wanted. Skip leaves it to the next plugin, and
        Success ends the run. Where all say Skip nothing is written, and that is no failure."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A page of a plugin: `GET /v1/scheduling/plugins/{plugin}{path}`. Braces in the path name its parameters.

    `read` gets the parameters and returns what the page shows, as JSON; None is a 404. It only reads, and waits for nothing.
    """

    path: str
    read: Callable[[Mapping[str, str]], Any]


@runtime_checkable
class APIServiceProvider(Plugin, Protocol):
    """Shows its state over HTTP. Source: seed 002's per-plugin services."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Asked once for each plugin's name, when the plugin was built."""


PLAIN_EXTENDED_METHODS: Final = ("next_pod", "nominated_reservation", "delete_nominated_reservation")
"""As `PLAIN_METHODS`, of the framework extender."""


class SchedulerCache(Protocol):
    """The pods that were given a node and are not seen there yet. Whoever forgets one calls `ExtendedHandle.forget_pod`."""

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
    """What a plugin may ask of the framework extender. Source: seed 002. The factories of a scheduler get it.

    `placements`, `placement_admission`, `binder`, `reservations` and `now_s` are Parley's own.
    """

    def scheduler(self) -> SchedulerAdapter:
        """The scheduler around it: its cache and its queue. Raises `RuntimeError` while plugins are being built, and where
        kube-scheduler has the queue; ask for it whenever it is needed."""

    def client_set(self) -> Any:
        """The client of the API server (`hosting.kubernetes.api.KubernetesApi`); None without one."""

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

    def diagnosis(self, context: CycleContext, pod: PodInfo) -> Diagnosis:
        """What this cycle has found out so far of why the pod has no node; `suggest` adds what somebody could do."""

    @property
    def placements(self) -> Any:
        """Room in the ledger, live (`scheduler.ports.Placements`)."""

    @property
    def placement_admission(self) -> Any:
        """Who has a say before a pod of a pool is placed (`scheduler.ports.PlacementAdmission`)."""

    @property
    def binder(self) -> Any:
        """What binds pods (`scheduler.ports.Binder`); None where somebody else does."""

    def now_s(self) -> float:
        """The monotonic clock."""
