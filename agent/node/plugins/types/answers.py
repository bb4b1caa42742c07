"""Checks of what plugins answer: each fault is named by its field, its value and the rule, and all are told at once."""

import math
import re
from collections.abc import Iterable
from typing import Final

from protocol.texts import clean

MAX_TEXT: Final = 1024
"""Characters of a text that a plugin may send."""
MAX_FAULTS: Final = 8
"""So many faults are spelled out; of the others the number is told."""
_SHOWN: Final = 60
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?")
NAME_RULE: Final = (
    "must be 1 to 128 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
)


class AnswerError(Exception):
    """An answer breaks its rules. The text names every fault."""


def is_plugin_name(value: str) -> bool:
    """Whether a plugin may have this name (`NAME_RULE`)."""
    return _NAME.fullmatch(value) is not None


def shown(value: object) -> str:
    """A value in a message, cut where a plugin sent too much of it."""
    # A long text is cut before it is escaped: it may have a megabyte.
    text = repr(value[: _SHOWN + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def plain(text: str) -> str:
    """What a plugin says, as one line of bounded length."""
    return clean(text, MAX_TEXT)


class AnswerCheck:
    """Collects the faults of one answer."""

    def __init__(self) -> None:
        self._faults: list[str] = []

    @property
    def has_faults(self) -> bool:
        """Whether any fault was found so far."""
        return bool(self._faults)

    def fault(self, path: str, value: object, rule: str) -> None:
        """The field at `path` breaks the rule."""
        self._faults.append(f"{path}: {rule}, not {shown(value)}")

    def number(self, path: str, value: float, most: float, least: float = 0.0) -> None:
        """A finite number from `least` to `most`."""
        if not (math.isfinite(value) and least <= value <= most):
            self.fault(path, value, f"must be a number from {least:g} to {most:g}")

    def whole(self, path: str, value: int, most: int, least: int = 0) -> None:
        """A whole number from `least` to `most`."""
        if not least <= value <= most:
            self.fault(path, value, f"must be from {least} to {most}")

    def text(self, path: str, value: str, *, may_be_empty: bool = False) -> None:
        if not value and not may_be_empty:
            self.fault(path, value, "must not be empty")
        if len(value) > MAX_TEXT:
            self.fault(path, value, f"must have at most {MAX_TEXT} characters and has {len(value)}")

    def name(self, path: str, value: str) -> None:
        if not is_plugin_name(value):
            self.fault(path, value, NAME_RULE)

    def label(self, path: str, value: str, most: int) -> None:
        """A text that is kept and shown as it is, such as a name; it may be empty."""
        if len(value) > most or not value.isprintable():
            self.fault(path, value, f"must be at most {most} characters that can be printed")

    def same(self, path: str, value: str, asked: str) -> None:
        if value != asked:
            self.fault(path, value, f"must repeat {asked!r}")

    def one_of(self, path: str, values: Iterable[str], wanted: str) -> None:
        """A list that must hold one value."""
        found = list(values)
        if wanted not in found:
            self.fault(path, found, f"must hold {wanted!r}")

    def end(self) -> None:
        """Raises `AnswerError` where there was a fault."""
        if self._faults:
            more = len(self._faults) - MAX_FAULTS
            told = [*self._faults[:MAX_FAULTS], *([f"and {more} more faults"] if more > 0 else [])]
            raise AnswerError("; ".join(told))
