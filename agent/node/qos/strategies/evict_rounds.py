"""What a strategy that evicts does once in each interval."""

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping

from agent.node.qos.core.actions import StrategyDecision
from agent.node.qos.core.evict_decision import Asked, decision, reason_of
from agent.node.qos.core.evicting import Evictable, EvictionEngine, EvictionMarks, EvictionTask
from agent.node.qos.core.metrics import Aggregate, Aggregation, MetricError, MetricKind
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.eviction_marks import marks_of
from agent.node.qos.ports import FlagSet, MetricCache, NodeClient, StatesInformer, StopSignal
from agent.node.qos.strategies.evict_flags import EvictFlags
from hosting.settings import FaultsError


class EvictStrategy(ABC):
    """Reads pods and metrics, and evicts whom the tasks of the strategy name. `clock` is monotonic."""

    def __init__(
        self,
        flags: EvictFlags,
        pod_metric: MetricKind,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.flags = flags
        self._pod_metric = pod_metric
        self._clock, self._rng = clock, rng or random.Random()

    # ------------------------------------------------------------ the contract of an extension

    def init_flags(self, flags: FlagSet) -> None:
        self.flags.add_to(flags)

    def flag_faults(self) -> tuple[str, ...]:
        """Everything that is wrong with the flags' values."""
        return tuple(self.flags.faults())

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        """Take what the strategy works with. Raises `FaultsError` with everything that is wrong with the flags."""
        if faults := self.flag_faults():
            raise FaultsError(list(faults))
        self.client, self.metrics, self.states = client, metric_cache, states_informer
        self.window_s = self.flags.number("window-seconds")
        self._engine = EvictionEngine(self.flags.limits())

    def run(self, stop: StopSignal) -> None:
        interval_s = self.flags.number("interval-seconds")
        while not stop.wait(interval_s):
            self.round(stop)

    def stop(self) -> None:  # noqa: B027 - nothing to do is what the contract asks for here
        """Nothing outlasts the agent."""

    # ------------------------------------------------------------ one round

    def round(self, stop: StopSignal) -> None:
        """Look at the node, and evict whom its pressure asks for."""
        node = self.states.get_node()
        if node is None or not self.states.has_synced():
            self.client.decided(StrategyDecision("no-node", "the node and its pods are not read yet"))
            return
        found, now_s = self._evictables(), self._clock()
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
        used = self.metrics.query_each(self._pod_metric, self.window_s)
        return [
            self.evictable(pod, marks_of(pod, vms.get(pod.uid)), used.get((pod.uid,)))
            for pod in self.states.get_all_pods()
        ]

    @abstractmethod
    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        """The pod with what it uses."""

    def node_metric(
        self,
        kind: MetricKind,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate | None:
        """A metric of the node over the window; None where there is none."""
        try:
            return self.metrics.query(kind, self.window_s, aggregation, properties)
        except MetricError:
            return None
