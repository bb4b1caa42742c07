"""Tables as kubectl writes them: heads in capitals, two blanks between columns, nothing cut, no colours."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, TypeVar

from parley.top.texts import clean

T = TypeVar("T")
NOTHING: Final = "<none>"
"""The text of an empty cell, so that columns can be counted by scripts."""
MAX_CELL: Final = 500


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """A column: its head, the cell of a row, and its sort key (the cell, if that is None). A wide one is shown with `--output wide` only.

    `is_text` says that cells may hold blanks; such a column comes last.
    """

    head: str
    cell: Callable[[T], str | None]
    rank: Callable[[T], Any] | None = None
    is_wide: bool = False
    is_text: bool = False

    def text(self, row: T) -> str:
        found = clean(self.cell(row) or "", MAX_CELL)
        return (found if self.is_text else found.replace(" ", "")) or NOTHING


def table(columns: Sequence[TableColumn[T]], rows: Iterable[T], *, has_heads: bool = True) -> Iterator[str]:
    """The lines of a table, each without blanks at its end."""
    cells = [[column.text(row) for column in columns] for row in rows]
    heads = [[column.head for column in columns]] if has_heads else []
    widths = [max(map(len, column), default=0) for column in zip(*heads, *cells, strict=True)]
    for line in (*heads, *cells):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def shown(columns: Iterable[TableColumn[T]], *, is_wide: bool) -> list[TableColumn[T]]:
    """The columns of a table; texts come last."""
    kept = [column for column in columns if is_wide or not column.is_wide]
    return sorted(kept, key=lambda column: column.is_text)


def key(head: str) -> str:
    """How a column is named on the command line."""
    return head.lower()


def ordered(
    columns: Sequence[TableColumn[T]], rows: Iterable[T], by: str | None, name: Callable[[T], str]
) -> list[T]:
    """The rows by their names; then by the column `by`, the largest first for `-NAME`. Empty cells come last in both directions."""
    kept = sorted(rows, key=lambda row: natural(name(row)))
    if by is None:
        return kept
    column = next(each for each in columns if key(each.head) == by.removeprefix("-"))
    ranked = [(_rank(column, row), row) for row in kept]
    present = [(rank, row) for rank, row in ranked if rank is not None]
    present.sort(key=lambda pair: pair[0], reverse=by.startswith("-"))
    return [row for _, row in present] + [row for rank, row in ranked if rank is None]


def _rank(column: TableColumn[T], row: T) -> Any:
    if column.rank is not None:
        return column.rank(row)
    text = column.text(row)
    return natural(text) if text != NOTHING else None


@functools.lru_cache(maxsize=16384)
def natural(text: str) -> tuple[Any, ...]:
    """Sorts `vm-2` before `vm-10`. Parts alternate between texts and numbers, so that two texts always compare."""
    parts = re.split(r"([0-9]+)", text.casefold())
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts))


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a name matches one of the globs; every name does if there are none."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
