"""Pods, tasks and the values around a strategy, for the tests of evictions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic.alias_generators import to_camel

from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    EvictOutcome,
    EvictResult,
    StrategyDecision,
    WriteOutcome,
)
from agent.node.qos.core.evicting import Evictable, EvictionLimits, EvictionMarks
from agent.node.qos.core.metrics import Aggregate, Aggregation, MetricError, MetricKind, MetricSample
from agent.node.qos.core.states import NodeState, PodState, QosClass, VmState
from hosting.cgroups.tree import CgroupTree
from hosting.settings import check
from protocol.values import ZERO, Resources

GIB: Final = 1 << 30
NODE: Final = NodeState("n1", Resources(10_000, 100 * GIB), Resources(8_000, 80 * GIB))
LIMITS: Final = EvictionLimits(cooldown_s=4, max_victims=5, lost_after_s=120, settle_s=10)
ENABLED: Final = EvictionMarks(is_enabled=True)


def pod(
    name: str,
    *,
    priority: int = 0,
    qos: QosClass = QosClass.BEST_EFFORT,
    requests: Resources = ZERO,
    batch_requests: Resources = ZERO,
    kubernetes_class: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    is_ending: bool = False,
    is_finished: bool = False,
    controller_kind: str = "ReplicaSet",
) -> PodState:
    """A pod whose UID is `u-NAME`."""
    return PodState(
        "default",
        name,
        f"u-{name}",
        qos,
        kubernetes_class or ("BestEffort" if qos is QosClass.BEST_EFFORT else "Burstable"),
        priority,
        requests,
        requests,
        labels=labels or {},
        annotations=annotations or {},
        is_ending=is_ending,
        is_finished=is_finished,
        controller_kind=controller_kind,
        batch_requests=batch_requests,
    )


def using(
    found: PodState,
    memory_gib: int | None = None,
    cpu_milli: int | None = None,
    marks: EvictionMarks = ENABLED,
) -> Evictable:
    return Evictable(found, marks, None if memory_gib is None else memory_gib * GIB, cpu_milli)


@dataclass
class FakeClient:
    """Evicts as `results` say, in turn; then as the last of them."""

    results: list[EvictResult] = field(default_factory=lambda: [EvictResult.EVICTED])
    evicted: list[tuple[str, str]] = field(default_factory=list)
    """Names and reasons of all pods for which an eviction was asked."""
    decisions: list[StrategyDecision] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    """Reasons and texts of Events: the faults of pods' marks. The evictor reports those of evictions."""
    recommends_only: bool = False
    cgroups: CgroupTree = field(default_factory=CgroupTree)

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """No strategy that evicts writes."""
        raise AssertionError(updates)

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        raise AssertionError((group, resource))

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """Note it."""
        self.evicted.append((pod.name, reason))
        return EvictOutcome(self.results.pop(0) if len(self.results) > 1 else self.results[0])

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Note it."""
        assert pod is not None
        assert is_warning
        self.events.append((reason, message))

    def decided(self, decision: StrategyDecision) -> None:
        """Note it."""
        self.decisions.append(decision)


@dataclass
class FakeStates:
    """A node that is changed directly."""

    pods: tuple[PodState, ...] = ()
    vms: tuple[VmState, ...] = ()
    node: NodeState | None = NODE

    def has_synced(self) -> bool:
        """Always."""
        return True

    def get_node(self) -> NodeState | None:
        return self.node

    def get_all_pods(self) -> tuple[PodState, ...]:
        return self.pods

    def get_all_vms(self) -> tuple[VmState, ...]:
        return self.vms

    def get_scaling_policies(self) -> tuple[()]:
        """None."""
        return ()

    def register_callbacks(self, *_: object) -> None:
        """Strategies that evict look by themselves."""
        raise AssertionError

    def send_callback(self, _: object) -> None:
        """Strategies that evict look by themselves."""
        raise AssertionError


@dataclass
class FakeMetrics:
    """Metrics that are set directly: by kind and the values of its properties."""

    values: dict[tuple[str, *tuple[str, ...]], float] = field(default_factory=dict)
    span_s: float = 60

    def set(self, kind: MetricKind, value: float, *properties: str) -> None:
        self.values[kind.name, *properties] = value

    def append(self, samples: Iterable[MetricSample]) -> None:
        """Collectors do that."""
        raise AssertionError(samples)

    def query(
        self,
        kind: MetricKind,
        window_s: float,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate:
        """As it is set, for any window."""
        key = (kind.name, *(properties or {}).values())
        if key not in self.values:
            raise MetricError(f"no samples of {key} in {window_s} s for {aggregation}")
        return Aggregate(self.values[key], 5, self.span_s)

    def query_each(
        self, kind: MetricKind, window_s: float, aggregation: Aggregation = Aggregation.AVG
    ) -> Mapping[tuple[str, ...], Aggregate]:
        """As it is set, for any window."""
        assert window_s > 0, aggregation
        found = {key[1:]: value for key, value in self.values.items() if key[0] == kind.name}
        return {key: Aggregate(value, 5, self.span_s) for key, value in found.items()}


def args_of(plugin: Any, **values: object) -> Any:
    """The args of a plugin's model, as its settings would say them. Raises `FaultsError`."""
    return check({to_camel(name): value for name, value in values.items()}, plugin.args_model)


class Never:
    """An end that is never asked for."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout_s: float) -> bool:
        raise AssertionError(timeout_s)
