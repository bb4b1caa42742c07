"""The common ground of the shipped plugins: how one is made, how parts of nodes are read only when they have changed, and the notes
that plugins leave each other in the context of a cycle.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar
from weakref import WeakKeyDictionary

from hosting.settings import FaultsError, Settings, check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import ContextKey

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")
T = TypeVar("T")
M = TypeVar("M", bound=Settings)

MAX_CACHED_NODES: Final = 16_384
"""With more nodes than that, parts are read again now and then."""


MAX_REMEMBERED: Final = 32
"""So many answers are remembered of one node."""


class NoArgs(Settings):
    """The args of a plugin that takes none."""


class PublishedArgs(Settings):
    """The base of args that were published with their type: files that name it are taken as they are."""

    api_version: Literal[
        "",
        "kubescheduler.config.k8s.io/v1",
        "kubescheduler.config.k8s.io/v1beta3",
        "kubescheduler.config.k8s.io/v1beta2",
    ] = ""
    """The published version; its meaning is the same in all of them."""
    kind: str = ""
    """The name of the plugin with `Args` behind it, if it is given."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if found.get("kind") not in {None, "", cls.__name__}:
            yield "kind", f"must be {cls.__name__}, not {found['kind']}"


class ShippedPlugin:
    """The base of the plugins that come with the scheduler. The class is the plugin's factory, and its name the plugin's.

    `ARGS` is the model of the args, by which they can be checked before any plugin is made. Making a plugin raises
    `FaultsError`, with every fault, for args that break it.
    """

    ARGS: ClassVar[type[Settings]] = NoArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        check(args, self.ARGS)
        self._handle = handle

    def name(self) -> str:
        return type(self).__name__


_OF_LEDGERS: Final[WeakKeyDictionary[Any, dict[type, Any]]] = WeakKeyDictionary()


def shared_state(ledger: object, kind: type[T]) -> T:
    """The one value of this class for all profiles over a ledger (`ExtendedHandle.placements`), also for those that replace them."""
    of_ledger = _OF_LEDGERS.setdefault(ledger, {})
    if kind not in of_ledger:
        of_ledger[kind] = kind()
    found: T = of_ledger[kind]
    return found


def annotation_of(name: str, written: str, model: type[M]) -> M:
    """The content of an annotation that is JSON. Raises `ValueError`, with every fault."""
    try:
        return check(json.loads(written), model)
    except FaultsError as error:
        raise ValueError("; ".join(error.below(f"annotation {name}"))) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"annotation {name} is not JSON: {error}") from None


class NodeCache(Generic[P, T]):
    """The reading of a part of each node, until the part is another object.

    Parts are compared by identity: what was changed on trial, such as the pods in a preemption, is read anew, and what stayed
    is not, although the node's generation is another one.
    """

    def __init__(self, read: Callable[[P], T]) -> None:
        self._read = read
        self._found: dict[str, tuple[P, T]] = {}

    def of(self, node_name: str, part: P) -> T:
        """The reading of `part` of that node."""
        found = self._found.get(node_name)
        if found is not None and found[0] is part:
            return found[1]
        if len(self._found) >= MAX_CACHED_NODES:
            self._found.clear()
        value = self._read(part)
        self._found[node_name] = (part, value)
        return value


def remembered(known: dict[K, T], asked: K, answer: Callable[[], T]) -> T:
    """The answer to what is asked of something that stays as it is: pods are often alike, and most nodes stay as they are from one pod to
    the next."""
    found = known.get(asked)
    if found is None:
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        found = known[asked] = answer()
    return found


RESERVATION_USED: Final = ContextKey("parley.dev/reservation-used")
"""The UID of the reservation whose room was kept for the pod. `LedgerFit` writes it, `DefaultBinder` tells the pod."""
PRE_ALLOCATED: Final = ContextKey("parley.dev/pre-allocated")
"""True for a Reservation that may have a node without room for it: only what is free there is kept for it. `Reservation` writes it."""
MAY_BE_BOUND: Final = ContextKey("parley.dev/may-be-bound")
"""Something while nobody knows whether the pod was bound: what was kept for the pod stays then. `DefaultBinder` writes True around
its call; `LedgerFit` writes `EARLIER` where a cycle before has left that open."""
EARLIER: Final = "earlier"


def find(context: CycleContext, key: str) -> Any:
    """The value under `key`; None if there is none."""
    try:
        return context.read(key)
    except LookupError:  # NotFoundError
        return None
