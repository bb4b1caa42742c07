"""The Eviction API: pods go only if their disruption budgets allow it. Source: policy/v1, Eviction."""

import asyncio
from typing import TYPE_CHECKING

from hosting.kubernetes import objects
from hosting.kubernetes.errors import RefusedError, UnreachableError
from hosting.kubernetes.resources import PODS, Manifest

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


async def evict(
    api: "KubernetesApi", namespace: str, name: str, uid: str, *, deadline_s: float = 5.0
) -> bool:
    """Evict the pod that has this UID. False if there is no such pod any more, even if another has its name. Raises
    `KubernetesError`: `RefusedError.is_budget` for a disruption budget's no.

    The pod is read first: the API server tries an eviction with the wrong UID again and again, for 10 s, and may count it against the
    budget of the pod that is there.
    """
    body: Manifest = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        async with asyncio.timeout(deadline_s):
            if objects.uid(await api.get(PODS, namespace, name)) != uid:
                return False
            await api.create(PODS, namespace, body, name=name, subresource="eviction", deadline_s=deadline_s)
    except TimeoutError:
        raise UnreachableError(f"no answer within {deadline_s:g} s") from None
    except RefusedError as error:
        if error.is_not_found or error.is_conflict:
            return False
        raise
    return True
