"""A simulated API server: lists, lists by name and watches with resourceVersions, and what goes wrong with them.

Versions are those of the whole store: other objects, which nobody here looks at, move them too.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.conformance.cluster_truth import Key, Thing
from tests.support.virtual_time import now_s

BOOKMARK_S: Final = 1.0
LOOK_S: Final = 0.01


class ApiError(Exception):
    """The server cannot be asked, or a watch was cut."""


class ExpiredError(Exception):
    """A watch from a version whose successors are forgotten (410)."""


class Type(Enum):
    """The subject of an event of a watch. All but bookmarks carry the object, a deletion as it was last."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True)
class Stored:
    """An object with the version of its last change."""

    thing: Thing
    version: int


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a watch: with its version everything up to it has been shown."""

    type: Type
    version: int
    thing: Thing | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """A consistent list: all that was there at `version`, which is no older than the sending."""

    version: int
    items: tuple[Stored, ...]


@dataclass(slots=True)
class Pace:
    """How slow and how bad a source is. Times are ranges in seconds; `repeats` is the share of events told twice."""

    rng: random.Random
    ask_s: tuple[float, float] = (0.0, 0.0)
    """Until a question is there."""
    answer_s: tuple[float, float] = (0.0, 0.0)
    """Until its answer is there."""
    show_s: tuple[float, float] = (0.0, 0.0)
    """Until an event of a watch is there."""
    repeats: float = 0.0
    fails: bool = False

    async def wait(self, range_s: tuple[float, float]) -> None:
        """As long as chance has it."""
        await asyncio.sleep(self.rng.uniform(*range_s))

    def quick(self) -> None:
        """From now on nothing takes time, and nothing fails."""
        self.ask_s = self.answer_s = self.show_s = (0.0, 0.0)
        self.repeats, self.fails = 0.0, False


@dataclass(slots=True)
class ApiServer:
    """The store, and the ways to ask it."""

    pace: Pace
    _store: dict[Key, Stored] = field(default_factory=dict)
    _log: list[Event] = field(default_factory=list)
    _version: int = 1
    _forgotten: int = 0
    _cuts: int = 0

    def accept(self, key: Key, thing: Thing | None) -> None:
        """A write: an object that takes the name of another ends that first."""
        there = self._store.get(key)
        if there is not None and (thing is None or thing.uid != there.thing.uid):
            self._version += 1
            self._log.append(Event(Type.DELETED, self._version, there.thing))
            del self._store[key]
        if thing is not None:
            self._version += 1
            kind = Type.MODIFIED if key in self._store else Type.ADDED
            self._store[key] = Stored(thing, self._version)
            self._log.append(Event(kind, self._version, thing))

    def cut(self) -> None:
        """Every watch ends, and none can be taken up where it was."""
        self._cuts += 1
        self._version += 1
        self._forgotten = self._version

    async def list(self, keys: Collection[Key] | None = None) -> Listed:
        """All objects, or those of these names. Raises `ApiError`."""
        await self._arrive()
        self._version += 1  # others write, too
        items = tuple(stored for key, stored in self._store.items() if keys is None or key in keys)
        listed = Listed(self._version, items)
        await self.pace.wait(self.pace.answer_s)
        return listed

    async def watch(self, version: int) -> AsyncGenerator[Event, None]:
        """The events after `version`, in order, some of them twice. Raises `ApiError`, `ExpiredError`."""
        await self._arrive()
        cuts, marked_s = self._cuts, now_s()
        while True:
            if version < self._forgotten:
                raise ExpiredError
            if self.pace.fails or cuts != self._cuts:
                raise ApiError("the watch was cut")
            for event in [event for event in self._log if event.version > version]:
                await self.pace.wait(self.pace.show_s)
                if cuts != self._cuts:
                    break
                yield event
                while self.pace.rng.random() < self.pace.repeats:
                    yield self.pace.rng.choice([old for old in self._log if old.version <= event.version])
                version = event.version
            if now_s() >= marked_s + BOOKMARK_S and not any(event.version > version for event in self._log):
                version, marked_s = self._version, now_s()
                yield Event(Type.BOOKMARK, version)
            await asyncio.sleep(LOOK_S)

    async def _arrive(self) -> None:
        await self.pace.wait(self.pace.ask_s)
        if self.pace.fails:
            raise ApiError("the server is away")
