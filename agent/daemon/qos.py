"""Strategies in the daemon: their manager, and what they are given (states, metrics, cgroups, evictions, Events)."""

import random
import time
from collections.abc import Callable, Iterator

from agent.daemon import qos_page
from agent.daemon.gates_file import GatesFile
from agent.daemon.node_events import ClusterNode, NodeEvents
from agent.daemon.node_extensions import StrategyOptions
from agent.daemon.node_settings import QosSettings
from agent.daemon.settings import AgentSettings
from agent.daemon.states_feed import StatesFeed
from agent.node.qos.callbacks import StateCallbacks
from agent.node.qos.client import StrategyPorts
from agent.node.qos.collectors import Collectors
from agent.node.qos.evictor import PodEvictor
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.manager import QosManager
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.run_marks import RunMarks
from agent.node.qos.states_informer import States
from agent.runner.runner import Runner
from hosting.logs import Logger
from hosting.metrics import Family
from hosting.supervisor import Supervisor


class NodeStrategies:
    """The strategies of `options`. Made in the daemon's loop."""

    def __init__(
        self,
        settings: AgentSettings,
        options: StrategyOptions,
        cluster: ClusterNode | None,
        events: NodeEvents,
        log: Logger,
        rng: random.Random,
    ) -> None:
        qos = settings.qos or QosSettings()
        self._node = settings.node
        self._cluster = cluster
        self._log = log
        self._options = options
        cache = TimeSeriesCache(clock=time.monotonic)
        self._states = States(StateCallbacks(log, time.monotonic))
        self._executor = ResourceExecutor(qos.cgroup_root)
        self._collectors = Collectors(
            cache, self._executor.cgroups, self._states, log, interval_s=qos.interval
        )
        api = cluster.api if cluster is not None else None
        recorder = cluster.recorder if cluster is not None else None
        evictor = PodEvictor(api, recorder, clock=time.monotonic, log=log)
        ports = StrategyPorts(
            self._executor, evictor, events, RunMarks(settings.state_directory / "strategies")
        )
        self._manager = QosManager(options.config, cache, self._states, ports, log, rng)

    def start(self, supervisor: Supervisor, runners: Callable[[], list[Runner]]) -> None:
        """Run as children of the daemon. What strategies have changed is put back when the manager ends."""
        feed = StatesFeed(self._states, self._node, self._cluster, runners, self._log)
        supervisor.start("states of strategies", feed.run)
        supervisor.start("collectors of strategies", self._collectors.run)
        supervisor.start("strategies", self._manager.run)
        options, switch = self._options, self._manager.set_feature_gates
        supervisor.start("feature gates", GatesFile(options.file, options.given, switch, self._log).run)

    def document(self) -> bytes:
        """The whole of `/v1/qos`."""
        return qos_page.document(
            self._node,
            self._manager.statuses(),
            self._manager.callbacks(),
            self._executor.last_writes(),
            self._collectors.figures,
            time.monotonic(),
        )

    def families(self) -> Iterator[Family]:
        """The metrics."""
        yield from qos_page.families(self._manager.statuses())
