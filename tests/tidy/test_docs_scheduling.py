"""docs/guides/scheduling.md and docs/guides/koordinator.md have a row for every shipped plugin, with its points and weights, and one for each
of its args. Their profiles are right, and so is the fault that the first one shows."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter

from hosting.settings import Settings
from scheduler.permits.service.config_file import model_of, read_configuration
from scheduler.placing.core.plugin import points_of
from scheduler.placing.core.profile import Profile
from scheduler.placing.core.values import ExtensionPoint
from scheduler.placing.cycle.assembly import ProfileError, check_profiles
from scheduler.placing.plugins.base import PublishedArgs, ShippedPlugin
from scheduler.placing.plugins.registry import (
    EXTENDER_PROFILE,
    FULL_PROFILE,
    SHIPPED,
    ProfileEntry,
    new_registry,
)
from tests.tidy.repository import ROOT
from tests.tidy.test_docs_settings import fields

PAGE = (ROOT / "docs/guides/scheduling.md").read_text()
KOORDINATOR = (ROOT / "docs/guides/koordinator.md").read_text()
BOTH = f"{PAGE}\n{KOORDINATOR}"


def rows(first: str) -> list[list[str]]:
    """The rows below the header whose first cell is `first`, as cells."""
    _, found, rest = BOTH.partition(f"\n| {first} |")
    lines = rest.splitlines()[2:] if found else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in _table(lines)]


def _table(lines: list[str]) -> list[str]:
    ends = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:ends]


def factory(name: str) -> type[ShippedPlugin]:
    found = new_registry().get(name)
    assert isinstance(found, type)
    assert issubclass(found, ShippedPlugin)
    return found


def enabled(profile: Profile, name: str) -> str:
    """Whether a default profile has a plugin, as the page says that."""
    for each in profile.multi_point.enabled:
        if each.name == name:
            return f"weight {each.weight}" if each.weight else "yes"
    return "no"


def test_every_plugin_has_its_row_in_the_order_of_the_full_profile() -> None:
    listed = [row[0].strip("`") for row in rows("Plugin")]
    assert listed == [each.name for each in FULL_PROFILE.multi_point.enabled]
    optional = [row[0].strip("`") for row in rows("Published plugin")]
    assert optional == sorted(set(SHIPPED) - set(listed))


@pytest.mark.parametrize("row", rows("Plugin"), ids=lambda row: row[0].strip("`"))
def test_a_row_has_the_points_and_where_the_plugin_is_enabled(row: list[str]) -> None:
    name = row[0].strip("`")
    extended = points_of(factory(name))
    assert row[1].split(", ") == [str(point) for point in ExtensionPoint if point in extended]
    assert row[2:4] == [enabled(EXTENDER_PROFILE, name), enabled(FULL_PROFILE, name)]


@pytest.mark.parametrize("row", rows("Published plugin"), ids=lambda row: row[0].strip("`"))
def test_a_row_of_a_published_plugin_has_its_points(row: list[str]) -> None:
    extended = points_of(factory(row[0].strip("`")))
    assert row[1].split(", ") == [str(point) for point in ExtensionPoint if point in extended]


def settings_of(model: type[Settings]) -> dict[str, tuple[type[Settings], str]]:
    """Of the published ones without their type, which every one has."""
    left_out = set(PublishedArgs.model_fields) if issubclass(model, PublishedArgs) else set()
    return {path: (where, name) for path, where, name in fields(model) if name not in left_out}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_arg_has_its_row_with_the_default_that_holds(name: str) -> None:
    known = settings_of(factory(name).ARGS)
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(f"Argument of `{name}`")}
    assert set(told) == set(known)
    for path, default in told.items():
        model, field_name = known[path]
        field = model.model_fields[field_name]
        assert field.is_required() is (default == "required"), path
        if not field.is_required():
            reader: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
            assert reader.validate_python(yaml.safe_load(default)) == field.get_default(
                call_default_factory=True
            ), path


@pytest.mark.parametrize("defaults", [EXTENDER_PROFILE, FULL_PROFILE], ids=["extender", "full"])
def test_the_profiles_of_the_page_are_right(defaults: Profile) -> None:
    _, _, begun = PAGE.partition("```yaml\nscheduling:")
    text = f"scheduling:{begun.partition('```')[0]}"
    configuration = read_configuration(Path("page"), text.encode(), model_of(migrator_present=False))
    check_profiles(configuration.profiles, new_registry(), defaults)
    assert [profile.scheduler_name for profile in configuration.profiles] == ["parley-scheduler", "dense"]


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(scheduling:.*?)```", KOORDINATOR, re.DOTALL))
def test_profiles_with_published_args_are_taken_as_they_are(block: str) -> None:
    configuration = read_configuration(Path("page"), block.encode(), model_of(migrator_present=False))
    check_profiles(configuration.profiles, new_registry(), FULL_PROFILE)


def test_a_fault_reads_as_on_the_page() -> None:
    (shown,) = re.findall(r"^scheduling\.profiles.*$", PAGE, re.MULTILINE)
    wrong = ProfileEntry.model_validate({"plugins": {"score": {"enabled": [{"name": "GrowthHedroom"}]}}})
    with pytest.raises(ProfileError) as caught:
        check_profiles([wrong.profile("scheduling.profiles[1]")], new_registry(), FULL_PROFILE)
    (told,) = caught.value.faults
    assert told.startswith(shown.removesuffix("…"))


def test_every_point_is_on_the_page() -> None:
    _, _, listed = PAGE.partition("key for each point: ")
    assert re.findall(r"`(\w+)`", listed.partition(". ")[0]) == [str(point) for point in ExtensionPoint]


def test_plugins_with_args_have_a_section() -> None:
    sections = set(re.findall(r"^### `(\w+)`$", BOTH, re.MULTILINE))
    assert sections >= {name for name in SHIPPED if settings_of(factory(name).ARGS)}
