"""Checks tokens at the API server of Kubernetes, by TokenReviews. Source: authentication.k8s.io/v1."""

from dataclasses import dataclass
from typing import Any, Final

from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, RefusedError
from hosting.kubernetes.errors import KubernetesError
from hosting.kubernetes.resources import PODS, ResourceType
from scheduler.access.callers import TokenIdentity
from scheduler.access.gate import REVIEW_S, ReviewError

TOKEN_REVIEWS: Final = ResourceType(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", is_namespaced=False
)
_ACCOUNT: Final = "system:serviceaccount:"
_EXTRA: Final = "authentication.kubernetes.io/"


@dataclass(frozen=True, slots=True)
class ApiTokenReviewer:
    api: KubernetesApi
    audience: str

    async def review(self, token: str) -> TokenIdentity | None:
        """The identity; None if the token is not valid for us. Raises `ReviewError`."""
        try:
            return await review(self.api, token, self.audience, deadline_s=REVIEW_S)
        except KubernetesError as error:
            raise ReviewError(str(error)) from None


async def review(api: KubernetesApi, token: str, audience: str, *, deadline_s: float) -> TokenIdentity | None:
    """Whose token it is; None if the API server does not believe it, or it is no service account's, or for another audience.

    The node is the one in the token's own claims, which Kubernetes 1.32 and newer write; else that of the pod that the token names, if
    the pod still has its UID. Raises `KubernetesError`.
    """
    body = {
        "apiVersion": TOKEN_REVIEWS.api_version,
        "kind": TOKEN_REVIEWS.kind,
        "spec": {"token": token, "audiences": [audience]},
    }
    answer = await api.create(TOKEN_REVIEWS, None, body, deadline_s=deadline_s)
    status = answer.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or audience not in (status.get("audiences") or ()):
        return None
    namespace, _, name = str(user.get("username", "")).removeprefix(_ACCOUNT).partition(":")
    if not str(user.get("username", "")).startswith(_ACCOUNT) or not namespace or not name:
        return None
    extra = user.get("extra") or {}
    node = _one(extra, "node-name")
    if not node:
        node = await _node_of_pod(api, namespace, _one(extra, "pod-name"), _one(extra, "pod-uid"), deadline_s)
    return TokenIdentity(namespace, name, node)


def _one(extra: dict[str, Any], key: str) -> str:
    values = extra.get(f"{_EXTRA}{key}") or ()
    return str(values[0]) if values else ""


async def _node_of_pod(api: KubernetesApi, namespace: str, name: str, uid: str, deadline_s: float) -> str:
    if not name or not uid:
        return ""
    try:
        pod = await api.get(PODS, namespace, name, deadline_s=deadline_s)
    except RefusedError as error:
        if error.is_not_found:
            return ""
        raise
    return str(pod.get("spec", {}).get("nodeName") or "") if objects.uid(pod) == uid else ""
