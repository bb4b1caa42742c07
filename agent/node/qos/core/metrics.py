"""The kinds of metrics that the metric cache keeps, and how a window of samples becomes one number."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


class Aggregation(enum.StrEnum):
    """How the samples of a window become one number. Percentiles are the lower nearest rank, as in Koordinator: P90 of nine
    samples is the eighth."""

    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    LAST = "last"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A kind of metric. A sample sets each property of the kind; a query may set some of them."""

    name: str
    properties: tuple[str, ...] = ()


NODE_CPU_USAGE: Final = MetricKind("node_cpu_usage")
"""Busy CPUs of the node (cores, not millionths)."""
NODE_MEMORY_USAGE: Final = MetricKind("node_memory_usage")
"""Memory of the node in use without reclaimable page cache, in bytes."""
NODE_MEMORY_WITH_PAGE_CACHE: Final = MetricKind("node_memory_usage_with_page_cache")
SYS_CPU_USAGE: Final = MetricKind("sys_cpu_usage")
"""Busy CPUs of processes in no pod."""
SYS_MEMORY_USAGE: Final = MetricKind("sys_memory_usage")
POD_CPU_USAGE: Final = MetricKind("pod_cpu_usage", ("pod_uid",))
POD_MEMORY_USAGE: Final = MetricKind("pod_memory_usage", ("pod_uid",))
POD_CPU_THROTTLED: Final = MetricKind("pod_cpu_throttled", ("pod_uid",))
"""The share of the CPU limit's periods in which the pod was held back, from 0 to 1."""
CONTAINER_CPU_USAGE: Final = MetricKind("container_cpu_usage", ("container_id",))
CONTAINER_MEMORY_USAGE: Final = MetricKind("container_memory_usage", ("container_id",))
CONTAINER_CPU_THROTTLED: Final = MetricKind("container_cpu_throttled", ("container_id",))
NODE_BE: Final = MetricKind("node_be", ("be_resource", "be_allocation"))
"""The pods of the kubelet's best-effort group together; `be_resource` is `cpu` or `memory`, `be_allocation` is `usage`, `real-limit` or `request` (of
batch resources, for these pods request nothing else)."""
PSI: Final = MetricKind("psi", ("psi_resource", "psi_precision", "psi_degree"))
"""Pressure of the node in per cent: `cpu`/`memory`/`io`, `avg10`/`avg60`/`avg300`, `some`/`full`."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric. `at_s` is monotonic."""

    kind: MetricKind
    at_s: float
    value: float
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The result for a window. `count` samples over `span_s` seconds (from the first to the last) back the value."""

    value: float
    count: int
    span_s: float


class MetricError(Exception):
    """A sample or a query that does not fit the metric's kind, or a window without samples. The text says which."""


def milli(cpus: float) -> int:
    return math.floor(cpus * 1000 + 0.5)
