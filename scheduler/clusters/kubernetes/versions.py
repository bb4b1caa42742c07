"""What is known of the objects of one type that are listed, read and watched at the same time: computes only.

Three rules carry it. The known version of an object only rises, whichever way news of the object come. What is not known at the
version up to which the watch has shown everything was not there then, so an older description of it is no news. And each
consistent list that was sent at a moment, with its version, is a *mark*: whatever has that version or a later one holds
all that was accepted before the moment. Versions are resourceVersions of one type, which the API orders as whole numbers.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest

Key: TypeAlias = tuple[str, str]
"""Namespace (empty for objects of the whole cluster) and name."""
MAX_MARKS: Final = 64


class VersionError(ValueError):
    """A resourceVersion cannot be ordered."""


def version_of(manifest: Manifest) -> int:
    """The resourceVersion of an object or a list. Raises `VersionError`."""
    metadata = manifest.get("metadata")
    text = str(metadata.get("resourceVersion", "")) if isinstance(metadata, dict) else ""
    if not text.isdecimal():
        raise VersionError(f"the resourceVersion {text[:60]!r} is no whole number")
    return int(text)


def key_of(manifest: Manifest) -> Key:
    return objects.namespace(manifest), objects.name(manifest)


def uid_of(manifest: Manifest | None) -> str | None:
    return objects.uid(manifest) if manifest is not None else None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an object at `version`: its manifest, None where it was not there. No change that was accepted before `begun_s`
    is missing. `is_new` says that a consistent whole list did not hold the object."""

    version: int
    manifest: Manifest | None
    begun_s: float
    is_new: bool = False


class KnownObjects:
    """The objects of one type. `changed` has the keys of what may have to be told; its reader removes them."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}
        self._position = 0
        self._marks: list[tuple[int, float]] = []
        """Version and time of sending, both rising. The first is the last that the position has reached."""
        self._gone: set[Key] = set()
        self.has_begun = False
        self.changed: set[Key] = set()

    def find(self, key: Key) -> Known | None:
        return self._known.get(key)

    def keys_there(self) -> Iterable[Key]:
        """The keys of all objects that are there."""
        return (key for key, known in self._known.items() if known.manifest is not None)

    def there(self) -> Iterable[Manifest]:
        """All objects that are there."""
        return (known.manifest for known in self._known.values() if known.manifest is not None)

    @property
    def position(self) -> int:
        """The version up to which everything has been shown."""
        return self._position

    @property
    def begun_s(self) -> float:
        """No change of any object that was accepted before this moment is missing."""
        return self._begun_s(self._position)

    # ------------------------------------------------------------ what comes in

    def listed_all(self, items: Iterable[Manifest], version: int, sent_s: float) -> None:
        """A consistent list of everything, sent at `sent_s`."""
        self.listed(items, version, sent_s, list(self._known))
        self.reach(version)
        self.has_begun = True

    def listed(self, items: Iterable[Manifest], version: int, sent_s: float, keys: Iterable[Key]) -> None:
        """A consistent list of what has these keys, and perhaps of more: what of them is missing from it was not there."""
        self.mark(version, sent_s)
        missing = set(keys)
        for item in items:
            missing.discard(key_of(item))
            self._learn(key_of(item), item, version_of(item), sent_s)
        for key in missing:
            self._learn(key, None, version, sent_s)

    def shown(self, manifest: Manifest, *, is_deleted: bool = False) -> None:
        """An event of the watch; a deletion carries the object as it was last, with the version of its deletion."""
        version = version_of(manifest)
        self._learn(key_of(manifest), None if is_deleted else manifest, version, self._begun_s(version))
        self.reach(version)

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
            self._gone.discard(key)  # what is not known at the position was not there
            del self._known[key]

    # ------------------------------------------------------------ rules

    def _learn(self, key: Key, manifest: Manifest | None, version: int, begun_s: float) -> None:
        """News of an object, if they are newer than what is known; old news may still prove that nothing has changed."""
        known = self._known.get(key)
        if known is not None and version <= known.version:
            since_s = begun_s if version == known.version else self._begun_s(known.version)
            if since_s > known.begun_s:
                self._known[key] = replace(known, begun_s=since_s)
            return
        if known is None and version <= self._position:
            return
        is_same = known is not None and uid_of(known.manifest) == uid_of(manifest)
        is_new = known.is_new if known is not None and is_same else self.has_begun
        since_s = max(begun_s, known.begun_s) if known is not None and is_same else begun_s
        self._known[key] = Known(version, manifest, since_s, is_new)
        self.changed.add(key)
        if manifest is None:
            self._gone.add(key)
        else:
            self._gone.discard(key)

    def _begun_s(self, version: int) -> float:
        """The last moment whose mark is not above a version."""
        return max((sent_s for of, sent_s in self._marks if of <= version), default=0.0)
