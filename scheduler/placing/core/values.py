"""Statuses, points, keys, results, scores, and the events that plugins wait for: what they are given and answer beside pods and nodes.

`None` is Success wherever a status is expected, so what asks a status for something is a function here: `code_of(None)`.
Sources: seed 001, reference/kubernetes.md 1.4 and 1.9.
"""

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from hosting.kubernetes.resources import ResourceType
from protocol.reasons import RejectionClass as RejectionClass  # noqa: PLC0414 - plugins import it from here
from protocol.values import Value
from scheduler.placing.core.objects import PodInfo


class Code(enum.IntEnum):
    """The outcome of a plugin.

    The numbers of the first four are those of seed 001. Later versions of Kubernetes moved them, so numbers are never written
    anywhere: `str` gives the name, and that is what is written.
    """

    SUCCESS = 0
    """The plugin ran and has nothing against it."""
    ERROR = 1
    """The plugin failed. The pod is tried again after a back-off."""
    UNSCHEDULABLE = 2
    """The plugin says no; that may change."""
    WAIT = 3
    """At the permit point: the pod has to wait."""
    UNSCHEDULABLE_AND_UNRESOLVABLE = 4
    """The plugin says no, and preemption would not help."""
    SKIP = 5
    """The plugin has nothing to do here: its filter or score is left out, or the next plugin binds."""
    PENDING = 6
    """The plugin says no until somebody else has acted; the pod is tried again without a back-off."""

    def __str__(self) -> str:
        return _NAMES[self]


_NAMES: Final = {
    Code.SUCCESS: "Success",
    Code.ERROR: "Error",
    Code.UNSCHEDULABLE: "Unschedulable",
    Code.WAIT: "Wait",
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE: "UnschedulableAndUnresolvable",
    Code.SKIP: "Skip",
    Code.PENDING: "Pending",
}
REJECTIONS: Final = frozenset({Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING})
"""The codes by which a plugin says no, as opposed to failing."""


class StatusError(Exception):
    """A status as an exception: its text is the status's message."""


@dataclass(frozen=True, slots=True)
class Status:
    """A code and why. `code` may be a number that nobody knows, which counts as an error.

    `texts` are for people; `error` is what the plugin failed with, and comes before them in `reasons`. `plugin` is set by the
    framework: the plugin whose word this is. `rejection` is the class of a rejection; None counts as `CAPACITY`.
    """

    code: Code | int
    texts: tuple[str, ...] = ()
    error: Exception | None = None
    plugin: str = ""
    rejection: RejectionClass | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.texts if self.error is None else (str(self.error), *self.texts)

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def as_error(self) -> Exception | None:
        """The status as an exception; None for Success, Wait and Skip. Source: seed 001, `AsError`."""
        if self.code in {Code.SUCCESS, Code.WAIT, Code.SKIP}:
            return None
        return self.error if self.error is not None else StatusError(self.message)

    def by(self, plugin: str) -> "Status":
        """The status as the word of `plugin`."""
        return replace(self, plugin=plugin)


def new_status(code: Code | int, *texts: str) -> Status:
    """A status with its texts. Source: seed 001, `NewStatus`."""
    return Status(code, texts)


def rejected(rejection: RejectionClass, code: Code, *texts: str) -> Status:
    """A rejection that says of which class it is. `code` is one of `REJECTIONS`."""
    return Status(code, texts, rejection=rejection)


def error_status(error: Exception | str) -> Status:
    return Status(Code.ERROR, (error,)) if isinstance(error, str) else Status(Code.ERROR, error=error)


def code_of(status: Status | None) -> Code | int:
    """The code; Success for None."""
    return status.code if status is not None else Code.SUCCESS


def is_success(status: Status | None) -> bool:
    return status is None or status.code == Code.SUCCESS


def is_rejected(status: Status | None) -> bool:
    """Whether it says no, as opposed to having failed."""
    return status is not None and status.code in REJECTIONS


def as_error_of(status: Status | None) -> Exception | None:
    """The status as an exception; None for None, and where `Status.as_error` gives none. Source: seed 001, `AsError`."""
    return status.as_error() if status is not None else None


def message_of(status: Status | None) -> str:
    """The reasons in one text; empty for None."""
    return status.message if status is not None else ""


T = TypeVar("T")


MaybeAwaited: TypeAlias = T | Awaitable[T]


MIN_NODE_SCORE: Final = 0


MAX_NODE_SCORE: Final = 100
"""The range of a score after normalising."""


MAX_PERMIT_WAIT_S: Final = 15 * 60.0
"""No plugin makes a pod wait longer than that for its permit."""


class ExtensionPoint(enum.StrEnum):
    """The points at which plugins are called, in the order of a cycle. The values are the names in the configuration."""

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
"""The value that a plugin keeps there. Source: seed 001."""


class ActionType(enum.Flag):
    """A change of an object."""

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


EventKind: TypeAlias = EventResource | ResourceType
"""Kinds of objects, or the type of an object that a shared informer shows (`ExtendedHandle.shared_informer`)."""


@dataclass(frozen=True, slots=True)
class SchedulingEvent:
    """Something happened. `before` and `after` are the object as it was and is; None where it was not, or is no more."""

    resource: EventKind
    action: ActionType
    before: Any = None
    after: Any = None


class QueueingHint(enum.Enum):
    """Whether an event may make a pod schedulable."""

    QUEUE = "queue"
    SKIP = "skip"


HintFunction: TypeAlias = Callable[[PodInfo, SchedulingEvent], QueueingHint]
"""Says whether an event may help the pod that the plugin rejected. An error counts as `QUEUE`."""


@dataclass(frozen=True, slots=True)
class EventWithHint:
    """An event that a plugin waits for. Without a hint each such event counts."""

    resource: EventKind
    action: ActionType
    hint: HintFunction | None = None


RegisteredEvents: TypeAlias = Mapping[str, tuple[EventWithHint, ...]]
"""The events that each plugin waits for, by its name."""


@dataclass(frozen=True, slots=True)
class HintVerdict:
    """Whether a pod is to be queued after an event; and which plugins' hints failed, which counts as `QUEUE`."""

    hint: QueueingHint
    failures: tuple[tuple[str, Exception], ...] = ()


def hint_of(
    registered: RegisteredEvents, pod: PodInfo, event: SchedulingEvent, rejected_by: Collection[str]
) -> HintVerdict:
    """Whether `event` may help a pod that these plugins rejected: where one of them waits for it and its hint does not say Skip.

    A pod that no plugin rejected, or one that is not registered, is queued after every event.
    """
    if not rejected_by or any(name not in registered for name in rejected_by):
        return HintVerdict(QueueingHint.QUEUE)
    failures = []
    for name in sorted(rejected_by):
        for waited in registered[name]:
            if not _is_meant(waited, event):
                continue
            try:
                hint = waited.hint(pod, event) if waited.hint is not None else QueueingHint.QUEUE
                if not isinstance(hint, QueueingHint):
                    raise TypeError(f"a hint must be a QueueingHint, not {hint!r}")
            except Exception as error:  # noqa: BLE001 - a hint is anybody's code
                failures.append((name, error))
                hint = QueueingHint.QUEUE
            if hint is QueueingHint.QUEUE:
                return HintVerdict(hint, tuple(failures))
    return HintVerdict(QueueingHint.SKIP, tuple(failures))


def is_waited_for(registered: RegisteredEvents, event: SchedulingEvent, rejected_by: Collection[str]) -> bool:
    """Whether `hint_of` may say `QUEUE` of some pod that these plugins rejected."""
    return (
        not rejected_by
        or any(name not in registered for name in rejected_by)
        or any(_is_meant(waited, event) for name in rejected_by for waited in registered[name])
    )


def _is_meant(waited: EventWithHint, event: SchedulingEvent) -> bool:
    is_same = waited.resource == event.resource or EventResource.ANY in (waited.resource, event.resource)
    return is_same and bool(waited.action.value & event.action.value)


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The nodes that are worth a look; None for all of them.

    `narrowed_by` is the framework's: the plugins that gave a set, once their sets have become one.
    """

    node_names: frozenset[str] | None = None
    narrowed_by: frozenset[str] = frozenset()


class NominatingMode(enum.IntEnum):
    """The lot of the node that was set aside for the pod earlier."""

    NOOP = 0
    OVERRIDE = 1


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """The node that a pod may hope for once its victims are gone."""

    nominated_node_name: str = ""
    mode: NominatingMode = NominatingMode.NOOP


class NodePluginScores(Value, frozen=True):
    """A node's scores, by plugin and with their weights, and their sum."""

    name: str
    scores: tuple[tuple[str, int], ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A page of a plugin: `GET /v1/scheduling/plugins/{plugin}{path}`. Braces in the path name its parameters.

    `read` gets the parameters and returns what the page shows, as JSON; None is a 404. It only reads, and waits for nothing.
    """

    path: str
    read: Callable[[Mapping[str, str]], Any]


def scale_scores(scores: dict[str, int], *, reverse: bool = False) -> None:
    """Scale the scores in place so that the highest one becomes 100; with `reverse` the highest one becomes 0.

    If no score is above 0, all become 0, or with `reverse` 100. Source: the default normaliser of seed 002 and kube-scheduler.
    """
    highest = max(scores.values(), default=0)
    for key, score in scores.items():
        scaled = MAX_NODE_SCORE * score // highest if highest > 0 else 0
        scores[key] = MAX_NODE_SCORE - scaled if reverse else scaled


def out_of_range(scores: Mapping[str, int]) -> str | None:
    """The fault of scores that were normalised; None if each is from 0 to 100."""
    for uid, score in scores.items():
        if not MIN_NODE_SCORE <= score <= MAX_NODE_SCORE:
            return (
                f"returned an invalid score {score} for reservation {uid}: must be from {MIN_NODE_SCORE} to "
                f"{MAX_NODE_SCORE} after normalising"
            )
    return None
