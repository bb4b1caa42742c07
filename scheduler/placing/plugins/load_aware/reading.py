"""What `LoadAwareScheduling` reads of objects: NodeMetrics, nodes and pods as the values of `core`. Pure.

An annotation that makes no sense counts as if it were not there. Of a NodeMetric that makes none the last one stays, until it is too old.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import Field

from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.koordinator import NODE, SCHEDULING, PriorityClass, priority_class_of
from hosting.settings import FaultsError, Settings, check
from protocol import quantities
from protocol.durations import parse_go_duration
from protocol.quantities import QuantityError
from protocol.values import RESOURCE_NAMES
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins.amounts import readable_amounts
from scheduler.placing.plugins.load_aware.args import (
    DEFAULT_THRESHOLDS,
    AggregatedUsageArgs,
    LoadAwareSchedulingArgs,
    Thresholds,
    Weights,
)
from scheduler.placing.plugins.load_aware.core import (
    DEFAULT_ESTIMATES,
    NONE,
    REPORT_INTERVAL_S,
    Amounts,
    NodeReport,
    PodLoad,
    PodReport,
    UsageLimits,
    UsageWindow,
    estimate,
)

RAW_ALLOCATABLE: Final = NODE + "raw-allocatable"
"""Annotation of a node, JSON: its allocatable amounts before a component amplified them."""
USAGE_THRESHOLDS: Final = SCHEDULING + "usage-thresholds"
"""Annotation of a node, JSON: thresholds of its own."""
OWN_ESTIMATION: Final = tuple(
    f"{SCHEDULING}load-estimated-{each}"
    for each in ("scaling-factors", "seconds-after-pod-scheduled", "seconds-after-initialized")
)
"""Annotations of a pod: factors of its own (JSON), and for how many seconds it counts with its estimate at least."""
_PREFIXES: Final = {PriorityClass.BATCH: "kubernetes.io/batch-", PriorityClass.MID: "kubernetes.io/mid-"}
"""The resources that pods of these classes request instead of CPU (in whole milli-CPU) and memory."""


# ------------------------------------------------------------ NodeMetric


def amounts(written: Mapping[str, Any] | None) -> dict[str, int]:
    """A list of resources. Raises `QuantityError`."""
    found = {name: quantities.parse(str(amount)) for name, amount in (written or {}).items()}
    return {name: each.milli_value() if name == "cpu" else each.value() for name, each in found.items()}


def report_of(manifest: Mapping[str, Any]) -> NodeReport:
    """The figures of a NodeMetric (slo.koordinator.sh/v1alpha1). Raises `ValueError`, also for an amount or a moment that is none."""
    spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
    policy, info = spec.get("metricCollectPolicy") or {}, status.get("nodeMetric") or {}
    windows = defaultdict[str, dict[float, Amounts]](dict)
    for each in info.get("aggregatedNodeUsages") or ():
        for type_, use in (each.get("usage") or {}).items():
            if found := amounts(use.get("resources")):
                windows[type_][parse_go_duration(each["duration"])] = found
    return NodeReport(
        moment(status.get("updateTime")),
        policy.get("reportIntervalSeconds") or REPORT_INTERVAL_S,
        _use(info, "nodeUsage") or None,
        _use(info, "systemUsage"),
        {type_: tuple(sorted(by.items())) for type_, by in windows.items()},
        {
            (each.get("namespace", ""), each["name"]): PodReport(
                _use(each, "podUsage"),
                each["priority"] == PriorityClass.PROD if each.get("priority") else None,
                amounts(held) if (held := (each.get("extensions") or {}).get(names.HELD)) else None,
            )
            for each in status.get("podsMetric") or ()
        },
    )


def _use(of: Mapping[str, Any], name: str) -> dict[str, int]:
    return amounts((of.get(name) or {}).get("resources"))


def moment(text: str | None) -> float | None:
    """Seconds since the epoch of a moment in RFC 3339. Raises `ValueError`."""
    return datetime.fromisoformat(text).timestamp() if text else None


# ------------------------------------------------------------ nodes


class NodeThresholds(Settings):
    """The annotation `USAGE_THRESHOLDS` of a node."""

    usage_thresholds: Thresholds = Field(default_factory=dict)
    prod_usage_thresholds: Thresholds = Field(default_factory=dict)
    aggregated_usage: AggregatedUsageArgs | None = None


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """What the object of a node says: its capacity, and the thresholds for prod pods and for others."""

    capacity: Amounts
    prod: UsageLimits
    others: UsageLimits

    def judging(self, *, is_prod: bool) -> UsageLimits:
        return self.prod if is_prod else self.others


def node_limits(manifest: Mapping[str, Any], args: LoadAwareSchedulingArgs) -> NodeLimits:
    """Of each group of thresholds the node's own go before those of `args`; prod's group judges prod pods, else the aggregated one, else
    the plain one. The capacity is that without amplification, for measured use is compared with it."""
    try:
        own = check(_annotation(manifest, USAGE_THRESHOLDS), NodeThresholds)
    except FaultsError:
        own = NodeThresholds()
    others = UsageLimits(own.usage_thresholds or args.usage_thresholds or DEFAULT_THRESHOLDS)
    for each in (own.aggregated_usage, args.aggregated):
        if each is not None and each.usage_thresholds and each.usage_aggregation_type is not None:
            wanted = UsageWindow(each.usage_aggregation_type, each.usage_aggregated_duration)
            others = UsageLimits(each.usage_thresholds, wanted=wanted)
            break
    prod = own.prod_usage_thresholds or args.prod_usage_thresholds
    capacity = amounts((manifest.get("status") or {}).get("allocatable"))
    with suppress(QuantityError, AttributeError):
        capacity |= amounts(_annotation(manifest, RAW_ALLOCATABLE))
    return NodeLimits(
        capacity,
        UsageLimits(prod, prod_only=True) if prod else others,
        others,
    )


def _annotation(manifest: Mapping[str, Any], name: str) -> Any:
    """The JSON of an annotation; None without one, and for anything else."""
    text = ((manifest.get("metadata") or {}).get("annotations") or {}).get(name)
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


# ------------------------------------------------------------ pods


class PodEstimation(Settings):
    """The annotations of a pod about its estimate; those that are left out are empty."""

    factors: Weights | None = None
    after_scheduled: Annotated[int, Field(ge=0)] | None = None
    after_initialized: Annotated[int, Field(ge=0)] | None = None


def pod_load(pod: PodInfo, args: LoadAwareSchedulingArgs) -> PodLoad:
    """A pod with its estimate, as far as it can be read; `pod.amount` is what the ledger keeps for the pod on its node."""
    own = _own_estimation(pod) if args.allow_customize_estimation else PodEstimation()
    class_ = priority_class_of(pod.manifest)
    scheduled_at, initialized_at = (_since(pod.manifest, each) for each in ("PodScheduled", "Initialized"))
    after_scheduled_s = own.after_scheduled or args.estimated_seconds_after_pod_scheduled
    after_initialized_s = own.after_initialized or args.estimated_seconds_after_initialized
    deadline_at = None
    if after_initialized_s and initialized_at is not None:
        deadline_at = initialized_at + after_initialized_s
    elif after_scheduled_s and scheduled_at is not None:
        deadline_at = scheduled_at + after_scheduled_s
    return PodLoad(
        (pod.pod.namespace, pod.pod.name),
        pod.uid,
        _estimate(pod, class_, args.resources, {**args.factors, **(own.factors or {})}),
        class_ is PriorityClass.PROD,
        scheduled_at,
        deadline_at,
        dict(pod.amount.named()) if pod.bounds is not None else None,
    )


def _own_estimation(pod: PodInfo) -> PodEstimation:
    factors, scheduled, initialized = (_annotation(pod.manifest, name) for name in OWN_ESTIMATION)
    found = {"factors": factors, "afterScheduled": scheduled, "afterInitialized": initialized}
    try:
        return check(found, PodEstimation)
    except FaultsError:
        return PodEstimation()


def _estimate(
    pod: PodInfo, class_: PriorityClass, resources: Iterable[str], factors: Mapping[str, int]
) -> dict[str, int]:
    """The likely use of the pod. One that grows may use what it is permitted, and no more: its request is where it began, its limit
    where it may never get."""
    asked, limits = readable_amounts(pod), dict[str, int]()
    for name in asked.keys() - set(RESOURCE_NAMES):  # an extended resource is its own limit
        limits[name] = asked[name]
    if pod.bounds is None:
        with suppress(QuantityError, KeyError):
            limits |= {str(name): limit for name, limit in pods.limits(dict(pod.manifest)).items()}
        for name in RESOURCE_NAMES if class_ in _PREFIXES else ():
            if amount := asked.get(_PREFIXES[class_] + name):
                asked[name] = limits[name] = amount
    defaults = DEFAULT_ESTIMATES if class_ is not PriorityClass.MID else NONE
    found = estimate(asked, limits, factors, defaults)
    return {name: found.get(name, 0) for name in resources}


def _since(manifest: Mapping[str, Any], type_: str) -> float | None:
    """Since when the pod has that condition; None if it has not."""
    found = objects.condition(dict(manifest), type_)
    return moment(found.get("lastTransitionTime")) if found and found.get("status") == "True" else None


def is_of_daemon_set(pod: PodInfo) -> bool:
    owners = (pod.manifest.get("metadata") or {}).get("ownerReferences") or ()
    return any(each.get("kind") == "DaemonSet" for each in owners)
