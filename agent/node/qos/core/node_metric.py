"""The status of a NodeMetric (slo.koordinator.sh/v1alpha1): the use of the node and its pods, for schedulers. Pure.

Source: reference/koordinator.md 2.1 and 3.6; names and defaults are those of the published object and its agent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.node.qos.core.metrics import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    NODE_MEMORY_WITH_PAGE_CACHE,
    Aggregation,
    MetricKind,
    milli,
)
from agent.node.qos.core.states import PodState, VmState
from hosting.kubernetes import names
from protocol import quantities
from protocol.durations import DurationError, go_duration, parse_go_duration
from protocol.values import ZERO, Resources

AGGREGATIONS: Final = (Aggregation.AVG, Aggregation.P50, Aggregation.P90, Aggregation.P95, Aggregation.P99)
LEAST_SPAN: Final = 0.5
"""The share of a window over which there must be samples; a window with fewer is left out, for it would pass a short while off as a long
one."""
MAX_WINDOWS: Final = 8
MOST_WINDOW_S: Final = 1800.0
"""So long the use of the node is kept; a longer window is left out."""
LONG_KINDS: Final = (NODE_CPU_USAGE, NODE_MEMORY_USAGE, NODE_MEMORY_WITH_PAGE_CACHE)
"""The kinds that have windows."""


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """What the object's `spec.metricCollectPolicy` asks for."""

    report_interval_s: float = 60.0
    average_s: float = 300.0
    """The window of the means of node, system and pods."""
    windows_s: tuple[float, ...] = (300.0, 600.0, 1800.0)
    """The windows of the node's percentiles."""
    node_memory: MetricKind = NODE_MEMORY_USAGE


def policy_of(node_metric: Mapping[str, Any]) -> CollectPolicy:
    """The policy of an object. A part that is missing or makes no sense is as by default; memory with hot pages of the page cache is not
    measured here, so that is without page cache."""
    usual = CollectPolicy()
    found = _part(_part(node_metric, "spec"), "metricCollectPolicy")
    written = _part(found, "nodeAggregatePolicy").get("durations")
    windows_s = [_seconds(each) for each in written[:MAX_WINDOWS]] if isinstance(written, list) else []
    has_page_cache = found.get("nodeMemoryCollectPolicy") == "usageWithPageCache"
    return CollectPolicy(
        _number(found.get("reportIntervalSeconds"), usual.report_interval_s),
        _number(found.get("aggregateDurationSeconds"), usual.average_s),
        tuple(sorted({each for each in windows_s if each > 0})) or usual.windows_s,
        NODE_MEMORY_WITH_PAGE_CACHE if has_page_cache else NODE_MEMORY_USAGE,
    )


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: object, usual: float) -> float:
    """Whole seconds, up to a day."""
    return float(value) if isinstance(value, int) and 1 <= value <= 24 * 3600 else usual


def _seconds(text: object) -> float:
    try:
        return parse_go_duration(text) if isinstance(text, str) else 0.0
    except DurationError:
        return 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Busy CPUs and bytes; None for what is not known."""

    cpus: float | None = None
    memory_bytes: float | None = None

    def written(self) -> dict[str, Any]:
        """As the object has it; what is not known is left out."""
        found = {}
        if self.cpus is not None:
            found["cpu"] = quantities.from_milli(milli(self.cpus)).canonical()
        if self.memory_bytes is not None:
            found["memory"] = quantities.from_value(round(self.memory_bytes)).canonical()
        return {"resources": found}


NOTHING: Final = Usage()


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers of the metric cache at one moment: means over `CollectPolicy.average_s`, the pods' by UID, and the figures of each
    window of the node that has enough samples."""

    node: Usage = NOTHING
    system: Usage = NOTHING
    pods: Mapping[str, Usage] = field(default_factory=dict)
    windows: Mapping[float, Mapping[Aggregation, Usage]] = field(default_factory=dict)


def held_throughout(vms: Iterable[VmState], before: Mapping[str, Resources]) -> dict[str, Resources]:
    """By UID of its pod, what each VM was permitted now and at the report `before`: its use is one of that size. Of a VM that was not
    there then nothing can be said."""
    return {vm.pod_uid: vm.held.min(before[vm.pod_uid]) for vm in vms if vm.pod_uid in before}


def status_of(
    measured: Measured, pods: Iterable[PodState], held: Mapping[str, Resources], now: str
) -> dict[str, Any] | None:
    """The status at the moment `now`, in RFC 3339; None as long as the use of the node is not known. `held` is that of `held_throughout`.
    Pods without a figure are left out: nobody may take them for idle."""
    if measured.node.cpus is None or measured.node.memory_bytes is None:
        return None
    return {
        "updateTime": now,
        "nodeMetric": {
            "nodeUsage": measured.node.written(),
            "systemUsage": measured.system.written(),
            "aggregatedNodeUsages": [
                {
                    "duration": go_duration(window_s),
                    "usage": {each.value: use.written() for each, use in by.items()},
                }
                for window_s, by in sorted(measured.windows.items())
            ],
        },
        "podsMetric": [
            _pod(pod, measured.pods[pod.uid], held.get(pod.uid, ZERO))
            for pod in sorted(pods, key=lambda pod: pod.full_name)
            if pod.uid in measured.pods and not pod.is_finished
        ],
    }


def _pod(pod: PodState, use: Usage, held: Resources) -> dict[str, Any]:
    found: dict[str, Any] = {"namespace": pod.namespace, "name": pod.name, "podUsage": use.written()}
    if pod.priority_class:
        found["priority"] = pod.priority_class
    if held != ZERO:
        found["extensions"] = {names.HELD: held.written()}
    return found
