"""The `Binder` port over the API server: a Binding for each pod. Source: the subresource `pods/binding`.

A pod gets its node once, and never another one, so a Binding may be posted again: whether the pod is bound is what its object says.
While an earlier request may still be carried out, a pod without a node may have one a moment later.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import NODES, PODS, Manifest
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.ports import BINDING_SETTLES_S, NotBound

BIND_DEADLINE_S: Final = 3.0
"""How long a call that binds may take, with the read that follows a refusal."""


class KubernetesBinder:
    """Binds pods through the API server."""

    def __init__(self, api: KubernetesApi, deadline_s: float = BIND_DEADLINE_S) -> None:
        self._api = api
        self._deadline_s = deadline_s
        self._lost: dict[str, float] = {}
        """By UID, until when (s, of the loop's clock) a request whose answer was lost may bind the pod."""

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        """Bind the pod. A server that fails, or does not answer, may have bound the pod; after a refusal its object is read."""
        now_s = asyncio.get_running_loop().time()
        self._lost = {each: until_s for each, until_s in self._lost.items() if until_s > now_s}
        lost_until_s = self._lost.pop(uid, None)
        is_known = False
        try:
            async with asyncio.timeout(self._deadline_s):
                outcome = await self._bind(pod, uid, node, annotations, lost_until_s)
            is_known = outcome is None or not outcome.may_be_bound
        except TimeoutError:
            outcome = NotBound(f"no answer within {self._deadline_s:g} s", may_be_bound=True)
        finally:
            if not is_known:  # cancelled, too
                self._lost.setdefault(uid, asyncio.get_running_loop().time() + BINDING_SETTLES_S)
        return outcome

    async def _bind(
        self,
        pod: PodName,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        lost_until_s: float | None,
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
            return await self._as_shown(pod, uid, node, error, lost_until_s)
        except KubernetesError as error:
            return NotBound(str(error), may_be_bound=True)
        return None

    async def _as_shown(
        self, pod: PodName, uid: str, node: str, refused: RefusedError, lost_until_s: float | None
    ) -> NotBound | None:
        """After a refusal the pod's object says whether an earlier call has bound the pod; it may do so until `lost_until_s`."""
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
        if name:
            return NotBound(f"it is on node {name} already")
        if lost_until_s is not None:
            self._lost[uid] = lost_until_s
        return NotBound(str(refused), may_be_bound=lost_until_s is not None)


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
