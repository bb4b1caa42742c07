"""QoS plugins by name: those of this process, and those of installed distributions, which may be broken."""

from importlib import metadata
from typing import Any

import pytest

from agent.node.qos import config
from agent.node.qos.config import QOS_PLUGIN_GROUP, ExtensionRegistry, register_qos_ext_plugin
from agent.node.qos.core.gates import FeatureSpec, FeatureStage
from hosting.registry import RegistryError
from tests.unit.agent_qos.strategies import Strategy, raising

ON = FeatureSpec(default=True, stage=FeatureStage.BETA)


class Offered(Strategy):
    """A plugin as a distribution offers it."""

    feature_spec = ON


class Unspecified(Strategy):
    """A plugin that says nothing of its feature."""


class Misspecified(Strategy):
    """A plugin whose feature is no feature."""

    feature_spec = True


unmakeable = raising(SystemExit("no such library"))
NOT_A_PLUGIN = object


def offered(**values: str) -> ExtensionRegistry:
    found = ExtensionRegistry()
    for name, value in values.items():
        found.add_entry_point(metadata.EntryPoint(name, value, QOS_PLUGIN_GROUP))
    return found


def test_the_first_of_a_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "REGISTERED", ExtensionRegistry())
    first = Strategy()
    register_qos_ext_plugin("Mine", ON, first)
    with pytest.raises(RegistryError, match=r"^Mine extension plugin already registered$"):
        register_qos_ext_plugin("Mine", ON, Strategy())
    (found,) = config.REGISTERED.extensions()
    assert (found.plugin, found.spec) == (first, ON)


@pytest.mark.parametrize(
    ("name", "spec", "plugin", "said"),
    [
        ("A=B", ON, Strategy(), "a name begins with a letter"),
        ("", ON, Strategy(), "a name begins with a letter"),
        ("A", True, Strategy(), "no FeatureSpec"),
        ("A", ON, object(), "it has no init_flags, setup, run, stop"),
        ("A", ON, Strategy, "is a class"),
    ],
)
def test_bad_names_specs_and_plugins_are_refused(name: str, spec: Any, plugin: Any, said: str) -> None:
    found = ExtensionRegistry()
    with pytest.raises(RegistryError, match=said):
        found.register_plugin(name, spec, plugin)
    assert found.extensions() == ()


@pytest.mark.parametrize(
    ("value", "spec", "error"),
    [
        ("tests.unit.agent_qos.test_qos_registry:Offered", ON, ""),
        ("tests.unit.agent_qos.test_qos_registry:Unspecified", FeatureSpec(), ""),
        ("tests.unit.agent_qos.test_qos_registry:Misspecified", FeatureSpec(), "feature_spec"),
        ("tests.unit.agent_qos.test_qos_registry:unmakeable", FeatureSpec(), "no such library"),
        ("tests.unit.agent_qos.test_qos_registry:NOT_A_PLUGIN", FeatureSpec(), "is no plugin"),
        ("tests.unit.agent_qos.nowhere:Plugin", FeatureSpec(), "cannot be imported"),
    ],
)
def test_what_a_distribution_offers_is_made_or_says_why_not(
    value: str, spec: FeatureSpec, error: str
) -> None:
    (found,) = offered(Theirs=value).extensions()
    assert (found.name, found.spec) == ("Theirs", spec)
    assert (found.plugin is None, error in found.error) == (bool(error), True)


def test_a_name_that_a_distribution_takes_twice_is_an_error() -> None:
    ours = ExtensionRegistry()
    ours.register_plugin("Mine", ON, Strategy())
    with pytest.raises(RegistryError, match="already registered"):
        ours.merge(offered(Mine="tests.unit.agent_qos.test_qos_registry:Offered"))
