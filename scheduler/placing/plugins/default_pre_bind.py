"""`DefaultPreBind`: all that the pre-bind plugins have changed of a pod is written in one call. Source: seed 002, reference/koordinator.md 2.9."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final

from hosting.backoff import Backoff
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError, UnreachableError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.resources import PODS, Manifest
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import Code, Status, error_status, new_status
from scheduler.placing.plugins.base import ShippedPlugin

TRIES: Final = 4
WRITE_S: Final = 5.0
"""How long the API server has for one try."""
_BACKOFF: Final = Backoff(base_s=0.2, cap_s=2.0)


class DefaultPreBind(ShippedPlugin):
    """The plugin. Point: preBind. Where there is no API server it has nothing to do. Of a Reservation that looks for a node, the Reservation
    is written."""

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._rng = random.Random()

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """Changes nothing itself."""
        return None

    async def apply_patch(
        self, context: CycleContext, original: Mapping[str, Any], modified: Mapping[str, Any]
    ) -> Status | None:
        """Write the difference, to this very pod. Tried again after a conflict, and if the API server is overloaded or does not answer:
        the same patch twice is the same as once."""
        api: KubernetesApi | None = self._handle.client_set()
        patch = merge_patch(original, modified)
        if api is None:
            return new_status(Code.SKIP)
        if not patch:
            return None
        pod = dict(original)
        type_ = PUBLISHED_RESERVATIONS if pod.get("kind") == PUBLISHED_RESERVATIONS.kind else PODS
        if "deletionTimestamp" in pod["metadata"]:
            return error_status(
                f"{type_.kind.lower()} {objects.namespace(pod)}/{objects.name(pod)} is being deleted"
            )
        patch.setdefault("metadata", {})["uid"] = objects.uid(pod)
        failures = 0
        while True:
            try:
                await api.patch(type_, objects.namespace(pod), objects.name(pod), patch, deadline_s=WRITE_S)
            except KubernetesError as error:
                failures += 1
                if failures >= TRIES or not _is_passing(error):
                    return error_status(f"the pod was not changed before it is bound: {error}")
            else:
                return None
            await asyncio.sleep(_BACKOFF.delay_s(failures, self._rng.random()))


def _is_passing(error: KubernetesError) -> bool:
    """Whether another try may succeed."""
    return isinstance(error, UnreachableError) or (
        isinstance(error, RefusedError) and (error.is_conflict or error.is_overloaded)
    )


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Manifest:
    """The JSON merge patch (RFC 7386) from one object to another; empty if they are equal. A list is replaced as a whole."""
    if before == after:
        return {}
    patch: Manifest = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = merge_patch(old, value)
            if inner:
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch
