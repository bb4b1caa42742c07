"""`NodeName`, `NodeUnschedulable`, `TaintToleration`, `NodeAffinity`: what pods and nodes say of each other.

The names, and what they mean, are those of kube-scheduler's plugins. A scheduler that binds pods by itself needs them; beside
kube-scheduler, which has its own, they are off.
"""

from collections.abc import Sequence
from typing import Final

from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.reservation import scale_scores
from scheduler.placing.core.status import Code, Status, new_status
from scheduler.placing.core.values import ActionType, EventResource, EventWithHint, PreFilterResult
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_selectors import (
    NO_SCHEDULE,
    PREFER_NO_SCHEDULE,
    is_selected,
    names_selected,
    node_labels,
    preferred_terms,
    required_terms,
    spec_of,
    taint_text,
    term_matches,
    tolerates,
    untolerated,
)

NODES_CHANGE: Final = (EventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE),)
_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class NodeName(ShippedPlugin):
    """A pod that names its node goes nowhere else. Point: filter."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return NODES_CHANGE

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        del context
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
        del context
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
        del context
        found = untolerated(node, spec_of(pod.manifest).get("tolerations") or (), NO_SCHEDULE)
        if not found:
            return None
        taints = ", ".join(map(taint_text, found))
        return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"node(s) had untolerated taint(s) {taints}")

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        del context
        return len(
            untolerated(node, spec_of(pod.manifest).get("tolerations") or (), PREFER_NO_SCHEDULE)
        ), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        """The fewer the better."""
        del context, pod
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
        del context, nodes
        spec = spec_of(pod.manifest)
        terms = required_terms(spec)
        if terms is None and not spec.get("nodeSelector"):
            return None, new_status(Code.SKIP)
        names = names_selected(terms) if terms else None
        return (PreFilterResult(names) if names is not None else None), None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """All of the nodeSelector, and one term of the required affinity."""
        del context
        if is_selected(spec_of(pod.manifest), node):
            return None
        return new_status(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) didn't match Pod's node affinity/selector"
        )

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        del context, nodes
        return None if preferred_terms(spec_of(pod.manifest)) else new_status(Code.SKIP)

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """The sum of the weights of the preferred terms that match."""
        del context
        labels = node_labels(node)
        return sum(
            int(each.get("weight") or 0)
            for each in preferred_terms(spec_of(pod.manifest))
            if term_matches(each.get("preference") or {}, node.name, labels)
        ), None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        """The more the better."""
        del context, pod
        scale_scores(scores)
        return None
