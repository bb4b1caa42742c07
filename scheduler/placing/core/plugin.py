"""What plugins implement: one method for each extension point. Sources: seed 001, reference/kubernetes.md 1.9.

A plugin takes part in a point by having its method; nothing is registered. Any method may be a coroutine, but not those of
`PLAIN_METHODS`, and no hint. `None` in place of a status is Success. What a plugin raises goes through to the caller of the run.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, TypeVar, runtime_checkable

from protocol.values import Value
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.status import Status

T = TypeVar("T")
MaybeAwaited: TypeAlias = T | Awaitable[T]

MIN_NODE_SCORE: Final = 0
MAX_NODE_SCORE: Final = 100
"""The range of a score after normalising."""
MAX_PERMIT_WAIT_S: Final = 15 * 60.0
"""No plugin makes a pod wait longer than that for its permit."""


class ExtensionPoint(enum.StrEnum):
    """Where plugins are called, in the order of a cycle. The values are the names in the configuration."""

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"


class ContextKey(str):
    """The key of something that a plugin keeps in the context of a cycle. Any text will do. Source: seed 001."""

    __slots__ = ()


ContextData: TypeAlias = Any
"""What a plugin keeps there. Source: seed 001."""


class CycleContext(Protocol):
    """What plugins read and write in the context of one cycle. Source: seed 001, `PluginContext`.

    `scheduler.placing.runtime.context.PluginContext` is it.
    """

    def read(self, key: str) -> ContextData:
        """What is kept under `key`. Raises `NotFoundError`, whose text is `not found`."""

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


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod in the queue: since when (s), how often it was tried, and which plugins rejected it last."""

    pod: PodInfo
    since_s: float
    attempts: int = 0
    rejected_by: frozenset[str] = frozenset()


@runtime_checkable
class QueueSortPlugin(Plugin, Protocol):
    """The order in which pods get their turn; exactly one in a profile, and the same one in all of them."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        """Whether `first` goes before `second`."""


class ActionType(enum.Flag):
    """What has happened to an object."""

    ADD = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    ALL = ADD | UPDATE | DELETE


class EventResource(enum.StrEnum):
    """The kinds of objects whose events may make a pod schedulable."""

    POD = "Pod"
    NODE = "Node"
    POOL = "Pool"
    RESERVATION = "Reservation"
    LEDGER = "Ledger"
    """Room became free in the ledger, without an object having changed."""
    ANY = "*"


@dataclass(frozen=True, slots=True)
class SchedulingEvent:
    """Something happened. `before` and `after` are the object as it was and is; None where it was not, or is no more."""

    resource: EventResource
    action: ActionType
    before: Any = None
    after: Any = None


class QueueingHint(enum.Enum):
    """Whether an event may make a pod schedulable."""

    QUEUE = "queue"
    SKIP = "skip"


HintFunction: TypeAlias = Callable[[PodInfo, SchedulingEvent], QueueingHint]
"""Says whether an event may help the pod that the plugin rejected. What it raises counts as `QUEUE`."""


@dataclass(frozen=True, slots=True)
class EventWithHint:
    """An event that a plugin waits for. Without a hint each such event counts."""

    resource: EventResource
    action: ActionType
    hint: HintFunction | None = None


@runtime_checkable
class EnqueueExtensions(Plugin, Protocol):
    """Which events may make a pod schedulable that this plugin rejected. Without this, every event; an empty list: none."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Asked once, when the framework is built."""


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The nodes that are worth a look; None for all of them.

    `narrowed_by` is the framework's: the plugins that gave a set, once their sets have become one.
    """

    node_names: frozenset[str] | None = None
    narrowed_by: frozenset[str] = frozenset()


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
class FilterPlugin(Plugin, Protocol):
    """Whether a pod can be on a node. Called for each node; must have no effects."""

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> MaybeAwaited[Status | None]:
        """A rejection counts for this node; a failure ends the cycle."""


class NominatingMode(enum.IntEnum):
    """What becomes of the node that was set aside for the pod earlier."""

    NOOP = 0
    OVERRIDE = 1


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """The node that a pod may hope for once its victims are gone."""

    nominated_node_name: str = ""
    mode: NominatingMode = NominatingMode.NOOP


@runtime_checkable
class PostFilterPlugin(Plugin, Protocol):
    """When no node is left: make room, such as by preemption."""

    def post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> MaybeAwaited[tuple[PostFilterResult | None, Status | None]]:
        """`statuses` say for each node why it was rejected. Success ends the run, with the result."""


@runtime_checkable
class PreScorePlugin(Plugin, Protocol):
    """Once in a cycle, when two nodes or more are left."""

    def pre_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> MaybeAwaited[Status | None]:
        """Skip leaves out the plugin's `score`."""


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


class NodePluginScores(Value, frozen=True):
    """A node's scores, by plugin and with their weights, and their sum."""

    name: str
    scores: tuple[tuple[str, int], ...] = ()
    total: int = 0


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
class PrebindPlugin(Plugin, Protocol):
    """Before a pod is bound, as the early framework calls it. Source: seed 001."""

    def prebind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Anything but Success keeps the pod from being bound."""


@runtime_checkable
class PreBindPlugin(Plugin, Protocol):
    """Before a pod is bound. A plugin that has only the seed's `prebind` takes part as well."""

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> MaybeAwaited[Status | None]:
        """Anything but Success keeps the pod from being bound."""


@runtime_checkable
class PreBindPreFlightPlugin(Plugin, Protocol):
    """Tells before the wait for the permit whether `pre_bind` will have anything to do."""

    def pre_bind_pre_flight(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> MaybeAwaited[Status | None]:
        """Success: `pre_bind` will be called. Skip: there is nothing to do."""


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


METHODS: Final[Mapping[ExtensionPoint, tuple[str, ...]]] = MappingProxyType(
    {
        ExtensionPoint.PRE_ENQUEUE: ("pre_enqueue",),
        ExtensionPoint.QUEUE_SORT: ("less",),
        ExtensionPoint.PRE_FILTER: ("pre_filter",),
        ExtensionPoint.FILTER: ("filter",),
        ExtensionPoint.POST_FILTER: ("post_filter",),
        ExtensionPoint.PRE_SCORE: ("pre_score",),
        ExtensionPoint.SCORE: ("score",),
        ExtensionPoint.RESERVE: ("reserve", "unreserve"),
        ExtensionPoint.PERMIT: ("permit",),
        ExtensionPoint.PRE_BIND: ("pre_bind", "prebind", "pre_bind_pre_flight"),
        ExtensionPoint.BIND: ("bind",),
        ExtensionPoint.POST_BIND: ("post_bind",),
    }
)
"""What a plugin implements to take part in a point: one of these methods at least."""


PLAIN_METHODS: Final = ("less", "pre_enqueue")
"""Nobody waits for the answers of these methods, so none of them may be a coroutine. What is asked only once, when a plugin
is made, must not be one either."""


def points_of(plugin: object) -> frozenset[ExtensionPoint]:
    """The points that a plugin, or the class of one, extends."""
    return frozenset(
        point
        for point, methods in METHODS.items()
        if any(callable(getattr(plugin, method, None)) for method in methods)
    )


class WaitingPod(Protocol):
    """A pod that waits for its permit. Source: seed 001; plugins by name since 1.18.

    `scheduler.placing.runtime.waiting_pods` has it. The first signal counts and is kept, also before anybody waits for it.
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
    """What plugins may ask of the framework; their factories get it, and keep it. Source: seed 001."""

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
