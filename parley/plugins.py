"""What plugin authors import, and nothing else. Each name is loaded when it is first used (docs/plugins.md).

`plugins.pyi` beside this file is the list of the names. Type checkers read it as what this module offers, and it is read here
for where each name comes from: so no name is written down twice.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_HOME_OF = {
    name.name: line.module
    for line in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(line, ast.ImportFrom) and line.module is not None
    for name in line.names
}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - computed from the one list; type checkers read the stub


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return __all__
