"""The objects of one type: a reflector keeps them up to date, and lists beside it say what is so now."""

import asyncio
import json
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from hosting.backoff import Backoff
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import (
    NODES,
    PODS,
    SCALING_POLICIES,
    VIRTUAL_MACHINES,
    Manifest,
    ResourceType,
)
from scheduler.clusters.kubernetes.versions import KnownObjects, VersionError, version_of
from scheduler.ports import LOOK_DEADLINE_S

BACKOFF: Final = Backoff(base_s=0.1, cap_s=1.0)
WITH_A_NODE: Final = "spec.nodeName!="


class FeedError(Exception):
    """The API server could not be asked. The text is for a person."""


class Feed:
    """The objects of one type that `selector` (of fields) selects."""

    def __init__(
        self,
        api: KubernetesApi,
        type_: ResourceType,
        clock: Callable[[], float],
        rng: random.Random,
        *,
        selector: str = "",
    ) -> None:
        self._api, self._type, self._clock, self._rng = api, type_, clock, rng
        self._selector = selector
        self._began = asyncio.Event()
        self.known = KnownObjects()
        self.fault = ""

    @property
    def has_begun(self) -> bool:
        return self._began.is_set()

    @property
    def begun_s(self) -> float:
        return self.known.begun_s

    async def synced(self) -> None:
        await self._began.wait()

    async def run(self) -> None:
        failures, must_list = 0, True
        while True:
            try:
                if must_list:
                    await self._list_all()
                    must_list = False
                await self._follow()
            except (KubernetesError, TimeoutError) as error:
                must_list |= isinstance(error, RefusedError) and error.is_expired
                self.fault = "" if must_list and isinstance(error, RefusedError) else str(error)
                failures += 1
                await asyncio.sleep(BACKOFF.delay_s(failures, self._rng))
            else:
                failures = 0

    async def _list_all(self) -> None:
        sent_s = self._clock()
        async with asyncio.timeout(LOOK_DEADLINE_S):
            listed = await self._api.list(self._type, query=self._query())
        self.known.listed_all(listed["items"], version_of(listed), sent_s)
        self.fault = ""
        self._began.set()

    async def _follow(self) -> None:
        query = {**self._query(), "watch": "1", "resourceVersion": str(self.known.position)}
        async with self._api.stream(
            self._type.path(), query, connect_deadline_s=2.0, silence_s=10.0
        ) as lines:
            async for line in lines:
                event = json.loads(line)
                self.fault = ""
                if event["type"] == "BOOKMARK":
                    self.known.reach(version_of(event["object"]))
                else:
                    self.known.shown(event["object"], is_deleted=event["type"] == "DELETED")

    # ------------------------------------------------------------ lists beside the watch

    async def mark(self) -> None:
        """A consistent list of hardly anything: whatever the watch shows from its version on is no older than this call."""
        sent_s = self._clock()
        listed = await self._list(None, "", {"limit": "1"})
        self.known.mark(_version(listed), sent_s)

    async def list_one(self, namespace: str, name: str) -> None:
        """A list by name and not a read: its answer has a version even where it shows that nothing is there."""
        sent_s = self._clock()
        listed = await self._list(namespace, f"metadata.name={name}", {})
        self.known.listed(listed["items"], _version(listed), sent_s, [(namespace, name)])

    async def list_namespace(self, namespace: str, names: Collection[str]) -> None:
        """A list of a namespace, with these objects where they are there."""
        sent_s = self._clock()
        listed = await self._list(namespace, "", {})
        keys = {key for key in self.known.keys_there() if key[0] == namespace} | {
            (namespace, name) for name in names
        }
        self.known.listed(listed["items"], _version(listed), sent_s, keys)

    async def _list(self, namespace: str | None, selector: str, query: dict[str, str]) -> Manifest:
        try:
            return await self._api.list(
                self._type, namespace, query=self._query(selector) | query, deadline_s=LOOK_DEADLINE_S
            )
        except KubernetesError as error:
            raise FeedError(f"{self._type.plural}: {error}") from None

    def _query(self, selector: str = "") -> dict[str, str]:
        terms = ",".join(term for term in (self._selector, selector) if term)
        return {"fieldSelector": terms} if terms else {}


def _version(listed: Manifest) -> int:
    try:
        return version_of(listed)
    except VersionError as error:
        raise FeedError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Feeds:
    """The objects that the ledger rests on."""

    nodes: Feed
    pods: Feed
    machines: Feed
    policies: Feed

    def __iter__(self) -> Iterator[Feed]:
        return iter((self.nodes, self.pods, self.machines, self.policies))


def feeds_of(api: KubernetesApi, clock: Callable[[], float], rng: random.Random) -> Feeds:
    """What the scheduler watches. A pod counts from when it has a node."""
    return Feeds(
        Feed(api, NODES, clock, rng),
        Feed(api, PODS, clock, rng, selector=WITH_A_NODE),
        Feed(api, VIRTUAL_MACHINES, clock, rng),
        Feed(api, SCALING_POLICIES, clock, rng),
    )
