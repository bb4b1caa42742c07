"""Other controllers in the namespaces of a node's pods: read from time to time, because they are few and change seldom."""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from agent.sources.described import Found
from agent.sources.others import OfNamespace, editors_of, others_of
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import (
    LIMIT_RANGES,
    PODS,
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
    """Reads the other controllers at work on the pods of `found`, all on one node. `manager` is the field manager of our own resizes."""

    def __init__(
        self,
        api: "KubernetesApi",
        node: str,
        found: Callable[[], Mapping[str, Found]],
        *,
        manager: str,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self._api = api
        self._node = node
        self._found = found
        self._manager = manager
        self._rng = rng
        self._faults = FaultLog(
            log, "other controllers cannot be read", "other controllers can be read again"
        )
        self._known: dict[str, OfNamespace] = {}
        self._editors: dict[str, tuple[str, ...]] = {}
        """By the UID of the pod."""
        self._due_s: dict[str, float] = {}
        """When each namespace is to be read; empty stands for the pods themselves."""

    def of(self, found: Found) -> tuple[str, ...]:
        """The texts about one pod; empty for a NeonVM."""
        if found.scaling is None:
            return ()
        pod = found.manifest
        known = self._known.get(objects.namespace(pod), OfNamespace())
        return (
            *others_of(pod, found.scaling.bounds, known),
            *self._editors.get(objects.uid(pod), ()),
        )

    async def run(self) -> None:
        while True:
            await self.read(asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_S * (1 + self._rng.random()))

    async def read(self, now_s: float) -> None:
        """Read the namespaces that are new, or were read long ago, and as often the pods."""
        wanted = {objects.namespace(each.manifest) for each in self._found().values()}
        self._known = {name: each for name, each in self._known.items() if name in wanted}
        self._due_s = {name: due_s for name, due_s in self._due_s.items() if name in wanted | {""}}
        for namespace in ("", *sorted(wanted)) if wanted else ():
            if now_s < self._due_s.get(namespace, 0.0):
                continue
            try:
                if namespace:
                    self._known[namespace] = await self._read_namespace(namespace)
                else:
                    self._editors = await self._read_editors()
            except KubernetesError as error:
                self._faults.failed(error, namespace, namespace=namespace)
            else:
                self._faults.worked(namespace, namespace=namespace)
                self._due_s[namespace] = now_s + AGAIN_S

    async def _read_namespace(self, namespace: str) -> OfNamespace:
        return OfNamespace(
            await self._list(VERTICAL_POD_AUTOSCALERS, namespace),
            await self._list(RESOURCE_QUOTAS, namespace),
            await self._list(LIMIT_RANGES, namespace),
        )

    async def _read_editors(self) -> dict[str, tuple[str, ...]]:
        """Read with the fields' managers, which the watch of pods leaves out to save memory."""
        pods = await self._list(PODS, None, {"fieldSelector": f"spec.nodeName={self._node}"})
        return {objects.uid(pod): editors_of(pod, self._manager) for pod in pods}

    async def _list(
        self, type_: ResourceType, namespace: str | None, query: Mapping[str, str] | None = None
    ) -> tuple[Manifest, ...]:
        """Objects as the API server has them in memory; none if the type is not installed."""
        try:
            found = await self._api.list(type_, namespace, query={"resourceVersion": "0", **(query or {})})
        except RefusedError as error:
            if error.is_not_found:
                return ()
            raise
        return tuple(found.get("items") or ())
