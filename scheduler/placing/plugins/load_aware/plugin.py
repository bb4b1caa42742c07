"""The plugin `LoadAwareScheduling`: reads NodeMetrics and the pods of nodes, and judges by `core`. Source: reference/koordinator.md 2.1.

The pods of a node, those that were given the node a moment ago included, are in the snapshot, because the ledger keeps room for them. So
nothing is remembered here between Reserve and the next report, and nothing has to be given back.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import NODE_METRICS, PriorityClass, priority_class_of
from hosting.kubernetes.resources import Manifest
from hosting.settings import check
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    ContextKey,
    Endpoint,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
    error_status,
    new_status,
    rejected,
)
from scheduler.placing.plugins.base import MAX_CACHED_NODES, NodeCache, ShippedPlugin, remembered
from scheduler.placing.plugins.load_aware.args import LoadAwareSchedulingArgs
from scheduler.placing.plugins.load_aware.core import (
    NONE,
    Freshness,
    NodeLoad,
    NodeReport,
    PodLoad,
    UsageWindow,
    excesses,
    freshness,
    node_load,
    score,
)
from scheduler.placing.plugins.load_aware.reading import (
    NodeLimits,
    is_of_daemon_set,
    node_limits,
    pod_load,
    report_of,
)
from scheduler.placing.plugins.node_conditions import NODES_CHANGE

_ASKING: Final = ContextKey("LoadAwareScheduling/asking")


@dataclass(frozen=True, slots=True)
class _Judged:
    """The load of a node, and what it was read from."""

    pods: tuple[PodInfo, ...]
    manifest: Mapping[str, Any]
    loads: Mapping[str, tuple[PodInfo, PodLoad]]
    """By UID."""
    load: NodeLoad
    limits: NodeLimits
    texts: dict[Hashable, tuple[str, ...]] = field(default_factory=dict)
    """The excesses with a pod, by `_Asking.key`; and so the next."""
    scores: dict[Hashable, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Asking:
    """The pod of a cycle, and what of it the verdicts go by."""

    load: PodLoad
    key: Hashable


class LoadAwareScheduling(ShippedPlugin):
    """The plugin. Points: preFilter, filter, score. `wall` tells seconds since the epoch, for tests."""

    ARGS = LoadAwareSchedulingArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle, wall: Callable[[], float] = time.time) -> None:
        super().__init__(args, handle)
        self._args = read = check(args, LoadAwareSchedulingArgs)
        self._wall = wall
        self._reports: dict[str, NodeReport] = {}
        self._judged: dict[str, _Judged] = {}
        self._limits: NodeCache[Mapping[str, Any], NodeLimits] = NodeCache(
            lambda manifest: node_limits(manifest, read)
        )
        aggregated = read.aggregated
        self._scored_by = (
            UsageWindow(aggregated.score_aggregation_type, aggregated.score_aggregated_duration)
            if aggregated is not None and aggregated.score_aggregation_type is not None
            else None
        )
        self._counts: dict[Freshness, Counter[str]] = {"missing": Counter[str](), "expired": Counter[str]()}
        """How often a node was not judged by its metrics, and what became of it."""
        self._metrics = handle.shared_informer(NODE_METRICS)
        self._metrics.add_event_handler(self._changed)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """New reports, pods that go, and nodes that come or change."""
        return (
            EventWithHint(NODE_METRICS, ActionType.ALL, self._may_help),
            EventWithHint(EventResource.POD, ActionType.DELETE),
            *NODES_CHANGE,
        )

    def _may_help(self, pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
        """Every node is reported each minute: a report of one that is too busy for any pod wakes none up."""
        node = self._handle.node_info_snapshot().get(objects.name(event.after)) if event.after else None
        if node is None:
            return QueueingHint.QUEUE
        judged = self._judged_now(node)
        judging = judged.limits.judging(is_prod=priority_class_of(pod.manifest) is PriorityClass.PROD)
        is_full = excesses(judged.load, NONE, judged.limits.capacity, judging)
        return QueueingHint.SKIP if is_full else QueueingHint.QUEUE

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """Estimate the pod. Skip for pods of DaemonSets, which belong to their node whatever its load. Until the NodeMetrics were read, all
        nodes would look as if they had none. That is a failure, after which the pod is tried again soon: where there is no NodeMetric at all,
        no event would wake it up."""
        if not self._metrics.has_synced and self._args.stale_metrics in {None, "Reject"}:
            return None, error_status("the NodeMetrics of the cluster are not read yet")
        load = pod_load(pod, self._args)
        context.write(_ASKING, _Asking(load, (load.is_prod, tuple(load.estimate.items()))))
        return None, new_status(Code.SKIP) if is_of_daemon_set(pod) else None

    def filter(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> Status | None:
        """The load of the node with the pod must not be above a threshold."""
        report = self._reports.get(node.name)
        found = freshness(report, self._wall(), self._args.node_metric_expiration_seconds)
        if found == "missing" or (
            found == "expired"
            and (self._args.filter_expired_node_metrics or self._args.stale_metrics is not None)
        ):
            return self._without_metrics(found)
        asking: _Asking = context.read(_ASKING)
        judged = self._judged_without(node, pod)
        texts = remembered(judged.texts, asking.key, lambda: _excesses(judged, asking.load))
        return rejected(RejectionClass.CAPACITY, Code.UNSCHEDULABLE, *texts) if texts else None

    def _without_metrics(self, found: Freshness) -> Status | None:
        """Pass or reject a node whose metrics are missing or expired."""
        policy, args = self._args.stale_metrics, self._args
        is_rejected = policy == "Reject" or (
            policy is None and found == "expired" and not args.enable_schedule_when_node_metrics_expired
        )
        self._counts[found]["rejected" if is_rejected else "admitted"] += 1
        text = f"node(s) nodeMetric {found}"
        return rejected(RejectionClass.STALE, Code.UNSCHEDULABLE, text) if is_rejected else None

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """0 to 100: the free share of the node's capacity with the pod on it."""
        report, args = self._reports.get(node.name), self._args
        found = freshness(report, self._wall(), args.node_metric_expiration_seconds)
        is_fresh = found == "fresh"
        if not is_fresh:
            is_low = args.stale_metrics != "Admit"
            self._counts[found]["scoredLow" if is_low else "scoredByEstimates"] += 1
            if is_low:
                return 0, None
        asking: _Asking = context.read(_ASKING)
        judged = self._judged_without(node, pod)
        key = (asking.key, is_fresh)
        return remembered(
            judged.scores, key, lambda: self._scored(judged, asking.load, is_fresh=is_fresh)
        ), None

    def _scored(self, judged: _Judged, asking: PodLoad, *, is_fresh: bool) -> int:
        load, args = judged.load, self._args
        prod_only = args.score_according_prod_usage and asking.is_prod
        used = load.existing(prod_only=prod_only, wanted=self._scored_by) if is_fresh else load.estimated
        used = {name: used.get(name, 0) + asking.estimate[name] for name in args.resources}
        capacity = judged.limits.capacity
        return score(used, capacity, args.weights, args.dominant_resource_weight, args.resources)

    def endpoints(self) -> Sequence[Endpoint]:
        return (
            Endpoint("/node/{nodeName}", self._shown_node),
            Endpoint("/freshness", self._shown_freshness),
        )

    # ------------------------------------------------------------ reading

    def _changed(self, before: Manifest | None, after: Manifest | None) -> None:
        """A NodeMetric has the name of its node."""
        if after is not None:
            self._reports[objects.name(after)] = report_of(after)
        elif before is not None:
            self._reports.pop(objects.name(before), None)

    def _judged_without(self, node: NodeInfo, asking: PodInfo) -> _Judged:
        """The load of the node without the pod itself, which may be kept there already."""
        judged = self._judged_now(node)
        if asking.uid not in judged.loads:
            return judged
        others = {uid: each for uid, each in judged.loads.items() if uid != asking.uid}
        load = self._summed(judged.load.report, [each for _, each in others.values()])
        return _Judged(node.pods, node.manifest, others, load, judged.limits)

    def _judged_now(self, node: NodeInfo) -> _Judged:
        """The load of the node. It is summed anew only if its report, object or pods have changed, and only pods that changed are read
        anew."""
        report, before = self._reports.get(node.name), self._judged.get(node.name)
        if (
            before is not None
            and before.load.report is report
            and before.pods is node.pods
            and before.manifest is node.manifest
        ):
            return before
        known = before.loads if before is not None else {}
        loads = {}
        for pod in node.pods:
            was = known.get(pod.uid)
            if was is None or not _is_same(was[0], pod):
                was = (pod, pod_load(pod, self._args))
            loads[pod.uid] = was
        if len(self._judged) >= MAX_CACHED_NODES:
            self._judged.clear()
        load = self._summed(report, [each for _, each in loads.values()])
        limits = self._limits.of(node.name, node.manifest)
        found = _Judged(node.pods, node.manifest, loads, load, limits)
        self._judged[node.name] = found
        return found

    def _summed(self, report: NodeReport | None, loads: Sequence[PodLoad]) -> NodeLoad:
        return node_load(report, loads, prod_with_system=self._args.prod_usage_include_sys)

    # ------------------------------------------------------------ pages

    def _shown_node(self, parameters: Mapping[str, str]) -> dict[str, Any] | None:
        """The load of a node in whole milli-CPU, bytes and units; None if there is no such node."""
        node = self._handle.node_info_snapshot().get(parameters["nodeName"])
        if node is None:
            return None
        judged = self._judged_now(node)
        load, limits, report = judged.load, judged.limits, judged.load.report
        at = report.updated_at if report is not None else None
        return {
            "nodeMetric": freshness(report, self._wall(), self._args.node_metric_expiration_seconds),
            "updateTime": objects.time_written(datetime.fromtimestamp(at, UTC)) if at is not None else None,
            "capacity": dict(limits.capacity),
            "thresholds": dict(limits.others.thresholds),
            "prodThresholds": dict(limits.prod.thresholds),
            "nodeUsage": dict(report.node) if report is not None and report.node is not None else None,
            "prodUsage": dict(load.prod),
            "notMeasuredYet": {"/".join(key): dict(amounts) for key, amounts in sorted(load.waiting.items())},
            "existing": dict(load.existing()),
        }

    def _shown_freshness(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        """How often a node was looked at without metrics to go by, and what became of it."""
        del parameters
        counts = {str(found): dict(each) for found, each in self._counts.items()}
        return {"staleMetrics": self._args.stale_metrics, "hasSynced": self._metrics.has_synced, **counts}


def _excesses(judged: _Judged, asking: PodLoad) -> tuple[str, ...]:
    judging = judged.limits.judging(is_prod=asking.is_prod)
    return excesses(judged.load, asking.estimate, judged.limits.capacity, judging)


def _is_same(was: PodInfo, pod: PodInfo) -> bool:
    """Whether all that an estimate goes by is as it was."""
    return was.manifest is pod.manifest and was.amount == pod.amount and was.bounds == pod.bounds
