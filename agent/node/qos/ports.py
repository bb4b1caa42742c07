"""The methods of a QoS strategy, and the tools that it is given (seed 002, QoS manager). Strategies run in threads of their own: every call
here is plain, may block as long as its docstring says, and may come from any thread."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pydantic import ConfigDict

from agent.node.qos.core.actions import (
    CgroupResource,
    CgroupUpdate,
    EvictOutcome,
    StrategyDecision,
    WriteOutcome,
)
from agent.node.qos.core.metrics import Aggregate, Aggregation, MetricKind, MetricSample
from agent.node.qos.core.states import NodeState, ObjectType, PodState, ScalingPolicyState, VmState
from hosting.cgroups.tree import CgroupTree
from hosting.settings import Settings


class StopSignal(Protocol):
    """Tells a strategy that its end is asked for."""

    def is_set(self) -> bool:
        """Whether the end was requested."""

    def wait(self, timeout_s: float) -> bool:
        """Wait until the end is asked for, at most `timeout_s` seconds; whether it is asked for. Blocks the calling thread."""


class MetricCache(Protocol):
    """Time series of the node, its pods and containers, with bounded memory."""

    def append(self, samples: Iterable[MetricSample]) -> None:
        """Add samples, all or none of them. Raises `MetricError` for one that does not fit its kind."""

    def query(
        self,
        kind: MetricKind,
        window_s: float,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate:
        """The samples of the last `window_s` seconds as one number. Raises `MetricError` if there are none, except for
        `COUNT`, and for properties that the kind does not have."""

    def query_each(
        self, kind: MetricKind, window_s: float, aggregation: Aggregation = Aggregation.AVG
    ) -> Mapping[tuple[str, ...], Aggregate]:
        """One aggregate for each combination of properties, in the order of the kind's properties; empty if there are none."""


class StatesInformer(Protocol):
    """Knows the node, its pods, VMs and policies. Values are immutable; each call gives the newest."""

    def has_synced(self) -> bool:
        """Whether everything was read at least once."""

    def get_node(self) -> NodeState | None:
        """The node; None before it was read."""

    def get_all_pods(self) -> tuple[PodState, ...]:
        """All pods of the node."""

    def get_all_vms(self) -> tuple[VmState, ...]:
        """All VMs of the agent."""

    def get_scaling_policies(self) -> tuple[ScalingPolicyState, ...]:
        """All scaling policies that matter to the node."""

    def register_callbacks(
        self, object_type: ObjectType, name: str, description: str, callback: Callable[[ObjectType], None]
    ) -> None:
        """Call `callback` after objects of the type have changed. Changes that come while a callback runs are one further call: a
        callback reads the newest state. Each callback has a thread of its own, so that a slow one holds no other up.
        Raises `ValueError` for a name that is taken within the type."""

    def send_callback(self, object_type: ObjectType) -> None:
        """Have the callbacks of the type called, as after a change."""


class NodeClient(Protocol):
    """The actions that a strategy may take. If the strategy only recommends, nothing is done, and the outcomes say so."""

    @property
    def recommends_only(self) -> bool:
        """Whether calls only recommend, and do nothing."""

    @property
    def cgroups(self) -> CgroupTree:
        """The control groups of pods, as kubelets lay them out."""

    def write(self, updates: Sequence[CgroupUpdate]) -> tuple[WriteOutcome, ...]:
        """Set values of cgroups in an order in which no group is ever wider than the group around it allows, and read them back.
        Blocks for the system calls alone. Outcomes come in the order of `updates`."""

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """The value that a cgroup has now; None if there is none."""

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """Ask the API server to evict a pod (its UID is compared). Blocks for 5 s at most."""

    def record(self, pod: PodState | None, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Report an Event of a pod, or of the node. Never blocks."""

    def decided(self, decision: StrategyDecision) -> None:
        """Note a decision and its reason: for `/v1/qos`, metrics and the log. Never blocks."""


class StrategyArgs(Settings):
    """The args of a strategy. The docstring below a field is its help; a duration is a number of seconds."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ExtensionPlugin(Protocol):
    """A QoS strategy (seed 002, `ExtensionPlugin`), of this project or of somebody else.

    `init_flags` and `setup` are called for every registered plugin, `run` only for those whose feature gate is on. An error of a method ends
    this plugin alone, which is tried again with back-off.

    A plugin may have two things more: `feature_spec`, its `FeatureSpec`, and `args_model`, the `Settings` model of its part of `qos.args`,
    which stands below its name; without one, nothing may stand there.
    """

    def init_flags(self, args: Any) -> None:
        """Take the args of the settings, a value of `args_model`. Called once, before anything else."""

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        """Take the tools of the plugin. Called in the plugin's thread, once before each `run`."""

    def run(self, stop: StopSignal) -> Awaitable[None] | None:
        """Work until `stop` is set. A plain method blocks its own thread; a coroutine runs in an event loop of its own,
        and is cancelled once `stop` is set. To return earlier is to be done: `run` is called again when the gate was off meanwhile."""

    def stop(self) -> None:
        """Put back changes that should not outlast the agent. Called in the plugin's thread after `run` has ended or raised; 5 s are
        given."""
