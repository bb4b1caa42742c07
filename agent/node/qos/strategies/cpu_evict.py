"""`CPUEvict`: evicts pods if best-effort pods or the node run short of CPU. Its rules are in `agent.node.qos.core.cpu_evict`."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

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
from agent.node.qos.strategies.evict_rounds import MAX_WINDOW_S, EvictArgs, EvictStrategy


class CPUEvictArgs(EvictArgs):
    """The args of `CPUEvict`, by the CPUs of the node and of best-effort pods."""

    TASKS: ClassVar[tuple[str, ...]] = CPU_TASKS

    tasks: Annotated[list[str], Field(min_length=1)] = [SATISFACTION, PRIORITY]  # noqa: RUF012 - pydantic copies it
    threshold_percent: Annotated[int, Field(ge=1, le=100)] = 90
    window: Annotated[float, Field(ge=1, le=MAX_WINDOW_S)] = 60.0
    cool_time: Annotated[float, Field(ge=0, le=86_400)] = 20.0
    satisfaction_lower_percent: Annotated[int, Field(ge=1, le=60)] = 40
    """Best-effort pods are evicted if their limit is at most so much of their requests."""
    satisfaction_upper_percent: Annotated[int, Field(ge=1, le=99)] = 60
    """Until their limit is so much of their requests."""
    best_effort_usage_percent: Annotated[int, Field(ge=1, le=100)] = 90
    """So much of their limit must be used by best-effort pods, else they are not short of CPU."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """As for memory; and satisfaction ends at its beginning, or above."""
        yield from super().rules(found)
        lower, upper = (found.get(f"satisfaction_{kind}_percent") for kind in ("lower", "upper"))
        if lower is not None and upper is not None and upper < lower:
            text = f"must not be below satisfactionLowerPercent, which is {lower} (found {upper})"
            yield "satisfactionUpperPercent", text


class CPUEvict(EvictStrategy[CPUEvictArgs]):
    """Source of the cool-down: reference/koordinator.md 3.1; it does not begin with the process."""

    args_model = CPUEvictArgs

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        super().__init__(CPUEvictArgs(), POD_CPU_USAGE, clock, rng)

    def _satisfaction(self) -> SatisfactionRules:
        args = self.args
        return SatisfactionRules(
            args.satisfaction_lower_percent, args.satisfaction_upper_percent, args.best_effort_usage_percent
        )

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the CPU that is busy, and by the limit of best-effort pods."""
        used = self._backed(self.node_metric(NODE_CPU_USAGE))
        figures = CpuFigures(used, self._best_effort(Aggregation.AVG), self._best_effort(Aggregation.LAST))
        return cpu_tasks(self.args.evict_rules(), self._satisfaction(), node, found, figures, releasing)

    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        return Evictable(pod, marks, cpu_used_milli=None if used is None else milli(used.value))

    def _best_effort(self, aggregation: Aggregation) -> BestEffortCpu | None:
        """The metrics of best-effort pods; None if a figure is missing."""
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
        """As milli-CPU; None if samples cover less than a third of the window. Source: reference/koordinator.md 3.3."""
        if found is None or found.span_s * 3 < self.window_s:
            return None
        return milli(found.value)
