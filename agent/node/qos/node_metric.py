"""Writes the NodeMetric of the node, so that a scheduler knows what is used there: by the metric cache, in the interval that the object
asks for."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from agent.node.qos.core.metrics import (
    NODE_CPU_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    SYS_CPU_USAGE,
    SYS_MEMORY_USAGE,
    Aggregate,
    Aggregation,
    MetricError,
    MetricKind,
)
from agent.node.qos.core.node_metric import (
    AGGREGATIONS,
    LEAST_SPAN,
    MOST_WINDOW_S,
    CollectPolicy,
    Measured,
    Usage,
    held_throughout,
    policy_of,
    status_of,
)
from agent.node.qos.node_object import NodeObjectWriter
from agent.node.qos.ports import MetricCache, StatesInformer
from hosting.kubernetes import objects
from hosting.kubernetes.koordinator import NODE_METRICS
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from protocol.values import Resources

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

SOON_S: Final = 5.0
"""The pause until the next look while nothing is known to write."""
JITTER: Final = 0.1
"""The share of an interval that chance takes away, so that the agents of a cluster do not write in step."""


def measured(cache: MetricCache, policy: CollectPolicy) -> Measured:
    """The figures that the cache has for the policy now. Blocks for some milliseconds."""

    def use(cpu: MetricKind, memory: MetricKind) -> Usage:
        found = (_query(cache, each, policy.average_s, Aggregation.AVG) for each in (cpu, memory))
        return Usage(*(each.value if each is not None else None for each in found))

    cpus, bytes_ = (cache.query_each(kind, policy.average_s) for kind in (POD_CPU_USAGE, POD_MEMORY_USAGE))
    return Measured(
        use(NODE_CPU_USAGE, policy.node_memory),
        use(SYS_CPU_USAGE, SYS_MEMORY_USAGE),
        {uid: Usage(cpus[uid,].value, bytes_[uid,].value) for (uid,) in cpus.keys() & bytes_.keys()},
        {
            window_s: found
            for window_s in policy.windows_s
            if window_s <= MOST_WINDOW_S and (found := _window(cache, policy, window_s))
        },
    )


def _window(cache: MetricCache, policy: CollectPolicy, window_s: float) -> dict[Aggregation, Usage]:
    """Every figure of a window; empty if there are too few samples."""
    found = {}
    for each in AGGREGATIONS:
        cpu, memory = (_query(cache, kind, window_s, each) for kind in (NODE_CPU_USAGE, policy.node_memory))
        if cpu is None or memory is None or min(cpu.span_s, memory.span_s) < LEAST_SPAN * window_s:
            return {}
        found[each] = Usage(cpu.value, memory.value)
    return found


def _query(
    cache: MetricCache, kind: MetricKind, window_s: float, aggregation: Aggregation
) -> Aggregate | None:
    try:
        return cache.query(kind, window_s, aggregation)
    except MetricError:  # there is no sample
        return None


class NodeMetricWriter(NodeObjectWriter):
    """Writes the status of the NodeMetric of the node. `wall` is the wall clock."""

    TYPE = NODE_METRICS

    def __init__(
        self,
        api: "KubernetesApi",
        node: Callable[[], Manifest | None],
        cache: MetricCache,
        states: StatesInformer,
        log: Logger,
        rng: random.Random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(api, node, log, rng)
        self._cache = cache
        self._states = states
        self._wall = wall
        self._policy = CollectPolicy()
        self._held: dict[str, Resources] = {}
        """What each VM was permitted at the last report, by UID of its pod."""

    def pause_s(self, chance: float, *, has_written: bool) -> float:
        """A report that fails is made anew the next time."""
        return (self._policy.report_interval_s if has_written else SOON_S) * (1 - JITTER * chance)

    async def write(self) -> bool:
        """Write the present figures."""
        node = self._node()
        if node is None or not self._states.has_synced():
            return False
        found = await asyncio.to_thread(measured, self._cache, self._policy)
        now = objects.time_written(self._wall())
        vms = self._states.get_all_vms()
        held = held_throughout(vms, self._held)
        status = status_of(found, self._states.get_all_pods(), held, now)
        if status is None:
            return False
        self._policy = policy_of(await self.put(node, {"status": status}, {}, "status"))
        self._held = {vm.pod_uid: vm.held for vm in vms}
        return True
