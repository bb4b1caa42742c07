"""The accounts: per node and resource what is reservable, reserved, buffer and pressure, exact, and a row per holder.

A row is `current` (the last permit posted; for other pods their request) and *floors*, amounts below which its
reservation may not fall yet. Per resource reserved = max(current, floors) and buffer = reserved - current. The
identity, checked by `audit`: a node's reserved, buffer, pressure and accounted-for pressure are the sums of its rows',
and reserved stays within reservable unless a documented cause is recorded.

Accounts are mutable records with one writer: `post` and the node methods here. Everything else reads.
"""

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from protocol.values import ZERO, Resources, Value
from scheduler.permits.core.limits import Grant
from scheduler.permits.core.model import Holder, PoolSpec


class Cause(enum.StrEnum):
    """Why a row may not fall below an amount. Source: design section 4, the table of floors; `assumed` for pods that are about
    to be bound, and `offered` for room that was freed for a VM that waits. `pending` and `offered` floors count on their node, and not in
    their pool: the pool's word is still to come. All others count in both."""

    START_UP = "start-up"
    OBSERVED = "observed"
    CLAIMED = "claimed"
    PENDING = "pending"
    HANDOVER = "handover"
    TOLD = "told"
    ASSUMED = "assumed"
    OFFERED = "offered"


class OverCause(enum.StrEnum):
    """Why more than what is reservable may be reserved on a node. Source: design section 5, the identity."""

    SETTLING = "settling"
    """It fits, but for what is kept while it is not known who holds what: floors of a start, and of lives before the present one."""
    CLAIM = "claim"
    CONFIGURATION = "configuration"
    """The rules, or the node itself, leave less than they did."""
    BOUNDS = "bounds"
    OBSERVED = "observed"
    BYPASSED = "bypassed"
    """A pod or VM came to the node without asking us."""


class Floor(Value, frozen=True):
    """An amount below which a row's reservation may not fall yet.

    `until_s` is when the clock ends it, None if only an event does. `about` tells floors of one cause apart (a
    superseded life). `since_s` is when it began, for floors about which a person will ask. `told_less_s` is when the caller of a `told`
    floor was told less: a read begun a command deadline later may end it.
    """

    cause: Cause
    amount: Resources
    until_s: float | None = None
    about: str = ""
    told_less_s: float | None = None
    since_s: float | None = None


class RowState(Value, frozen=True):
    """The contents of a row: its current permit, its floors, the amount that it was denied for want of room (`pressure`), and whether
    its VM is migrating away."""

    current: Resources
    floors: tuple[Floor, ...] = ()
    pressure: Resources = ZERO
    migrating: bool = False

    @property
    def reserved(self) -> Resources:
        """The amount that the row keeps of its node."""
        return self.kept()

    @property
    def firm(self) -> Resources:
        """The row's part of its pool: the amount that it keeps, without that for which it only waits."""
        return self.kept(Cause.PENDING, Cause.OFFERED)

    def kept(self, *unless: Cause) -> Resources:
        """The amount that the row keeps beside floors of these causes."""
        amount = self.current
        for floor in self.floors:
            if floor.amount.exceeds(amount) and floor.cause not in unless:
                amount = amount.max(floor.amount)
        return amount

    @property
    def accounted(self) -> Resources:
        """The amount that the node will be relieved of because this VM is migrating away, beside its buffer: that is in the node's."""
        return self.current + self.pressure if self.migrating else ZERO

    def without(self, cause: Cause, about: str | None = None) -> "RowState":
        """The state without the floors of `cause` (only the one `about` something, when given)."""
        for floor in self.floors:
            if floor.cause is cause and (about is None or floor.about == about):
                break
        else:  # as mostly
            return self
        kept = tuple(
            floor
            for floor in self.floors
            if floor.cause is not cause or (about is not None and floor.about != about)
        )
        return replace(self, floors=kept)

    def with_floor(self, floor: Floor) -> "RowState":
        """The state with `floor` in place of the one of the same cause about the same thing."""
        return replace(self, floors=(*self.without(floor.cause, floor.about).floors, floor))


class Verdict(Value, frozen=True):
    """The result of a judgement: the row's next state (None: the row ends) and, for a request, the grant."""

    holder: Holder
    node: str
    state: RowState | None
    grant: Grant | None = None
    name: str = ""
    """The holder's name for people; needed once, when the row begins."""


class NodeCapacity(Value, frozen=True):
    """The capacity of a node: how much may be reserved, the amount above which it is under pressure, its compute unit."""

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
    pool: str | None = None
    units: int = 0
    """Its part of its pool, in the pool's units; 0 if the pool is not known."""
    pooled: Resources = ZERO
    """Its part of its pool as an amount."""


@dataclass(slots=True)
class PoolAccount:
    """A pool's sum. Written by `Ledger` only.

    `units` is what its rows hold together, in its own units and without what is pending, `vcpu_milli` and `memory_bytes` the
    same exactly. `freed_units` is what they have given back so far, `frees` how often they gave something back, whole units or
    not; both only rise, like `came_beyond`, how many VMs came beyond its limit. `changed` are the rows that were changed since
    `Ledger.take_changed` was called last. Without `spec` there is no such pool (yet).
    """

    name: str
    spec: PoolSpec | None = None
    units: int = 0
    vcpu_milli: int = 0
    memory_bytes: int = 0
    freed_units: int = 0
    frees: int = 0
    came_beyond: int = 0
    rows: dict[Holder, Row] = field(default_factory=dict)
    changed: set[Holder] = field(default_factory=set)

    @property
    def amount(self) -> Resources:
        """The exact sum of its rows."""
        return Resources(self.vcpu_milli, self.memory_bytes)

    @property
    def excess_units(self) -> int:
        """How many units more than its own limit the pool holds."""
        most = self.spec.max_units if self.spec is not None else None
        return max(self.units - most, 0) if most is not None else 0


@dataclass(slots=True)
class NodeAccount:
    """A node's sums. Written by `Ledger` only. `over` are the recorded causes while it is over-full.

    `generation` is the ledger's at the last change of the node's capacity or of one of its rows: while it stays, so does all of
    the account.
    """

    capacity: NodeCapacity
    reserved: Resources = ZERO
    buffer: Resources = ZERO
    pressure: Resources = ZERO
    accounted: Resources = ZERO
    rows: dict[Holder, Row] = field(default_factory=dict)
    over: dict[OverCause, None] = field(default_factory=dict)
    generation: int = 0

    @property
    def is_over_full(self) -> bool:
        return self.reserved.exceeds(self.capacity.reservable)

    @property
    def would_fit_settled(self) -> bool:
        """Whether all rows fit, without the amounts that are kept only until they are settled."""
        kept = (row.state.kept(Cause.START_UP, Cause.HANDOVER) for row in self.rows.values())
        return not sum(kept, ZERO).exceeds(self.capacity.reservable)

    @property
    def excess(self) -> Resources:
        return (self.reserved - self.capacity.reservable).max(ZERO)


class Ledger:
    """All accounts. A row on a node that is not known (any more) is kept and counts again when the node appears."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeAccount] = {}
        self._by_change: dict[str, NodeAccount] = {}
        """The same accounts, those that were changed last at the end."""
        self._rows: dict[Holder, Row] = {}
        self._pools: dict[str, PoolAccount] = {}
        self._changed_pools: set[str] = set()
        self.pool_moves = 0
        """How often the sum of any pool has moved so far."""
        self.freed_units = 0
        """The sum of all pools' freed units, also of pools that are gone."""
        self.frees = 0
        """How often any pool gave something back, also pools that are gone."""
        self.generation = 0
        """How many changes of nodes and of rows on nodes there were so far; also a node that goes is one."""
        self.nodes_gone = 0
        """How many nodes have gone so far."""
        self.room_frees = 0
        """How often room may have become free on any node: a row fell or left, or the capacity of a node was changed."""
        self.before_change: Callable[[Row], object] | None = None
        """Told of each row before it is changed, while a snapshot is taken."""

    def nodes(self) -> Iterator[NodeAccount]:
        return iter(self._nodes.values())

    def node(self, name: str) -> NodeAccount | None:
        return self._nodes.get(name)

    def row(self, holder: Holder) -> Row | None:
        return self._rows.get(holder)

    def require(self, holder: Holder) -> Row:
        """The row of a holder that must have one; it is a fault of ours when it has not."""
        row = self._rows.get(holder)
        assert row is not None, f"{holder} has no row"
        return row

    def rows(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def set_node(self, capacity: NodeCapacity, cause: OverCause) -> None:
        """Add a node, or change its capacity. Its rows stay as they are at any size of the node."""
        account = self._nodes.get(capacity.name)
        if account is None:
            account = self._nodes[capacity.name] = NodeAccount(capacity)
            for row in self._rows.values():
                if row.node == capacity.name:
                    _enter(account, row)
            before = ZERO
        else:
            before = account.excess
        if account.capacity != capacity or not account.generation:
            self.room_frees += 1
            self.touch(capacity.name)
        account.capacity = capacity
        _record_over(account, cause, before)

    def remove_node(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            self._by_change.pop(name, None)
            self.generation += 1
            self.nodes_gone += 1

    def touch(self, name: str) -> None:
        """Something of a node was changed, or of what is known of a holder of one of its rows."""
        if (account := self._nodes.get(name)) is not None:
            self._note_change(account)

    def changed_since(self, generation: int) -> Iterator[NodeAccount]:
        for account in reversed(self._by_change.values()):
            if account.generation <= generation:
                return
            yield account

    def _note_change(self, account: NodeAccount) -> None:
        self.generation = account.generation = self.generation + 1
        self._by_change.pop(account.capacity.name, None)
        self._by_change[account.capacity.name] = account

    # ------------------------------------------------------------ pools

    def pools(self) -> Iterator[PoolAccount]:
        """Every pool that is known or that a VM names."""
        return iter(self._pools.values())

    def pool(self, name: str) -> PoolAccount | None:
        return self._pools.get(name)

    def set_pool(self, name: str, spec: PoolSpec | None) -> None:
        """Add a pool or change what holds for it; None forgets it. Its members stay members, and are counted anew."""
        account = self._pools.setdefault(name, PoolAccount(name))
        before, account.spec = account.spec, spec
        if before is None or spec is None or before.compute_unit != spec.compute_unit:
            freed = account.freed_units, self.freed_units, account.frees, self.frees
            for row in account.rows.values():
                self._count(account, row)
            # Fewer units of another size are no room.
            account.freed_units, self.freed_units, account.frees, self.frees = freed
        self._changed_pools.add(name)
        self._drop_unused(account)

    def join_pool(self, holder: Holder, name: str | None, *, comes: bool = True) -> None:
        """A row belongs to the pool of that name from now on, to no other, and to none if it is None.

        `comes` says that the VM was born or labelled just now: beyond the pool's limit that is counted. Nobody is asked.
        """
        row = self.require(holder)
        if row.pool == name:
            return
        if self.before_change is not None:
            self.before_change(row)
        self._leave_pool(row)
        row.pool = name
        self.touch(row.node)
        if name is not None:
            account = self._pools.setdefault(name, PoolAccount(name))
            account.rows[holder] = row
            self._count(account, row)
            if comes and account.excess_units:
                account.came_beyond += 1

    def take_changed(self, name: str) -> set[Holder]:
        """The rows of a pool that were changed, came or went since this was asked last. For one reader."""
        account = self._pools.get(name)
        if account is None:
            return set()
        changed, account.changed = account.changed, set()
        return changed

    def take_changed_pools(self) -> set[str]:
        """The pools whose sum was changed, or that came or went, since this was asked last. For one reader."""
        changed, self._changed_pools = self._changed_pools, set()
        return changed

    def _count(self, account: PoolAccount, row: Row) -> None:
        """The pool's sums move by what the row's part has changed."""
        pooled = row.state.firm
        units = units_of(account, pooled)
        before = row.pooled
        if units != row.units or (pooled is not before and pooled != before):
            self._move(account, units - row.units, before, pooled)
            row.units, row.pooled = units, pooled
        account.changed.add(row.holder)

    def _move(self, account: PoolAccount, units: int, before: Resources, after: Resources) -> None:
        account.units += units
        cpu, memory = after.vcpu_milli - before.vcpu_milli, after.memory_bytes - before.memory_bytes
        account.vcpu_milli += cpu
        account.memory_bytes += memory
        if units < 0:
            account.freed_units -= units
            self.freed_units -= units
        if units < 0 or cpu < 0 or memory < 0:
            account.frees += 1
            self.frees += 1
        self.pool_moves += 1
        self._changed_pools.add(account.name)

    def _leave_pool(self, row: Row) -> None:
        if row.pool is None:
            return
        account = self._pools[row.pool]
        del account.rows[row.holder]
        self._move(account, -row.units, row.pooled, ZERO)
        account.changed.add(row.holder)
        row.pool, row.units, row.pooled = None, 0, ZERO
        self._drop_unused(account)

    def _drop_unused(self, account: PoolAccount) -> None:
        if account.spec is None and not account.rows:
            self._pools.pop(account.name, None)

    # ------------------------------------------------------------ rows

    def headroom(self, node: str, holder: Holder) -> Resources:
        """The amount that the other rows leave of the node to `holder`; may be negative. Zero if the node is unknown."""
        account = self._nodes.get(node)
        if account is None:
            return ZERO
        row = account.rows.get(holder)
        own = row.reserved if row is not None else ZERO
        return account.capacity.reservable - (account.reserved - own)

    def post(self, verdict: Verdict, cause: OverCause | None = None) -> None:
        """Make a verdict so: the only writer of rows and sums, synchronous and total.

        `cause` documents a rise that no limit has allowed, should the node be over-full by it.
        """
        row = self._rows.get(verdict.holder)
        if self.before_change is not None and row is not None:
            self.before_change(row)
        if row is not None and row.node == verdict.node and verdict.state is not None:
            if row.state is not verdict.state:
                self._change(row, verdict.state, cause)
            return
        if row is not None and (account := self._nodes.get(row.node)) is not None:
            _leave(account, row)
            _record_over(account, None)
            self.room_frees += 1
            self.touch(row.node)
        if verdict.state is None:
            if row is not None:
                self._leave_pool(row)
                del self._rows[verdict.holder]
            return
        reserved = verdict.state.reserved
        if row is None:
            row = Row(verdict.holder, verdict.name, verdict.node, verdict.state, reserved)
            self._rows[verdict.holder] = row
        row.node, row.state, row.reserved = verdict.node, verdict.state, reserved
        if row.pool is not None:
            self._count(self._pools[row.pool], row)
        if (account := self._nodes.get(verdict.node)) is not None:
            before = account.excess
            _enter(account, row)
            _record_over(account, cause, before)
            self.touch(row.node)

    def _change(self, row: Row, state: RowState, cause: OverCause | None) -> None:
        """A row that stays on its node: the sums move by the difference."""
        account = self._nodes.get(row.node)
        old, before, reserved = row.state, row.reserved, state.reserved
        row.state, row.reserved = state, reserved
        if row.pool is not None:
            self._count(self._pools[row.pool], row)
        if account is None:
            return
        excess = account.excess if cause is not None else ZERO
        self._note_change(account)
        if reserved is not before:
            account.reserved += reserved - before
            if before.exceeds(reserved):
                self.room_frees += 1
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


def units_of(account: PoolAccount, pooled: Resources) -> int:
    """A row's part of its pool in the pool's units, if that part is `pooled` as an amount."""
    return pooled.units(account.spec.compute_unit) if account.spec is not None else 0


def _enter(account: NodeAccount, row: Row) -> None:
    account.rows[row.holder] = row
    account.reserved += row.reserved
    account.buffer += row.reserved - row.state.current
    account.pressure += row.state.pressure
    account.accounted += row.state.accounted


def _leave(account: NodeAccount, row: Row) -> None:
    del account.rows[row.holder]
    account.reserved -= row.reserved
    account.buffer -= row.reserved - row.state.current
    account.pressure -= row.state.pressure
    account.accounted -= row.state.accounted


def _record_over(account: NodeAccount, cause: OverCause | None, before: Resources = ZERO) -> None:
    """Note why a node is over-full, and forget it when it is not any more. A cause is one only if it has added to
    the excess of `before`."""
    over, settling = account.over, OverCause.SETTLING
    if not account.is_over_full:
        over.clear()
        return
    if cause is not None and account.excess.exceeds(before):
        is_blamed = cause in (OverCause.BYPASSED, OverCause.CONFIGURATION)
        over[settling if is_blamed and account.would_fit_settled else cause] = None
    if over.keys() == {settling} and not account.would_fit_settled:  # it does not end by that alone
        over[OverCause.BYPASSED if cause in (None, settling) else cause] = None
