"""The whole configuration of QoS plugins: flags in the published order, gates, and all faults at once."""

from collections.abc import Callable
from typing import Any

import pytest

from agent.node.qos.core.gates import FeatureSpec
from agent.node.qos.flags import (
    EXTENSIONS_FLAG,
    ExtensionRegistry,
    Flag,
    Flags,
    QOSExtensionConfig,
    configured,
    standard,
)
from agent.node.qos.ports import FlagSet
from hosting.settings import FaultsError
from tests.unit.agent_qos.strategies import Strategy


class Flagged(Strategy):
    """A plugin with flags."""

    def __init__(self, add: Callable[[FlagSet], None]) -> None:
        super().__init__()
        self.add = add
        self.flags: FlagSet | None = None

    def init_flags(self, flags: FlagSet) -> None:
        self.flags = flags
        self.add(flags)


def registry(**plugins: Strategy) -> ExtensionRegistry:
    found = ExtensionRegistry()
    for name, plugin in plugins.items():
        found.register_plugin(name, FeatureSpec(), plugin)
    return found


def with_flags(**defaults: Any) -> Flagged:
    def add(flags: FlagSet) -> None:
        for name, default in defaults.items():
            flags.add(name, default, "for the test")

    return Flagged(add)


def test_flags_come_in_the_published_order_and_the_map_flag_lists_the_features() -> None:
    flags = Flags()
    order: list[str] = []
    plugins = {name: Flagged(lambda _, name=name: order.append(name)) for name in ("B", "A")}  # type: ignore[misc]  # a default binds the name
    config = QOSExtensionConfig({}, registry(**plugins))
    assert config.gates.specs == {}, "features are known once the flags are"
    config.init_flags(flags)
    assert order == ["B", "A"], "the order of registration"
    (flag,) = flags.known()
    assert flag.name == EXTENSIONS_FLAG
    assert flag.help_text.splitlines()[1:] == [
        "A=true|false (ALPHA - default=false)",
        "B=true|false (ALPHA - default=false)",
    ]


@pytest.mark.parametrize(
    ("default", "given", "value"),
    [
        (False, True, True),
        (False, "true", True),
        (3, 5, 5),
        (3, "-5", -5),
        (0.5, 2, 2.0),
        (0.5, "0.75", 0.75),
        ("a", "b", "b"),
        (False, 1, None),
        (3, True, None),
        (3, 2.5, None),
        (3, "many", None),
        (0.5, "nan", None),
        (0.5, float("inf"), None),
        (0.5, True, None),
        ("a", 5, None),
        ("a", [], None),
    ],
)
def test_a_flag_takes_values_of_its_type_and_their_texts(default: Any, given: object, value: object) -> None:
    flags = Flags()
    flags.add(Flag("limit", "the test", default, ""))
    faults = flags.parse({"limit": given})
    found = flags.get("limit")
    assert (found, type(found)) == ((default, type(default)) if value is None else (value, type(value)))
    assert [fault.split(" (")[0].split(": ")[0] for fault in faults] == (["limit"] if value is None else [])


@pytest.mark.parametrize(
    ("name", "default", "said"),
    [
        ("taken", 1, "is taken by the plugin A"),
        ("Bad", 1, "begins with a-z"),
        ("", 1, "begins with a-z"),
        ("b", None, "must be a bool, a number or a text"),
        (EXTENSIONS_FLAG, 1, "is taken by the QoS manager"),
    ],
)
def test_a_plugin_with_a_bad_flag_cannot_be_enabled_and_leaves_no_flag(
    name: str, default: Any, said: str
) -> None:
    def add(flags: FlagSet) -> None:
        flags.add("mine", 1, "")
        flags.add(name, default, "")

    plugins = registry(A=with_flags(taken=1), B=Flagged(add))
    with pytest.raises(FaultsError, match=said) as caught:
        configured({"A": True, "B": True}, {}, registry=plugins)
    assert caught.value.faults[0].startswith("qos.featureGates.B: cannot be enabled: init_flags failed: ")
    off = configured({"A": True}, {}, registry=plugins)
    assert [each.plugin is None for each in off.extensions] == [False, True]
    with pytest.raises(FaultsError, match="there is no flag 'mine'"):
        configured({}, {"mine": 2}, registry=plugins)


def test_plugins_read_their_flags_once_all_are_parsed() -> None:
    plugin = with_flags(limit=1)
    configured({}, {"limit": "7"}, registry=registry(A=plugin))
    assert plugin.flags is not None
    assert plugin.flags.get("limit") == 7
    with pytest.raises(ValueError, match="there is no flag 'other'"):
        plugin.flags.get("other")


class Choosy(Flagged):
    """A plugin that looks at the values of its flags."""

    def flag_faults(self) -> list[str]:
        assert self.flags is not None
        limit = self.flags.get("limit")
        if limit == 13:
            raise ValueError("what a number")
        return [] if limit == 1 else [f"limit: must be 1 (found {limit})"]


@pytest.mark.parametrize(
    ("is_on", "limit", "faults"),
    [
        (True, 1, []),
        (True, 2, ["qos.flags.limit: must be 1 (found 2)"]),
        (True, 13, ["qos.flags.A: flag_faults failed: what a number"]),
        (False, 2, []),
    ],
)
def test_an_enabled_plugin_looks_at_the_values_of_its_flags(
    is_on: bool, limit: int, faults: list[str]
) -> None:
    plugins = registry(A=Choosy(lambda flags: flags.add("limit", 1, "")))
    found: list[str] = []
    try:
        configured({"A": is_on}, {"limit": limit}, registry=plugins)
    except FaultsError as error:
        found = error.faults
    assert found == faults


def test_the_strategies_that_come_with_the_agent_are_off_and_take_their_flags() -> None:
    config = configured({}, {}, registry=standard(ExtensionRegistry(), ()))
    names = ["CPUBurst", "CPUEvict", "CPUSuppress", "MemoryEvict"]
    assert [(each.name, each.error, each.spec.default) for each in config.extensions] == [
        (name, "", False) for name in names
    ]
    configured(dict.fromkeys(names, True), {}, registry=standard(ExtensionRegistry(), ()))


def test_the_map_flag_wins_over_the_settings() -> None:
    plugins = registry(A=Strategy(), B=Strategy(), C=Strategy())
    config = configured({"A": True, "B": True}, {}, "B=false,C=true", ["C"], plugins)
    assert [config.gates.enabled(name) for name in "ABC"] == [True, False, True]
    assert config.feature_gates == {"A": True, "B": False, "C": True}
    assert config.recommend_only == {"C"}


def test_every_fault_is_told_at_once_with_its_path() -> None:
    with pytest.raises(FaultsError) as caught:
        configured(
            {"Nope": True}, {"nothing": 1}, "A=perhaps,Neither=true", ["A", "Nor"], registry(A=Strategy())
        )
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "qos.flags.nothing",
        "--qos-extension-plugins",
        "--qos-extension-plugins",
        "qos.featureGates.Nope",
        "qos.recommendOnly[1]",
    ]
