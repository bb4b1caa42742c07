"""Strategies with real threads that work, fail, end and hang, while gates go on and off and the manager ends and begins again.

Held at every rest: who is wanted and does not hang runs, whoever else hangs; who is not wanted and does not hang has no thread; `setup`, `run`
and `stop` follow each other, in one thread at a time.
"""

import asyncio
import contextlib
import queue
import random
import re
import threading
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.node.qos.client import StrategyPorts
from agent.node.qos.config import ExtensionRegistry, configured
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.lifecycle import LifecycleTiming
from agent.node.qos.manager import QosManager
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal
from tests.support.waiting import PATIENCE_S, until
from tests.unit.agent_qos.strategies import LOG, states

NAMES: Final = ("A", "B", "C")
TIMING: Final = LifecycleTiming(sync_s=5.0, end_s=0.02, retry_base_s=0.001, retry_cap_s=0.001)
LIVES: Final = re.compile(r"(setup( run stop| stop)? end )*")
METHODS: Final = st.sampled_from(["setup", "run", "stop"])
NAME: Final = st.sampled_from(NAMES)


class Told:
    """A strategy whose methods do what they are told: `raise`, `hang` until let go, `end`, and `work` where nothing is said."""

    def __init__(self) -> None:
        self.next: dict[str, str] = {}
        self.pokes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.heard = 0
        self.works = False
        """Whether `run` waits, and hears what it is told."""
        self.let_go = threading.Event()
        self.hangs_in = ""
        self.has_ended = False
        self.lives: list[str] = []
        self.faults: list[str] = []
        self.threads: set[threading.Thread] = set()

    def init_flags(self, args: Any) -> None:
        """No args."""

    def setup(self, client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        thread = threading.current_thread()
        if self.living():
            self.faults.append("two threads at a time")
        if self.lives:
            self.lives.append("end")
        self.threads = {thread}
        self.has_ended = self.works = False
        self.lives.append("setup")
        self._do("setup")

    def run(self, stop: StopSignal) -> None:
        self._begin("run")
        self._do("run")
        self.works = True
        while not stop.wait(0.001):
            with contextlib.suppress(queue.Empty):
                what = self.pokes.get_nowait()
                self.works = False  # known before the poke counts as heard
                self.heard += 1
                if self._do("run", what):
                    self.has_ended = True
                    return
                self.works = True

    def stop(self) -> None:
        self._begin("stop")
        self._do("stop")

    def _begin(self, method: str) -> None:
        self.lives.append(method)
        if threading.current_thread() not in self.threads:
            self.faults.append(f"{method} in a thread of its own")

    def _do(self, method: str, what: str | None = None) -> bool:
        match what or self.next.pop(method, "work"):
            case "raise":
                raise ValueError(method)
            case "hang":
                self.hangs_in = method
                assert self.let_go.wait(PATIENCE_S)
                self.let_go.clear()
                self.hangs_in = ""
            case "end":
                return True
            case _:
                pass
        return False

    def living(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)


class StrategyMachine(RuleBasedStateMachine):
    """One manager with three strategies, in a loop that runs between the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.plugins = {name: Told() for name in NAMES}
        self.gates = dict.fromkeys(NAMES, False)
        registry = ExtensionRegistry()
        for name, plugin in self.plugins.items():
            registry.register_plugin(name, FeatureSpec(), plugin)
        cache: Any = None
        config = configured({}, {}, registry=registry)
        with self._in_loop():
            self.manager = QosManager(config, cache, states(), StrategyPorts(), LOG, random.Random(0), TIMING)
        self.task: asyncio.Task[None] | None = None
        self.the_manager_begins()

    @contextlib.contextmanager
    def _in_loop(self) -> Any:
        asyncio.set_event_loop(self.loop)
        yield
        asyncio.set_event_loop(None)

    def _drive(self, coroutine: Any) -> None:
        self.loop.run_until_complete(coroutine)

    @precondition(lambda self: self.task is None)
    @rule()
    def the_manager_begins(self) -> None:
        self.task = self.loop.create_task(self.manager.run())

    @precondition(lambda self: self.task is not None)
    @rule()
    def the_manager_ends(self) -> None:
        assert self.task is not None
        self.task.cancel()
        self._drive(asyncio.wait([self.task], timeout=PATIENCE_S))
        assert self.task.cancelled(), "it does not end"
        self.task = None

    @rule(name=NAME, is_on=st.booleans())
    def a_gate_is_set(self, name: str, is_on: bool) -> None:
        self.gates[name] = is_on

        async def switch() -> None:
            self.manager.set_feature_gates(self.gates)

        self._drive(switch())

    @rule(name=NAME, method=METHODS, what=st.sampled_from(["raise", "hang"]))
    def a_method_will_fail(self, name: str, method: str, what: str) -> None:
        self.plugins[name].next[method] = what

    @rule(name=NAME, what=st.sampled_from(["raise", "hang", "end"]))
    def a_strategy_that_runs_is_told(self, name: str, what: str) -> None:
        if self._state(name) == "running" and self.plugins[name].works:
            heard = self.plugins[name].heard
            self.plugins[name].pokes.put(what)
            self._drive(until(lambda: self.plugins[name].heard > heard))

    @rule(name=NAME)
    def a_strategy_is_let_go(self, name: str) -> None:
        if self.plugins[name].hangs_in:
            self.plugins[name].let_go.set()
            self._drive(until(lambda: not self.plugins[name].let_go.is_set()))

    @invariant()
    def everybody_comes_to_rest(self) -> None:
        self._drive(until(lambda: all(self._is_at_rest(name) for name in NAMES)))
        for plugin in self.plugins.values():
            assert plugin.faults == []
            life = " ".join((*plugin.lives, "end", ""))
            assert plugin.living() or not plugin.lives or LIVES.fullmatch(life), life

    def _state(self, name: str) -> str:
        return next(each.state for each in self.manager.statuses() if each.name == name)

    def _is_at_rest(self, name: str) -> bool:
        plugin, state = self.plugins[name], self._state(name)
        is_wanted = self.gates[name] and self.task is not None
        match plugin.hangs_in:
            case "" if is_wanted:
                return state == "stopped" if plugin.has_ended else state == "running" and plugin.works
            case "":
                return state in {"off", "stopped"} and not plugin.living()
            case "setup" if is_wanted:
                return state in {"starting", "stuck"}
            case "run" if is_wanted:
                return state in {"running", "stuck"}
            case _:
                return state == "stuck"

    def teardown(self) -> None:
        for plugin in self.plugins.values():
            plugin.next.clear()
        if self.task is not None:
            self.the_manager_ends()
        for plugin in self.plugins.values():
            plugin.let_go.set()
        self._drive(until(lambda: not any(plugin.living() for plugin in self.plugins.values())))
        self.loop.close()


TestStrategyMachine = StrategyMachine.TestCase
TestStrategyMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
