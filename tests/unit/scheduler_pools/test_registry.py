"""Names and factories: every doubt about a name is an error at start-up."""

from importlib import metadata
from typing import Any, cast

import pytest

from scheduler.pools.chain import registry
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle, Plugin
from scheduler.pools.chain.registry import PLUGIN_GROUP, PluginRegistry, ProviderRegistry, RegistryError
from scheduler.pools.core.providers import (
    InstanceType,
    NoInstanceTypes,
    NoQuota,
    Providers,
    ProviderSet,
    Quota,
)

HANDLE = cast("Handle", object())
NOTHING = ProviderSet()


class Made(BasePlugin):
    """Keeps what its factory was given."""

    def __init__(self, handle: Handle, providers: Providers, args: Args) -> None:
        self.given = (handle, providers, args)


def other(handle: Handle, providers: Providers, args: Args) -> Plugin:
    return Made(handle, providers, args)


def known(**factories: Any) -> PluginRegistry:
    found = PluginRegistry()
    for name, factory in factories.items():
        found.register(name, factory)
    return found


# ------------------------------------------------------------ names


def test_a_registered_factory_is_found_by_its_name() -> None:
    found = known(b=Made, a=other)
    assert found.get("b") is Made
    assert found.get("a") is other
    assert found.names() == ("a", "b")


def test_a_taken_name_is_refused_and_keeps_its_factory() -> None:
    found = known(quota=Made)
    for factory in (other, Made):
        with pytest.raises(RegistryError, match="'quota' is registered already"):
            found.register("quota", factory)
    assert found.get("quota") is Made


@pytest.mark.parametrize("name", ["", None])
def test_an_empty_name_is_refused(name: Any) -> None:
    found = known()
    with pytest.raises(RegistryError, match="name"):
        found.register(name, Made)
    assert found.names() == ()


@pytest.mark.parametrize("name", [7, b"quota", ("quota",), ["quota"]])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    found = known(quota=Made)
    with pytest.raises(RegistryError):
        found.register(name, Made)
    assert found.names() == ("quota",)


@pytest.mark.parametrize("factory", [None, "scheduler.pool:Made", 3, {}])
def test_what_cannot_be_called_is_refused(factory: Any) -> None:
    found = known()
    with pytest.raises(RegistryError, match="callable"):
        found.register("quota", factory)
    assert found.names() == ()


def test_an_unknown_name_is_an_error_that_says_which_there_are() -> None:
    with pytest.raises(RegistryError, match=r"'quote' is not registered \(there are: ip, quota\)"):
        known(quota=Made, ip=Made).get("quote")
    with pytest.raises(RegistryError, match="none"):
        known().get("quota")


@pytest.mark.parametrize("name", ["Quota", " quota", "quota ", ""])
def test_names_are_taken_as_they_are_written(name: str) -> None:
    with pytest.raises(RegistryError):
        known(quota=Made).get(name)


def test_registries_do_not_share_names() -> None:
    quota = ProviderRegistry("quota provider")
    quota.register("noop", lambda _: NoQuota())
    with pytest.raises(RegistryError, match="pool plugin 'noop'"):
        known().get("noop")
    with pytest.raises(RegistryError, match="quota provider 'other'"):
        quota.get("other")


def test_a_registry_error_is_a_value_error() -> None:
    assert issubclass(RegistryError, ValueError)


# ------------------------------------------------------------ entry points


def offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Make installed distributions offer (name, value) pairs under the plugins' group alone."""
    found = tuple(metadata.EntryPoint(name, value, PLUGIN_GROUP) for name, value in entries)

    def entry_points(*, group: str) -> tuple[metadata.EntryPoint, ...]:
        return found if group == PLUGIN_GROUP else ()

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def loaded(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> PluginRegistry:
    offer(monkeypatch, *entries)
    found = known()
    found.load_entry_points(PLUGIN_GROUP)
    return found


def test_an_entry_point_is_a_factory_that_is_imported_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = loaded(
        monkeypatch, ("quota", "scheduler.pools.chain.plugin:BasePlugin"), ("gone", "no.such.module:make")
    )
    assert found.names() == ("gone", "quota")
    assert found.get("quota") is cast("Any", BasePlugin)
    assert found.get("quota") is found.get("quota")


@pytest.mark.parametrize(
    "value",
    [
        "no.such.module:make",
        "scheduler.pools.chain.plugin:NoSuchName",
        "scheduler.pools.chain.plugin:BasePlugin.no_such_attribute",
        "scheduler.pools.chain.plugin",
        "scheduler.pools.core.errors:_KIND_OF_CODE",
        "not an entry point at all!",
        "",
    ],
)
def test_a_broken_entry_point_is_an_error_of_its_name_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    found = loaded(monkeypatch, ("quota", value), ("fine", "scheduler.pools.chain.plugin:BasePlugin"))
    for _ in range(2):
        with pytest.raises(RegistryError, match="pool plugin 'quota'"):
            found.get("quota")
    with pytest.raises(RegistryError, match="'quota'"):
        registry.build("quota", HANDLE, NOTHING, None, found)
    assert found.get("fine") is cast("Any", BasePlugin)


def test_two_entry_points_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="'quota' is registered already"):
        loaded(monkeypatch, ("quota", "one:make"), ("quota", "two:make"))


def test_an_entry_point_does_not_replace_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("quota", "scheduler.pools.chain.plugin:BasePlugin"))
    found = known(quota=Made)
    with pytest.raises(RegistryError, match="'quota' is registered already"):
        found.load_entry_points(PLUGIN_GROUP)
    assert found.get("quota") is Made


def test_an_entry_point_without_a_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="empty"):
        loaded(monkeypatch, ("", "scheduler.pools.chain.plugin:BasePlugin"))


def test_another_group_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, ("quota", "scheduler.pools.chain.plugin:BasePlugin"))
    found = known()
    found.load_entry_points(registry.QUOTA_GROUP)
    assert found.names() == ()


# ------------------------------------------------------------ building


def test_a_factory_gets_the_handle_the_args_and_a_provider_in_every_place() -> None:
    args = {"limit": 3}
    plugin = registry.build("quota", HANDLE, NOTHING, args, known(quota=Made))
    assert isinstance(plugin, Made)
    handle, providers, given = plugin.given
    assert handle is HANDLE
    assert given is args
    assert (providers.quota.enabled, providers.instance_type.enabled) == (False, False)


def test_one_factory_can_be_built_twice() -> None:
    found = known(quota=Made)
    one, two = (registry.build("quota", HANDLE, NOTHING, None, found) for _ in range(2))
    assert one is not two


@pytest.mark.parametrize("error", [ValueError("limit?"), KeyError("limit?"), RuntimeError("limit?")])
def test_what_a_factory_raises_comes_as_a_value_error_that_names_it(error: Exception) -> None:
    def broken(handle: Handle, providers: Providers, args: Args) -> Plugin:
        raise error

    with pytest.raises(ValueError, match=r"'quota'.*limit\?") as caught:
        registry.build("quota", HANDLE, NOTHING, None, known(quota=broken))
    assert caught.value.__cause__ is error


def test_a_factory_does_not_end_the_program() -> None:
    def leaves(handle: Handle, providers: Providers, args: Args) -> Plugin:
        raise SystemExit(3)

    with pytest.raises(ValueError, match=r"'quota'.*SystemExit"):
        registry.build("quota", HANDLE, NOTHING, None, known(quota=leaves))


def test_an_error_without_words_still_says_what_it_is() -> None:
    def broken(handle: Handle, providers: Providers, args: Args) -> Plugin:
        raise AssertionError

    with pytest.raises(ValueError, match="AssertionError"):
        registry.build("quota", HANDLE, NOTHING, None, known(quota=broken))


@pytest.mark.parametrize("made", [None, "quota", object(), BasePlugin])
def test_a_factory_that_makes_no_plugin_is_named(made: object) -> None:
    with pytest.raises(ValueError, match="'quota'"):
        registry.build("quota", HANDLE, NOTHING, None, known(quota=lambda *_: made))


def test_an_unknown_name_is_not_built() -> None:
    with pytest.raises(RegistryError, match="'quote' is not registered"):
        registry.build("quote", HANDLE, NOTHING, None, known(quota=Made))


def test_an_empty_registry_is_asked_and_not_the_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", known(quota=Made))
    with pytest.raises(RegistryError):
        registry.build("quota", HANDLE, NOTHING, None, known())


def test_the_process_has_one_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", PluginRegistry())
    registry.register("quota", Made)
    with pytest.raises(RegistryError):
        registry.register("quota", Made)
    assert registry.get("quota") is Made
    assert isinstance(registry.build("quota", HANDLE, NOTHING, None), Made)


# ------------------------------------------------------------ providers


class Quotas(NoQuota):
    """A provider that knows something."""

    enabled = True


def test_a_configured_provider_stays_and_gaps_are_filled() -> None:
    quotas = Quotas()
    providers = ProviderSet(quota=quotas).normalized()
    assert providers.quota is quotas
    assert isinstance(providers.instance_type, NoInstanceTypes)
    assert isinstance(ProviderSet().normalized().quota, NoQuota)


async def test_the_providers_of_nothing_know_nothing() -> None:
    providers = Providers()
    found: list[Quota] = list(await providers.quota.list_for_user("me", "us"))
    types: list[InstanceType] = list(providers.instance_type.list())
    assert (found, types) == ([], [])
    assert providers.quota.derive_short_name("https://quota/x") == ""
    assert providers.instance_type.get("small") is None
