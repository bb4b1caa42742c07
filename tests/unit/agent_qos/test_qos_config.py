"""The whole configuration of QoS plugins: args, gates, and all faults at once."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from agent.node.qos.config import ExtensionRegistry, QOSExtensionConfig, configured, standard
from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.ports import StrategyArgs
from hosting.settings import FaultsError
from tests.unit.agent_qos.strategies import Strategy, raising


class LimitArgs(StrategyArgs):
    limit: Annotated[int, Field(ge=1)] = 1
    window: float = 10.0


class Limited(Strategy):
    args_model: Any = LimitArgs

    def __init__(self) -> None:
        super().__init__()
        self.args: LimitArgs | None = None

    def init_flags(self, args: Any) -> None:
        self.args = args


def registry(**plugins: Strategy) -> ExtensionRegistry:
    found = ExtensionRegistry()
    for name, plugin in plugins.items():
        found.register_plugin(name, FeatureSpec(), plugin)
    return found


def faults(*given: Any, **others: Any) -> list[str]:
    try:
        configured(*given, **others)
    except FaultsError as error:
        return error.faults
    return []


def test_every_plugin_is_given_its_args_in_the_order_of_registration_whether_it_is_on_or_not() -> None:
    order: list[str] = []

    class Noting(Limited):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def init_flags(self, args: Any) -> None:
            super().init_flags(args)
            order.append(self.name)

    plugins = {name: Noting(name) for name in ("B", "A")}
    config = QOSExtensionConfig({}, registry(**plugins))
    assert set(config.gates.specs) == {"A", "B"}
    assert config.init_flags({"A": {"limit": 7}}) == []
    assert order == ["B", "A"]
    assert [plugins[name].args for name in "AB"] == [LimitArgs(limit=7), LimitArgs()]
    assert [each.args for each in config.extensions] == [LimitArgs(), LimitArgs(limit=7)]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"A": {"limit": 0}}, ["qos.args.A.limit: must be at least 1 (found 0)"]),
        ({"A": {"limit": "7"}}, ["qos.args.A.limit: must be a whole number (found '7')"]),
        ({"A": {"colour": 1}}, ["qos.args.A.colour: there is no such setting"]),
        ({"B": {"limit": 1}}, ["qos.args.B.limit: there is no such setting"]),
        ({"C": {}}, ["qos.args.C: there is no QoS plugin of this name (there are: A, B)"]),
        ({"A": 3}, ["qos.args.A: must be a mapping (found 3)"]),
    ],
)
def test_args_that_a_plugin_does_not_take_are_told_with_their_paths(args: Any, told: list[str]) -> None:
    assert faults({}, args, registry=registry(A=Limited(), B=Strategy())) == told


class Raising(Limited):
    """A plugin that fails before it was ever used."""

    init_flags = raising(ValueError("no"))


class Misdeclared(Limited):
    """A plugin whose model is none."""

    args_model = dict


@pytest.mark.parametrize(
    ("plugin", "why"),
    [(Raising(), "init_flags failed: no"), (Misdeclared(), "args_model is no StrategyArgs")],
)
def test_a_plugin_that_fails_on_its_args_cannot_be_enabled(plugin: Strategy, why: str) -> None:
    plugins = registry(A=Limited(), B=plugin)
    (told,) = faults({"A": True, "B": True}, {}, registry=plugins)
    assert told.startswith(f"qos.featureGates.B: cannot be enabled: {why}")
    off = configured({"A": True}, {}, registry=plugins)
    assert [each.plugin is None for each in off.extensions] == [False, True]


def test_no_window_of_a_plugin_that_is_on_is_shorter_than_the_interval() -> None:
    plugins = registry(A=Limited(), B=Strategy())
    assert faults({"A": True}, {}, registry=plugins, interval_s=15.0) == [
        "qos.interval: must be at most qos.args.A.window, which is 10 (found 15)"
    ]
    assert faults({}, {}, registry=plugins, interval_s=15.0) == []


def test_the_strategies_that_come_with_the_agent_are_off_and_take_their_args() -> None:
    config = configured({}, {}, registry=standard(ExtensionRegistry(), ()))
    names = ["CPUBurst", "CPUEvict", "CPUSetAllocator", "CPUSuppress", "MemoryEvict"]
    assert [(each.name, each.error, each.spec.default) for each in config.extensions] == [
        (name, "", False) for name in names
    ]
    configured(dict.fromkeys(names, True), {}, registry=standard(ExtensionRegistry(), ()))


def test_the_command_line_wins_over_the_settings() -> None:
    plugins = registry(A=Strategy(), B=Strategy(), C=Strategy())
    config = configured({"A": True, "B": True}, {}, "B=false,C=true", ["C"], plugins)
    assert [config.gates.enabled(name) for name in "ABC"] == [True, False, True]
    assert config.feature_gates == {"A": True, "B": False, "C": True}
    assert config.recommend_only == {"C"}


def test_every_fault_is_told_at_once_with_its_path() -> None:
    told = faults(
        {"Nope": True}, {"nothing": {}}, "A=perhaps,Neither=true", ["A", "Nor"], registry(A=Strategy())
    )
    assert [fault.split(":")[0] for fault in told] == [
        "qos.args.nothing",
        "--qos-extension-plugins",
        "--qos-extension-plugins",
        "qos.featureGates.Nope",
        "qos.recommendOnly[1]",
    ]
