"""Plugins are built by name."""

from typing import Any, cast

import pytest

from hosting.registry import RegistryError
from scheduler.pools.chain import config
from scheduler.pools.chain.config import PluginRegistry
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle, Plugin, ProviderSet

HANDLE = cast("Handle", object())
NOTHING = ProviderSet()


class Made(BasePlugin):
    """Keeps what its factory was given."""

    def __init__(self, handle: Handle, providers: ProviderSet, args: Args) -> None:
        self.given = (handle, providers, args)


def known(**factories: Any) -> PluginRegistry:
    found = PluginRegistry()
    for name, factory in factories.items():
        found.register(name, factory)
    return found


# ------------------------------------------------------------ building


def test_a_factory_gets_the_handle_the_providers_and_the_args() -> None:
    args = {"limit": 3}
    plugin = config.build("quota", HANDLE, NOTHING, args, known(quota=Made))
    assert isinstance(plugin, Made)
    handle, providers, given = plugin.given
    assert handle is HANDLE
    assert given is args
    assert providers is NOTHING


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("limit?"), r"limit\?"),
        (KeyError("limit?"), r"limit\?"),
        (RuntimeError("limit?"), r"limit\?"),
        (AssertionError(), "AssertionError"),
        (SystemExit(3), "SystemExit"),
    ],
)
def test_what_a_factory_raises_comes_as_a_value_error_that_names_it(error: BaseException, words: str) -> None:
    def broken(handle: Handle, providers: ProviderSet, args: Args) -> Plugin:
        raise error

    with pytest.raises(ValueError, match=rf"'quota'.*{words}"):
        config.build("quota", HANDLE, NOTHING, None, known(quota=broken))


@pytest.mark.parametrize("made", [None, "quota", object(), BasePlugin])
def test_a_factory_that_makes_no_plugin_is_named(made: object) -> None:
    with pytest.raises(ValueError, match="'quota'"):
        config.build("quota", HANDLE, NOTHING, None, known(quota=lambda *_: made))


def test_an_unknown_name_is_not_built() -> None:
    with pytest.raises(RegistryError, match="'quote' is not registered"):
        config.build("quote", HANDLE, NOTHING, None, known(quota=Made))


def test_an_empty_registry_is_asked_and_not_the_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_REGISTRY", known(quota=Made))
    with pytest.raises(RegistryError):
        config.build("quota", HANDLE, NOTHING, None, known())


def test_the_process_has_one_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_REGISTRY", PluginRegistry())
    config.register("quota", Made)
    with pytest.raises(RegistryError):
        config.register("quota", Made)
    assert config.get("quota") is Made
    assert isinstance(config.build("quota", HANDLE, NOTHING, None), Made)
