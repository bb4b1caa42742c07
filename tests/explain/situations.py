"""The table of situations: how each is planted, and what `parley explain shop/web` must say of it."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.explain.stage import Stage

Play: TypeAlias = Callable[[], AsyncIterator[Stage]]

SITUATIONS: Final[dict[str, "Situation"]] = {}
"""By name, in the order of the files that hold them."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One row. `story` tells it in a line; `play` plants it, and yields the stage at the moment of the question.

    The first line ends with `code`. Each expression of `says` is found in the first two lines, whatever the case: the names, numbers and
    words that tell this cause from others.
    """

    name: str
    story: str
    code: str
    says: tuple[str, ...]
    play: Callable[[], AbstractAsyncContextManager[Stage]]

    def missing(self, lines: Sequence[str]) -> list[str]:
        """The expressions that are missing in the first two lines."""
        text = "\n".join(lines[:2])
        return [each for each in self.says if re.search(each, text, re.IGNORECASE) is None]


def situation(code: str, *says: str) -> Callable[[Play], Play]:
    """Enter a play into the table; its name and its docstring are the name and the story of the row."""

    def enter(play: Play) -> Play:
        name, story = play.__name__, (play.__doc__ or "").strip()
        assert name not in SITUATIONS, f"two situations are named {name}"
        assert story, f"{name} has no story"
        SITUATIONS[name] = Situation(name, story, code, says, asynccontextmanager(play))
        return play

    return enter
