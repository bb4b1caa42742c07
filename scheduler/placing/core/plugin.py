"""The plugin API: the protocols of every point, in the order of a cycle, and which methods belong to which point.

A plugin takes part in a point by having its method; nothing is registered. Any method may be a coroutine, but not those of
`PLAIN_METHODS`, and no hint. `None` in place of a status is Success. Errors of plugins go through to the caller of the run.
Transformers run in the order of the profile's list of the point that they belong to, and only where their plugin is enabled there;
plugins that work on reservations in the order in which the configuration first names them.

Sources: seeds 001 and 002, reference/kubernetes.md 1.9, reference/koordinator.md 1.2 and 1.3.
"""

from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

from scheduler.placing.core.objects import NodeInfo, PodInfo, QueuedPod, Reservation
from scheduler.placing.core.values import (
    ContextData,
    Endpoint,
    EventWithHint,
    ExtensionPoint,
    MaybeAwaited,
    PostFilterResult,
    PreFilterResult,
    Status,
)


class CycleContext(Protocol):
    """The context of one cycle, which plugins read and write. Source: seed 001, `PluginContext`.

    `scheduler.placing.cycle.context.PluginContext` is it.
    """

    def read(self, key: str) -> ContextData:
        """The value under `key`. Raises `NotFoundError`, whose text is `not found`."""

    def write(self, key: str, value: ContextData) -> None:
        """Keep `value`, in place of what is there."""

    def delete(self, key: str) -> None:
        """Keep nothing under `key`; it may be missing."""


@runtime_checkable
class Plugin(Protocol):
    """The parent of all plugins. Source: seed 001."""

    def name(self) -> str:
        """The plugin's name, by which it is registered and configured."""


@runtime_checkable
class PreEnqueuePlugin(Plugin, Protocol):
    """Before a pod may wait for its turn. Must be cheap and wait for nothing."""

    def pre_enqueue(self, pod: PodInfo) -> Status | None:
        """Anything but Success keeps the pod back until an event that the plugin named."""


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """The order in which pods get their turn; exactly one in a profile, and the same one in all of them."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether `first` goes before `second`."""


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """Which events may make a pod schedulable that this plugin rejected. Without this, every event; an empty list: none."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Asked once, when the framework is built."""


@runtime_checkable
class NextPodPlugin(Plugin, Protocol):
    """Says whose turn it is, before the queue is asked. The first plugin of the process that has this is asked."""

    def next_pod(self) -> PodInfo | None:
        """A pod of the queue; None for no opinion."""


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
class PreFilterPlugin(Plugin, Protocol):
    """Once in a cycle, before the nodes are looked at."""

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> MaybeAwaited[tuple[PreFilterResult | None, Status | None]]:
        """Skip leaves out the plugin's `filter`. UnschedulableAndUnresolvable ends the run at once."""


@runtime_checkable
class PreFilterExtensions(Plugin, Protocol):
    """A pre-filter plugin whose notes can follow a pod that is added to a node, or removed, on trial (preemption)."""

    def add_pod(
        self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[Status | None]:
        """As if `other` were on the node. A failure ends the trial."""

    def remove_pod(
        self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[Status | None]:
        """As if `other` were not on the node."""


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
class FilterTransformer(SchedulingTransformer, Protocol):
    """Changes pod and node before the filters of one node see them."""

    def before_filter(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[tuple[PodInfo | None, NodeInfo | None, Status | None]]:
        """The changed values, else None. Anything but Success is that node's status."""


@runtime_checkable
class FilterPlugin(Plugin, Protocol):
    """Whether a pod can be on a node. Called for each node; must have no effects."""

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> MaybeAwaited[Status | None]:
        """A rejection counts for this node; a failure ends the cycle."""


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
class PostFilterPlugin(Plugin, Protocol):
    """When no node is left: make room, such as by preemption."""

    def post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> MaybeAwaited[tuple[PostFilterResult | None, Status | None]]:
        """`statuses` say for each node why it was rejected. Success ends the run, with the result."""


@runtime_checkable
class PostFilterTransformer(SchedulingTransformer, Protocol):
    """Is told how the filters ended, when no node was left."""

    def after_post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> MaybeAwaited[None]:
        """Cannot change the outcome."""


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Once in a cycle, when two nodes or more are left."""

    def pre_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> MaybeAwaited[Status | None]:
        """Skip leaves out the plugin's `score`."""


@runtime_checkable
class ScoreTransformer(SchedulingTransformer, Protocol):
    """Changes pod and nodes before they are scored."""

    def before_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> MaybeAwaited[tuple[PodInfo | None, Sequence[NodeInfo] | None, Status | None]]:
        """The changed values, else None. Anything but Success ends the cycle."""


@runtime_checkable
class ScorePlugin(Plugin, Protocol):
    """How good a node is for a pod."""

    def score(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo
    ) -> MaybeAwaited[tuple[int, Status | None]]:
        """Any number where the plugin normalises, else 0 to 100."""


@runtime_checkable
class ScoreExtensions(Plugin, Protocol):
    """A score plugin that brings its scores into the range 0 to 100."""

    def normalize_score(
        self, context: CycleContext, pod: PodInfo, scores: dict[str, int]
    ) -> MaybeAwaited[Status | None]:
        """Change `scores` (by node) in place."""


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
class ReservationNominateFilterPlugin(Plugin, Protocol):
    """Which reservations of the node that was chosen may be nominated for a pod."""

    def filter_nominate_reservation(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> MaybeAwaited[Status | None]:
        """Asked of those that passed `filter_reservation` already."""


class NumaHintPlugin(Plugin, Protocol):
    """Allocates something of NUMA nodes, beside `NodeNUMAResource`, which asks it. Source: reference/koordinator.md 1.11."""

    def numa_hint_provider(
        self, context: CycleContext, pod: PodInfo, node: NodeInfo, numa_nodes: Sequence[int], policy: str
    ) -> Any:
        """The pod's `scheduler.placing.plugins.topology_manager.HintProvider` for a node with these NUMA nodes and that policy; None where
        the plugin has no say. Is no coroutine."""


@runtime_checkable
class ReservationNominator(Plugin, Protocol):
    """Picks the reservation that a pod uses on the node that was chosen, and remembers it until the pod was reserved for."""

    def nominate_reservation(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> MaybeAwaited[tuple[Reservation | None, Status | None]]:
        """The best one; None where the pod uses none there."""

    def nominated_reservation(self, pod: PodInfo, node_name: str) -> Reservation | None:
        """The reservation that was nominated and not deleted since."""

    def delete_nominated_reservation(self, pod: PodInfo) -> None:
        """Forget what was nominated for the pod."""


@runtime_checkable
class ReservePlugin(Plugin, Protocol):
    """When a node was chosen: keep what the pod needs. Source: seed 001."""

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Anything but Success rejects the pod, and `unreserve` of all plugins is called."""


@runtime_checkable
class UnreservePlugin(Plugin, Protocol):
    """When a pod that was reserved for is rejected later. Source: seed 001. Since 1.19 a reserve plugin has this method too."""

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[None]:
        """Undo `reserve`. Called for all plugins, in reverse order, also where `reserve` was not; must be idempotent."""


@runtime_checkable
class PermitPlugin(Plugin, Protocol):
    """Prevents or delays the binding. Source: seed 001."""

    def permit(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> MaybeAwaited[tuple[Status | None, float]]:
        """With Wait, the seconds for which the pod waits at most; else the number has no meaning."""


@runtime_checkable
class PreBindPreFlightPlugin(Plugin, Protocol):
    """Tells before the wait for the permit whether `pre_bind` will have anything to do."""

    def pre_bind_pre_flight(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> MaybeAwaited[Status | None]:
        """Success: `pre_bind` will be called. Skip: there is nothing to do."""


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Before a pod is bound. A plugin that has only the seed's `prebind` takes part as well."""

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Anything but Success keeps the pod from being bound."""


@runtime_checkable
class PrebindPlugin(Plugin, Protocol):
    """Before a pod is bound, as the early framework calls it. Source: seed 001."""

    def prebind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Anything but Success keeps the pod from being bound."""


@runtime_checkable
class PreBindExtensions(Plugin, Protocol):
    """Writes in one call what the pre-bind plugins changed. Runs where the plugin is enabled at the pre-bind point."""

    def apply_patch(
        self, context: CycleContext, original: Mapping[str, Any], modified: Mapping[str, Any]
    ) -> MaybeAwaited[Status | None]:
        """The manifest of the pod as it was and as it is wanted. Skip leaves it to the next plugin, and
        Success ends the run. If all say Skip nothing is written, and that is no failure."""


@runtime_checkable
class BindPlugin(Plugin, Protocol):
    """Binds a pod to its node."""

    def bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Skip leaves it to the next plugin."""


@runtime_checkable
class PostBindPlugin(Plugin, Protocol):
    """Is told of a pod that was bound."""

    def post_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[None]:
        """Clean up."""


@runtime_checkable
class SteadyPlugin(Plugin, Protocol):
    """Declares that its `before_filter`, `filter` and `score` go by the NodeInfo that they are shown and by `answers_by`, and by nothing else:
    no clock, no live ledger, no object that is watched, no other node, nothing of the cycle's context. What they answered for one pod is
    then kept for the next one like it, until the node changes. Answers of a plugin without this are not kept. Parley's own."""

    def answers_by(self, context: CycleContext, pod: PodInfo) -> Hashable | None:
        """All of the pod, and of what this cycle's pre-filter has noted, that its answers go by; None: this time they go by more. Rows that the
        ledger keeps for the pod itself need no mention. Asked once for each pass over the nodes."""

    def is_steady_on(self, node: NodeInfo) -> bool:
        """Whether that holds for this node."""


@dataclass(frozen=True, slots=True)
class Controller:
    """Work beside the cycles. `run` begins when this scheduler leads, is begun again after a failure, and is cancelled at the end."""

    name: str
    """Of one plugin, each has a name of its own."""
    run: Callable[[], Coroutine[Any, Any, None]]


@runtime_checkable
class ControllerProvider(Plugin, Protocol):
    """Works beside the cycles, such as on the status of its objects. Source: reference/koordinator.md 1.3, `ControllerProvider`."""

    def new_controllers(self) -> Sequence[Controller]:
        """Asked once for each plugin's name, when the plugin was built."""


@runtime_checkable
class APIServiceProvider(Plugin, Protocol):
    """Shows its state over HTTP. Source: seed 002's per-plugin services."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Asked once for each plugin's name, when the plugin was built."""


METHODS: Final[Mapping[ExtensionPoint, tuple[str, ...]]] = MappingProxyType(
    {
        ExtensionPoint.PRE_FILTER: ("pre_filter",),
        ExtensionPoint.FILTER: ("filter",),
        ExtensionPoint.POST_FILTER: ("post_filter",),
        ExtensionPoint.RESERVE: ("reserve", "unreserve"),
        ExtensionPoint.PRE_SCORE: ("pre_score",),
        ExtensionPoint.SCORE: ("score",),
        ExtensionPoint.PRE_BIND: ("pre_bind", "prebind", "pre_bind_pre_flight"),
        ExtensionPoint.BIND: ("bind",),
        ExtensionPoint.POST_BIND: ("post_bind",),
        ExtensionPoint.PERMIT: ("permit",),
        ExtensionPoint.PRE_ENQUEUE: ("pre_enqueue",),
        ExtensionPoint.QUEUE_SORT: ("less",),
    }
)
"""The methods by which a plugin takes part in a point: one of these methods at least. The points are in the order in which a profile's
are checked."""


PLAIN_METHODS: Final = (
    "less",
    "pre_enqueue",
    "next_pod",
    "nominated_reservation",
    "delete_nominated_reservation",
    "numa_hint_provider",
    "answers_by",
    "is_steady_on",
)
"""Nobody waits for the answers of these methods, so none of them may be a coroutine. What is asked only once, when a plugin
is made, must not be one either."""


def points_of(plugin: object) -> frozenset[ExtensionPoint]:
    """The points that a plugin, or the class of one, extends."""
    return frozenset(
        point
        for point, methods in METHODS.items()
        if any(callable(getattr(plugin, method, None)) for method in methods)
    )
