"""Objects of the API server that have the name of the node and tell schedulers of it: what keeps each of them is the same."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import NODES, Manifest, ResourceType
from hosting.logs import Logger
from hosting.settings import SettingsError

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

LOOK_S: Final = 3.0
"""How often it is looked whether an object must change. Published: `node-topology-sync-interval`."""
REPEAT_S: Final = 300.0
"""After so long an object is written all the same, in case somebody has changed or deleted it."""
RETRY: Final = Backoff(1.0, 2.0, 60.0, 0.5)


class NodeObjectWriter(ABC):
    """Keeps the object of `TYPE` with the name of the node, and makes it if there is none. `node` gives the Node object, None before it was
    read."""

    TYPE: ClassVar[ResourceType]

    def __init__(
        self, api: "KubernetesApi", node: Callable[[], Manifest | None], log: Logger, rng: random.Random
    ) -> None:
        self._api = api
        self._node = node
        self._rng = rng
        self._faults = FaultLog(log, f"{self.TYPE.kind} not written", f"{self.TYPE.kind} written")

    async def run(self) -> None:
        """Keep the object for ever. What fails is tried again with back-off."""
        failures = 0
        while True:
            chance = self._rng.random()
            try:
                has_written = await self.write()
            except (KubernetesError, SettingsError) as error:
                failures += 1
                self._faults.failed(error)
                await asyncio.sleep(RETRY.delay_s(failures, chance))
                continue
            failures = 0
            if has_written:
                self._faults.worked()
            await asyncio.sleep(self.pause_s(chance, has_written=has_written))

    @abstractmethod
    async def write(self) -> bool:
        """Write the object if it must change; False if not, or if too little is known. Each call has the client's deadline.

        Raises `KubernetesError`, and `SettingsError` if what it is made from cannot be read.
        """

    def pause_s(self, chance: float, *, has_written: bool) -> float:
        """The seconds until the next look; `chance` is from 0 to 1."""
        del chance, has_written
        return LOOK_S

    async def put(
        self, node: Manifest, patch: Mapping[str, Any], first: Mapping[str, Any], subresource: str = ""
    ) -> Manifest:
        """The object once `patch` was merged into it. If there is none, it is made of `first`, as one that goes with its node; somebody else may
        make it at the same time. Raises `KubernetesError`."""
        name = objects.name(node)
        try:
            return await self._api.patch(self.TYPE, None, name, dict(patch), subresource=subresource)
        except RefusedError as error:
            if not error.is_not_found:
                raise
        owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": name, "uid": objects.uid(node)}
        metadata = {**first.get("metadata", {}), "name": name, "ownerReferences": [owner]}
        body = {"apiVersion": self.TYPE.api_version, "kind": self.TYPE.kind, **first, "metadata": metadata}
        try:
            await self._api.create(self.TYPE, None, body)
        except RefusedError as error:
            if not error.is_conflict:
                raise
        return await self._api.patch(self.TYPE, None, name, dict(patch), subresource=subresource)
