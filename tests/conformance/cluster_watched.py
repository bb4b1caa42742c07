"""A reference adapter for a cluster that is watched: what an adapter for Kubernetes does about versions, and no more.

Three rules carry it. An object's known version only rises, whichever way news of it comes. What is not known at the
version up to which the watch has shown everything was not there then, so that an older description of it is no news.
And each consistent list or read that was sent at a moment, with its version, is a *mark*: whatever has that version or a
later one holds all that was accepted before the moment.
"""

import asyncio
import bisect
import random
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Self

from hosting.backoff import Backoff
from protocol.values import Observation
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.ports import LOOK_DEADLINE_S, ClusterUnreachableError
from tests.conformance.cluster_api_server import ApiError, ApiServer, Event, ExpiredError, Listed, Type
from tests.conformance.cluster_truth import Key, Thing
from tests.support.virtual_time import now_s

MAX_MARKS: Final = 64
WATCH_SILENCE_S: Final = 10.0
"""How long a watch may be silent: its bookmarks come more often."""
BACKOFF: Final = Backoff(base_s=0.1, cap_s=1.0)


@dataclass(frozen=True, slots=True)
class Known:
    """The knowledge of an object at `version`: its state, None if it was not there. No change that was accepted before
    `begun_s` is missing. `is_new` says that a consistent list did not hold it."""

    version: int
    thing: Thing | None
    begun_s: float
    is_new: bool = False

    @property
    def uid(self) -> str | None:
        return self.thing.uid if self.thing is not None else None


class WatchedCluster:
    """The `Cluster` port over list and watch. Its watch runs while it is entered."""

    def __init__(self, api: ApiServer, rng: random.Random) -> None:
        self._api = api
        self._rng = rng
        self._known: dict[Key, Known] = {}
        self._told: dict[Key, Known] = {}
        self._changed: set[Key] = set()
        """The objects that may have to be told; never more than there are."""
        self._position = 0
        """The version up to which everything has been shown."""
        self._marks: list[tuple[int, float]] = []
        """Version and time of sending, both rising. The first is the last that the position has reached."""
        self._began = asyncio.Event()
        self._fault = ""
        self._feed: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._feed = asyncio.create_task(self._run(), name="watch of the cluster")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._feed is not None
        self._feed.cancel()
        await asyncio.wait([self._feed])

    # ------------------------------------------------------------ the port

    async def refresh(self) -> tuple[events.Input, ...]:
        """The changes, if the watch is known to run."""
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                await self._began.wait()
                sent_s = now_s()
                self._mark((await self._api.list(())).version, sent_s)
        except (TimeoutError, ApiError) as error:
            raise ClusterUnreachableError(str(error)) from None
        if self._fault:
            raise ClusterUnreachableError(self._fault)
        return self._tell(())

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """A list by name and not a read: its answer has a version even where it shows that nothing is there."""
        keys: list[Key] = [("vm", pod.name) for pod in pods]
        sent_s = now_s()
        try:
            async with asyncio.timeout(LOOK_DEADLINE_S):
                listed = await self._api.list(keys)
        except (TimeoutError, ApiError) as error:
            raise ClusterUnreachableError(str(error)) from None
        self._take_list(listed, keys, sent_s)
        return self._tell(keys)

    def look(self, pod: PodName) -> events.Look:
        """The VM as it was told last."""
        told = self._told.get(("vm", pod.name))
        if told is None or told.thing is None or told.thing.has_ended:
            return events.Look(found=False)
        return events.Look(True, Observation(told.thing.amount, told.thing.amount, told.begun_s))

    # ------------------------------------------------------------ what comes in

    async def _run(self) -> None:
        failures, must_list = 0, True
        while True:
            try:
                if must_list:
                    await self._list()
                    must_list = False
                async with aclosing(self._api.watch(self._position)) as watch:
                    await self._follow(watch)
            except ExpiredError:
                must_list = True
            except (ApiError, TimeoutError) as error:
                self._fault = str(error) or "the watch is silent"
                failures += 1
                await asyncio.sleep(BACKOFF.delay_s(failures, self._rng.random()))
            else:
                failures = 0

    async def _list(self) -> None:
        sent_s = now_s()
        async with asyncio.timeout(LOOK_DEADLINE_S):
            listed = await self._api.list()
        self._take_list(listed, list(self._known), sent_s)
        self._reach(listed.version)
        self._fault = ""
        self._began.set()

    async def _follow(self, watch: AsyncIterator[Event]) -> None:
        while True:
            async with asyncio.timeout(WATCH_SILENCE_S):
                event = await anext(watch)
            self._fault = ""
            if event.thing is not None:
                state = None if event.type is Type.DELETED else event.thing
                self._learn(event.thing.key, state, event.version, self._begun_s(event.version))
            self._reach(event.version)

    def _take_list(self, listed: Listed, keys: Iterable[Key], sent_s: float) -> None:
        """A consistent list of what has these names, or of everything: what is missing from it was not there."""
        self._mark(listed.version, sent_s)
        missing = set(keys)
        for item in listed.items:
            missing.discard(item.thing.key)
            self._learn(item.thing.key, item.thing, item.version, sent_s)
        for key in missing:
            self._learn(key, None, listed.version, sent_s)

    def _learn(self, key: Key, thing: Thing | None, version: int, begun_s: float) -> None:
        """News of an object, if they are newer than what is known; old news may still prove that nothing has changed."""
        known = self._known.get(key)
        if known is not None and version <= known.version:
            since_s = begun_s if version == known.version else self._begun_s(known.version)
            self._known[key] = replace(known, begun_s=max(since_s, known.begun_s))
        elif known is not None or version > self._position:
            uid = thing.uid if thing is not None else None
            is_same = known is not None and known.uid == uid
            is_new = known.is_new if known is not None and is_same else self._began.is_set()
            since_s = max(begun_s, known.begun_s) if known is not None and is_same else begun_s
            self._known[key] = Known(version, thing, since_s, is_new)
            self._changed.add(key)

    # ------------------------------------------------------------ versions and moments

    def _mark(self, version: int, sent_s: float) -> None:
        """A consistent list or read that was sent then came at that version."""
        if any(version >= of and sent_s <= at_s for of, at_s in self._marks):
            return
        self._marks = [mark for mark in self._marks if mark[0] < version or mark[1] > sent_s]
        bisect.insort(self._marks, (version, sent_s))
        if len(self._marks) > MAX_MARKS:
            del self._marks[1]  # older moments are true, too

    def _begun_s(self, version: int) -> float:
        """The last moment whose mark is not above a version."""
        return max((sent_s for of, sent_s in self._marks if of <= version), default=0.0)

    def _reach(self, version: int) -> None:
        """Everything up to a version has been shown: what went before it needs to be remembered no more."""
        self._position = max(self._position, version)
        reached = [mark for mark in self._marks if mark[0] <= self._position]
        self._marks = reached[-1:] + self._marks[len(reached) :]
        for key in [key for key, known in self._known.items() if known.thing is None]:
            if self._known[key].version <= self._position and key not in self._told:
                del self._known[key]
                self._changed.discard(key)

    # ------------------------------------------------------------ what is told

    def _tell(self, asked: Collection[Key]) -> tuple[events.Input, ...]:
        """The differences from what was told, and the objects that were asked about. Nobody may come between this and the caller."""
        gone: list[events.Input] = []
        seen: list[events.Input] = []
        for key in sorted(self._changed | set(asked)):
            known, told = self._known.get(key), self._told.get(key)
            if told is not None and told.thing is not None and (known is None or known.uid != told.uid):
                gone.append(told.thing.told_gone())
                del self._told[key]
                told = None
            if known is None or known.thing is None:
                continue
            if told is None or told.thing != known.thing or key in asked:
                is_new = known.is_new and told is None
                seen.append(known.thing.told(known.begun_s, is_new=is_new))
                self._told[key] = known
        self._changed.clear()
        whole = [events.ClusterRead(self._begun_s(self._position))] if self._began.is_set() else []
        return (*gone, *seen, *whole)
