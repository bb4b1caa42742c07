"""Keeps the objects of one type up to date: a list, then a watch, and again a list if the watch cannot go on.

The knowledge of the objects, with versions and moments, is `hosting.kubernetes.core.known`. Rules of list and watch:
reference/kubernetes.md 5.2.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError, UnreachableError
from hosting.kubernetes.core.known import (
    Change,
    Changed,
    Deleted,
    Key,
    KnownObjects,
    ManifestError,
    version_of,
)
from hosting.kubernetes.errors import refusal_of
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.logs import Logger

__all__ = ["Change", "Changed", "Deleted", "Key", "Reflector", "WatchHealth", "WatchTimes"]

OnChange: TypeAlias = Callable[[tuple[Change, ...]], object]
PAGE: Final = 500
"""Objects in one answer to a list: reading them does not keep the event loop for long."""
AT_ONCE_S: Final = 1.0
"""A watch that ends sooner and has shown nothing is a fault, even if its end looks normal."""
LOOK_S: Final = 30.0
"""After so long to twice that a type that is missing is looked for again."""
PATIENCE_CAP_S: Final = 60.0
"""The longest wait that a server's Retry-After can cause."""


_BACKOFF: Final = Backoff(base_s=0.4, cap_s=10.0)


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """A watch is ended by the server after `watch_s` to twice that.

    After `silence_s` without an event a new watch goes on, over a new connection: the old one may be dead. Bookmarks come about
    once a minute, but of a type that never changes they may never come: an API server whose etcd reports no progress has none.
    """

    watch_s: float = 240.0
    silence_s: float = 75.0
    connect_deadline_s: float = 5.0
    list_deadline_s: float = 15.0
    backoff: Backoff = _BACKOFF


@dataclass(slots=True)
class WatchHealth:
    """How the watch is doing. `fault` is empty while it works; `contact_s` is when the server last showed something."""

    fault: str = "not listed yet"
    contact_s: float | None = None
    lists_total: int = 0
    watches_total: int = 0
    events_total: int = 0


class _GarbageError(UnreachableError):
    """The server's answer is neither an event nor a list."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """How one list and watch ended. `was_well`: it went on for a while, or brought the store forward."""

    error: KubernetesError | None
    was_well: bool

    @property
    def must_list(self) -> bool:
        """Whether a watch from the last version is of no use. A gateway time-out may mean that the server does not know it yet."""
        error = self.error
        return (
            self.has_expired
            or isinstance(error, _GarbageError)
            or (isinstance(error, RefusedError) and error.status == 504)
        )

    @property
    def has_expired(self) -> bool:
        """Whether the server has forgotten the last version."""
        return isinstance(self.error, RefusedError) and self.error.is_expired

    @property
    def patience_s(self) -> float:
        """How long the server wants to be left alone."""
        asked_s = self.error.retry_after_s if isinstance(self.error, RefusedError) else None
        return min(asked_s or 0.0, PATIENCE_CAP_S)


class Reflector:
    """The objects of `type_` in `namespace` (None: in all) that the selectors select. `run` keeps them up to date.

    `on_change` is called in the moment in which the objects change; it must not wait and must not fail. `clock` is monotonic. A type
    that `is_optional` may be missing, because its CRD is not installed: that is no fault, and the type is found once it is there. One that
    `may_be_forbidden` is missing as well while we have no right to read it: such rights come with what they are for.
    """

    def __init__(  # noqa: PLR0913 - the watched objects, and the way to watch them
        self,
        api: KubernetesApi,
        type_: ResourceType,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        on_change: OnChange | None = None,
        times: WatchTimes | None = None,
        is_optional: bool = False,
        may_be_forbidden: bool = False,
    ) -> None:
        self._api = api
        self._type = type_
        self._namespace = namespace
        self._labels = label_selector
        self._fields = field_selector
        self._clock = clock
        self._rng = rng
        self._listeners = [on_change] if on_change is not None else []
        self._times = times or WatchTimes()
        self._log = FaultLog(
            log, f"watch of {type_.plural} does not work", f"watch of {type_.plural} works again"
        )
        self._synced = asyncio.Event()
        self._has_synced = False
        self._catching_up = asyncio.Lock()
        self._must_list = True
        self._is_optional = is_optional
        self._may_be_forbidden = may_be_forbidden
        self._is_missing = False
        self.known: Final = KnownObjects()
        self.health: Final = WatchHealth()

    # ------------------------------------------------------------ knowledge

    def follow(self, on_change: OnChange) -> None:
        """Call another one with changes from now on."""
        self._listeners.append(on_change)

    def objects(self) -> Mapping[Key, Manifest]:
        """All objects by namespace and name: a view that changes with them. The manifests are not to be changed."""
        return self.known.objects

    @property
    def fault(self) -> str:
        """Why the objects may be out of date; empty if they are not, and while the type is missing."""
        return "" if self._is_missing else self.health.fault

    @property
    def is_missing(self) -> bool:
        """Whether the API server does not know the type, which is optional."""
        return self._is_missing

    @property
    def has_synced(self) -> bool:
        """Whether a whole list has been seen."""
        return self._has_synced

    async def synced(self) -> None:
        """Return when a whole list has been seen, or the type is known to be missing."""
        await self._synced.wait()

    @property
    def known_at_s(self) -> float:
        """Everything that was accepted before this moment has been seen."""
        return self.known.begun_s

    # ------------------------------------------------------------ lists beside the watch

    async def caught_up(self, begun_s: float) -> None:
        """Return when everything that was accepted before `begun_s` has been seen: by one whole list for all who wait.

        Raises `KubernetesError`.
        """
        while self.known.begun_s < begun_s:
            async with self._catching_up:
                if self.known.begun_s < begun_s:
                    await self._list_all()

    async def mark(self) -> None:
        """A consistent list of hardly anything: all that the watch shows from its version on is no older than this call.

        Raises `KubernetesError`.
        """
        sent_s = self._clock()
        listed = await self._list(self._namespace, {"limit": "1"})
        self.known.mark(_version(listed), sent_s)

    async def list_one(self, namespace: str, name: str) -> None:
        """See how one object is now. This is a list by name and not a read: its answer has a version even if no object is there.

        Raises `KubernetesError`.
        """
        await self._list_some(namespace, f"metadata.name={name}", ((namespace, name),))

    async def list_namespace(self, namespace: str, names: Collection[str] = ()) -> None:
        """See how the objects of a namespace are now, those with these names included. Raises `KubernetesError`."""
        here = {key for key in self.known.objects if key[0] == namespace}
        await self._list_some(namespace, "", here | {(namespace, name) for name in names})

    async def _list_some(self, namespace: str, fields: str, keys: Collection[Key]) -> None:
        sent_s = self._clock()
        items, version = await self._pages(namespace or None, fields)
        self._take(lambda: self.known.listed(items, version, sent_s, keys))

    async def _list_all(self) -> None:
        sent_s, sent_at = self._clock(), self.known.position
        items, version = await self._pages(self._namespace)
        self._take(lambda: self.known.listed_all(items, version, sent_s, sent_at))
        self.health.lists_total += 1
        self._has_synced = True
        self._synced.set()

    async def _pages(self, namespace: str | None, fields: str = "") -> tuple[list[Manifest], int]:
        """All pages of a list. They show the objects at the version of the first."""
        query = {"limit": str(PAGE)}
        page = await self._list(namespace, query, fields)
        items, version = _items(page), _version(page)
        while following := page["metadata"].get("continue"):
            page = await self._list(namespace, query | {"continue": following}, fields)
            items += _items(page)
        for item in items:
            self._tidy(item)
        return items, version

    def _tidy(self, manifest: Any) -> None:
        """Add the type, which lists leave out, and drop the managers of fields: a third of an object, and read by nobody."""
        if isinstance(manifest, dict) and isinstance(metadata := manifest.get("metadata"), dict):
            manifest.setdefault("apiVersion", self._type.api_version)
            manifest.setdefault("kind", self._type.kind)
            metadata.pop("managedFields", None)

    async def _list(self, namespace: str | None, query: Mapping[str, str], fields: str = "") -> Manifest:
        try:
            listed = await self._api.list(
                self._type,
                namespace,
                query={**self._selectors(fields), **query},
                deadline_s=self._times.list_deadline_s,
            )
        except RefusedError as error:
            self._note_missing(error)
            raise
        self._is_missing = False
        return listed

    def _note_missing(self, error: KubernetesError) -> bool:
        """Whether an error says that the type, which is optional, is missing."""
        if not (self._is_optional and isinstance(error, RefusedError)):
            return False
        if not (error.is_not_found or (self._may_be_forbidden and error.status == 403)):
            return False
        self._is_missing = True
        self._synced.set()
        return True

    def _selectors(self, fields: str = "") -> dict[str, str]:
        both = ",".join(each for each in (self._fields, fields) if each)
        found = {"labelSelector": self._labels, "fieldSelector": both}
        return {name: value for name, value in found.items() if value}

    # ------------------------------------------------------------ the watch

    async def run(self) -> None:
        """List and watch for ever. Started again, it goes on from its knowledge."""
        failures, has_expired = 0, False
        while True:
            ended = await self._round()
            self._must_list |= ended.must_list
            if ended.error is None:
                failures = 0
                self._log.worked()
                continue
            # A server that was away and has forgotten the version is there again: the list must not wait for its absence.
            is_back = ended.has_expired and not has_expired
            has_expired = ended.has_expired
            failures = 1 if ended.was_well or is_back else failures + 1
            self.health.fault = str(ended.error)
            if self._note_missing(ended.error):
                self._must_list = True  # a type that was removed may come again with other objects
                if not self._has_synced:
                    await asyncio.sleep(LOOK_S * (1 + self._rng.random()))
                    continue
            else:
                self._log.failed(ended.error, restart_after=failures)
            delay_s = self._times.backoff.delay_s(failures, self._rng.random())
            await asyncio.sleep(max(delay_s, ended.patience_s * (1 + 0.2 * self._rng.random())))

    async def _round(self) -> _Ended:
        """A list if one is needed, and a watch until its end."""
        began_s, position, error = self._clock(), self.known.position, None
        try:
            if self._must_list:
                await self._list_all()
                self._must_list = False
                self._works()
                began_s, position = self._clock(), self.known.position
            await self._watch()
        except KubernetesError as caught:
            error = caught
        was_well = not self._must_list and (
            self.known.position > position or self._clock() - began_s >= AT_ONCE_S
        )
        if error is None and not was_well:
            error = UnreachableError("the watch ended at once")
        return _Ended(error, was_well)

    async def _watch(self) -> None:
        """Take the events until the server ends the watch. Raises `KubernetesError`."""
        query = {
            **self._selectors(),
            "watch": "1",
            "resourceVersion": str(self.known.position),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(self._times.watch_s * (1 + self._rng.random()))),
        }
        self.health.watches_total += 1
        async with self._api.stream(
            self._type.path(self._namespace),
            query,
            connect_deadline_s=self._times.connect_deadline_s,
            silence_s=self._times.silence_s,
        ) as lines:
            self.health.fault = ""
            self.health.contact_s = self._clock()
            async for line in lines:
                self._event(line)
                self._works()

    def _event(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line)
            type_, manifest = event["type"], event["object"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _GarbageError(f"the watch shows no event: {line[:100]!r}") from None
        match type_:
            case "BOOKMARK":
                self.known.reach(_version(manifest))
            case "ADDED" | "MODIFIED" | "DELETED":
                self._tidy(manifest)
                self._take(lambda: self.known.shown(manifest, is_deleted=type_ == "DELETED"))
            case "ERROR" if isinstance(manifest, dict):
                code = manifest.get("code")
                raise refusal_of(code if isinstance(code, int) else 500, manifest)
            case _:
                raise _GarbageError(f"the watch shows an event of no known type: {line[:100]!r}")
        self.health.events_total += 1

    def _take(self, come_in: Callable[[], tuple[Change, ...]]) -> None:
        try:
            changes = come_in()
        except ManifestError as error:
            raise _GarbageError(str(error)) from None
        self.health.contact_s = self._clock()
        if changes:
            for listener in self._listeners:
                listener(changes)

    def _works(self) -> None:
        self.health.fault = ""
        self.health.contact_s = self._clock()
        self._log.worked()


def _version(manifest: Any) -> int:
    try:
        return version_of(manifest)
    except ManifestError as error:
        raise _GarbageError(str(error)) from None


def _items(listed: Manifest) -> list[Any]:
    items = listed.get("items")
    if items is None and "items" in listed:
        return []  # how an empty list may be written
    if not isinstance(items, list):
        raise _GarbageError("a list has no items")
    return items
