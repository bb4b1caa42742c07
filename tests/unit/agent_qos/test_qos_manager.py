"""The QoS manager with real threads: whatever a strategy does, the others run, the loop goes on, and the end comes in time."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.node.qos.client import RunMarks
from agent.node.qos.core.actions import CgroupResource, CgroupUpdate
from agent.node.qos.core.lifecycle import LifecycleTiming
from agent.node.qos.core.states import ObjectType
from agent.node.qos.manager import SWITCH_INTERVAL_S, QosManager, StatesNotSyncedError
from agent.node.qos.ports import MetricCache, NodeClient, StatesInformer, StopSignal
from hosting.settings import FaultsError
from protocol.pages import StrategyShown
from tests.support.waiting import until
from tests.unit.agent_qos.managed import LIFE, SET_UP, Hanging, manager, running
from tests.unit.agent_qos.strategies import (
    Lines,
    Strategy,
    UnshownError,
    raising,
    states,
    waiting,
)


def status(found: QosManager, name: str = "A") -> StrategyShown:
    return next(each for each in found.statuses() if each.name == name)


async def reached(found: QosManager, state: str, name: str = "A") -> StrategyShown:
    await until(lambda: status(found, name).state == state)
    return status(found, name)


async def test_a_strategy_is_set_up_run_and_stopped_in_one_thread_of_its_own() -> None:
    plugins = {"A": Strategy(), "B": Strategy()}
    async with running(manager(plugins)) as found:
        for name in plugins:
            await reached(found, "running", name)
        assert {"strategy A", "strategy B"} <= {thread.name for thread in threading.enumerate()}
    assert [plugin.calls for plugin in plugins.values()] == [LIFE, LIFE]
    assert [len(plugin.threads) for plugin in plugins.values()] == [1, 1]
    assert [each.state for each in found.statuses()] == ["stopped", "stopped"]


async def test_a_strategy_that_acts_is_marked_until_it_has_put_back(tmp_path: Path) -> None:
    marks = RunMarks(tmp_path / "strategies")
    plugins = {
        "A": Strategy(),
        "B": Strategy(),
        "C": Strategy(stopping=raising(OSError("no"))),
        "D": Strategy(setup=raising(OSError("no"))),
    }
    async with running(manager(plugins, recommend_only=("B",), marks=marks)) as found:
        for name in "ABC":
            await reached(found, "running", name)
        await reached(found, "backing-off", "D")
        assert [marks.has(name) for name in "ABCD"] == [True, False, True, False]
    assert [marks.has(name) for name in "ABCD"] == [False, False, True, False]


@pytest.mark.parametrize(
    ("is_on", "named", "calls"),
    [(False, (), LIFE), (True, ("A",), ["init_flags", "setup", "stop", "setup", "run", "stop"])],
    ids=["off", "recommends only"],
)
async def test_what_a_killed_agent_has_left_is_put_back_once(
    is_on: bool, named: tuple[str, ...], calls: list[str], tmp_path: Path
) -> None:
    marks = RunMarks(tmp_path / "strategies")
    marks.put("A")
    acts: list[bool] = []
    plugin = Strategy(setup=lambda client, *_: acts.append(not client.recommends_only))
    clean = Strategy()
    async with running(
        manager({"A": plugin, "B": clean}, on=is_on, recommend_only=(*named, "B"), marks=marks)
    ) as found:
        await until(lambda: not marks.has("A"))
        await reached(found, "running" if is_on else "off")
    assert (plugin.calls, acts[0], acts[1:]) == (calls, True, [False] * is_on)
    assert clean.calls == (LIFE if is_on else SET_UP)


async def in_a_loop(stop: StopSignal) -> None:
    await asyncio.sleep(0)
    await asyncio.to_thread(lambda: None)
    await waiting(stop)


async def in_deaf_ears(stop: StopSignal) -> None:
    while not stop.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)


@pytest.mark.parametrize("run", [waiting, in_a_loop, in_deaf_ears])
async def test_a_coroutine_runs_in_a_loop_of_its_own_and_is_cancelled(
    run: Callable[[StopSignal], Awaitable[None]],
) -> None:
    plugin = Strategy(run)
    async with running(manager({"A": plugin})) as found:
        await reached(found, "running")
    assert (plugin.calls, status(found).last_error, status(found).state) == (LIFE, None, "stopped")


async def cancels_itself(stop: StopSignal) -> None:
    raise asyncio.CancelledError


async def fails(stop: StopSignal) -> None:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("plugin", "calls", "error"),
    [
        (Strategy(setup=raising(ValueError("boom"))), ["setup"], "setup: ValueError('boom')"),
        (Strategy(raising(ValueError("boom"))), LIFE[1:], "run: ValueError('boom')"),
        (Strategy(raising(SystemExit(1))), LIFE[1:], "run: SystemExit(1)"),
        (Strategy(raising(KeyboardInterrupt())), LIFE[1:], "run: KeyboardInterrupt()"),
        (Strategy(raising(UnshownError())), LIFE[1:], "run: UnshownError"),
        (Strategy(fails), LIFE[1:], "run: ValueError('boom')"),
        (Strategy(cancels_itself), LIFE[1:], "run: CancelledError()"),
        (
            Strategy(lambda *_: None, stopping=raising(ValueError("boom"))),
            LIFE[1:],
            "stop: ValueError('boom')",
        ),
    ],
)
async def test_what_raises_is_reported_and_tried_again(
    plugin: Strategy, calls: list[str], error: str
) -> None:
    lines = Lines()
    async with running(manager({"A": plugin, "B": Strategy()}, log=lines)) as found:
        await until(lambda: status(found).restarts >= 2)
        assert status(found).last_error == error
        assert status(found, "B").restarts == 0
    assert plugin.calls[1 : 1 + 2 * len(calls)] == calls * 2
    assert {"strategy failed", "strategy is tried again"} == set(lines.texts("warning"))


async def test_a_strategy_that_ends_by_itself_is_left_so() -> None:
    plugin = Strategy(lambda *_: None)
    async with running(manager({"A": plugin})) as found:
        await reached(found, "stopped")
        found.set_feature_gates({"A": True})
        await reached(found, "stopped")
        assert plugin.calls == LIFE
        found.set_feature_gates({"A": False})
        found.set_feature_gates({"A": True})
        await until(lambda: plugin.calls == [*LIFE, *LIFE[1:]])


async def test_gates_switch_strategies_while_they_run() -> None:
    plugins = {"A": Strategy(), "B": Strategy()}
    async with running(manager(plugins, on=False)) as found:
        await until(lambda: [each.state for each in found.statuses()] == ["off", "off"])
        found.set_feature_gates({"B": True})
        await reached(found, "running", "B")
        with pytest.raises(
            FaultsError, match=r"qos.featureGates.C: there is no such feature gate \(there are: A, B\)"
        ):
            found.set_feature_gates({"A": True, "C": True})
        found.set_feature_gates({"A": True})
        await reached(found, "running")
        await reached(found, "off", "B")
        assert [each.enabled for each in found.statuses()] == [True, False]
    assert [plugin.calls for plugin in plugins.values()] == [[*SET_UP, *LIFE[1:]]] * 2


async def test_a_strategy_that_is_off_is_set_up_all_the_same_and_may_fail_at_that() -> None:
    """Seed 002: `SetupPlugins` initialises all registered plugins, `StartPlugins` starts those that are enabled."""

    def fail(*_: object) -> None:
        raise LookupError("oops")

    plugins = {"A": Strategy(), "B": Strategy(setup=fail)}
    async with running(manager(plugins, on=False)) as found:
        await until(lambda: status(found, "B").last_error is not None)
        await until(lambda: [each.state for each in found.statuses()] == ["off", "off"])
        assert [each.last_error for each in found.statuses()] == [None, "setup: LookupError('oops')"]
    assert [plugin.calls for plugin in plugins.values()] == [SET_UP, SET_UP[:2]]


def hanging(where: str) -> tuple[Strategy, Hanging]:
    method = Hanging()
    found = {
        "setup": Strategy(setup=method),
        "run": Strategy(method),
        "stop": Strategy(lambda *_: None, stopping=method),
        "thread": Strategy(method.in_a_thread),
        "spin": Strategy(method.spin),
    }
    return found[where], method


def registering(callback: Callable[[ObjectType], None]) -> Strategy:
    def setup(client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        states_informer.register_callbacks(ObjectType.NODE, "mine", "for the test", callback)

    return Strategy(setup=setup)


@pytest.mark.parametrize("where", ["setup", "run", "stop", "thread", "spin"])
async def test_a_strategy_that_hangs_holds_nobody_up_and_is_left_alone(where: str) -> None:
    plugin, method = hanging(where)
    other, lines = Strategy(), Lines()
    async with running(manager({"A": plugin, "B": other}, log=lines)) as found:
        await reached(found, "running", "B")
        await until(lambda: plugin.threads)
    assert (status(found).state, plugin.living()) == ("stuck", 1)
    told = [text for level, text, fields in lines.lines if level == "warning" and fields["strategy"] == "A"]
    assert told == ["strategy does not end, its thread is left alone"]
    await until(lambda: (other.calls, other.living()) == (LIFE, 0))
    method.is_over.set()
    await until(lambda: plugin.living() == 0)
    await reached(found, "stopped")


async def test_a_strategy_never_has_two_threads() -> None:
    plugin, method = hanging("run")
    async with running(manager({"A": plugin})) as found:
        await reached(found, "running")
        found.set_feature_gates({"A": False})
        await reached(found, "stuck")
        found.set_feature_gates({"A": True})
        assert (status(found).state, plugin.calls) == ("stuck", LIFE[:3])
        method.is_over.set()
        await until(lambda: plugin.calls[:6] == [*LIFE, "setup", "run"])


async def test_nothing_is_started_before_the_states_are_synced() -> None:
    plugin, known = Strategy(), states(is_synced=False)
    found = manager({"A": plugin}, known, timing=LifecycleTiming(end_s=0.2))
    async with running(found):
        await asyncio.sleep(0)
        assert plugin.calls == ["init_flags"]
        known.publish_pods((), is_healthy=True)
        await reached(found, "running")


async def test_states_that_do_not_come_are_named() -> None:
    plugin = Strategy()
    with pytest.raises(
        StatesNotSyncedError, match=r"not read within 0\.05 s: AllPods; no strategy is started"
    ):
        await manager({"A": plugin}, states(is_synced=False)).run()
    assert plugin.calls == ["init_flags"]


async def test_the_manager_can_run_again_after_it_has_ended() -> None:
    plugin = Strategy()
    found = manager({"A": plugin})
    for _ in range(2):
        async with running(found):
            await reached(found, "running")
    assert plugin.calls == [*LIFE, *LIFE[1:]]


async def test_threads_give_way_sooner_while_strategies_may_run() -> None:
    usual_s = sys.getswitchinterval()
    async with running(manager({})):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(usual_s)


async def test_callbacks_end_with_the_strategy_that_registered_them() -> None:
    called = threading.Semaphore(0)
    plugin = registering(lambda _: called.release())
    async with running(manager({"A": plugin})) as found:
        for _ in range(2):  # the name is free again for the next thread
            await until(lambda: called.acquire(blocking=False))
            assert [each.owner for each in found.callbacks()] == ["A"]
            found.set_feature_gates({"A": False})
            await reached(found, "off")
            assert found.callbacks() == ()
            found.set_feature_gates({"A": True})
    assert status(found).last_error is None


async def test_a_callback_that_hangs_keeps_its_name_until_it_returns() -> None:
    method = Hanging()
    plugin = registering(method)
    async with running(manager({"A": plugin})) as found:
        await until(lambda: any(each.running_seconds is not None for each in found.callbacks()))
        found.set_feature_gates({"A": False})
        await reached(found, "stuck")
        method.is_over.set()
        await reached(found, "off")


async def test_a_strategy_that_only_recommends_is_given_a_client_that_does_nothing() -> None:
    update = CgroupUpdate("kubepods/besteffort", CgroupResource.CPU_SHARES, 2, "for the test")

    def setup(client: NodeClient, metric_cache: MetricCache, states_informer: StatesInformer) -> None:
        client.write([update])

    plugins = {name: Strategy(setup=setup) for name in "AB"}
    async with running(manager(plugins, recommend_only=("A",))) as found:
        for name in plugins:
            await reached(found, "running", name)
        assert [each.recommend_only for each in found.statuses()] == [True, False]
        assert [each.counts for each in found.statuses()] == [
            {"write": {"recommended": 1}},
            {"write": {"unavailable": 1}},
        ]
