"""The module that authors of pool plugins import has every name of the seed."""

import enum
import inspect

import pytest

from parley import plugins
from scheduler.pools.chain import config, manager, plugin
from scheduler.pools.core import errors, probe, values

SEED = {
    "NewInsufficientResources": ("new_insufficient_resources", errors.new_insufficient_resources),
    "NewInternal": ("new_internal", errors.new_internal),
    "NewInvalidSpec": ("new_invalid_spec", errors.new_invalid_spec),
    "Register": ("register", config.register),
    "BasePlugin": ("BasePlugin", plugin.BasePlugin),
    "Factory": ("Factory", plugin.Factory),
    "Get": ("get", config.get),
    "Plugin": ("Plugin", plugin.Plugin),
    "Build": ("build", config.build),
    "PluginErrorKind": ("PluginErrorKind", errors.PluginErrorKind),
    "KindFromAppError": ("kind_from_app_error", errors.kind_from_app_error),
    "PluginManager": ("PluginManager", manager.PluginManager),
    "NewPluginManager": ("new_plugin_manager", manager.new_plugin_manager),
    "ProbeResult": ("ProbeResult", probe.ProbeResult),
    "ProbeAcceptedReplicas": ("probe_accepted_replicas", manager.probe_accepted_replicas),
    "ProbeResultKind": ("ProbeResultKind", probe.ProbeResultKind),
    "domain.AppError": ("AppError", errors.AppError),
    "framework.Handle": ("Handle", plugin.Handle),
    "framework.Args": ("Args", plugin.Args),
    "providerset.Set": ("ProviderSet", plugin.ProviderSet),
    "SandboxPool": ("Pool", values.Pool),
}


@pytest.mark.parametrize(("name", "found"), SEED.values(), ids=SEED)
def test_every_name_of_the_seed_is_there(name: str, found: object) -> None:
    assert getattr(plugins, name) is found
    assert name in dir(plugins)


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("PluginErrorKind", ["UNKNOWN", "INSUFFICIENT_RESOURCES", "INTERNAL", "INVALID_SPEC"]),
        ("ProbeResultKind", ["OK", "INSUFFICIENT_RESOURCES", "INTERNAL_ERROR", "INVALID_SPEC"]),
    ],
)
def test_every_constant_of_the_seed_is_there_in_its_order(kind: str, members: list[str]) -> None:
    found: type[enum.Enum] = getattr(plugins, kind)
    assert [member.name for member in found] == members


def test_the_outcomes_have_the_numbers_of_the_seed() -> None:
    assert [int(kind) for kind in plugins.ProbeResultKind] == [0, 1, 2, 3]
    assert {"kind", "accepted", "error"} <= set(inspect.signature(plugins.ProbeResult).parameters)


@pytest.mark.parametrize("kind", ["Plugin", "BasePlugin"])
def test_every_hook_of_the_seed_is_there(kind: str) -> None:
    hooks = {
        "name": [],
        "start": ["handle"],
        "pre_create_pool": ["ctx", "pool"],
        "pre_update_pool": ["ctx", "new_pool", "pods"],
        "pre_delete_pool": ["ctx", "pool"],
        "pre_create_pod": ["ctx", "pod", "pool"],
    }
    found = {
        hook: list(inspect.signature(getattr(getattr(plugins, kind), hook)).parameters)[1:] for hook in hooks
    }
    assert found == hooks


@pytest.mark.parametrize(
    "method", ["start", "pre_create_pod_hooks", "pre_create_pool", "pre_update_pool", "pre_delete_pool"]
)
def test_every_method_of_the_seeds_manager_is_there(method: str) -> None:
    assert inspect.iscoroutinefunction(getattr(plugins.PluginManager, method))
