"""The QoS manager: which strategies run, and everything that belongs to them. Source: seed 002, `QOSManager`."""

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from agent.node.qos.client import ActingClient, RecommendingClient, StrategyJournal, StrategyPorts
from agent.node.qos.config import QOSExtensionConfig
from agent.node.qos.core.actions import (
    DecisionRecord,
)
from agent.node.qos.core.gates import FeatureGates
from agent.node.qos.core.lifecycle import Lifecycle, LifecycleSignal, LifecycleTiming
from agent.node.qos.host import PluginDependencies, PluginHost, ThreadStop
from agent.node.qos.ports import ExtensionPlugin, MetricCache, NodeClient
from agent.node.qos.states_informer import States
from hosting.logs import Logger
from hosting.settings import FaultsError
from protocol.pages import StrategyCallback, StrategyDecisionShown, StrategyShown

LOOK_S: Final = 1.0
"""How often calls that do not return are looked for."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a strategy that computes in Python may keep the interpreter from the runners' loop. With the usual 5 ms a loop beside a thread that
spins comes 8 ms late, with this 0.7 ms; shorter intervals cost more in switches than they win."""
_TIMING: Final = LifecycleTiming()


class StatesNotSyncedError(Exception):
    """Some kinds of states were not published in time; the text names them."""


class QosManager:
    """Runs each enabled strategy in a thread of its own. `run` is one child of the daemon's supervisor; every method is called
    in the loop's thread."""

    def __init__(
        self,
        config: QOSExtensionConfig,
        metric_cache: MetricCache,
        states: States,
        ports: StrategyPorts,
        log: Logger,
        rng: random.Random,
        timing: LifecycleTiming = _TIMING,
    ) -> None:
        """`config` comes from `flags.configured`. Of `ports`, any may be missing."""
        self._config = config
        self._states = states
        self._ports = ports
        self._log = log
        self._timing = timing
        self._made_s = time.monotonic()
        self._is_running = False
        self._changed = asyncio.Event()
        self._journals = {
            each.name: StrategyJournal(each.name, log, time.monotonic) for each in config.extensions
        }
        self._hosts = setup_plugins(
            config,
            PluginDependencies(self._client, self._acting, metric_cache, states, ports.marks),
            lambda name, plugin, given: PluginHost(
                name, plugin, given, log, rng, self._timing, self._changed.set
            ),
        )

    async def run(self) -> None:
        """Wait for the states, start the enabled strategies, and end them when cancelled: within 10 s and a half.

        Raises `StatesNotSyncedError` if some kind of states was not published within the deadline.
        """
        await self._synced()
        self._states.callbacks.begin()
        try:
            with _prompt_switching():
                self._is_running = True
                start_plugins(self._hosts, self._config.gates)
                for name, host in self._hosts.items():
                    if not self._config.gates.enabled(name):
                        host.set_up()
                while True:
                    await asyncio.sleep(LOOK_S)
                    self._states.callbacks.report_slow()
        finally:
            self._is_running = False
            await self._drain()

    def set_feature_gates(self, values: Mapping[str, bool]) -> None:
        """Switch strategies on and off: these switches and no others; features that are not named have their default.

        Raises `FaultsError` with every fault, and then changes nothing.
        """
        faults = self._config.faults(values)
        if faults:
            raise FaultsError([f"qos.featureGates.{each}" for each in faults])
        self._config.gates = self._config.gates.with_values(values)
        if self._is_running:
            start_plugins(self._hosts, self._config.gates)

    def statuses(self) -> tuple[StrategyShown, ...]:
        """Every strategy, whether it is enabled or not, in the order of registration. The last error of one that cannot be enabled is why."""
        now_s = time.monotonic()
        return tuple(self._status(name, now_s) for name in self._journals)

    def callbacks(self) -> tuple[StrategyCallback, ...]:
        return self._states.callbacks.statuses()

    def _status(self, name: str, now_s: float) -> StrategyShown:
        extension = next(each for each in self._config.extensions if each.name == name)
        host, journal = self._hosts.get(name), self._journals[name]
        life = host.life if host is not None else Lifecycle(since_s=self._made_s, last_error=extension.error)
        counts: dict[str, dict[str, int]] = {}
        for (action, result), count in sorted(journal.counts().items()):
            counts.setdefault(action, {})[result] = count
        return StrategyShown(
            name=name,
            stage=extension.spec.stage.value,
            enabled=self._config.gates.enabled(name),
            recommend_only=name in self._config.recommend_only,
            state=life.state.value,
            since_seconds=round(max(now_s - life.since_s, 0.0), 1),
            restarts=life.restarts,
            last_error=life.last_error or None,
            counts=counts,
            decisions=tuple(_shown(each, now_s) for each in journal.records),
        )

    def _client(self, name: str, stop: ThreadStop) -> NodeClient:
        if name in self._config.recommend_only:
            return RecommendingClient(self._ports, self._journals[name])
        return self._acting(name, stop)

    def _acting(self, name: str, stop: ThreadStop) -> NodeClient:
        return ActingClient(name, self._ports, self._journals[name], stop)

    async def _synced(self) -> None:
        try:
            async with asyncio.timeout(self._timing.sync_s):
                await self._states.wait_for_sync()
        except TimeoutError:
            missing = ", ".join(self._states.missing())
            raise StatesNotSyncedError(
                f"not read within {self._timing.sync_s:g} s: {missing}; no strategy is started"
            ) from None

    async def _drain(self) -> None:
        for host in self._hosts.values():
            host.handle(LifecycleSignal.DRAIN)
        try:
            # The hosts have deadlines of their own; this one ends the wait if a thread comes back just to be late again.
            async with asyncio.timeout(2 * self._timing.end_s + 0.5):
                while not all(host.life.is_quiet for host in self._hosts.values()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._log.warning("strategies have not ended in time")


def _shown(record: DecisionRecord, now_s: float) -> StrategyDecisionShown:
    decision = record.decision
    return StrategyDecisionShown(
        seconds_ago=round(max(now_s - record.at_s, 0.0), 1),
        rounds=record.rounds,
        action=decision.is_action,
        reason=decision.reason,
        message=decision.message,
        inputs={name: round(value, 6) for name, value in sorted(decision.inputs.items())},
    )


def setup_plugins(
    config: QOSExtensionConfig,
    dependencies: PluginDependencies,
    host: Callable[[str, ExtensionPlugin, PluginDependencies], PluginHost],
) -> dict[str, PluginHost]:
    """Give every plugin a host with the arguments of its `setup`. Source: seed 002, `SetupPlugins`.

    `setup` itself is called in the plugin's thread, so that none holds up another; once also if the plugin is off (`PluginHost.set_up`).
    """
    return {
        each.name: host(each.name, each.plugin, dependencies)
        for each in config.extensions
        if each.plugin is not None
    }


def start_plugins(hosts: Mapping[str, PluginHost], gates: FeatureGates) -> None:
    """Start the plugins whose gate is on, each in a thread of its own, and end the others. Source: seed 002, `StartPlugins`."""
    for name, host in hosts.items():
        host.handle(LifecycleSignal.ENABLE if gates.enabled(name) else LifecycleSignal.DISABLE)


@contextlib.contextmanager
def _prompt_switching() -> Iterator[None]:
    """Have threads that compute give way to each other soon, while strategies may run."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(min(usual_s, SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
