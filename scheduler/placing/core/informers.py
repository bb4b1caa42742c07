"""Objects of the API server as plugins see them: one watch of each type for all plugins, whatever profiles they belong to.

Source: seed 002, shared informers and event handlers. Nothing here waits: `scheduler.clusters.kubernetes.informers` watches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from hosting.kubernetes.resources import Manifest, ResourceType

ObjectKey: TypeAlias = tuple[str, str]
"""Namespace, empty for types without one, and name."""
InformerHandler: TypeAlias = Callable[[Manifest | None, Manifest | None], object]
"""Is told of an object as it was, None for a new one, and as it is, None for one that is no more. Must not wait, and is no coroutine."""


class Informer(Protocol):
    """The objects of one type."""

    @property
    def has_synced(self) -> bool:
        """Whether all objects were seen, or the API server knows no such type."""

    def objects(self) -> Mapping[ObjectKey, Manifest]:
        """All objects that are known: a view that changes with them. Nobody may change a manifest."""

    def add_event_handler(self, handler: InformerHandler) -> None:
        """Call `handler` for every object that is known already, and then with every change. Whatever it raises is logged.

        Raises `ValueError` for a coroutine function.
        """


class Informers(Protocol):
    """Where informers come from."""

    def informer(self, type_: ResourceType) -> "WatchedType":
        """The watch of a type, which begins with the first call. Raises `ValueError` if there are too many."""


class WatchedType(Informer, Protocol):
    """An informer whose handlers may go."""

    def remove_event_handler(self, handler: InformerHandler) -> None:
        """Tell `handler` nothing more; it may be unknown."""


@dataclass(frozen=True, slots=True)
class NothingWatched:
    """The informer of a type where there is no API server: no object, and no change."""

    has_synced: bool = True

    def objects(self) -> Mapping[ObjectKey, Manifest]:
        return _NOTHING

    def add_event_handler(self, handler: InformerHandler) -> None:
        del handler

    def remove_event_handler(self, handler: InformerHandler) -> None:
        del handler

    def informer(self, type_: ResourceType) -> "NothingWatched":
        """As `Informers`."""
        del type_
        return self


_NOTHING: Final[Mapping[ObjectKey, Any]] = MappingProxyType({})


@dataclass(slots=True)
class LeasedInformers:
    """The informers of the plugins that were made together: their handlers go with them (`release`)."""

    informers: Informers
    _handlers: list[tuple[WatchedType, InformerHandler]] = field(default_factory=list)

    def informer(self, type_: ResourceType) -> Informer:
        return _Leased(self.informers.informer(type_), self._handlers)

    def release(self) -> None:
        """The plugins were replaced: tell them nothing more."""
        for watched, handler in self._handlers:
            watched.remove_event_handler(handler)
        self._handlers.clear()


@dataclass(frozen=True, slots=True)
class _Leased:
    watched: WatchedType
    handlers: list[tuple[WatchedType, InformerHandler]]

    @property
    def has_synced(self) -> bool:
        return self.watched.has_synced

    def objects(self) -> Mapping[ObjectKey, Manifest]:
        return self.watched.objects()

    def add_event_handler(self, handler: InformerHandler) -> None:
        self.watched.add_event_handler(handler)
        self.handlers.append((self.watched, handler))
