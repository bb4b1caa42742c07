"""docs/scheduling.md has a row for every shipped plugin, with its points and weights, and one for each of its args."""

import re
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter

from hosting.settings import Settings
from scheduler.framework.core.plugin import ExtensionPoint, points_of
from scheduler.framework.core.profile import Profile
from scheduler.framework.plugins.base import ShippedPlugin
from scheduler.framework.plugins.profiles import EXTENDER_PROFILE, FULL_PROFILE
from scheduler.framework.runtime.registry import SHIPPED, new_registry
from tests.tidy.repository import ROOT
from tests.tidy.test_docs_settings import fields

PAGE = (ROOT / "docs/scheduling.md").read_text()


def rows(first: str) -> list[list[str]]:
    """The rows below the header whose first cell is `first`, as cells."""
    _, found, rest = PAGE.partition(f"\n| {first} |")
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
    assert set(listed) == set(SHIPPED)


@pytest.mark.parametrize("row", rows("Plugin"), ids=lambda row: row[0].strip("`"))
def test_a_row_has_the_points_and_where_the_plugin_is_enabled(row: list[str]) -> None:
    name = row[0].strip("`")
    extended = points_of(factory(name))
    assert row[1].split(", ") == [str(point) for point in ExtensionPoint if point in extended]
    assert row[2:4] == [enabled(EXTENDER_PROFILE, name), enabled(FULL_PROFILE, name)]


def settings_of(model: type[Settings]) -> dict[str, tuple[type[Settings], str]]:
    return {path: (where, name) for path, where, name in fields(model)}


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


def test_plugins_with_args_have_a_section() -> None:
    sections = set(re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE))
    assert sections >= {name for name in SHIPPED if settings_of(factory(name).ARGS)}
