"""The faults that keep somebody from reaching a program through the API server, in words that name the context and the missing right."""

import re
from dataclasses import dataclass
from typing import Final

from hosting.kubernetes.errors import CredentialsError, KubernetesError, RefusedError
from parley.top.texts import clean

VIEWER_ROLE: Final = "parley-viewer"
_MAX_FAULT: Final = 1000
"""Characters: a fault names a right and the command to check it."""
_TROUBLE: Final = "error trying to reach service: "
"""The beginning of the API server's text if a pod does not answer it. Source: apimachinery, pkg/util/proxy/transport.go."""


@dataclass(frozen=True, slots=True)
class Right:
    """A right at the API server within one namespace."""

    verb: str
    resource: str
    subresource: str = ""
    name: str = ""

    def __str__(self) -> str:
        parts = (self.resource, self.subresource, self.name)
        return f"{self.verb} {'/'.join(part for part in parts if part)}"

    def check(self, context: str, namespace: str) -> str:
        name = f"/{self.name}" if self.name else ""
        words = [f"kubectl auth can-i {self.verb} {self.resource}{name}"]
        if self.subresource:
            words.append(f"--subresource {self.subresource}")
        words.append(f"--namespace {namespace}")
        if context:
            words.append(f"--context {context}")
        return " ".join(words)


LIST_PODS: Final = Right("list", "pods")
PROXY: Final = Right("get", "pods", "proxy")


@dataclass(frozen=True, slots=True)
class Installation:
    """The place of Parley: a context of a kubeconfig, empty within a pod of the cluster; the API server's address; Parley's namespace."""

    context: str
    server: str
    namespace: str

    @property
    def where(self) -> str:
        """The beginning of every message."""
        return f"context {self.context}" if self.context else "this pod's service account"

    def fault(self, error: KubernetesError, right: Right) -> str:
        """Why a call that needs `right` came to nothing, fit to be shown: a program behind the proxy can write a Status, too."""
        return clean(f"{self.where}: {self._why(error, right)}", _MAX_FAULT)

    def _why(self, error: KubernetesError, right: Right) -> str:
        if not isinstance(error, RefusedError):
            return (
                str(error)
                if isinstance(error, CredentialsError)
                else f"the API server {self.server} cannot be reached: {error}"
            )
        match error.status:
            case 401:
                return (
                    "the API server does not accept the credentials (401): they may have expired. Log in again, or choose another "
                    "context"
                )
            case 403:
                who = re.search(r'User "([^"]+)"', error.message)
                named = f" of {who[1]}" if who is not None else ""
                return (
                    f"the right{named} to {right} in {self.namespace} is missing; the Role {VIEWER_ROLE} there gives it. "
                    f"To check: {right.check(self.context, self.namespace)}"
                )
            case 404:
                return f"the API server has not found it: {error.message}"
            case 429:
                return "the API server is busy (429); try again"
            case _:
                return f"the API server refuses: {error}"


def unreachable_pod(error: RefusedError, port: int) -> str | None:
    """The reason why the API server could not reach the port of a pod; None if it says something else. Fit to be shown: a program
    behind the proxy can write a Status, too."""
    if error.status < 500 or _TROUBLE not in error.message:
        return None
    said = error.message.partition(_TROUBLE)[2].strip("'\" ")
    why = clean(said.rpartition("connect: ")[2] if "connect: " in said else said)
    return (
        f"the API server cannot reach its port {port}: {why}. Does a NetworkPolicy keep the API server out?"
    )
