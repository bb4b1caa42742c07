"""Other controllers in the namespaces of a node's pods: read from time to time, because they are few and change seldom."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from agent.sources.described import Found
from agent.sources.others import OfNamespace, others_of
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import (
    LIMIT_RANGES,
    RESOURCE_QUOTAS,
    VERTICAL_POD_AUTOSCALERS,
    Manifest,
    ResourceType,
)
from hosting.logs import Logger

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

LOOK_S: Final = 15.0
"""How often namespaces are looked for that were not read yet."""
AGAIN_S: Final = 300.0


class Controllers:
    """What else is at work on the pods of `found`. `manager` is the field manager of our own resizes."""

    def __init__(
        self,
        api: "KubernetesApi",
        found: Callable[[], Mapping[str, Found]],
        manager: str,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self._api = api
        self._found = found
        self._manager = manager
        self._rng = rng
        self._faults = FaultLog(
            log, "other controllers cannot be read", "other controllers can be read again"
        )
        self._known: dict[str, OfNamespace] = {}
        self._read_s: dict[str, float] = {}

    def of(self, found: Found) -> tuple[str, ...]:
        """What is said of one pod; nothing of a NeonVM."""
        if found.scaling is None:
            return ()
        known = self._known.get(objects.namespace(found.manifest), OfNamespace())
        return others_of(found.manifest, found.scaling.bounds, known, self._manager)

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.read(asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_S * (1 + self._rng.random()))

    async def read(self, now_s: float) -> None:
        """Read the namespaces that are new, or were read long ago."""
        wanted = {objects.namespace(each.manifest) for each in self._found().values()}
        self._known = {name: each for name, each in self._known.items() if name in wanted}
        for namespace in sorted(wanted):
            if namespace in self._known and now_s - self._read_s[namespace] < AGAIN_S:
                continue
            try:
                self._known[namespace] = OfNamespace(
                    await self._list(VERTICAL_POD_AUTOSCALERS, namespace),
                    await self._list(RESOURCE_QUOTAS, namespace),
                    await self._list(LIMIT_RANGES, namespace),
                )
            except KubernetesError as error:
                self._faults.failed(error, namespace, namespace=namespace)
            else:
                self._faults.worked(namespace, namespace=namespace)
                self._read_s[namespace] = now_s

    async def _list(self, type_: ResourceType, namespace: str) -> tuple[Manifest, ...]:
        """Those of a namespace, as the API server has them in memory; none where the type is not installed."""
        try:
            found = await self._api.list(type_, namespace, query={"resourceVersion": "0"})
        except RefusedError as error:
            if error.is_not_found:
                return ()
            raise
        return tuple(found.get("items") or ())
