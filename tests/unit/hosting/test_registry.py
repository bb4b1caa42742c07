"""Names and factories: every doubt about a name is an error at start-up."""

import re
from importlib import metadata
from typing import Any

import pytest

from hosting.registry import FactoryRegistry, RegistryError, at_once

GROUP = "parley.things"
HERE = "hosting.registry"


def make() -> str:
    return "made"


def other() -> str:
    return "other"


def known(**factories: Any) -> FactoryRegistry[Any]:
    found: FactoryRegistry[Any] = FactoryRegistry("thing")
    for name, factory in factories.items():
        found.register(name, factory)
    return found


def test_a_registered_factory_is_found_by_its_name() -> None:
    found = known(b=make, a=other)
    assert (found.get("b"), found.get("a"), found.names()) == (make, other, ("a", "b"))


def test_a_taken_name_is_refused_and_keeps_its_factory() -> None:
    found = known(quota=make)
    for factory in (other, make):
        with pytest.raises(RegistryError, match="'quota' is registered already"):
            found.register("quota", factory)
    assert found.get("quota") is make


@pytest.mark.parametrize("name", ["", None, 7, b"quota", ("quota",), ["quota"]])
def test_a_name_that_is_no_text_or_empty_is_refused(name: Any) -> None:
    found = known(quota=make)
    with pytest.raises(RegistryError, match="a name must be a text and not empty"):
        found.register(name, make)
    assert found.names() == ("quota",)


def test_a_registry_may_have_a_rule_of_its_own_for_names() -> None:
    found: FactoryRegistry[Any] = FactoryRegistry(
        "thing", re.compile("[a-z]+").fullmatch, "a name is made of a-z"
    )
    found.register("quota", make)
    with pytest.raises(RegistryError, match="thing: a name is made of a-z, not 'Quota'"):
        found.register("Quota", make)


@pytest.mark.parametrize("factory", [None, "scheduler.pool:Made", 3, {}])
def test_what_cannot_be_called_is_refused(factory: Any) -> None:
    found = known()
    with pytest.raises(RegistryError, match="callable"):
        found.register("quota", factory)
    assert found.names() == ()


@pytest.mark.parametrize("name", ["quote", "Quota", " quota", "quota ", ""])
def test_an_unknown_name_is_an_error_that_says_which_there_are(name: str) -> None:
    with pytest.raises(RegistryError, match=rf"thing '{name}' is not registered \(there are: ip, quota\)"):
        known(quota=make, ip=make).get(name)
    with pytest.raises(RegistryError, match="none"):
        known().get("quota")


# ------------------------------------------------------------ entry points


def offer(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Make installed distributions offer (name, value) pairs under `GROUP` alone."""
    found = tuple(metadata.EntryPoint(name, value, GROUP) for name, value in entries)

    def entry_points(*, group: str) -> tuple[metadata.EntryPoint, ...]:
        return found if group == GROUP else ()

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def loaded(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> FactoryRegistry[Any]:
    offer(monkeypatch, *entries)
    found = known()
    found.load_entry_points(GROUP)
    return found


def test_an_entry_point_is_a_factory_that_is_imported_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = loaded(monkeypatch, ("quota", f"{HERE}:at_once"), ("gone", "no.such.module:make"))
    assert found.names() == ("gone", "quota")
    assert found.get("quota") is found.get("quota") is at_once


@pytest.mark.parametrize(
    "value",
    [
        "no.such.module:make",
        f"{HERE}:NoSuchName",
        f"{HERE}:FactoryRegistry.no_such_attribute",
        HERE,
        f"{HERE}:__doc__",
        "not an entry point at all!",
        "",
    ],
)
def test_a_broken_entry_point_is_an_error_of_its_name_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    found = loaded(monkeypatch, ("quota", value), ("fine", f"{HERE}:at_once"))
    for _ in range(2):
        with pytest.raises(RegistryError, match="thing 'quota'"):
            found.get("quota")
    assert found.get("fine") is at_once


def test_a_module_that_ends_the_program_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(_: metadata.EntryPoint) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(metadata.EntryPoint, "load", leave)
    with pytest.raises(RegistryError, match=r"'quota'.*SystemExit"):
        loaded(monkeypatch, ("quota", f"{HERE}:at_once")).get("quota")


@pytest.mark.parametrize(
    ("known_already", "entries", "words"),
    [
        ({}, ["quota", "quota"], "'quota' is registered already"),
        ({"quota": make}, ["quota"], "'quota' is registered already"),
        ({}, [""], "empty"),
    ],
)
def test_an_entry_point_whose_name_is_taken_or_empty_is_an_error(
    monkeypatch: pytest.MonkeyPatch, known_already: dict[str, Any], entries: list[str], words: str
) -> None:
    offer(monkeypatch, *((name, f"{HERE}:at_once") for name in entries))
    found = known(**known_already)
    found.load_entry_points("parley.others")
    assert found.names() == tuple(known_already), "another group offers nothing"
    with pytest.raises(RegistryError, match=words):
        found.load_entry_points(GROUP)
    assert not known_already or found.get("quota") is make
