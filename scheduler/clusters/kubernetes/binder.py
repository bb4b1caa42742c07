"""The `Binder` port over the API server: a Binding for each pod. Source: the subresource `pods/binding`.

A pod gets its node once, and never another one, so a Binding may be posted again: whether the pod is bound is what its object says.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import NODES, PODS, Manifest
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.ports import NotBound

BIND_DEADLINE_S: Final = 3.0
"""How long a call that binds may take, with the read that follows a refusal."""


class KubernetesBinder:
    """Binds pods through the API server."""

    def __init__(self, api: KubernetesApi, deadline_s: float = BIND_DEADLINE_S) -> None:
        self._api = api
        self._deadline_s = deadline_s

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        """Bind the pod. A server that fails, or does not answer, may have bound the pod; after a refusal its object is read."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._bind(pod, uid, node, annotations)
        except TimeoutError:
            return NotBound(f"no answer within {self._deadline_s:g} s", may_be_bound=True)

    async def _bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        try:
            await self._api.create(
                PODS,
                pod.namespace,
                _binding(pod, uid, node, annotations),
                name=pod.name,
                subresource="binding",
                deadline_s=self._deadline_s,
            )
        except RefusedError as error:
            if error.is_not_found or error.status >= 500:
                return NotBound(str(error), may_be_bound=not error.is_not_found)
            return await self._as_shown(pod, uid, node, error)
        except KubernetesError as error:
            return NotBound(str(error), may_be_bound=True)
        return None

    async def _as_shown(self, pod: PodName, uid: str, node: str, refused: RefusedError) -> NotBound | None:
        """After a refusal the pod's object says whether an earlier call has bound the pod."""
        try:
            found = await self._api.get(PODS, pod.namespace, pod.name, deadline_s=self._deadline_s)
        except RefusedError as error:
            return NotBound(
                str(error if error.is_not_found else refused), may_be_bound=not error.is_not_found
            )
        except KubernetesError as error:
            return NotBound(str(error), may_be_bound=True)
        if objects.uid(found) != uid:
            return NotBound("another pod has that name now")
        name = reading.node_name(found)
        if name == node:
            return None
        return NotBound(f"it is on node {name} already" if name else str(refused))


def _binding(pod: PodName, uid: str, node: str, annotations: Mapping[str, str]) -> Manifest:
    metadata: Manifest = {"name": pod.name, "namespace": pod.namespace, "uid": uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": PODS.api_version,
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node},
    }
