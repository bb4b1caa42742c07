"""The modules that plugin authors import: every name of the stub is there, and nothing is loaded before it is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
MODULES = {
    "plugins": ("AppError", "scheduler.pools.core.errors"),
    "scheduling": ("Status", "scheduler.placing.core.values"),
}
"""The modules, each with a name and its home."""


def imports(module: str) -> list[tuple[str, ast.alias]]:
    """The home of each name in the stub, and the name."""
    stub = ast.parse((ROOT / "parley" / f"{module}.pyi").read_text())
    return [
        (line.module or "", name)
        for line in stub.body
        if isinstance(line, ast.ImportFrom)
        for name in line.names
    ]


def loaded(module: str) -> ModuleType:
    return importlib.import_module(f"parley.{module}")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_the_list_is_the_one_of_its_home(module: str) -> None:
    listed = {name.name: home for home, name in imports(module)}
    assert dir(loaded(module)) == sorted(listed)
    for name, home in listed.items():
        assert getattr(loaded(module), name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["NewInternal", "new_internals", "_Loading", "__path__", "", "scheduler"])
def test_another_name_is_an_attribute_error(module: str, name: str) -> None:
    assert not hasattr(loaded(module), name)
    with pytest.raises(AttributeError, match=rf"parley\.{module}"):
        getattr(loaded(module), name)


@pytest.mark.parametrize("module", MODULES)
def test_a_star_gives_every_name(module: str) -> None:
    found: dict[str, Any] = {}
    exec(f"from parley.{module} import *", found)
    assert {name.name for _, name in imports(module)} <= found.keys()


@pytest.mark.parametrize("module", MODULES)
def test_type_checkers_see_every_name_as_offered(module: str) -> None:
    """Under `mypy --strict` a stub offers only what is imported under its own name again; and none is there twice."""
    names = [name for _, name in imports(module)]
    assert all(name.asname == name.name for name in names)
    assert len({name.name for name in names}) == len(names)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_of_the_scheduler_is_imported_before_it_is_used(module: str) -> None:
    """In a process of its own, because here everything is loaded."""
    name, home = MODULES[module]
    code = f"""
import sys
import parley.{module} as module
loaded = [name for name in sys.modules if name.split(".")[0] in ("scheduler", "hosting", "protocol", "pydantic")]
assert loaded == [], loaded
dir(module)
assert "scheduler" not in sys.modules
module.{name}
assert "{home}" in sys.modules
assert "scheduler.permits.service.service" not in sys.modules
assert "scheduler.placing.cycle.framework" not in sys.modules
assert "scheduler.pools.chain.manager" not in sys.modules
assert "{name}" in vars(module)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
