"""Peers of a runner that are plugins: what a plugin says, and the built-in part where the plugin fails, hangs or lies."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from agent.core import events
from agent.core.model import Sample, Vm
from agent.core.policies.combined import PluginPolicy
from agent.core.policies.values import Goal, Load, ResourceGoal, Sizing
from agent.core.ports import VmBackend
from agent.daemon.runner_factory import MetricsFromPlugin, PluginPolicies
from agent.node.plugins.ports import MetricsSource, OutsidePolicy, PluginError
from tests.support.virtual_time import now_s, virtually
from tests.unit.agent.driver import VM
from tests.unit.agent.peers import Exporter

THREE = ResourceGoal(3, "decree")
ASKED = (VM, Load(), Sizing(VM.bounds.min, VM.unit, VM.bounds))
GONE = PluginError("policy plugin theirs is not registered")


class Plugin:
    """A metrics source and a policy: raises, hangs or answers as told."""

    def __init__(self, says: object) -> None:
        self.says = says

    async def read(self, vm: Vm) -> Sample:
        del vm
        return await self._answer()  # type: ignore[no-any-return] # whatever it says

    async def goal(self, vm: Vm, load: Load, sizing: Sizing, args: Mapping[str, Any]) -> Goal:
        del vm, load, sizing, args
        return await self._answer()  # type: ignore[no-any-return] # whatever it says

    async def _answer(self) -> Any:
        if isinstance(self.says, Exception):
            raise self.says
        if self.says == "hangs":
            await asyncio.Event().wait()
        return self.says


class Plugins:
    """A catalogue of plugins by name."""

    def __init__(self, **plugins: Plugin) -> None:
        self.plugins = plugins

    def metrics_source(self, name: str) -> MetricsSource:
        return self.plugins[name]

    def policy(self, name: str) -> OutsidePolicy:
        return self.plugins[name]

    def resizer(self, name: str) -> VmBackend:
        raise NotImplementedError

    def is_registered(self, plugin_type: str, name: str) -> bool:
        del plugin_type
        return name in self.plugins


class BrokenExporter:
    """Nothing listens there."""

    async def read(self, vm: Vm, port: int) -> events.MetricsFailed:
        del vm, port
        return events.MetricsFailed("connection refused", True, 0.5)


@pytest.mark.parametrize(
    ("says", "units", "error"),
    [
        (Goal(THREE, THREE), (3, 3), ""),
        (Goal(THREE, ResourceGoal(None, "no word")), (3, None), "no word"),
        (GONE, None, "policy plugin theirs is not registered"),
        ("hangs", None, "policy plugin theirs: no answer within 1 s"),
        ("garbage", (None, None), "policy plugin theirs returned no goal but 'garbage'"),
        (Goal(ResourceGoal(-1, "lie"), THREE), (None, 3), "policy plugin theirs returned no goal but"),
    ],
    ids=["both", "one", "gone", "hangs", "garbage", "a lie"],
)
def test_what_a_policy_says_and_what_is_wrong_with_it(
    says: object, units: tuple[int | None, ...] | None, error: str
) -> None:
    @virtually
    async def ask() -> None:
        peer = PluginPolicies(Plugins(theirs=Plugin(says)), [PluginPolicy("theirs")], 1.0)
        (answer,) = (await peer.ask(*ASKED)).answers
        goal = answer.goal
        assert (None if goal is None else (goal.cpu.units, goal.memory.units)) == units
        assert answer.error.startswith(error)
        assert bool(answer.error) == bool(error)

    ask()


@virtually
async def test_policies_are_asked_at_once_and_one_that_hangs_takes_no_other_ones_answer() -> None:
    there = Plugins(slow=Plugin("hangs"), other=Plugin("hangs"), good=Plugin(Goal(THREE, THREE)))
    peer = PluginPolicies(there, [PluginPolicy(name) for name in ("slow", "good", "other")], 1.0)
    answers = (await peer.ask(*ASKED)).answers
    assert [(each.plugin, each.goal is not None) for each in answers] == [
        ("slow", False),
        ("good", True),
        ("other", False),
    ]
    assert now_s() == 1.0


SAMPLE = Sample(1.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("says", "source", "fault"),
    [
        (SAMPLE, "theirs", ""),
        (
            PluginError("metrics plugin theirs lies"),
            "",
            "metrics plugin theirs lies; the exporter is read instead",
        ),
        ("hangs", "", "metrics plugin theirs: no answer within 1 s; the exporter is read instead"),
    ],
    ids=["good", "lies", "hangs"],
)
def test_the_load_comes_from_the_plugin_else_from_the_exporter(says: object, source: str, fault: str) -> None:
    @virtually
    async def read() -> None:
        event = await MetricsFromPlugin(Plugin(says), "theirs", Exporter(), 1.0).read(VM, 9100)
        assert isinstance(event, events.MetricsRead)
        assert (event.source, event.fault) == (source, fault)

    read()


@virtually
async def test_where_both_fail_both_are_told() -> None:
    plugin = Plugin(PluginError("metrics plugin theirs is gone"))
    event = await MetricsFromPlugin(plugin, "theirs", BrokenExporter(), 1.0).read(VM, 9100)
    told = "metrics plugin theirs is gone; exporter: connection refused"
    assert event == events.MetricsFailed(told, True, 0.5)
