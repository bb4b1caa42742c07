"""Strategies in the daemon: their manager, their tools (states, metrics, cgroups, evictions, Events), and their page.

Their gates follow a file; the states of VMs follow the runners.
"""

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from agent.daemon.announcer import ClusterNode, NodeEvents
from agent.daemon.evictor import is_evicted_when_stuck
from agent.daemon.node_settings import QosSettings
from agent.daemon.server import GUARDED
from agent.daemon.settings import AgentSettings
from agent.node.qos.client import RunMarks, StrategyPorts
from agent.node.qos.collectors import Collectors
from agent.node.qos.config import QOSExtensionConfig
from agent.node.qos.core.node_metric import LONG_KINDS, MOST_WINDOW_S
from agent.node.qos.core.states import NodeState, PodState, ScalingPolicyState, VmState
from agent.node.qos.device_writer import DeviceInventoryWriter
from agent.node.qos.evictor import PodEvictor
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.manager import QosManager
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.node_metric import NodeMetricWriter
from agent.node.qos.node_topology import NodeTopologyWriter
from agent.node.qos.pods import node_state, pod_state, policy_state
from agent.node.qos.states_informer import StateCallbacks, States
from agent.runner.runner import Runner
from agent.sources.described import Found
from agent.sources.kubernetes import Store
from hosting import server
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from hosting.metrics import Family
from hosting.problems import DocumentedAnswer, Operation
from hosting.settings import FaultsError, SettingsError
from hosting.supervisor import Child, Supervisor
from hosting.watched_file import FileUnreachableError, WatchedFile
from protocol.pages import StrategiesShown, StrategyShown
from protocol.quantities import QuantityError
from protocol.values import ZERO, Resources

PAGE: Final = Operation(
    "The strategies", {200: DocumentedAnswer("The strategies.", StrategiesShown)}, "node", shared=GUARDED
)


def nothing(node: str) -> bytes:
    """`/v1/qos` of an agent whose settings name no strategies."""
    return msgspec.json.encode(StrategiesShown(node=node, enabled=False, strategies=()))


def families(strategies: Sequence[StrategyShown]) -> Iterator[Family]:
    yield Family(
        "gauge",
        "parley_agent_strategies",
        "Whether the strategy's gate is on (1) or off (0), by the state in which the strategy is",
        ("strategy", "state"),
        tuple(((each.name, each.state), float(each.enabled)) for each in strategies),
    )
    yield Family(
        "counter",
        "parley_agent_strategy_restarts",
        "Restarts of strategies that failed",
        ("strategy",),
        tuple(((each.name,), float(each.restarts)) for each in strategies),
    )
    yield Family(
        "counter",
        "parley_agent_strategy_actions",
        "Decisions of strategies by reason; their writes, evictions and Events by result",
        ("strategy", "action", "result"),
        tuple(
            ((each.name, action, result), float(count))
            for each in strategies
            for action, results in each.counts.items()
            for result, count in results.items()
        ),
    )


CHECK_S: Final = 2.0


class GatesFile:
    """Gives the gates of the file at `path` to `switch`; those that the command line has `given` win."""

    def __init__(
        self,
        path: Path,
        given: Mapping[str, bool],
        switch: Callable[[Mapping[str, bool]], None],
        log: Logger,
    ) -> None:
        self._file = WatchedFile(
            path, AgentSettings, lambda read: read.qos.feature_gates if read.qos is not None else {}
        )
        self._given = dict(given)
        self._switch = switch
        self._log = log
        self._switched: Mapping[str, bool] | None = None
        self._faults = FaultLog(
            log, "feature gates not usable, the old ones stay in force", "feature gates usable again"
        )

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(CHECK_S)

    async def look(self) -> None:
        """Take up changes. The first look takes the gates as they were at the start."""
        try:
            found = await self._file.refresh()
            if found is not None and found != self._switched:
                is_first, self._switched = self._switched is None, found
                if not is_first:
                    self._switch({**found, **self._given})
                    self._log.info("feature gates switched", gates=dict(found))
        except (SettingsError, FaultsError, FileUnreachableError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()


FEED_S: Final = 1.0
AT_ONCE: Final = 32
"""Objects that are read before others may go on."""

T = TypeVar("T")


@dataclass(slots=True)
class _Read(Generic[T]):
    """Objects of a store as values; an object that has not changed is not read again."""

    read: Callable[[Manifest], T]
    faults: FaultLog
    known: dict[Any, tuple[Manifest, T]] = field(default_factory=dict)

    async def values(self, store: Store) -> list[T]:
        known, self.known = self.known, {}
        done = 0
        for key, manifest in list(store.objects().items()):
            before = known.get(key)
            if before is not None and before[0] is manifest:
                self.known[key] = before
                continue
            about = "/".join(key)
            try:
                self.known[key] = (manifest, self.read(manifest))
            except (QuantityError, KeyError, TypeError, ValueError, AttributeError) as error:
                self.faults.failed(error, about, object=about)
            else:
                self.faults.worked(about, object=about)
            done += 1
            if done % AT_ONCE == 0:
                await asyncio.sleep(0)
        return [value for _, value in self.known.values()]


class StatesFeed:
    """Publishes to `states` while `run` runs. Without a cluster the node is this machine, and has no pods."""

    def __init__(
        self,
        states: States,
        node: str,
        cluster: ClusterNode | None,
        runners: Callable[[], Iterable[Runner]],
        log: Logger,
    ) -> None:
        self._states = states
        self._node = node
        self._cluster = cluster
        self._runners = runners
        faults = FaultLog(log, "object is no state for strategies", "object is a state for strategies again")
        self._pods: _Read[PodState] = _Read(pod_state, faults)
        self._nodes: _Read[NodeState] = _Read(node_state, faults)
        self._policies: _Read[ScalingPolicyState] = _Read(policy_state, faults)

    async def run(self) -> None:
        if self._cluster is not None:
            stores = self._cluster.stores
            for store in (stores.node, stores.pods, stores.policies):
                await store.synced()
        while True:
            await self.publish()
            await asyncio.sleep(FEED_S)

    async def publish(self) -> None:
        if self._cluster is None:
            here = machine()
            self._states.publish_node(NodeState(self._node, here, here))
            self._states.publish_pods((), is_healthy=True)
            self._states.publish_policies(())
        else:
            stores = self._cluster.stores
            for node in await self._nodes.values(stores.node):
                self._states.publish_node(node)
            pods = await self._pods.values(stores.pods)
            self._states.publish_pods(pods, is_healthy=not stores.pods.fault)
            self._states.publish_policies(await self._policies.values(stores.policies))
        found = self._cluster.found() if self._cluster is not None else {}
        if found is not None:  # else a VM would pass for any other pod until its runner is there
            self._states.publish_vms(vm_states(self._runners(), found))


def vm_states(runners: Iterable[Runner], found: Mapping[str, Found]) -> Iterator[VmState]:
    """The VMs that have a runner, and pods of `found` that are to have one."""
    stuck = {objects.uid(each.manifest) for each in found.values() if is_evicted_when_stuck(each)}
    known = [_vm_state(each) for each in runners]
    uids = {each.pod_uid for each in known}
    pods = {
        objects.uid(each.manifest): name
        for name, each in found.items()
        if each.scaling and not each.obstacles
    }
    known += [VmState(name, uid, ZERO, ZERO, ZERO, ZERO) for uid, name in pods.items() if uid not in uids]
    return (replace(each, is_evicted_when_stuck=each.pod_uid in stuck) for each in known)


def _vm_state(runner: Runner) -> VmState:
    """A VM as its runner knows it; amounts that are not known yet are 0."""
    state, planned = runner.state, runner.last_plan
    seen = state.backend.observation
    return VmState(
        runner.vm.name,
        runner.vm.pod_uid,
        seen.size if seen is not None else ZERO,
        seen.target if seen is not None else ZERO,
        state.scheduler.held,
        planned.desired if planned is not None else ZERO,
    )


def machine() -> Resources:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Resources((os.cpu_count() or 1) * 1000, memory_bytes)


@dataclass(frozen=True, slots=True)
class StrategyOptions:
    """The strategies that are wanted: their configuration, the settings file, whose gates may change, and the gates that the command line has
    `given`, which win."""

    config: QOSExtensionConfig
    file: Path
    given: Mapping[str, bool]


def _kept_objects(
    qos: QosSettings,
    cluster: ClusterNode | None,
    cache: TimeSeriesCache,
    states: States,
    log: Logger,
    rng: random.Random,
) -> Iterator[tuple[str, Child]]:
    """What keeps the objects of the node that the settings ask for, by a name for each."""
    if cluster is None:
        return
    api, node, clock = cluster.api, cluster.manifest, time.monotonic
    if qos.node_metric:
        yield "node metric", NodeMetricWriter(api, node, cache, states, log, rng).run
    if qos.node_topology:
        yield "node topology", NodeTopologyWriter(api, node, states, log, rng, clock).run
    if qos.device_inventory is not None:
        yield "device inventory", DeviceInventoryWriter(api, node, qos.device_inventory, log, rng, clock).run


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
        is_reported = qos.node_metric and cluster is not None
        long = (math.ceil(MOST_WINDOW_S / qos.interval) + 1, MOST_WINDOW_S)
        cache = TimeSeriesCache(
            longer=dict.fromkeys(LONG_KINDS, long) if is_reported else None, clock=time.monotonic
        )
        self._states = States(StateCallbacks(log, time.monotonic))
        self._executor = ResourceExecutor(qos.cgroup_root)
        self._collectors = Collectors(
            cache, self._executor.cgroups, self._states, log, interval_s=qos.interval
        )
        api = cluster.api if cluster is not None else None
        recorder = cluster.recorder if cluster is not None else None
        evictor = PodEvictor(api, recorder, clock=time.monotonic, log=log)
        marks = RunMarks(settings.state_directory / "strategies")
        ports = StrategyPorts(self._executor, evictor, events, marks)
        self._manager = QosManager(options.config, cache, self._states, ports, log, rng)
        self._kept = dict(_kept_objects(qos, cluster, cache, self._states, log, rng))

    def start(self, supervisor: Supervisor, runners: Callable[[], list[Runner]]) -> None:
        """Run as children of the daemon. The changes of strategies are put back when the manager ends."""
        feed = StatesFeed(self._states, self._node, self._cluster, runners, self._log)
        supervisor.start("states of strategies", feed.run)
        supervisor.start("collectors of strategies", self._collectors.run)
        supervisor.start("strategies", self._manager.run)
        for name, run in self._kept.items():
            supervisor.start(name, run)
        options, switch = self._options, self._manager.set_feature_gates
        supervisor.start("feature gates", GatesFile(options.file, options.given, switch, self._log).run)

    def document(self) -> bytes:
        return msgspec.json.encode(
            StrategiesShown(
                node=self._node,
                enabled=True,
                strategies=self._manager.statuses(),
                callbacks=self._manager.callbacks(),
                writes=self._executor.last_writes(),
                collectors=self._collectors.figures,
            )
        )

    def families(self) -> Iterator[Family]:
        yield from families(self._manager.statuses())


def route(node: str, strategies: NodeStrategies | None) -> server.Route:
    """The page, which is served without strategies as well."""

    async def page(_: server.Request) -> server.Reply:
        return server.Reply(200, nothing(node) if strategies is None else strategies.document())

    return server.Route("GET", "/v1/qos", page, about=PAGE)
