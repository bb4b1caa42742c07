"""`PodTopologySpread`: pods that belong together are spread over nodes, zones or other domains.

Constraints with DoNotSchedule filter, those with ScheduleAnyway score; pods that have none get default ones for the pods of the same
owner, or with the same labels. Name, args and results are those of kube-scheduler's plugin.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hosting.settings import check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    MAX_NODE_SCORE,
    ActionType,
    Code,
    ContextKey,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    SchedulingEvent,
    Status,
    new_status,
)
from scheduler.placing.plugins.base import NodeCache, ShippedPlugin, find
from scheduler.placing.plugins.node_conditions import (
    HOSTNAME,
    NO_SCHEDULE,
    is_selected,
    node_labels,
    spec_of,
    untolerated,
)
from scheduler.placing.plugins.spread_constraints import (
    AlikeCounts,
    AlikePodsIndex,
    Constraint,
    Constraints,
    PodTopologySpreadArgs,
    constraints_of,
    is_going,
    matching,
)

THOUSAND: Final = 1000
"""Scores are in thousandths before they are normalised, so that weights can be whole numbers."""
_NODES: Final = ContextKey("PodTopologySpread/nodes")
"""All nodes, as the cycle's pre-filter got them."""
_REQUIRED: Final = ContextKey("PodTopologySpread/required")
_PREFERRED: Final = ContextKey("PodTopologySpread/preferred")


@dataclass(frozen=True, slots=True)
class _CountedConstraint:
    """A constraint with the pods that it counts in each domain, and the fewest of any domain."""

    constraint: Constraint
    domains: Mapping[str, int]
    fewest: int

    @classmethod
    def of(cls, constraint: Constraint, domains: Mapping[str, int]) -> "_CountedConstraint":
        has_all = len(domains) >= constraint.min_domains
        return cls(constraint, domains, min(domains.values(), default=0) if has_all else 0)

    def moved(self, node: NodeInfo, by: int) -> "_CountedConstraint":
        """As if the domain of the node had so many such pods more."""
        domain = node_labels(node).get(self.constraint.topology_key)
        if domain is None or domain not in self.domains:
            return self
        return self.of(self.constraint, {**self.domains, domain: self.domains[domain] + by})


@dataclass(frozen=True, slots=True)
class _WeighedConstraint:
    """A constraint, the weight of each pod in thousandths, and the pods of each domain. Without `domains` each node is one, and
    `count` says how many of its pods count."""

    constraint: Constraint
    weight: int
    count: Callable[[AlikeCounts], int]
    domains: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class _SpreadScoring:
    """The basis of scores. Nodes that lack a label of the pod's own constraints are `ignored`, and get 0."""

    weighed: tuple[_WeighedConstraint, ...]
    ignored: frozenset[str]


class PodTopologySpread(ShippedPlugin):
    """The plugin. Points: preFilter with its extensions, filter, preScore, score."""

    ARGS = PodTopologySpreadArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        self._defaults = check(args, PodTopologySpreadArgs).defaults()
        self._index = AlikePodsIndex()
        self._counts: NodeCache[tuple[PodInfo, ...], AlikeCounts] = NodeCache(self._index.count)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Pods of the namespace that come, change or go, and nodes that do."""
        return (
            EventWithHint(EventResource.POD, ActionType.ALL, _is_same_namespace),
            EventWithHint(EventResource.NODE, ActionType.ALL),
        )

    # ------------------------------------------------------------ constraints that must hold

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Counts the pods of each domain. Skip for a pod without such constraints."""
        context.write(_NODES, nodes)
        required = constraints_of(pod, self._defaults).required
        if not required:
            return None, new_status(Code.SKIP)
        keys = [each.topology_key for each in required]
        able = [node for node in nodes if node_labels(node).keys() >= set(keys)]
        counts = (self._domains(pod, each, able, matching(each.selects)) for each in required)
        context.write(_REQUIRED, tuple(map(_CountedConstraint.of, required, counts)))
        return None, None

    def add_pod(self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo) -> Status | None:
        self._move(context, pod, other, node, 1)
        return None

    def remove_pod(
        self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo
    ) -> Status | None:
        self._move(context, pod, other, node, -1)
        return None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """With the pod, no domain may have more pods above the fewest than `maxSkew`."""
        labels = node_labels(node)
        for each in context.read(_REQUIRED):
            constraint = each.constraint
            domain = labels.get(constraint.topology_key)
            if domain is None:
                text = (
                    "node(s) didn't match pod topology spread constraints (missing required label "
                    f"{constraint.topology_key})"
                )
                return new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)
            there = each.domains.get(domain, 0) + constraint.self_match
            if there - each.fewest > constraint.max_skew:
                text = (
                    f"node(s) didn't match pod topology spread constraints ({constraint.topology_key}={domain} would "
                    f"have {there} such pods, and a domain has {each.fewest}: more than {constraint.max_skew} apart)"
                )
                return new_status(Code.UNSCHEDULABLE, text)
        return None

    # ------------------------------------------------------------ constraints that should hold

    def pre_score(self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Status | None:
        """Counts the pods of the domains that the nodes are in, also on nodes that are out. Skip for a pod without such constraints."""
        found = constraints_of(pod, self._defaults)
        if not found.preferred:
            return new_status(Code.SKIP)
        ignored = _ignored(found, nodes)
        scored = [node for node in nodes if node.name not in ignored]
        everywhere = find(context, _NODES) or nodes
        weighed = tuple(self._weighed(pod, found.preferred, scored, everywhere))
        context.write(_PREFERRED, _SpreadScoring(weighed, ignored))
        return None

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """The more such pods in the node's domains, the higher; `normalize_score` turns that round."""
        scoring: _SpreadScoring = context.read(_PREFERRED)
        if node.name in scoring.ignored:
            return 0, None
        labels, score = node_labels(node), 0
        for each in scoring.weighed:
            domain = labels.get(each.constraint.topology_key)
            if domain is None:
                continue
            if each.domains is None:
                pods = each.count(self._counts.of(node.name, node.pods))
            else:
                pods = each.domains.get(domain, 0)
            score += pods * each.weight + (each.constraint.max_skew - 1) * THOUSAND
        return score, None

    def normalize_score(self, context: CycleContext, pod: PodInfo, scores: dict[str, int]) -> Status | None:
        scoring: _SpreadScoring = context.read(_PREFERRED)
        counted = [score for name, score in scores.items() if name not in scoring.ignored]
        least, most = min(counted, default=0), max(counted, default=0)
        for name, score in scores.items():
            if name in scoring.ignored:
                scores[name] = 0
            else:
                scores[name] = MAX_NODE_SCORE * (most + least - score) // most if most else MAX_NODE_SCORE
        return None

    # ------------------------------------------------------------ counting

    def _move(self, context: CycleContext, pod: PodInfo, other: PodInfo, node: NodeInfo, by: int) -> None:
        """As if `other` came to the node (`by` 1), or left it (-1)."""
        counted: tuple[_CountedConstraint, ...] | None = find(context, _REQUIRED)
        if counted is None or is_going(other):
            return
        alike = self._index.of(other)
        moved = (
            each.moved(node, by)
            if each.constraint.selects(alike) and _counts_for(pod, each.constraint, node)
            else each
            for each in counted
        )
        context.write(_REQUIRED, tuple(moved))

    def _domains(
        self,
        pod: PodInfo,
        constraint: Constraint,
        nodes: Iterable[NodeInfo],
        count: Callable[[AlikeCounts], int],
    ) -> dict[str, int]:
        """The pods that count in each domain of the nodes that count for the constraint."""
        found: dict[str, int] = {}
        for node in nodes:
            domain = node_labels(node).get(constraint.topology_key)
            if domain is not None and _counts_for(pod, constraint, node):
                found[domain] = found.get(domain, 0) + count(self._counts.of(node.name, node.pods))
        return found

    def _weighed(
        self,
        pod: PodInfo,
        preferred: Iterable[Constraint],
        scored: Sequence[NodeInfo],
        everywhere: Sequence[NodeInfo],
    ) -> Iterable[_WeighedConstraint]:
        for each in preferred:
            key, count = each.topology_key, matching(each.selects)
            if key == HOSTNAME:
                yield _WeighedConstraint(each, _weight(len(scored)), count, None)
                continue
            wanted = {node_labels(node)[key] for node in scored if key in node_labels(node)}
            able = [node for node in everywhere if node_labels(node).get(key) in wanted] if wanted else ()
            yield _WeighedConstraint(each, _weight(len(wanted)), count, self._domains(pod, each, able, count))


def _is_same_namespace(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    about = event.after if event.after is not None else event.before
    is_other = isinstance(about, PodInfo) and about.pod.namespace != pod.pod.namespace
    return QueueingHint.SKIP if is_other else QueueingHint.QUEUE


def _weight(domains: int) -> int:
    """A pod weighs more where there are more domains to go to, as published: ln(domains + 2), in thousandths."""
    return round(THOUSAND * math.log(domains + 2))


def _ignored(found: Constraints, nodes: Sequence[NodeInfo]) -> frozenset[str]:
    """The nodes that lack a label which the pod's own constraints name."""
    if not found.are_own:
        return frozenset()
    keys = {each.topology_key for each in found.preferred}
    return frozenset(node.name for node in nodes if not node_labels(node).keys() >= keys)


def _counts_for(pod: PodInfo, constraint: Constraint, node: NodeInfo) -> bool:
    spec = spec_of(pod.manifest)
    if constraint.honors_affinity and not is_selected(spec, node):
        return False
    return not (constraint.honors_taints and untolerated(node, spec.get("tolerations") or (), NO_SCHEDULE))
