"""Modules that offer the names of others, each loaded when it is first used.

Such a module has a stub beside it, which is the list of the names: type checkers read it as the interface of the module, and it is
read here for the origin of each name. So no name is written down twice.
"""

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(
    module: str, file: str, names: dict[str, Any]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of such a module, whose globals are `names`. An object is kept there once it is loaded."""
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    home_of = {
        name.asname or name.name: (line.module, name.name)
        for line in stub.body
        if isinstance(line, ast.ImportFrom) and line.module is not None
        for name in line.names
    }

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = names[name] = getattr(importlib.import_module(home[0]), home[1])
        return found

    known = sorted(home_of)
    return known, load, lambda: known
