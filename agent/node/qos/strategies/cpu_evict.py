"""`CPUEvict`: evicts pods where best-effort pods or the node run short of CPU. Its rules are in `agent.node.qos.core.cpu_evict`."""

import random
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from agent.node.qos.core.cpu_evict import (
    CPU_TASKS,
    PRIORITY,
    SATISFACTION,
    BestEffortCpu,
    CpuFigures,
    SatisfactionRules,
    cpu_tasks,
)
from agent.node.qos.core.evicting import Evictable, EvictionMarks, EvictionTask
from agent.node.qos.core.metrics import NODE_BE, NODE_CPU_USAGE, POD_CPU_USAGE, Aggregate, Aggregation, milli
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.strategies.evict_flags import EvictFlags, common_flags
from agent.node.qos.strategies.evict_rounds import EvictStrategy
from agent.node.qos.strategies.strategy_flags import StrategyFlag

PREFIX: Final = "cpu-evict-"
OWN_FLAGS: Final = (
    StrategyFlag(
        "satisfaction-lower-percent",
        40,
        "best-effort pods are evicted where their limit is at most so much of their requests",
        1,
        60,
    ),
    StrategyFlag("satisfaction-upper-percent", 60, "until their limit is so much of their requests", 1, 99),
    StrategyFlag(
        "best-effort-usage-percent",
        90,
        "of their limit must be used by best-effort pods, else they are not short of CPU",
        1,
        100,
    ),
)


class CPUEvict(EvictStrategy):
    """Source of the cool-down: reference/koordinator.md 3.1; it does not begin with the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        common = common_flags(
            CPU_TASKS, f"{SATISFACTION},{PRIORITY}", threshold_percent=90, cooldown_s=20.0, window_s=60.0
        )
        super().__init__(EvictFlags(PREFIX, common + OWN_FLAGS, CPU_TASKS), POD_CPU_USAGE, clock, rng)

    def flag_faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the flags' values."""
        return tuple(dict.fromkeys(self._faults()))

    def _faults(self) -> Iterator[str]:
        yield from super().flag_faults()
        yield from self._satisfaction().faults(PREFIX)

    def _satisfaction(self) -> SatisfactionRules:
        return SatisfactionRules(
            self.flags.whole("satisfaction-lower-percent"),
            self.flags.whole("satisfaction-upper-percent"),
            self.flags.whole("best-effort-usage-percent"),
        )

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the CPU that is busy, and by what best-effort pods may use."""
        used = self._backed(self.node_metric(NODE_CPU_USAGE))
        figures = CpuFigures(used, self._best_effort(Aggregation.AVG), self._best_effort(Aggregation.LAST))
        return cpu_tasks(self.flags.rules(), self._satisfaction(), node, found, figures, releasing)

    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        return Evictable(pod, marks, cpu_used_milli=None if used is None else milli(used.value))

    def _best_effort(self, aggregation: Aggregation) -> BestEffortCpu | None:
        """What the metrics say of best-effort pods; None where a figure is missing."""
        usage, limit, request = (
            self._backed(
                self.node_metric(NODE_BE, aggregation, {"be_resource": "cpu", "be_allocation": each})
            )
            for each in ("usage", "real-limit", "request")
        )
        if usage is None or limit is None or request is None:
            return None
        return BestEffortCpu(usage, limit, request)

    def _backed(self, found: Aggregate | None) -> int | None:
        """As milli-CPU; None where samples cover less than a third of the window. Source: reference/koordinator.md 3.3."""
        if found is None or found.span_s * 3 < self.window_s:
            return None
        return milli(found.value)
