"""Other controllers at work on the pods of a node: their work is reported, and stays theirs. They are read from time to time, because they are
few and change seldom."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agent.sources.described import Found
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
from protocol.quantities import QuantityError
from protocol.values import Bounds

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

LOOK_S: Final = 15.0
"""How often namespaces are looked for that were not read yet."""
AGAIN_S: Final = 300.0
HASH_LABEL: Final = "pod-template-hash"
BOUNDED: Final = frozenset(
    {
        "cpu",
        "memory",
        *(f"{kind}.{each}" for kind in ("requests", "limits") for each in objects.RESOURCE_NAMES),
    }
)
"""The entries of a ResourceQuota that bound the growth of a pod."""


@dataclass(frozen=True, slots=True)
class OfNamespace:
    """The objects of one namespace that may bound or change pods."""

    autoscalers: tuple[Manifest, ...] = ()
    quotas: tuple[Manifest, ...] = ()
    ranges: tuple[Manifest, ...] = ()


def others_of(pod: Manifest, bounds: Bounds, found: OfNamespace) -> tuple[str, ...]:
    """The other objects that bound or change the pod, as texts for a person."""
    return (
        *_autoscalers(pod, found.autoscalers),
        *_quotas(found.quotas),
        *_ranges(bounds, found.ranges),
    )


def editors_of(pod: Manifest, ours: str) -> tuple[str, ...]:
    """The field managers, other than `ours`, that have resized the pod, as texts. `ours` is the field manager of our own resizes.

    Source: managedFields of an object's metadata, which name the subresource and the manager of each field's last change.
    """
    return tuple(
        f"{each.get('manager')} has resized the pod at {each.get('time')}"
        for each in pod["metadata"].get("managedFields") or ()
        if each.get("subresource") == "resize" and each.get("manager") != ours
    )


def owners(pod: Manifest) -> Iterator[tuple[str, str]]:
    """Kind and name of the pod's controller, and of the Deployment above a ReplicaSet."""
    for each in pod["metadata"].get("ownerReferences") or ():
        if not each.get("controller"):
            continue
        kind, name = str(each.get("kind")), str(each.get("name"))
        yield kind, name
        suffix = f"-{objects.labels(pod).get(HASH_LABEL)}"
        if kind == "ReplicaSet" and name.endswith(suffix):
            yield "Deployment", name.removesuffix(suffix)


def _autoscalers(pod: Manifest, autoscalers: Iterable[Manifest]) -> Iterator[str]:
    known = set(owners(pod))
    for each in autoscalers:
        spec: Mapping[str, Any] = each.get("spec") or {}
        target = spec.get("targetRef") or {}
        mode = (spec.get("updatePolicy") or {}).get("updateMode") or "Auto"
        if (target.get("kind"), target.get("name")) in known and mode != "Off":
            yield (
                f"VerticalPodAutoscaler {objects.name(each)} (updateMode {mode}) sizes {target['kind']} {target['name']} too: "
                'set its updateMode to "Off", or the label parley.dev/enabled to "false"'
            )


def _quotas(quotas: Iterable[Manifest]) -> Iterator[str]:
    for each in quotas:
        hard: Mapping[str, Any] = (each.get("spec") or {}).get("hard") or {}
        bound = [f"{name} {hard[name]}" for name in sorted(hard) if name in BOUNDED]
        if bound:
            yield f"ResourceQuota {objects.name(each)} bounds what the namespace may have: {', '.join(bound)}"


def _ranges(bounds: Bounds, ranges: Iterable[Manifest]) -> Iterator[str]:
    """The ranges that forbid a part of the pod's bounds."""
    most = dict(zip(objects.RESOURCE_NAMES, (bounds.max.vcpu_milli, bounds.max.memory_bytes), strict=True))
    least = dict(zip(objects.RESOURCE_NAMES, (bounds.min.vcpu_milli, bounds.min.memory_bytes), strict=True))
    for each in ranges:
        for limit in (each.get("spec") or {}).get("limits") or ():
            if limit.get("type") not in {"Container", "Pod"}:
                continue
            try:
                upper, lower = objects.amounts(limit.get("max")), objects.amounts(limit.get("min"))
            except QuantityError:
                continue  # another server's matter: this one accepts none such
            cut = [f"max {key} {limit['max'][key]}" for key, value in upper.items() if value < most[key]]
            cut += [f"min {key} {limit['min'][key]}" for key, value in lower.items() if value > least[key]]
            if cut:
                yield (
                    f"LimitRange {objects.name(each)} forbids a part of the bounds, for each {limit['type']}: {', '.join(cut)}"
                )


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
