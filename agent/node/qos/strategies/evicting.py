"""The strategies that evict, `MemoryEvict` and `CPUEvict`: their args, and their round in each interval."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import Field

from agent.node.qos.core.actions import StrategyDecision
from agent.node.qos.core.evict_decision import Asked, decision, reason_of
from agent.node.qos.core.evict_tasks import (
    CPU_TASKS,
    MEMORY_TASKS,
    BestEffortCpu,
    CpuFigures,
    EvictRules,
    EvictThresholds,
    SatisfactionRules,
    cpu_tasks,
    memory_tasks,
)
from agent.node.qos.core.evicting import (
    Evictable,
    EvictionEngine,
    EvictionLimits,
    EvictionMarks,
    EvictionTask,
)
from agent.node.qos.core.metrics import (
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    Aggregate,
    Aggregation,
    MetricError,
    MetricKind,
    milli,
)
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.pods import marks_of
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal, StrategyArgs

HIGHEST_PRIORITY: Final = 1_000_000_000
"""The highest priority that a user's PriorityClass may have; those above are the system's. Source: scheduling.k8s.io/v1."""
HYSTERESIS_PERCENT: Final = 2
MAX_WINDOW_S: Final = 300
"""The metric cache keeps no more."""


class EvictArgs(StrategyArgs):
    """The args that strategies that evict share; each has its own defaults. Durations are seconds."""

    TASKS: ClassVar[tuple[str, ...]] = ()
    """The tasks that the strategy has."""

    tasks: Annotated[list[str], Field(min_length=1)]
    """The tasks, which name the pods to evict and the reason, in this order."""
    threshold_percent: Annotated[int, Field(ge=1, le=100)]
    """Of the capacity in use: from here on pods are evicted."""
    lower_percent: Annotated[int, Field(ge=0, le=99)] | None = None
    """Of the capacity in use: down to here; 2 below the threshold if it is left out."""
    allocatable_threshold_percent: Annotated[int, Field(ge=1, le=1000)] = 100
    """Of the allocatable, requested by pods that count: above it pods are evicted."""
    allocatable_lower_percent: Annotated[int, Field(ge=0, le=999)] | None = None
    """Of the allocatable: down to here; 2 below the threshold if it is left out."""
    max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = HIGHEST_PRIORITY
    """Pods above this priority are never evicted for their use, nor as best effort."""
    allocatable_max_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """Pods above this priority neither count as requested nor are evicted for it."""
    interval: Annotated[float, Field(ge=0.1, le=3600)] = 1.0
    """The time between two rounds."""
    window: Annotated[float, Field(ge=1, le=MAX_WINDOW_S)]
    """The time over which use is averaged."""
    cool_time: Annotated[float, Field(ge=0, le=86_400)]
    """The time without evictions after an eviction."""
    max_victims: Annotated[int, Field(ge=1, le=1000)] = 5
    """Of so many pods the API server is asked in one round at most."""
    lost_after: Annotated[float, Field(ge=1, le=86_400)] = 120.0
    """A pod that is still there so long after its eviction does not count as released any more."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Every task is known and comes once; a lower threshold is below its upper one."""
        tasks = found.get("tasks", ())
        for index, each in enumerate(tasks):
            if each not in cls.TASKS:
                yield f"tasks.{index}", f"there is no task {each[:60]!r} (there are: {', '.join(cls.TASKS)})"
            elif each in tasks[:index]:
                yield f"tasks.{index}", f"{each} comes more than once"
        for kind, name in (("", "lowerPercent"), ("allocatable_", "allocatableLowerPercent")):
            upper, lower = found.get(f"{kind}threshold_percent"), found.get(f"{kind}lower_percent")
            if upper is not None and lower is not None and lower >= upper:
                yield name, f"must be below its threshold, which is {upper} (found {lower})"

    def evict_rules(self) -> EvictRules:
        return EvictRules(
            tuple(self.tasks),
            _thresholds(self.threshold_percent, self.lower_percent),
            _thresholds(self.allocatable_threshold_percent, self.allocatable_lower_percent),
            self.max_priority,
            self.allocatable_max_priority,
        )

    def limits(self) -> EvictionLimits:
        return EvictionLimits(self.cool_time, self.max_victims, self.lost_after, self.window + self.interval)


def _thresholds(upper: int, lower: int | None) -> EvictThresholds:
    return EvictThresholds(upper, max(0, upper - HYSTERESIS_PERCENT) if lower is None else lower)


A = TypeVar("A", bound=EvictArgs)


class EvictStrategy(ABC, Generic[A]):
    """Reads pods and metrics, and evicts whom the tasks of the strategy name. `clock` is monotonic."""

    args_model: type[A]
    pod_metric: MetricKind

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self.args = self.args_model()
        self._clock, self._rng = clock, rng or random.Random()

    # ------------------------------------------------------------ the contract of an extension

    def init_flags(self, args: A) -> None:
        self.args = args

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        self.client, self.metrics, self.states = client, metric_cache, states_informer
        self.window_s = self.args.window
        self._engine = EvictionEngine(self.args.limits())
        self._told: dict[str, tuple[str, ...]] = {}
        """The faults of marks that each pod was told of, by its UID."""

    def run(self, stop: StopSignal) -> None:
        while not stop.wait(self.args.interval):
            self.round(stop)

    def stop(self) -> None:
        """Nothing outlasts the agent."""

    # ------------------------------------------------------------ one round

    def round(self, stop: StopSignal) -> None:
        node = self.states.get_node()
        if node is None or not self.states.has_synced():
            self.client.decided(StrategyDecision("no-node", "the node and its pods are not read yet"))
            return
        found, now_s = self._evictables(), self._clock()
        self._tell_faults(found)
        releasing = {each.name for each in self._engine.tasks if not each.is_calm}
        tasks = self.tasks(node, found, releasing)
        self._engine.begin([each.pod for each in found], tasks, now_s)
        asked: list[Asked] = []
        while not stop.is_set() and (pick := self._engine.pick(self._clock())) is not None:
            outcome = self.client.evict(pick.pod, reason_of(pick))
            self._engine.ended(pick, outcome.result, self._clock(), self._rng.random())
            asked.append(Asked(pick, outcome))
        self.client.decided(decision(self._engine, asked, self._clock()))

    @abstractmethod
    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """The tasks of this round. `releasing` are those that were releasing in the round before."""

    def _evictables(self) -> list[Evictable]:
        vms = {each.pod_uid: each for each in self.states.get_all_vms()}
        used = self.metrics.query_each(self.pod_metric, self.window_s)
        return [
            self.evictable(pod, marks_of(pod, vms.get(pod.uid)), used.get((pod.uid,)))
            for pod in self.states.get_all_pods()
        ]

    def _tell_faults(self, found: Collection[Evictable]) -> None:
        """An Event for each pod of which a mark cannot be read, once for each text."""
        before = self._told
        self._told = {each.pod.uid: each.marks.faults for each in found if each.marks.faults}
        for each in found:
            if each.marks.faults and before.get(each.pod.uid) != each.marks.faults:
                text = "; ".join(each.marks.faults)
                self.client.record(each.pod, "WrongAnnotation", text, is_warning=True)

    @abstractmethod
    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        """The pod with its use."""

    def node_metric(
        self,
        kind: MetricKind,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate | None:
        """A metric of the node over the window; None if there is none."""
        try:
            return self.metrics.query(kind, self.window_s, aggregation, properties)
        except MetricError:
            return None


class MemoryEvictArgs(EvictArgs):
    """The args of `MemoryEvict`, by the memory of the node."""

    TASKS: ClassVar[tuple[str, ...]] = MEMORY_TASKS

    tasks: Annotated[list[str], Field(min_length=1)] = [MEMORY_TASKS[0], MEMORY_TASKS[2]]  # noqa: RUF012 - pydantic copies it
    threshold_percent: Annotated[int, Field(ge=1, le=100)] = 70
    window: Annotated[float, Field(ge=1, le=MAX_WINDOW_S)] = 10.0
    cool_time: Annotated[float, Field(ge=0, le=86_400)] = 4.0


class MemoryEvict(EvictStrategy[MemoryEvictArgs]):
    """Source of the cool-down: reference/koordinator.md 3.1."""

    args_model = MemoryEvictArgs
    pod_metric = POD_MEMORY_USAGE

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the memory that is in use without reclaimable page cache."""
        used = self.node_metric(NODE_MEMORY_USAGE)
        used_bytes = None if used is None else round(used.value)
        return memory_tasks(self.args.evict_rules(), node, found, used_bytes, releasing)

    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        return Evictable(pod, marks, memory_used_bytes=None if used is None else round(used.value))


class CPUEvictArgs(EvictArgs):
    """The args of `CPUEvict`, by the CPUs of the node and of best-effort pods."""

    TASKS: ClassVar[tuple[str, ...]] = CPU_TASKS

    tasks: Annotated[list[str], Field(min_length=1)] = [CPU_TASKS[0], CPU_TASKS[2]]  # noqa: RUF012 - pydantic copies it
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
    pod_metric = POD_CPU_USAGE

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the CPU that is busy, and by the limit of best-effort pods."""
        used = self._backed(self.node_metric(NODE_CPU_USAGE))
        figures = CpuFigures(used, self._best_effort(Aggregation.AVG), self._best_effort(Aggregation.LAST))
        args = self.args
        satisfaction = SatisfactionRules(
            args.satisfaction_lower_percent, args.satisfaction_upper_percent, args.best_effort_usage_percent
        )
        return cpu_tasks(args.evict_rules(), satisfaction, node, found, figures, releasing)

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
