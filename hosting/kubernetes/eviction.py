"""The Eviction API: pods go only where their disruption budgets allow it. Source: policy/v1, Eviction."""

from typing import TYPE_CHECKING

from hosting.kubernetes.errors import RefusedError
from hosting.kubernetes.resources import PODS, Manifest

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi


async def evict(
    api: "KubernetesApi", namespace: str, name: str, uid: str, *, deadline_s: float = 5.0
) -> bool:
    """Evict the pod that has this UID. False where there is no such pod any more, even if another has its name. Raises
    `KubernetesError`: `RefusedError.is_budget` for a disruption budget's no."""
    body: Manifest = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        await api.create(PODS, namespace, body, name=name, subresource="eviction", deadline_s=deadline_s)
    except RefusedError as error:
        if error.is_not_found or error.is_conflict:
            return False
        raise
    return True
