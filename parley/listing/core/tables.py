"""Tables as kubectl writes them: heads in capitals, two blanks between columns, nothing cut, no colours."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from parley.top.texts import age, clean
from protocol.explaining import AmountShown, NodeShown, VmShown
from protocol.pages import ConditionShown, PoolShown

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


def ordered(
    columns: Sequence[TableColumn[T]], rows: Iterable[T], by: str | None, name: Callable[[T], str]
) -> list[T]:
    """The rows by their names; then by the column `by`, the largest first for `-NAME`. Empty cells come last in both directions."""
    kept = sorted(rows, key=lambda row: natural(name(row)))
    if by is None:
        return kept
    column = next(each for each in columns if each.head.lower() == by.removeprefix("-"))
    return by_rank(kept, lambda row: _rank(column, row), largest_first=by.startswith("-"))


def by_rank(rows: Iterable[T], rank: Callable[[T], Any], *, largest_first: bool) -> list[T]:
    """The rows by their rank, equal ones as they came; those without one come last in both directions."""
    ranked = [(rank(row), row) for row in rows]
    present = [(of, row) for of, row in ranked if of is not None]
    present.sort(key=lambda pair: pair[0], reverse=largest_first)
    return [row for _, row in present] + [row for of, row in ranked if of is None]


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


def short(amount: AmountShown | None) -> str | None:
    """CPUs and memory in one cell, `2/4Gi`."""
    return f"{amount.cpu}/{amount.memory}" if amount is not None else None


def worth(amount: AmountShown | None) -> tuple[int, int] | None:
    """The sort key of an amount; None if it is not known or no quantity."""
    return amount.worth if amount is not None else None


def limit_of(vm: VmShown) -> str | None:
    if vm.limit is None:
        return None
    return f"{vm.limit.code}:{vm.limit.resource}" if vm.limit.resource else vm.limit.code


def state_of(vm: VmShown) -> str | None:
    """A VM's state in a word: its unusual condition, else the outcome of its latest request."""
    if vm.is_migrating:
        return "migrating"
    if not vm.is_settled:
        return "unsettled"
    return vm.outcome.value if vm.outcome is not None else None


def _amount(head: str, attribute: str, *, is_wide: bool = False) -> TableColumn[Any]:
    """A column of amounts, which are sorted by their worth."""
    read = attrgetter(attribute)
    return TableColumn(head, lambda row: short(read(row)), lambda row: worth(read(row)), is_wide)


NODE_COLUMNS: Final[tuple[TableColumn[NodeShown], ...]] = (
    TableColumn("NODE", lambda node: node.node),
    _amount("RESERVABLE", "reservable"),
    _amount("RESERVED", "reserved"),
    _amount("FREE", "free"),
    _amount("BUFFER", "buffer"),
    _amount("PRESSURE", "pressure"),
    TableColumn("OVER-FULL", lambda node: ",".join(node.over_full_because_of)),
    _amount("ACCOUNTED", "pressure_accounted_for", is_wide=True),
    _amount("WATERMARK", "watermark", is_wide=True),
    _amount("UNIT", "compute_unit", is_wide=True),
)

VM_COLUMNS: Final[tuple[TableColumn[VmShown], ...]] = (
    TableColumn("NAMESPACE", lambda vm: vm.vm.partition("/")[0]),
    TableColumn("NAME", lambda vm: vm.vm.partition("/")[2]),
    TableColumn("NODE", lambda vm: vm.node),
    _amount("SIZE", "size"),
    _amount("PERMIT", "permit"),
    _amount("WANTED", "wanted"),
    TableColumn("STATE", state_of),
    TableColumn("LIMIT", limit_of),
    TableColumn("POOL", lambda vm: vm.pool, is_wide=True),
    _amount("RESERVED", "reserved", is_wide=True),
    _amount("MAXIMUM", "maximum", is_wide=True),
    TableColumn(
        "ASKED",
        lambda vm: None if vm.asked_seconds_ago is None else age(vm.asked_seconds_ago),
        lambda vm: vm.asked_seconds_ago,
        is_wide=True,
    ),
    TableColumn("UID", lambda vm: vm.uid, is_wide=True),
    TableColumn(
        "WHY", lambda vm: vm.limit.message if vm.limit is not None else None, is_wide=True, is_text=True
    ),
)

_ADMITTED: Final = "Admitted"


def _whole(count: int | None) -> str | None:
    return None if count is None else str(count)


def pool_condition(pool: PoolShown) -> ConditionShown | None:
    """The condition that needs a person first, else that of admission."""
    conditions = pool.status.conditions
    stopping = (each for each in conditions if each.type != _ADMITTED and each.status == "True")
    return next(stopping, next(iter(conditions), None))


def pool_state(pool: PoolShown) -> str | None:
    """The state of a pool in a word: `Parked`, `Frozen`, `AboveLimit`, …, or the reason of its last admission."""
    found = pool_condition(pool)
    if found is None:
        return None
    return found.reason if found.type == _ADMITTED else found.type or None


def _pool_message(pool: PoolShown) -> str | None:
    found = pool_condition(pool)
    return found.message if found is not None else None


POOL_COLUMNS: Final[tuple[TableColumn[PoolShown], ...]] = (
    TableColumn("NAME", lambda pool: pool.name),
    TableColumn("UNITS", lambda pool: str(pool.status.total_units), lambda pool: pool.status.total_units),
    TableColumn("MAX", lambda pool: _whole(pool.limits.max_units), lambda pool: pool.limits.max_units),
    TableColumn("VMS", lambda pool: str(pool.status.members), lambda pool: pool.status.members),
    TableColumn("WAITING", lambda pool: str(pool.status.waiting), lambda pool: pool.status.waiting),
    TableColumn("STATE", pool_state),
    TableColumn("MAX-PER-VM", lambda pool: _whole(pool.limits.max_units_per_vm), is_wide=True),
    TableColumn("CLAIMED", lambda pool: str(pool.status.claimed_units), is_wide=True),
    TableColumn("SATURATED-UNTIL", lambda pool: pool.status.saturated_until or "", is_wide=True),
    TableColumn("PARKED-VMS", lambda pool: str(len(pool.status.parked_vms)), is_wide=True),
    TableColumn("MESSAGE", _pool_message, is_wide=True, is_text=True),
)


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes are listed; all parts must hold. `names` are globs; with `is_over_full` and `has_pressure` only nodes that have any."""

    names: tuple[str, ...] = ()
    is_over_full: bool = False
    has_pressure: bool = False

    def passes(self, node: NodeShown) -> bool:
        return (
            matches(self.names, node.node)
            and (not self.is_over_full or bool(node.over_full_because_of))
            and (not self.has_pressure or any(part > 0 for part in worth(node.pressure) or ()))
        )


@dataclass(frozen=True, slots=True)
class PoolFilter:
    """Which pools are listed; both parts must hold. `names` and `states` are globs, of `states` in any case of letters."""

    names: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def passes(self, pool: PoolShown) -> bool:
        states = tuple(each.casefold() for each in self.states)
        return matches(self.names, pool.name) and matches(states, (pool_state(pool) or "").casefold())
