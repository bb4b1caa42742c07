"""Our knowledge of the objects of one type that are listed, read and watched at the same time.

Three rules carry it. The known version of an object only rises, whichever way news of the object come. An object that is unknown at the
version up to which the watch has shown everything did not exist then, so an older description of it is no news. And each consistent list
that was sent at a moment, with its version, is a *mark*: an object with that version or a later one holds all changes that were accepted
before the moment. Versions are resourceVersions of one type; the API orders them as whole numbers (KEP 5504).
"""

import bisect
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

Key: TypeAlias = tuple[str, str]
"""Namespace (empty for objects of the whole cluster) and name."""
MAX_MARKS: Final = 64


_LONGEST_VERSION: Final = 20
"""Digits: a version has 64 bits."""


class ManifestError(ValueError):
    """An answer holds no object of the API: its name, UID or a version that can be ordered is missing."""


@dataclass(frozen=True, slots=True)
class Changed:
    """An object is there, as `manifest` says; `previous` is how it was known before, None if it was not."""

    manifest: dict[str, Any]
    previous: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object is there no more; `manifest` is the last one that was known."""

    manifest: dict[str, Any]


Change: TypeAlias = Changed | Deleted


@dataclass(frozen=True, slots=True)
class Known:
    """Our knowledge of an object at `version`: its manifest, None if it was not there.

    No change that was accepted before `begun_s` is missing. `is_new`: the first whole list did not hold the object. With a selector,
    an object that begins to match is new as well.
    """

    version: int
    manifest: dict[str, Any] | None
    begun_s: float
    is_new: bool = False


def version_of(manifest: Mapping[str, Any]) -> int:
    """The resourceVersion of an object or a list. Raises `ManifestError`."""
    text = _metadata(manifest).get("resourceVersion")
    if not (isinstance(text, str) and text.isdecimal() and len(text) <= _LONGEST_VERSION):
        raise ManifestError(f"the resourceVersion {str(text)[:60]!r} is no whole number")
    return int(text)


def key_of(manifest: Mapping[str, Any]) -> Key:
    """Namespace and name of an object. Raises `ManifestError`."""
    metadata = _metadata(manifest)
    if not all(isinstance(metadata.get(name), str) for name in ("name", "uid")):
        raise ManifestError("an object has no name or no UID")
    return str(metadata.get("namespace", "")), metadata["name"]


def _read(items: Iterable[dict[str, Any]]) -> list[tuple[Key, int, dict[str, Any]]]:
    return [(key_of(item), version_of(item), item) for item in items]


def _metadata(manifest: Any) -> Mapping[str, Any]:
    found = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    if not isinstance(found, Mapping):
        raise ManifestError("an object has no metadata")
    return found


class KnownObjects:
    """The objects of one type. Each input returns the changes that it makes, the end of an object before one made anew."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}
        """Those that are not there included, until the position has passed their end."""
        self._objects: dict[Key, dict[str, Any]] = {}
        self._gone: set[Key] = set()
        self._marks: list[tuple[int, float]] = []
        """Version and time of sending, both rising. The first is the last that the position has reached."""
        self._position = 0
        self._has_begun = False
        self.objects: Final[Mapping[Key, dict[str, Any]]] = MappingProxyType(self._objects)
        """All objects that are there."""

    @property
    def has_begun(self) -> bool:
        """Whether a whole list has been seen."""
        return self._has_begun

    @property
    def position(self) -> int:
        """The version up to which everything has been shown."""
        return self._position

    @property
    def begun_s(self) -> float:
        """No change of any object that was accepted before this moment is missing; at first minus infinity."""
        return self._begun_s(self._position)

    def find(self, key: Key) -> Known | None:
        """Our knowledge of one object; None if there is none, which means that the object did not exist at `position`."""
        return self._known.get(key)

    # ------------------------------------------------------------ inputs

    def listed_all(
        self, items: Collection[dict[str, Any]], version: int, sent_s: float, sent_at: int
    ) -> tuple[Change, ...]:
        """A consistent list of everything, sent at `sent_s`, when the position was `sent_at`.

        A list that is older than what had been shown before means that the server's history began anew, as after a restore: then
        the list alone counts. Raises `ManifestError`, and nothing has changed.
        """
        if version < sent_at:
            _read(items)  # raises before anything is forgotten
            self._forget()
        changes = self.listed(items, version, sent_s, list(self._known))
        self.reach(version)
        self._has_begun = True
        return changes

    def listed(
        self, items: Collection[dict[str, Any]], version: int, sent_s: float, keys: Iterable[Key]
    ) -> tuple[Change, ...]:
        """A consistent list of the objects with these keys, and perhaps of more: a key that is missing from it did not exist."""
        found = _read(items)
        self.mark(version, sent_s)
        changes: list[Change] = []
        for key in set(keys).difference(key for key, _, _ in found):
            if (
                key in self._known or version > self._position
            ):  # else it could bring back an object that a later answer still shows
                changes += self._learn(key, None, version, sent_s)
        for key, of, item in found:
            if key in self._known or of > self._position or version >= self._position:
                changes += self._learn(key, item, of, sent_s)
        return tuple(changes)

    def shown(self, manifest: dict[str, Any], *, is_deleted: bool = False) -> tuple[Change, ...]:
        """An event of the watch; a deletion carries the object as it was last, with the version of its deletion."""
        key, version = key_of(manifest), version_of(manifest)
        changes: tuple[Change, ...] = ()
        if key in self._known or version > self._position:
            changes = self._learn(key, None if is_deleted else manifest, version, self._begun_s(version))
        self.reach(version)
        return changes

    def mark(self, version: int, sent_s: float) -> None:
        """A consistent list that was sent then has come at that version."""
        if any(version >= of and sent_s <= at_s for of, at_s in self._marks):
            return
        self._marks = [mark for mark in self._marks if mark[0] < version or mark[1] > sent_s]
        bisect.insort(self._marks, (version, sent_s))
        if len(self._marks) > MAX_MARKS:
            del self._marks[1]  # older moments are true, too

    def reach(self, version: int) -> None:
        """Everything up to a version has been shown: by a whole list, an event or a bookmark."""
        self._position = max(self._position, version)
        reached = sum(of <= self._position for of, _ in self._marks)
        if reached > 1:
            del self._marks[: reached - 1]
        for key in [key for key in self._gone if self._known[key].version <= self._position]:
            self._gone.discard(key)  # an object that is not known at the position was not there
            del self._known[key]

    # ------------------------------------------------------------ rules

    def _learn(
        self, key: Key, manifest: dict[str, Any] | None, version: int, begun_s: float
    ) -> tuple[Change, ...]:
        """News of an object, if they are newer than the known state; old news may still prove that nothing has changed."""
        known = self._known.get(key)
        if known is not None and version <= known.version:
            since_s = begun_s if version == known.version else self._begun_s(known.version)
            self._known[key] = replace(known, begun_s=max(since_s, known.begun_s))
            return ()
        previous = self._objects.get(key)
        is_same = known is not None and _uid(previous) == _uid(manifest)
        is_new = known.is_new if known is not None and is_same else self._has_begun
        since_s = max(begun_s, known.begun_s) if known is not None and is_same else begun_s
        self._known[key] = Known(version, manifest, since_s, is_new)
        if manifest is None:
            self._gone.add(key)
            self._objects.pop(key, None)
        else:
            self._gone.discard(key)
            self._objects[key] = manifest
        return _changes(previous, manifest)

    def _forget(self) -> None:
        """All versions are worth nothing; the objects stay, until a list shows their state."""
        self._known = {key: replace(known, version=-1) for key, known in self._known.items()}
        self._marks.clear()
        self._position = 0

    def _begun_s(self, version: int) -> float:
        """The last moment whose mark is not above a version."""
        return max((sent_s for of, sent_s in self._marks if of <= version), default=-math.inf)


def _uid(manifest: Mapping[str, Any] | None) -> str | None:
    return manifest["metadata"]["uid"] if manifest is not None else None


def _changes(previous: dict[str, Any] | None, manifest: dict[str, Any] | None) -> tuple[Change, ...]:
    if previous is not None and _uid(previous) != _uid(manifest):
        ended = (Deleted(previous),)
        return ended if manifest is None else (*ended, Changed(manifest))
    return () if manifest is None or manifest == previous else (Changed(manifest, previous),)
