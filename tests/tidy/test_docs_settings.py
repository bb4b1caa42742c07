"""docs/reference/agent.md has a line for every setting of the agent's file, with the default that holds."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter

from agent.daemon import policies
from agent.daemon.settings import AgentSettings
from agent.daemon.windows import WindowEntry
from hosting.settings import Settings
from tests.tidy.repository import ROOT

LISTS: dict[str, type[Settings]] = {"windows": WindowEntry}
"""Lists of the file that are read by a model of their own."""
ARGS: dict[str, type[Settings]] = {
    "utilisation": policies.UtilisationArgs,
    "load-average": policies.LoadAverageArgs,
    "pressure": policies.PressureArgs,
}


def below(annotation: Any) -> Iterator[type[Settings]]:
    """The settings within a type, such as those of a list."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for part in get_args(annotation):
        yield from below(part)


def fields(model: type[Settings], path: str = "") -> Iterator[tuple[str, type[Settings], str]]:
    """Every setting: its path, and where it is declared."""
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias}"
        parts = list(below(field.annotation))
        is_list = "list" in str(field.annotation)
        for part in parts:
            yield from fields(part, f"{here}{'[]' if is_list else ''}.")
        if not parts:
            yield here, model, name


def every_setting() -> dict[str, tuple[type[Settings], str]]:
    """All of the file, of its lists, and of the arguments of our policies."""
    found = list(fields(AgentSettings))
    for name, entry in LISTS.items():
        found += fields(entry, f"{name}[].")
    for name, args in ARGS.items():
        found += fields(args, f"{name}.")
    return {path: (model, name) for path, model, name in found}


def documented() -> dict[str, str]:
    """The default of each setting, as it is written on the page."""
    page = (ROOT / "docs/reference/agent.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]+) \| [^|]+ \|$", page, re.MULTILINE)
    paths = [path for cell, _ in rows for path in re.findall(r"`([^`]+)`", cell)]
    assert len(paths) == len(set(paths))
    return {path: default for cell, default in rows for path in re.findall(r"`([^`]+)`", cell)}


def test_every_setting_has_its_line_and_nothing_else_has() -> None:
    assert set(documented()) == set(every_setting())


def test_all_policies_of_ours_are_there() -> None:
    assert set(ARGS) == set(policies.standard(()).names())


@pytest.mark.parametrize(("path", "told"), documented().items())
def test_the_default_is_the_one_that_holds(path: str, told: str) -> None:
    model, name = every_setting()[path]
    field = model.model_fields[name]
    if told == "required":
        assert field.is_required()
        return
    assert not field.is_required()
    written = yaml.safe_load(told.strip("`"))
    reader: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=ConfigDict(strict=True))
    assert reader.validate_python(written) == field.get_default(call_default_factory=True)


def test_the_page_of_two_machines_says_that_sizes_are_simulated_as_long_as_its_files_have_it_so() -> None:
    settings = yaml.safe_load((ROOT / "examples/two-machines/agent.yaml").read_text())
    assert settings.get("backend", AgentSettings.model_fields["backend"].default) == "simulated"
    assert "**The sizes of VMs are simulated here**" in (ROOT / "docs/guides/two-machines.md").read_text()
