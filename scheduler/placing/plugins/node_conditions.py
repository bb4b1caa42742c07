"""`NodeName`, `NodeUnschedulable`, `TaintToleration`, `NodeAffinity`: what pods and nodes say of each other.

The names, and what they mean, are those of kube-scheduler's plugins. A scheduler that binds pods by itself needs them; beside
kube-scheduler, which has its own, they are off. Selectors, taints and tolerations are those of the API of core/v1.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from hosting.kubernetes.objects import expression_holds
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    EventWithHint,
    PreFilterResult,
    Status,
    new_status,
    scale_scores,
)
from scheduler.placing.plugins.base import ShippedPlugin

Taint: TypeAlias = Mapping[str, Any]
Toleration: TypeAlias = Mapping[str, Any]

HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
NO_SCHEDULE: Final = frozenset({"NoSchedule", "NoExecute"})
"""The effects of taints that keep pods away."""
PREFER_NO_SCHEDULE: Final = frozenset({"PreferNoSchedule"})
_NAME: Final = "metadata.name"


def node_labels(node: NodeInfo) -> Mapping[str, str]:
    return (node.manifest.get("metadata") or {}).get("labels") or {}


def taints(node: NodeInfo) -> Sequence[Taint]:
    return (node.manifest.get("spec") or {}).get("taints") or ()


def spec_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec of an object; empty where there is none."""
    return manifest.get("spec") or {}


# ------------------------------------------------------------ node affinity


def required_terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The terms of a pod's required node affinity, one of which must match; None where it has none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def preferred_terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The terms of a pod's preferred node affinity, with their weights."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()


def names_selected(terms: Iterable[Mapping[str, Any]]) -> frozenset[str] | None:
    """The names of all nodes that the terms can match; None where a term does not go by names."""
    found: set[str] = set()
    for term in terms:
        names = [
            set(each.get("values") or ())
            for each in term.get("matchFields") or ()
            if each.get("key") == _NAME and each.get("operator") == "In"
        ]
        if not names:
            return None
        found |= set.intersection(*names)
    return frozenset(found)


def is_selected(spec: Mapping[str, Any], node: NodeInfo) -> bool:
    """Whether a pod's nodeSelector and required node affinity let the pod be on the node."""
    labels = node_labels(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = required_terms(spec)
    return terms is None or any(term_matches(term, node.name, labels) for term in terms)


def term_matches(term: Mapping[str, Any], node_name: str, labels: Mapping[str, str]) -> bool:
    """Whether all expressions of a term hold; a term without any matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    name = {_NAME: node_name}
    return all(_holds(each, labels) for each in expressions) and all(_holds(each, name) for each in fields)


def _holds(expression: Mapping[str, Any], found: Mapping[str, str]) -> bool:
    """As an expression of a label selector, with two operators more."""
    operator = expression.get("operator")
    if operator not in {"Gt", "Lt"}:
        return expression_holds(expression, found)
    value, bound = found.get(str(expression.get("key"))), next(iter(expression.get("values") or ()), None)
    return _is_above(value, bound) if operator == "Gt" else _is_above(bound, value)


def _is_above(first: str | None, second: str | None) -> bool:
    """Whether both are whole numbers, and the first one is larger."""
    try:
        return first is not None and second is not None and int(first) > int(second)
    except ValueError:
        return False


# ------------------------------------------------------------ taints


def untolerated(node: NodeInfo, tolerations: Sequence[Toleration], effects: frozenset[str]) -> list[Taint]:
    return [
        taint
        for taint in taints(node)
        if taint.get("effect") in effects and not any(tolerates(each, taint) for each in tolerations)
    ]


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration is for that taint. One without a key is for all keys, one without an effect for all effects."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(toleration.get("key")) and (toleration.get("value") or "") == (
                taint.get("value") or ""
            )
        case "Gt":
            return _is_above(taint.get("value"), toleration.get("value"))
        case "Lt":
            return _is_above(toleration.get("value"), taint.get("value"))
        case _:
            return False


def taint_text(taint: Taint) -> str:
    """A taint as kubectl writes it, `key=value:effect`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


NODES_CHANGE: Final = (EventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE),)
_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class NodeName(ShippedPlugin):
    """A pod that names its node goes nowhere else. Point: filter."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return NODES_CHANGE

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        wanted = spec_of(pod.manifest).get("nodeName")
        if not wanted or wanted == node.name:
            return None
        return new_status(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"node(s) didn't match the requested node name {wanted}"
        )


class NodeUnschedulable(ShippedPlugin):
    """A node that is cordoned takes only pods that tolerate that. Point: filter."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return NODES_CHANGE

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        if not spec_of(node.manifest).get("unschedulable"):
            return None
        if any(tolerates(each, _CORDON) for each in spec_of(pod.manifest).get("tolerations") or ()):
            return None
        return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) were unschedulable")


class TaintToleration(ShippedPlugin):
    """Taints keep pods away that do not tolerate them, or make the node a worse choice. Points: filter, score."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return NODES_CHANGE

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """Every taint NoSchedule or NoExecute must be tolerated."""
        found = untolerated(node, spec_of(pod.manifest).get("tolerations") or (), NO_SCHEDULE)
        if not found:
            return None
        taints = ", ".join(map(taint_text, found))
        return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"node(s) had untolerated taint(s) {taints}")

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        return len(
            untolerated(node, spec_of(pod.manifest).get("tolerations") or (), PREFER_NO_SCHEDULE)
        ), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        """The fewer the better."""
        scale_scores(scores, reverse=True)
        return None


class NodeAffinity(ShippedPlugin):
    """A pod's nodeSelector and node affinity. Points: preFilter, filter, preScore, score."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return NODES_CHANGE

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Skip for a pod that asks for nothing. A pod that goes by the names of nodes gets those."""
        spec = spec_of(pod.manifest)
        terms = required_terms(spec)
        if terms is None and not spec.get("nodeSelector"):
            return None, new_status(Code.SKIP)
        names = names_selected(terms) if terms else None
        return (PreFilterResult(names) if names is not None else None), None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """All of the nodeSelector, and one term of the required affinity."""
        if is_selected(spec_of(pod.manifest), node):
            return None
        return new_status(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector"
        )

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        return None if preferred_terms(spec_of(pod.manifest)) else new_status(Code.SKIP)

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """The sum of the weights of the preferred terms that match."""
        labels = node_labels(node)
        return sum(
            int(each.get("weight") or 0)
            for each in preferred_terms(spec_of(pod.manifest))
            if term_matches(each.get("preference") or {}, node.name, labels)
        ), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        """The more the better."""
        scale_scores(scores)
        return None
