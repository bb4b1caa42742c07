"""Checks tokens at the API server of Kubernetes."""

from dataclasses import dataclass

from hosting.kubernetes import token_reviews
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.errors import KubernetesError
from scheduler.access.callers import TokenIdentity
from scheduler.access.gate import REVIEW_S, ReviewError


@dataclass(frozen=True, slots=True)
class ApiTokenReviewer:
    api: KubernetesApi
    audience: str

    async def review(self, token: str) -> TokenIdentity | None:
        """The identity; None if the token is not valid for us. Raises `ReviewError`."""
        try:
            found = await token_reviews.review(self.api, token, self.audience, deadline_s=REVIEW_S)
        except KubernetesError as error:
            raise ReviewError(str(error)) from None
        return TokenIdentity(found.namespace, found.name, found.node) if found is not None else None
