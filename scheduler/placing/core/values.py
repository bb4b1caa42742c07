"""What plugins are given and answer beside pods, nodes and statuses: points, keys, results, scores, and the events they wait for.

Sources: seed 001, reference/kubernetes.md 1.9.
"""

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from protocol.values import Value
from scheduler.placing.core.objects import PodInfo

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


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The nodes that are worth a look; None for all of them.

    `narrowed_by` is the framework's: the plugins that gave a set, once their sets have become one.
    """

    node_names: frozenset[str] | None = None
    narrowed_by: frozenset[str] = frozenset()


class NominatingMode(enum.IntEnum):
    """What becomes of the node that was set aside for the pod earlier."""

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
