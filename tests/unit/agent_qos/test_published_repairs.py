"""A table of the repairs that set our QoS manager apart from the published one, each shown.

The left column is what koordlet's `pkg/koordlet/qosmanager` and `pkg/koordlet/statesinformer` do with the same plugins.
"""

import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.node.qos.config import ExtensionRegistry, configured
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.core.states import ObjectType
from hosting.settings import FaultsError
from tests.support.waiting import until
from tests.unit.agent_qos.managed import LIFE, Hanging, manager, running
from tests.unit.agent_qos.strategies import Strategy, pod, states


async def a_run_that_blocks_stalls_nobody() -> bool:
    method, after = Hanging(), Strategy()
    async with running(manager({"Blocks": Strategy(method), "After": after})):
        await until(lambda: "run" in after.calls)
        method.is_over.set()
    return after.calls == LIFE


async def an_unknown_name_is_an_error_before_anything_starts() -> bool:
    registry = ExtensionRegistry()
    registry.register_plugin("Known", FeatureSpec(), Strategy())
    try:
        configured({}, {}, "Unknown=true", registry=registry)
    except FaultsError as error:
        return "(there are: Known)" in str(error)
    return False


async def plugins_have_a_stop_that_is_called() -> bool:
    plugin = Strategy()
    async with running(manager({"A": plugin})):
        await until(lambda: "run" in plugin.calls)
    return plugin.calls[-1] == "stop"


async def the_order_is_that_of_registration() -> bool:
    names = ("C", "A", "B")
    found = manager({name: Strategy() for name in names})
    return tuple(each.name for each in found.statuses()) == names


async def a_plugin_that_raises_ends_alone_and_is_tried_again() -> bool:
    def fail(*_: object) -> None:
        raise SystemExit(255)

    other = Strategy()
    async with running(manager({"A": Strategy(fail), "B": other})) as found:
        await until(lambda: found.statuses()[0].restarts >= 2)
    return other.calls == LIFE


async def a_taken_callback_name_is_an_error_of_who_registers() -> bool:
    known: Any = states()
    for kind in (ObjectType.NODE, "NodeSLO", ObjectType.NODE):
        with contextlib.suppress(ValueError):
            known.register_callbacks(kind, "mine", "", print)
    return len(known.callbacks.statuses()) == 1


async def a_slow_callback_holds_no_other_of_its_type_up() -> bool:
    known, slow, called = states(), Hanging(), threading.Event()
    known.register_callbacks(ObjectType.NODE, "slow", "", slow)
    known.register_callbacks(ObjectType.NODE, "quick", "", lambda _: called.set())
    known.callbacks.begin()
    await until(called.is_set)
    slow.is_over.set()
    known.callbacks.close("", 60.0)
    return known.callbacks.statuses() == ()


async def no_pods_of_a_healthy_source_are_no_pods() -> bool:
    known = states()
    known.publish_pods([pod("a")], is_healthy=True)
    known.publish_pods([], is_healthy=True)
    return known.get_all_pods() == ()


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        (
            "all Runs share one goroutine: one that blocks stalls the later ones",
            a_run_that_blocks_stalls_nobody,
        ),
        ("an unknown name in the map flag panics", an_unknown_name_is_an_error_before_anything_starts),
        ("there is no Stop, although the documentation names one", plugins_have_a_stop_that_is_called),
        ("plugins come in the random order of a map", the_order_is_that_of_registration),
        ("a plugin that panics ends the process", a_plugin_that_raises_ends_alone_and_is_tried_again),
        (
            "a taken callback name, or an unknown type, ends the process",
            a_taken_callback_name_is_an_error_of_who_registers,
        ),
        ("the callbacks of a type run one after the other", a_slow_callback_holds_no_other_of_its_type_up),
        (
            "an empty pod list is an error, and the old pods stay for ever",
            no_pods_of_a_healthy_source_are_no_pods,
        ),
    ],
)
async def test_what_is_repaired(published: str, ours: Callable[[], Awaitable[bool]]) -> None:
    assert await ours(), f"as published again: {published}"
