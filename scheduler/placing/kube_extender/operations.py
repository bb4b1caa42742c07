"""What the OpenAPI document of the extender's port says. The messages are Kubernetes' own, `k8s.io/kube-scheduler/extender/v1`.

The structs here are for the document alone: the readers (`messages`) take more, as Go does, and keep Pods and Nodes as they came.
"""

from typing import Annotated, Final

import msgspec

from hosting.problems import DocumentedAnswer, Operation
from scheduler.placing.kube_extender.messages import (
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
    HostPriority,
)

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _NodeMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a node."""

    name: str


class _CalledNode(msgspec.Struct, frozen=True):
    """A Node of Kubernetes."""

    metadata: _NodeMeta


class _PodMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a pod."""

    name: str
    uid: _Text
    namespace: str = ""


class _CalledPod(msgspec.Struct, frozen=True):
    """A Pod of Kubernetes; of the rest of it profiles read what they need."""

    metadata: _PodMeta


class _CalledNodes(msgspec.Struct, frozen=True):
    """A NodeList of Kubernetes."""

    items: tuple[_CalledNode, ...] | None = None


class FilterCall(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """The body of filter and prioritize. Exactly one of `NodeNames` (`nodeCacheCapable: true`) and `Nodes` is there."""

    pod: _CalledPod
    node_names: tuple[str, ...] | None = None
    nodes: _CalledNodes | None = None


class _VictimUid(msgspec.Struct, frozen=True):
    """A victim by its UID."""

    uid: _Text = msgspec.field(name="UID")


class _VictimUids(msgspec.Struct, frozen=True, kw_only=True):
    """The victims of a node by their UIDs, and how many of them a disruption budget protects."""

    pods: tuple[_VictimUid, ...] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: int | None = msgspec.field(name="NumPDBViolations", default=None)


class _VictimPods(msgspec.Struct, frozen=True, kw_only=True):
    """The victims of a node as whole Pods."""

    pods: tuple[_CalledPod, ...] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: int | None = msgspec.field(name="NumPDBViolations", default=None)


class PreemptionCall(msgspec.Struct, frozen=True, kw_only=True):
    """The body of preempt. Exactly one of `NodeNameToMetaVictims` (`nodeCacheCapable: true`) and `NodeNameToVictims` is there."""

    pod: _CalledPod = msgspec.field(name="Pod")
    victims: dict[str, _VictimUids] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)
    whole_victims: dict[str, _VictimPods] | None = msgspec.field(name="NodeNameToVictims", default=None)


class BindingCall(msgspec.Struct, frozen=True, kw_only=True):
    """The body of bind."""

    pod_name: _Text = msgspec.field(name="PodName")
    pod_namespace: _Text = msgspec.field(name="PodNamespace")
    pod_uid: _Text = msgspec.field(name="PodUID")
    node: _Text = msgspec.field(name="Node")


_TAG: Final = "kube-scheduler"
_POD: Final = {"metadata": {"name": "web", "namespace": "default", "uid": "0d9c"}, "spec": {"containers": []}}
_PROBLEMS: Final = {403: "Web pages are refused.", 503: "This scheduler does not lead."}
FILTER: Final = Operation(
    "The nodes where a pod can be",
    {
        200: DocumentedAnswer(
            "Those that stay, and why others do not; `Error` where nothing can be said.", ExtenderFilterResult
        )
    },
    _TAG,
    body=FilterCall,
    examples={"by names": {"Pod": _POD, "NodeNames": ["a", "b"]}},
    problems=_PROBLEMS,
)
PRIORITIZE: Final = Operation(
    "How good each node is, from 0 to 10",
    {200: DocumentedAnswer("The scores; none where there is no opinion.", list[HostPriority])},
    _TAG,
    body=FilterCall,
    examples={"by names": {"Pod": _POD, "NodeNames": ["a", "b"]}},
    problems=_PROBLEMS,
)
PREEMPT: Final = Operation(
    "The nodes where a pod can be once its victims are gone",
    {200: DocumentedAnswer("Those that stay.", ExtenderPreemptionResult)},
    _TAG,
    body=PreemptionCall,
    examples={
        "by UIDs": {
            "Pod": _POD,
            "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "1c2d"}], "NumPDBViolations": 0}},
        }
    },
    problems=_PROBLEMS,
)
BIND: Final = Operation(
    "Bind a pod to a node where the ledger has room for it",
    {200: DocumentedAnswer("An empty `Error` says that it is bound.", ExtenderBindingResult)},
    _TAG,
    body=BindingCall,
    examples={"a pod": {"PodName": "web", "PodNamespace": "default", "PodUID": "0d9c", "Node": "a"}},
    problems=_PROBLEMS,
)
