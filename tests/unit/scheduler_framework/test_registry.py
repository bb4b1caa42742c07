"""The registry of scheduling plugins: merging, and what is installed."""

from importlib import metadata

import pytest

from hosting.registry import RegistryError
from scheduler.placing.core.handle import RawArgs
from scheduler.placing.core.plugin import Plugin
from scheduler.placing.plugins.registry import PLUGIN_GROUP, SHIPPED, Registry, new_registry


def make(args: RawArgs, handle: object) -> Plugin:
    raise NotImplementedError


def other(args: RawArgs, handle: object) -> Plugin:
    raise NotImplementedError


def test_a_merge_stops_at_the_first_taken_name_and_keeps_what_came_before() -> None:
    found, more = Registry(), Registry()
    found.register("b", make)
    for name in "abc":
        more.register(name, other)
    with pytest.raises(RegistryError, match=r"^a plugin named b already exists$"):
        found.merge(more)
    assert (found.names(), found.get("a"), found.get("b")) == (("a", "b"), other, make)


def test_a_merge_does_not_import_what_it_takes_over() -> None:
    found, more = Registry(), Registry()
    more.add_entry_point(metadata.EntryPoint("gone", "no.such.module:make", PLUGIN_GROUP))
    found.merge(more)
    more.unregister("gone")
    assert found.names() == ("gone",)
    with pytest.raises(RegistryError, match=r"no\.such\.module"):
        found.get("gone")


def test_installed_plugins_stand_beside_the_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata,
        "entry_points",
        lambda group: [metadata.EntryPoint("theirs", f"{__name__}:make", group)] * (group == PLUGIN_GROUP),
    )
    assert set(new_registry().names()) == {*SHIPPED, "theirs"}


def test_every_shipped_plugin_can_be_imported() -> None:
    found = new_registry()
    assert all(callable(found.get(name)) for name in SHIPPED)
