"""Modules that offer the names of others, each loaded when it is first used.

Such a module has a stub beside it, which is the list of the names: type checkers read it as the interface of the module, and it is
read here for the origin of each name. So no name is written down twice.
"""

import ast
import importlib
from pathlib import Path
from typing import Any


class LazyNames:
    """The names of the module `module`, whose file is `file`."""

    def __init__(self, module: str, file: str) -> None:
        self._module = module
        stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
        self._home_of = {
            name.asname or name.name: (line.module, name.name)
            for line in stub.body
            if isinstance(line, ast.ImportFrom) and line.module is not None
            for name in line.names
        }

    def all(self) -> list[str]:
        return sorted(self._home_of)

    def load(self, name: str, into: dict[str, Any]) -> Any:
        """The object with this name; kept in `into`, the module's globals. Raises `AttributeError` for another name."""
        home = self._home_of.get(name)
        if home is None:
            raise AttributeError(f"module {self._module!r} has no attribute {name!r}")
        module, attribute = home
        found = into[name] = getattr(importlib.import_module(module), attribute)
        return found
