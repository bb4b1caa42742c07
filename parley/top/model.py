"""The table: rows from the agents' documents, their order, the filter, and the changes. Pure."""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from parley.listing.core.tables import by_rank, natural
from parley.top.texts import amount_text, clean, figure
from protocol.agent_pages import AgentVms, GoalReasons, LoadShown, VmInShort
from protocol.explaining import AmountShown

MAX_VMS: Final = 5000
"""VMs of one agent that are shown; an agent has hundreds at most."""
MAX_SHOWN: Final = 1000
"""Rows of the table. Further VMs are found by filter or order."""
MAX_NOTICES: Final = 4
MAX_CODE: Final = 24
STALE_S: Final = 15.0
"""A load reading that is older is not shown, as in `parley status`."""
AWAY: Final = "away"
"""The state of every VM of an agent that does not answer; its other cells show the agent's last answer."""

# The states that need a person come first. A state that is not known here comes before all of them.
_URGENCY: Final = ("stuck", AWAY, "denied", "migrating", "starting", "dormant", "ok")
TROUBLED: Final = frozenset({"stuck", "denied"})


class Column(enum.StrEnum):
    """The columns; a narrow terminal shows the first ones. The node is shown if there are several agents."""

    VM = "VM"
    NODE = "node"
    STATE = "state"
    WHY = "why"
    TREND = "trend"
    SIZE = "size"
    GOAL = "goal"
    PERMIT = "permit"
    LOAD = "load"
    TARGET = "target"
    HELD = "held"
    REASON = "reason"
    FAULTS = "faults"


LEGEND: Final = (
    "why: code of the last refusal, or the peer at fault; trend: the permitted CPUs that are busy (█ all); size has, goal wants, "
    "permit and held may have: CPUs/memory"
)


def columns(agents: int) -> tuple[Column, ...]:
    return tuple(column for column in Column if column is not Column.NODE or agents > 1)


@dataclass(frozen=True, slots=True)
class VmRow:
    """One VM. `agent` and `vm` name it exactly; all else is fit to be shown."""

    agent: str
    vm: str
    name: str
    node: str = ""
    state: str = ""
    size: AmountShown | None = None
    target: AmountShown | None = None
    goal: AmountShown | None = None
    permit: AmountShown | None = None
    held: AmountShown | None = None
    load: float | None = None
    load_text: str = ""
    memory_used: float | None = None
    """Bytes."""
    reason: str = ""
    cpu_reason: str = ""
    memory_reason: str = ""
    """The reasons for the goal of each resource."""
    code: str = ""
    """The code of the refusal that binds, if there is one."""
    faults: tuple[str, ...] = ()
    trend: str = ""
    """The load of the last minutes as a share of the permit, drawn."""

    @property
    def why(self) -> str:
        """The reason in short: the peer with a fault, or the code of a refusal."""
        return self.faults[0].partition(":")[0] if self.faults else self.code

    @property
    def words(self) -> str:
        return "; ".join(each for each in (*self.faults, self.reason) if each)

    @property
    def key(self) -> tuple[str, str]:
        return self.agent, self.vm

    def cell(self, column: Column) -> str:
        found = _CELLS.get(column)
        return found[0](self) if found is not None else amount_text(self._amount(column))

    def rank(self, column: Column) -> Any:
        """The value that the column sorts by; None for an empty cell, which comes last in both directions."""
        found = _CELLS.get(column)
        if found is not None:
            return found[1](self)
        amount = self._amount(column)
        return amount.worth if amount is not None else None

    def _amount(self, column: Column) -> AmountShown | None:
        found: AmountShown | None = getattr(
            self, column.value
        )  # these columns are called as their fields are
        return found


def _state_rank(row: VmRow) -> tuple[int, str] | None:
    known = row.state in _URGENCY
    return (_URGENCY.index(row.state) if known else -1, row.state) if row.state else None


def _share(row: VmRow) -> float | None:
    permitted = row.permit.worth[0] if row.permit is not None and row.permit.worth is not None else 0
    return row.load / permitted if row.load is not None and permitted > 0 else None


def _faults(row: VmRow) -> str:
    more = f" (+{len(row.faults) - 1})" if len(row.faults) > 1 else ""
    return f"{row.faults[0]}{more}" if row.faults else ""


_CELLS: Final[Mapping[Column, tuple[Callable[[VmRow], str], Callable[[VmRow], Any]]]] = {
    Column.VM: (lambda row: row.name, lambda row: natural(row.name)),
    Column.NODE: (lambda row: row.node or "-", lambda row: natural(row.node) if row.node else None),
    Column.STATE: (lambda row: row.state or "-", _state_rank),
    Column.WHY: (lambda row: row.why[:MAX_CODE], lambda row: row.why.casefold() or None),
    Column.LOAD: (lambda row: row.load_text or "-", lambda row: row.load),
    Column.TREND: (lambda row: row.trend, _share),
    Column.REASON: (lambda row: row.reason, lambda row: row.reason.casefold() or None),
    Column.FAULTS: (_faults, lambda row: (len(row.faults), row.faults) if row.faults else None),
}
"""The cell of each column, and what it sorts by; the other columns show amounts."""


@dataclass(frozen=True, slots=True)
class Order:
    """By which column the table is sorted, and whether the largest comes first."""

    column: Column = Column.VM
    is_descending: bool = False

    def moved(self, shown: Sequence[Column], steps: int) -> "Order":
        """Sorted by the column `steps` further on among those `shown`, around the end."""
        place = shown.index(self.column) if self.column in shown else 0
        return Order(shown[(place + steps) % len(shown)], self.is_descending)

    def turned(self) -> "Order":
        return Order(self.column, not self.is_descending)

    def picked(self, column: Column) -> "Order":
        """Sorted by `column`; by the same one again: the other direction."""
        return self.turned() if column is self.column else Order(column)


def matches(row: VmRow, wanted: str) -> bool:
    """Whether each word of `wanted` occurs in the name, the state or the reason, in any case."""
    text = f"{row.name}\n{row.state}\n{row.reason}".casefold()
    return all(word in text for word in wanted.casefold().split())


def arranged(rows: Iterable[VmRow], order: Order, wanted: str = "") -> list[VmRow]:
    """The rows that match, in order. Equal ones are in the order of their names, in both directions."""
    kept = sorted((row for row in rows if matches(row, wanted)), key=lambda row: (natural(row.name), row.key))
    return by_rank(kept, lambda row: row.rank(order.column), largest_first=order.is_descending)


_WATCHED: Final = tuple(column for column in Column if column not in {Column.LOAD, Column.TREND})
Changed: TypeAlias = Mapping[tuple[str, str], frozenset[Column]]


def changes(before: Sequence[VmRow], after: Sequence[VmRow]) -> dict[tuple[str, str], frozenset[Column]]:
    """The cells that have changed; of a new VM its name. The load and its trend, which always move, do not count."""
    known = {row.key: row for row in before}
    found = {}
    for row in after:
        old = known.get(row.key)
        if old is None:
            found[row.key] = frozenset({Column.VM})
        elif old != row:
            moved = frozenset(column for column in _WATCHED if old.cell(column) != row.cell(column))
            if moved:
                found[row.key] = moved
    return found


@dataclass(frozen=True, slots=True)
class AgentView:
    """The present view of one agent. Its rows stay when it does not answer any more, in the state `away`."""

    url: str
    rows: tuple[VmRow, ...] = ()
    changed: Changed = field(default_factory=dict)
    is_heard: bool = False
    notice: str = ""

    def heard(self, document: AgentVms) -> "AgentView":
        """After an answer of `/v1/vms`."""
        rows, unreadable = rows_of(self.url, document)
        notice = f"{unreadable} of its VMs cannot be shown" if unreadable else ""
        changed = changes(self.rows, rows) if self.is_heard else {}
        return AgentView(self.url, rows, changed, is_heard=True, notice=notice)

    def missed(self, fault: str, failures: int, retry_s: float | None) -> "AgentView":
        """After `failures` tries in a row without a usable answer."""
        rows = tuple(replace(row, state=AWAY) for row in self.rows)
        return AgentView(self.url, rows, is_heard=self.is_heard, notice=trouble(fault, failures, retry_s))


def trouble(fault: str, failures: int, retry_s: float | None) -> str:
    """A fault for people, with the number of failures in a row and the wait before the next try (None: there is none)."""
    times = f" ({failures} times)" if failures > 1 else ""
    again = f"; trying again in {retry_s:.1f} s" if retry_s is not None else ""
    return f"{clean(fault)}{times}{again}"


def rows_of(agent: str, document: AgentVms) -> tuple[tuple[VmRow, ...], int]:
    """The rows of an agent's document, and how many of its VMs cannot be shown."""
    found: dict[tuple[str, str], VmRow] = {}
    for vm in document.vms[:MAX_VMS]:
        if vm.vm and (agent, vm.vm) not in found:
            found[agent, vm.vm] = _row(agent, document.node, vm)
    return tuple(found.values()), len(document.vms) - len(found)


def _row(agent: str, node: str, vm: VmInShort) -> VmRow:
    busy, load_text = load(vm)
    reasons = vm.goal_reasons or GoalReasons()
    return VmRow(
        agent,
        vm.vm,
        clean(vm.vm),
        clean(node),
        clean(vm.state),
        size=vm.size,
        target=vm.target,
        goal=vm.goal,
        permit=vm.permit,
        held=vm.held,
        load=busy,
        load_text=load_text,
        memory_used=memory_used(vm),
        cpu_reason=reasons.cpu or "",
        memory_reason=reasons.memory or "",
        reason=vm.reason if vm.reason_code else "; ".join(reasons.texts()) or vm.reason,
        code=vm.reason_code or "",
        faults=tuple(clean(fault) for fault in vm.faults[:16] if fault),
    )


def _fresh_load(vm: VmInShort) -> LoadShown:
    """The last reading; an empty one when it is old."""
    age_s = vm.metrics_age_seconds
    return LoadShown() if vm.load is None or age_s is None or age_s > STALE_S else vm.load


def memory_used(vm: VmInShort) -> float | None:
    """Bytes of memory that the guest uses; None when the last reading is old."""
    return _fresh_load(vm).memory_used


def load(vm: VmInShort) -> tuple[float | None, str]:
    """Busy CPUs if they are known, else the load average, as a number and a text; empty when the last reading is old."""
    found = _fresh_load(vm)
    if found.busy_cpus is not None:
        return found.busy_cpus, f"{figure(found.busy_cpus)} busy"
    return found.load1, f"{figure(found.load1)} avg" if found.load1 is not None else ""


def title(agents: Sequence[AgentView], matching: int, order: Order, wanted: str) -> str:
    """The first line: how many VMs there are and match, of how many agents, and how they are sorted."""
    answering = sum(1 for agent in agents if agent.is_heard)
    if not answering:
        return f"waiting for {'the agent' if len(agents) == 1 else f'{len(agents)} agents'} to answer"
    total = sum(len(agent.rows) for agent in agents)
    count = f"{matching} of {_count(total, 'VM')}" if wanted.strip() else _count(total, "VM")
    direction = ", largest first" if order.is_descending else ""
    filtered = f", with “{clean(wanted)}”" if wanted.strip() else ""
    cut = f", the first {MAX_SHOWN} shown" if matching > MAX_SHOWN else ""
    return f"{count}{cut}, {_count(len(agents), 'agent')}, by {order.column}{direction}{filtered}"


def notices(agents: Sequence[AgentView]) -> list[str]:
    """A line for each agent with something to say, at most `MAX_NOTICES`."""
    lines = [f"{agent.url}: {agent.notice}" for agent in agents if agent.notice]
    if len(lines) <= MAX_NOTICES:
        return lines
    kept = lines[: MAX_NOTICES - 1]
    return [*kept, f"and {_count(len(lines) - len(kept), 'agent')} more"]


def _count(number_of: int, what: str) -> str:
    return f"{number_of} {what}{'' if number_of == 1 else 's'}"
