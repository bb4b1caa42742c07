"""The names that authors of scheduling plugins import, and nothing else (docs/guides/scheduling-plugins.md). See `scheduling.pyi`."""

from typing import Any

from parley.lazy import LazyNames

_NAMES = LazyNames(__name__, __file__)
__all__ = _NAMES.all()  # noqa: PLE0605 - computed from the one list; type checkers read the stub


def __getattr__(name: str) -> Any:
    return _NAMES.load(name, globals())


def __dir__() -> list[str]:
    return __all__
