"""The verbs of the extender's port as others see them: counted, for the metrics, and described, for its OpenAPI document.

The names of the metrics are listed in docs/reference/metrics.md. The structs here are for the document alone, as the messages are
Kubernetes' own: the readers (`messages`) take more, as Go does, and keep Pods and Nodes as they came.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from hosting.metrics import AnyFamily, Durations, Family, HistogramFamily
from hosting.problems import DocumentedAnswer, Operation
from scheduler.placing.core.values import Code, Status
from scheduler.placing.kube_extender.messages import (
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionResult,
    HostPriority,
)

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _NodeMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The least that a node must tell."""

    name: str


class _CalledNode(msgspec.Struct, frozen=True):
    """A Node of Kubernetes."""

    metadata: _NodeMeta


class _PodMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The least that a pod must tell."""

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


VERBS: Final = ("filter", "prioritize", "preempt", "bind")


@dataclass(slots=True)
class ExtenderStats:
    """Plain counters, read when somebody scrapes."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By verb and outcome: ok, refused, failed, late, overloaded, malformed, not-leader."""
    durations: dict[str, Durations] = field(default_factory=lambda: {verb: Durations() for verb in VERBS})
    """From a call's bytes to its answer, by verb."""
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Nodes that filter dropped, by the plugin that rejected them and the code of its status."""

    def drop(self, failed: Mapping[str, Status]) -> None:
        for status in failed.values():
            code = status.code
            self.dropped[status.plugin, str(code) if isinstance(code, Code) else "unknown"] += 1

    def families(self, *, under_way: int, in_doubt: int, refused: int, told: int) -> Iterator[AnyFamily]:
        """Every metric with its samples now: numbers of binds, of pods that wait for room, and how often kube-scheduler was told of some."""
        yield Family(
            "counter",
            "parley_scheduler_extender_calls",
            "Calls of kube-scheduler by verb and outcome",
            ("verb", "outcome"),
            tuple((key, value) for key, value in self.calls.items()),
        )
        yield HistogramFamily(
            "parley_scheduler_extender_seconds",
            "From the bytes of a call to its answer",
            tuple(((verb,), durations.now()) for verb, durations in self.durations.items()),
            ("verb",),
        )
        yield Family(
            "counter",
            "parley_scheduler_extender_nodes_dropped",
            "Nodes that filter dropped, by plugin and code",
            ("plugin", "code"),
            tuple((key, value) for key, value in self.dropped.items()),
        )
        yield Family(
            "gauge",
            "parley_scheduler_extender_binds",
            "Binds for which room is kept: under way, or ended without that anybody knows whether the pod was bound",
            ("state",),
            ((("under-way",), float(under_way)), (("in-doubt",), float(in_doubt))),
        )
        yield Family(
            "gauge",
            "parley_scheduler_extender_refused_pods",
            "Pods that were refused and wait for something to happen that helps",
            (),
            (((), float(refused)),),
        )
        yield Family(
            "counter",
            "parley_scheduler_extender_room_freed",
            "How often kube-scheduler was told to try a refused pod again",
            (),
            (((), float(told)),),
        )
