"""An installation on Kubernetes: the pods in which Parley's programs run, as the API server shows them, and the faults that keep somebody from
reaching a program, in words that name the context and the missing right."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from hosting.kubernetes import names
from hosting.kubernetes.errors import CredentialsError, KubernetesError, RefusedError
from hosting.kubernetes.resources import PODS, Manifest
from parley.top.texts import clean

PROGRAM: Final = "app.kubernetes.io/name"
AGENT: Final = "parley-agent"
SCHEDULER: Final = "parley-scheduler"
PORT_WITH_TLS: Final = "tls"
"""The name of a container's port if a program serves its pages with TLS: it goes before the plain one."""
PORTS: Final = {AGENT: ("agent", 10300), SCHEDULER: ("permits", 10299)}
"""The name of the container's port for each program, and its number if no port of the pod has that name."""


@dataclass(frozen=True, slots=True)
class ProgramPod:
    """A pod of the DaemonSet parley-agent or the Deployment parley-scheduler.

    `address` is empty before it has one. `leads`: it bears the label of the scheduler that leads.
    """

    name: str
    node: str
    address: str
    phase: str
    scheme: str
    port: int
    is_ready: bool
    is_ending: bool
    leads: bool

    @property
    def is_running(self) -> bool:
        """Whether it may answer."""
        return self.phase == "Running" and bool(self.address)

    def proxy_path(self, namespace: str, page: str) -> str:
        """The path at the API server that leads to a page of the program."""
        return PODS.path(namespace, f"{self.scheme}:{self.name}:{self.port}", "proxy") + page


def program_pod(found: Manifest, program: str) -> ProgramPod:
    """A pod as a list of the API server has it."""
    metadata, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
    conditions = {each.get("type"): each.get("status") for each in status.get("conditions") or ()}
    scheme, port = _port(spec, program)
    return ProgramPod(
        name=metadata["name"],
        node=spec.get("nodeName", ""),
        address=status.get("podIP", ""),
        phase=status.get("phase", ""),
        scheme=scheme,
        port=port,
        is_ready=conditions.get("Ready") == "True",
        is_ending="deletionTimestamp" in metadata,
        leads=(metadata.get("labels") or {}).get(names.ROLE) == names.LEADER,
    )


def _port(spec: dict[str, Any], program: str) -> tuple[str, int]:
    named = {
        port.get("name"): port["containerPort"]
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
    }
    if PORT_WITH_TLS in named:
        return "https", named[PORT_WITH_TLS]
    name, number = PORTS[program]
    return "http", named.get(name, number)


def best_of_each_node(pods: Iterable[ProgramPod]) -> dict[str, ProgramPod]:
    """The pod to ask on each node, by the node's name: while an agent is replaced there are two."""
    found: dict[str, ProgramPod] = {}
    for pod in sorted(pods, key=_worth):
        if pod.node:
            found[pod.node] = pod
    return dict(sorted(found.items()))


def schedulers_to_ask(
    pods: Iterable[ProgramPod], tried: Iterable[str] = (), leader: str = ""
) -> list[ProgramPod]:
    """The schedulers that may answer, without those whose names were `tried`: first the one at the address `leader`, then the one with the
    leader's label."""
    tried = frozenset(tried)
    may = [pod for pod in pods if pod.is_running and pod.name not in tried]
    return sorted(may, key=lambda pod: (pod.address == leader, pod.leads, *_worth(pod)), reverse=True)


def leader_of(body: bytes) -> str:
    """The address of the leader's pod, if a scheduler that does not lead names it in its answer; else an empty text."""
    try:
        found = msgspec.json.decode(body, type=_Follower)
        return urlsplit(found.leader or "").hostname or ""
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return ""


class _Follower(msgspec.Struct, frozen=True):
    leader: str | None = None


def _worth(pod: ProgramPod) -> tuple[bool, bool, bool, str]:
    return (pod.is_running, not pod.is_ending, pod.is_ready, pod.name)


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
