"""The accounts: per node and resource what is reservable, reserved and buffer, exact, and a row for each holder.

A row is `current` (the last permit posted; for other pods their request) and *floors*, amounts below which its
reservation may not fall yet. Per resource reserved = max(current, floors) and buffer = reserved - current. The
identity, checked by `audit`: node.reserved = Σ rows' reserved and node.buffer = Σ rows' buffer.

Accounts are mutable records with one writer: `post` here. Everything else reads.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from protocol.values import ZERO, Resources
from scheduler.core import limits
from scheduler.core.model import Holder, NodeSpec


class Cause(enum.StrEnum):
    """Why a row may not fall below an amount. Source: design section 4, the table of floors."""

    START_UP = "start-up"
    OBSERVED = "observed"
    CLAIMED = "claimed"
    PENDING = "pending"
    HANDOVER = "handover"
    TOLD = "told"


@dataclass(frozen=True, slots=True)
class Floor:
    """An amount below which a row's reservation may not fall yet.

    `until_s` is when the clock ends it, None where only an event does. `about` tells floors of one cause apart (a
    superseded life). `told_less_s` is when the caller of a `told` floor was told less: a read begun a command
    deadline later may end it.
    """

    cause: Cause
    amount: Resources
    until_s: float | None = None
    about: str = ""
    told_less_s: float | None = None


@dataclass(frozen=True, slots=True)
class RowState:
    """What a row holds: its current permit and its floors."""

    current: Resources
    floors: tuple[Floor, ...] = ()

    @property
    def reserved(self) -> Resources:
        """What the row keeps of its node."""
        amount = self.current
        for floor in self.floors:
            amount = amount.max(floor.amount)
        return amount

    def without(self, cause: Cause, about: str | None = None) -> "RowState":
        """The state without the floors of `cause` (only the one `about` something, when given)."""
        kept = tuple(
            floor
            for floor in self.floors
            if floor.cause is not cause or (about is not None and floor.about != about)
        )
        return replace(self, floors=kept)

    def with_floor(self, floor: Floor) -> "RowState":
        """The state with `floor` in place of the one of the same cause about the same thing."""
        return replace(self, floors=(*self.without(floor.cause, floor.about).floors, floor))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judgement comes to: the row's next state (None: the row ends) and, for a request, what it was granted."""

    holder: Holder
    node: str
    state: RowState | None
    grant: limits.Grant | None = None


@dataclass(slots=True)
class Row:
    """A holder's line. Written by `Ledger.post` only."""

    holder: Holder
    node: str
    state: RowState
    reserved: Resources


@dataclass(slots=True)
class NodeAccount:
    """A node's sums. Written by `Ledger` only."""

    spec: NodeSpec
    reserved: Resources = ZERO
    buffer: Resources = ZERO
    rows: dict[Holder, Row] = field(default_factory=dict)


class Ledger:
    """All accounts. A row on a node that is not known (any more) is kept and counts again when the node appears."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeAccount] = {}
        self._rows: dict[Holder, Row] = {}

    def nodes(self) -> Iterator[NodeAccount]:
        """Every node's account."""
        return iter(self._nodes.values())

    def node(self, name: str) -> NodeAccount | None:
        """One node's account."""
        return self._nodes.get(name)

    def row(self, holder: Holder) -> Row | None:
        """One holder's row."""
        return self._rows.get(holder)

    def require(self, holder: Holder) -> Row:
        """The row of a holder that must have one; it is a fault of ours when it has not."""
        row = self._rows.get(holder)
        assert row is not None, f"{holder} has no row"
        return row

    def rows(self) -> Iterator[Row]:
        """Every row."""
        return iter(self._rows.values())

    def set_node(self, spec: NodeSpec) -> None:
        """Add a node, or change what is known of it. Its rows stay as they are, whatever becomes of its size."""
        account = self._nodes.get(spec.name)
        if account is None:
            account = self._nodes[spec.name] = NodeAccount(spec)
            for row in self._rows.values():
                if row.node == spec.name:
                    self._enter(account, row)
        account.spec = spec

    def remove_node(self, name: str) -> None:
        """Forget a node."""
        self._nodes.pop(name, None)

    def headroom(self, node: str, holder: Holder) -> Resources:
        """What the other rows leave of the node to `holder`; may be negative. Nothing where the node is unknown."""
        account = self._nodes.get(node)
        if account is None:
            return ZERO
        row = account.rows.get(holder)
        own = row.reserved if row is not None else ZERO
        return account.spec.reservable - (account.reserved - own)

    def judge(
        self,
        row: Row,
        request: Resources,
        unit: Resources | None,
        bound: Resources,
        earlier: Iterable[limits.Limit] = (),
    ) -> Verdict:
        """What `request` gets, and the row after it. Reads only; `post` makes it so.

        `earlier` are the limits that come before the node's headroom.
        """
        current = row.state.current
        wanted, _ = limits.cut_by_bounds(current, request, bound)
        found = list(earlier)
        if unit is not None and unit.is_positive():
            room = limits.headroom(current, wanted, unit, self.headroom(row.node, row.holder))
            found += [] if room is None else [room]
        granted = limits.grant(current, request, unit, bound, tuple(found))
        return Verdict(row.holder, row.node, replace(row.state, current=granted.permit), granted)

    def post(self, verdict: Verdict) -> None:
        """Make a verdict so: the only writer of rows and sums, synchronous and total."""
        row = self._rows.get(verdict.holder)
        if row is not None and row.node in self._nodes:
            self._leave(self._nodes[row.node], row)
        if verdict.state is None:
            self._rows.pop(verdict.holder, None)
            return
        reserved = verdict.state.reserved
        if row is None:
            row = self._rows[verdict.holder] = Row(verdict.holder, verdict.node, verdict.state, reserved)
        row.node, row.state, row.reserved = verdict.node, verdict.state, reserved
        if verdict.node in self._nodes:
            self._enter(self._nodes[verdict.node], row)

    @staticmethod
    def _enter(account: NodeAccount, row: Row) -> None:
        account.rows[row.holder] = row
        account.reserved += row.reserved
        account.buffer += row.reserved - row.state.current

    @staticmethod
    def _leave(account: NodeAccount, row: Row) -> None:
        del account.rows[row.holder]
        account.reserved -= row.reserved
        account.buffer -= row.reserved - row.state.current

    def audit(self) -> list[str]:
        """Recompute every sum; the differences, none when the identity holds."""
        wrong = []
        for name, account in self._nodes.items():
            rows = [row for row in self._rows.values() if row.node == name]
            reserved, buffer = ZERO, ZERO
            for row in rows:
                if row.reserved != row.state.reserved:
                    wrong.append(
                        f"{name}: row {row.holder} keeps {row.reserved}, its state {row.state.reserved}"
                    )
                reserved += row.state.reserved
                buffer += row.state.reserved - row.state.current
            if {row.holder for row in rows} != set(account.rows):
                wrong.append(f"{name}: the node's rows are not the rows of the node")
            if (reserved, buffer) != (account.reserved, account.buffer):
                wrong.append(
                    f"{name}: sums {account.reserved}, {account.buffer} but rows {reserved}, {buffer}"
                )
        return wrong
