"""Strategies in tests work with a client over an executor, metrics and states that the test sets, and pods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    EvictOutcome,
    EvictResult,
    StrategyDecision,
    WriteOutcome,
)
from agent.node.qos.core.metrics import Aggregate, Aggregation, MetricError, MetricKind, MetricSample
from agent.node.qos.core.states import (
    ContainerState,
    NodeState,
    ObjectType,
    PodState,
    QosClass,
    ScalingPolicyState,
    VmState,
)
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.ports import ExtensionPlugin
from protocol.values import Resources
from tests.support.evictions import args_of


class DirectClient:
    """Does what a strategy asks, and keeps what was decided and reported."""

    recommends_only = False

    def __init__(self, executor: ResourceExecutor) -> None:
        self._executor = executor
        self.cgroups = executor.cgroups
        self.decisions: list[StrategyDecision] = []
        self.events: list[tuple[str, str]] = []

    @property
    def last(self) -> StrategyDecision:
        return self.decisions[-1]

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        return self._executor.write(updates, "test")

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        return self._executor.read(group, resource)

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        return EvictOutcome(EvictResult.UNAVAILABLE)

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        self.events.append((reason, message))

    def decided(self, decision: StrategyDecision) -> None:
        self.decisions.append(decision)


@dataclass
class SetMetrics:
    """A metric cache that says what the test has set, by kind and properties. Kinds that are not set have no samples."""

    values: dict[MetricKind, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def append(self, samples: Iterable[MetricSample]) -> None:
        raise AssertionError("strategies only read")

    def query(
        self,
        kind: MetricKind,
        window_s: float,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate:
        key = tuple((properties or {})[name] for name in kind.properties)
        found = self.values.get(kind, {}).get(key)
        if found is None:
            raise MetricError(f"{kind.name} has no samples")
        return Aggregate(found, 1, 0)

    def query_each(
        self, kind: MetricKind, window_s: float, aggregation: Aggregation = Aggregation.AVG
    ) -> Mapping[tuple[str, ...], Aggregate]:
        return {key: Aggregate(value, 1, 0) for key, value in self.values.get(kind, {}).items()}


@dataclass
class SetStates:
    """A states informer that says what the test has set; without a node nothing was read yet."""

    node: NodeState | None = None
    pods: tuple[PodState, ...] = ()
    vms: tuple[VmState, ...] = ()

    def has_synced(self) -> bool:
        return self.node is not None

    def get_node(self) -> NodeState | None:
        return self.node

    def get_all_pods(self) -> tuple[PodState, ...]:
        return self.pods

    def get_all_vms(self) -> tuple[VmState, ...]:
        return self.vms

    def get_scaling_policies(self) -> tuple[ScalingPolicyState, ...]:
        return ()

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        raise AssertionError("CPU strategies look by themselves")

    def send_callback(self, object_type: ObjectType) -> None:
        raise AssertionError("strategies send no callbacks")


def container(
    identity: str = "c", *, requests_milli: int = 0, limit_milli: int = 0, name: str = "app"
) -> ContainerState:
    """A container; a limit of 0 is none."""
    return ContainerState(name, Resources(requests_milli, 0), Resources(limit_milli, 0), identity)


def pod(
    uid: str,
    kubernetes_class: str = "BestEffort",
    containers: Sequence[ContainerState] = (),
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> PodState:
    qos = QosClass.BEST_EFFORT if kubernetes_class == "BestEffort" else QosClass.LATENCY_SENSITIVE
    containers = tuple(containers) or (container(),)
    limits = [each.limits.vcpu_milli for each in containers]
    return PodState(
        "default",
        f"pod-{uid}",
        uid,
        qos,
        kubernetes_class,
        0,
        Resources(sum(each.requests.vcpu_milli for each in containers), 0),
        Resources(sum(limits) if all(limits) else 0, 0),
        tuple(containers),
        labels or {},
        annotations or {},
    )


def node(capacity_milli: int = 8000, allocatable_milli: int | None = None) -> NodeState:
    """A node; without `allocatable_milli` nothing is reserved."""
    allocatable = capacity_milli if allocatable_milli is None else allocatable_milli
    return NodeState("n", Resources(capacity_milli, 0), Resources(allocatable, 0))


def ready(
    plugin: ExtensionPlugin, client: DirectClient, metrics: SetMetrics, states: SetStates, **values: object
) -> None:
    """Have a plugin set up, with args as given: `policy="cpuset"`."""
    plugin.init_flags(args_of(plugin, **values))
    plugin.setup(client, metrics, states)
