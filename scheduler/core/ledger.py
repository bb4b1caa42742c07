"""The accounts: per node and resource what is reservable, reserved, buffer and pressure, exact, and a row per holder.

A row is `current` (the last permit posted; for other pods their request) and *floors*, amounts below which its
reservation may not fall yet. Per resource reserved = max(current, floors) and buffer = reserved - current. The
identity, checked by `audit`: a node's reserved, buffer, pressure and accounted-for pressure are the sums of its rows',
and reserved stays within reservable unless a documented cause is recorded.

Accounts are mutable records with one writer: `post` and the node methods here. Everything else reads.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources, Value
from scheduler.core import limits
from scheduler.core.model import Holder


class Cause(enum.StrEnum):
    """Why a row may not fall below an amount. Source: design section 4, the table of floors."""

    START_UP = "start-up"
    OBSERVED = "observed"
    CLAIMED = "claimed"
    PENDING = "pending"
    HANDOVER = "handover"
    TOLD = "told"


class OverCause(enum.StrEnum):
    """Why more than what is reservable may be reserved on a node. Source: design section 5, the identity."""

    START_UP = "start-up"
    CLAIM = "claim"
    CONFIGURATION = "configuration"
    """The rules, or the node itself, leave less than they did."""
    BOUNDS = "bounds"
    OBSERVED = "observed"
    BYPASSED = "bypassed"
    """A pod or VM came to the node without asking us."""


class Floor(Value, frozen=True):
    """An amount below which a row's reservation may not fall yet.

    `until_s` is when the clock ends it, None where only an event does. `about` tells floors of one cause apart (a
    superseded life). `since_s` is when it began, where a person will ask. `told_less_s` is when the caller of a `told`
    floor was told less: a read begun a command deadline later may end it.
    """

    cause: Cause
    amount: Resources
    until_s: float | None = None
    about: str = ""
    told_less_s: float | None = None
    since_s: float | None = None


class RowState(Value, frozen=True):
    """What a row holds: its current permit, its floors, what it was denied for want of room (`pressure`), and whether
    its VM is migrating away."""

    current: Resources
    floors: tuple[Floor, ...] = ()
    pressure: Resources = ZERO
    migrating: bool = False

    @property
    def reserved(self) -> Resources:
        """What the row keeps of its node."""
        amount = self.current
        for floor in self.floors:
            if floor.amount.exceeds(amount):
                amount = amount.max(floor.amount)
        return amount

    @property
    def accounted(self) -> Resources:
        """What the node will be relieved of because this VM is migrating away, beside its buffer: that is in the node's."""
        return self.current + self.pressure if self.migrating else ZERO

    def without(self, cause: Cause, about: str | None = None) -> "RowState":
        """The state without the floors of `cause` (only the one `about` something, when given)."""
        kept = tuple(
            floor
            for floor in self.floors
            if floor.cause is not cause or (about is not None and floor.about != about)
        )
        return self if len(kept) == len(self.floors) else replace(self, floors=kept)

    def with_floor(self, floor: Floor) -> "RowState":
        """The state with `floor` in place of the one of the same cause about the same thing."""
        return replace(self, floors=(*self.without(floor.cause, floor.about).floors, floor))


class Verdict(Value, frozen=True):
    """What a judgement comes to: the row's next state (None: the row ends) and, for a request, what it was granted."""

    holder: Holder
    node: str
    state: RowState | None
    grant: limits.Grant | None = None
    name: str = ""
    """The holder's name for people; needed once, when the row begins."""


class NodeTerms(Value, frozen=True):
    """What holds for a node: how much may be reserved, above which amount it is under pressure, its compute unit."""

    name: str
    reservable: Resources
    watermark: Resources
    compute_unit: Resources | None = None


@dataclass(slots=True)
class Row:
    """A holder's line. Written by `Ledger.post` only."""

    holder: Holder
    name: str
    node: str
    state: RowState
    reserved: Resources


@dataclass(slots=True)
class NodeAccount:
    """A node's sums. Written by `Ledger` only. `over` are the recorded causes while it is over-full."""

    terms: NodeTerms
    reserved: Resources = ZERO
    buffer: Resources = ZERO
    pressure: Resources = ZERO
    accounted: Resources = ZERO
    rows: dict[Holder, Row] = field(default_factory=dict)
    over: dict[OverCause, None] = field(default_factory=dict)

    @property
    def is_over_full(self) -> bool:
        """Whether more is reserved than may be."""
        return self.reserved.exceeds(self.terms.reservable)

    @property
    def excess(self) -> Resources:
        """How much more is reserved than may be."""
        return (self.reserved - self.terms.reservable).max(ZERO)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What of another row stands in the way: its current permit (`cause` None), or a floor, and how much it adds."""

    name: str
    cause: Cause | None
    amount: int
    since_s: float | None = None


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

    def set_node(self, terms: NodeTerms, cause: OverCause) -> None:
        """Add a node, or change what holds for it. Its rows stay as they are, whatever becomes of its size."""
        account = self._nodes.get(terms.name)
        if account is None:
            account = self._nodes[terms.name] = NodeAccount(terms)
            for row in self._rows.values():
                if row.node == terms.name:
                    _enter(account, row)
            before = ZERO
        else:
            before = account.excess
        account.terms = terms
        _record_over(account, cause, before)

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
        return account.terms.reservable - (account.reserved - own)

    def obstacles(self, node: str, holder: Holder, resource: str) -> list[Obstacle]:
        """Which rows, and which floor of each, stand in the way of `holder` in one resource; the largest first.

        Per row the current permit, and the largest floor with what it keeps beyond that.
        """
        account = self._nodes.get(node)
        found = []
        for row in account.rows.values() if account is not None else ():
            if row.holder == holder:
                continue
            current = _of(row.state.current, resource)
            if current:
                found.append(Obstacle(row.name, None, current))
            floor = max(row.state.floors, key=lambda each: _of(each.amount, resource), default=None)
            if floor is not None and _of(floor.amount, resource) > current:
                beyond = _of(floor.amount, resource) - current
                found.append(Obstacle(row.name, floor.cause, beyond, floor.since_s))
        return sorted(found, key=lambda each: (-each.amount, each.name, each.cause or ""))

    def judge(
        self,
        row: Row,
        request: Resources,
        unit: Resources | None,
        bound: Resources,
        earlier: tuple[limits.Limit, ...] = (),
        later: tuple[limits.Limit, ...] = (),
    ) -> Verdict:
        """What `request` gets, and the row after it. Reads only; `post` makes it so.

        `earlier` are the limits that come before the node's headroom, `later` the ones behind it.
        """
        state = row.state
        current = state.current
        if request.vcpu_milli <= current.vcpu_milli and request.memory_bytes <= current.memory_bytes:
            return Verdict(row.holder, row.node, _with_current(state, request, ZERO), limits.Grant(request))
        wanted, cut = limits.cut_by_bounds(current, request, bound)
        found = earlier
        if unit is not None and unit.is_positive():
            room = limits.headroom(current, wanted, unit, self.headroom(row.node, row.holder))
            if room is not None:
                found = (*found, room)
        granted = limits.grant_cut(current, wanted, cut, unit, found + later)
        denied = wanted - granted.permit if _is_for_room(granted) else ZERO
        return Verdict(row.holder, row.node, _with_current(state, granted.permit, denied), granted)

    def post(self, verdict: Verdict, cause: OverCause | None = None) -> None:
        """Make a verdict so: the only writer of rows and sums, synchronous and total.

        `cause` documents a rise that no limit has allowed, should the node be over-full by it.
        """
        row = self._rows.get(verdict.holder)
        if row is not None and row.node == verdict.node and verdict.state is not None:
            if row.state is not verdict.state:
                self._change(row, verdict.state, cause)
            return
        if row is not None:
            account = self._nodes.get(row.node)
            if account is not None:
                _leave(account, row)
                _record_over(account, None)
        if verdict.state is None:
            self._rows.pop(verdict.holder, None)
            return
        reserved = verdict.state.reserved
        if row is None:
            row = Row(verdict.holder, verdict.name, verdict.node, verdict.state, reserved)
            self._rows[verdict.holder] = row
        row.node, row.state, row.reserved = verdict.node, verdict.state, reserved
        account = self._nodes.get(verdict.node)
        if account is not None:
            before = account.excess
            _enter(account, row)
            _record_over(account, cause, before)

    def _change(self, row: Row, state: RowState, cause: OverCause | None) -> None:
        """A row that stays on its node: the sums move by the difference."""
        account = self._nodes.get(row.node)
        old, before, reserved = row.state, row.reserved, state.reserved
        row.state, row.reserved = state, reserved
        if account is None:
            return
        excess = account.excess if cause is not None else ZERO
        if reserved is not before:
            account.reserved += reserved - before
        if state.floors or old.floors:
            account.buffer += (reserved - state.current) - (before - old.current)
        if state.pressure is not old.pressure or state.migrating or old.migrating:
            account.pressure += state.pressure - old.pressure
            account.accounted += state.accounted - old.accounted
        if account.over or account.is_over_full:
            _record_over(account, cause, excess)

    def note_over(self, name: str, causes: tuple[OverCause, ...]) -> None:
        """Restore why a node is over-full."""
        self._nodes[name].over.update(dict.fromkeys(causes))

    def audit(self) -> list[str]:
        """Recompute every sum; the differences, none when the identity holds."""
        rows: dict[str, list[Row]] = {}
        for row in self._rows.values():
            rows.setdefault(row.node, []).append(row)
        return [
            fault
            for name, account in self._nodes.items()
            for fault in audit_node(account, rows.get(name, []))
        ]


def audit_node(account: NodeAccount, rows: list[Row]) -> list[str]:
    """What is wrong with one node's account, given all the rows that name the node."""
    name, wrong = account.terms.name, []
    reserved = buffer = pressure = accounted = ZERO
    for row in rows:
        state = row.state
        if row.reserved != state.reserved:
            wrong.append(f"{name}: row {row.holder} keeps {row.reserved}, its state {state.reserved}")
        reserved += state.reserved
        buffer += state.reserved - state.current
        pressure += state.pressure
        accounted += state.accounted
    if {row.holder for row in rows} != set(account.rows):
        wrong.append(f"{name}: the node's rows are not the rows of the node")
    sums = {
        "reserved": (account.reserved, reserved),
        "buffer": (account.buffer, buffer),
        "pressure": (account.pressure, pressure),
        "accounted": (account.accounted, accounted),
    }
    wrong += [f"{name}: {what} is {has}, its rows' {is_}" for what, (has, is_) in sums.items() if has != is_]
    if account.is_over_full and not account.over:
        wrong.append(
            f"{name}: {account.reserved} of {account.terms.reservable} is reserved, and no cause is recorded"
        )
    return wrong


def _enter(account: NodeAccount, row: Row) -> None:
    account.rows[row.holder] = row
    account.reserved += row.reserved
    account.buffer += row.reserved - row.state.current
    if row.state.pressure is not ZERO:
        account.pressure += row.state.pressure
    if row.state.migrating:
        account.accounted += row.state.accounted


def _leave(account: NodeAccount, row: Row) -> None:
    del account.rows[row.holder]
    account.reserved -= row.reserved
    account.buffer -= row.reserved - row.state.current
    if row.state.pressure is not ZERO:
        account.pressure -= row.state.pressure
    if row.state.migrating:
        account.accounted -= row.state.accounted


def _record_over(account: NodeAccount, cause: OverCause | None, before: Resources = ZERO) -> None:
    """Note why a node is over-full, and forget it when it is not any more. A cause is one only where it has added to
    the excess of `before`."""
    if not account.is_over_full:
        if account.over:
            account.over.clear()
    elif cause is not None and account.excess.exceeds(before):
        account.over[cause] = None


def _with_current(state: RowState, current: Resources, pressure: Resources) -> RowState:
    """The same object where nothing changes, so that posting it costs nothing."""
    if state.current == current and state.pressure == pressure:
        return state
    return RowState(current, state.floors, pressure if pressure != ZERO else ZERO, state.migrating)


def _is_for_room(granted: limits.Grant) -> bool:
    """Whether a denial counts as pressure: the node's room binds, or its VM is leaving because of that."""
    return bool(granted.reasons) and granted.reasons[0].code in (
        ReasonCode.NODE_HEADROOM,
        ReasonCode.MIGRATING,
    )


def _of(amount: Resources, resource: str) -> int:
    return amount.vcpu_milli if resource == "cpu" else amount.memory_bytes


def named(reason: Reason, obstacles: list[Obstacle], now_s: float, unsettled_s: float) -> Reason:
    """A refusal for want of room that says which floors stand in the way, and names VMs that stay unsettled."""
    kept = [obstacle for obstacle in obstacles if obstacle.cause is not None]
    if not kept or reason.resource is None:
        return reason
    texts = [_described(obstacle, reason.resource, now_s, unsettled_s) for obstacle in kept[:3]]
    more = f", and {len(kept) - 3} more" if len(kept) > 3 else ""
    message = f"{reason.message}; kept beyond what is permitted: {', '.join(texts)}{more}"
    late = [obstacle for obstacle in kept[3:] if _is_late(obstacle, now_s, unsettled_s)]
    if late:
        message += "; unsettled too: " + ", ".join(obstacle.name for obstacle in late[:3])
    return Reason(reason.code, message[:1024], reason.resource, reason.retry_after_s)


def _is_late(obstacle: Obstacle, now_s: float, unsettled_s: float) -> bool:
    began_s = obstacle.since_s
    return obstacle.cause is Cause.START_UP and began_s is not None and now_s - began_s >= unsettled_s


def _described(obstacle: Obstacle, resource: str, now_s: float, unsettled_s: float) -> str:
    text = f"{obstacle.name} {limits.amount_text(resource, obstacle.amount)} ({obstacle.cause}"
    if _is_late(obstacle, now_s, unsettled_s):
        assert obstacle.since_s is not None
        text += f", unsettled for {now_s - obstacle.since_s:.0f} s"
    return text + ")"
