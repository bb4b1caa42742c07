"""The whole state of a core as values: taken in steps, so that permits go on beside it, and made a core again."""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

from protocol import reasons, values
from scheduler.permits.core import clock, events, ledger, model, rules, state
from scheduler.permits.core.core import Core

ReservationParts: TypeAlias = tuple[
    str,
    model.ReservationSpec | None,
    tuple[tuple[model.Holder, values.Resources], ...],
    bool,
    reasons.Reason | None,
]
"""UID, description, the amount of each user, whether it is used up, the reason why not all of it is kept."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a core, as values; `parts` is what goes into the journal's first line."""

    config: state.SchedulerConfig
    rules: rules.Rules
    nodes: tuple[model.NodeSpec, ...]
    pools: tuple[model.PoolSpec, ...]
    rows: Iterable[tuple[model.Holder, str, str, ledger.RowState, str | None]]
    """Holder, its name, its node, its state, its pool."""
    over: tuple[tuple[str, tuple[ledger.OverCause, ...]], ...]
    """Why nodes are over-full."""
    records: Iterable[dict[str, Any]]
    """The fields of each `state.VmRecord` but its row."""
    retired: tuple[tuple[str, state.Retired], ...]
    placements: tuple[tuple[model.Holder, float | None], ...]
    reservations: tuple[ReservationParts, ...]
    migrate_after: tuple[tuple[str, float], ...]
    serving_since_s: float | None
    now_s: float


_RECORDED: Final = tuple(item.name for item in dataclasses.fields(state.VmRecord) if item.name != "row")
_DEFAULTS: Final = tuple(
    item.default for item in dataclasses.fields(state.VmRecord) if item.name != "row"
)  # `MISSING` for those that are always written
_parts_of: Final = attrgetter(*_RECORDED)

_Row: TypeAlias = tuple[model.Holder, str, str, ledger.RowState, str | None]


class SnapshotTaker:
    """Takes a snapshot of a core in steps: of its state at the moment when this is made, while the core goes on.

    A row or record that is about to change, or may be, is copied before. There is one at a time for each core; all of its steps must be taken, or
    `end` be called. Values are shared, records copied: the snapshot does not change with the core.
    """

    def __init__(self, core: Core) -> None:
        held = core.state
        self._ledger, self._vms = core.ledger, core.vms
        assert self._vms.found is None, "another snapshot is being taken"
        self._rows, self._records = list(core.ledger.rows()), list(core.vms)
        self._copied_rows: dict[model.Holder, _Row] = {}
        self._copied_records: dict[str, tuple[Any, ...]] = {}
        self._rest = Snapshot(
            core.config,
            held.rules,
            tuple(held.nodes.values()),
            tuple(pool.spec for pool in core.ledger.pools() if pool.spec is not None),
            (),
            tuple(
                (account.capacity.name, tuple(account.over))
                for account in core.ledger.nodes()
                if account.over
            ),
            (),
            tuple(core.vms.retired().items()),
            tuple(held.placements.items()),
            tuple(
                (each.uid, each.spec, tuple(each.taken.items()), each.is_used_up, each.reason)
                for each in held.reservations
            ),
            tuple(held.migrate_after_s.items()),
            held.serving_since_s,
            held.now_s,
        )
        for record in held.admission_calls.values():  # they are found by their tickets
            self._copy_record(record)
        self._ledger.before_change, self._vms.found = self._copy_row, self._copy_record

    def steps(self) -> Iterator[None]:
        """The core may go on between any two."""
        for row in self._rows:
            self._copy_row(row)
            yield
        for record in self._records:
            self._copy_record(record)
            yield
        self.end()

    def end(self) -> None:
        self._ledger.before_change = self._vms.found = None

    def snapshot(self) -> Snapshot:
        """When all steps were taken, once. In any thread, for it takes long.

        Rows and records can be gone through once, and are let go of one by one: to free all at once would stop every thread.
        """
        return dataclasses.replace(
            self._rest,
            rows=(self._copied_rows.pop(row.holder) for row in self._rows),
            records=(_named(self._copied_records.pop(record.spec.uid)) for record in self._records),
        )

    def _copy_row(self, row: ledger.Row) -> None:
        if row.holder not in self._copied_rows:
            self._copied_rows[row.holder] = (row.holder, row.name, row.node, row.state, row.pool)

    def _copy_record(self, record: state.VmRecord) -> None:
        uid = record.spec.uid
        if uid in self._copied_records:
            return
        parts = _parts_of(record)
        call = record.admission
        if call is not None:
            copy = dataclasses.replace(call, joined=list(call.joined))
            parts = tuple(copy if part is call else part for part in parts)
        self._copied_records[uid] = parts


def _named(parts: tuple[Any, ...]) -> dict[str, Any]:
    """The fields of a record, without those that are what they are when nothing is known of them."""
    return {
        name: part
        for name, part, default in zip(_RECORDED, parts, _DEFAULTS, strict=True)
        if part is not default and part != default
    }


def snapshot_of(core: Core) -> Snapshot:
    """The state of `core` now."""
    taker = SnapshotTaker(core)
    for _ in taker.steps():
        pass
    taken = taker.snapshot()
    return dataclasses.replace(taken, rows=tuple(taken.rows), records=tuple(taken.records))


def restore(snapshot: Snapshot) -> Core:
    core = Core(snapshot.config, snapshot.rules)
    held = core.state
    for node in snapshot.nodes:
        core.apply(events.NodeSeen(node))
    for spec in snapshot.pools:
        core.apply(events.PoolSeen(spec))
    for holder, name, node_name, row_state, pool in snapshot.rows:
        held.ledger.post(ledger.Verdict(holder, node_name, row_state, name=name))
        held.ledger.join_pool(holder, pool, comes=False)
    for node_name, causes in snapshot.over:
        held.ledger.note_over(node_name, causes)
    for parts in snapshot.records:
        row = held.ledger.require(parts["spec"].holder)
        record = state.VmRecord(row=row, **parts)
        call = record.admission
        if call is not None:
            record.admission = dataclasses.replace(call, joined=list(call.joined))
            held.admission_calls[call.ticket] = record
        held.vms.add(record)
        if record.waiting is not None:
            held.queue(record.spec.node).waiting[record.spec.uid] = None
        if record.asked is not None and record.asked.is_open:
            held.queue(record.spec.node).asked[record.spec.uid] = None
        clock.schedule(held, record)
    held.vms.retired().update(snapshot.retired)
    held.placements.update(snapshot.placements)
    for uid, described, taken, is_used_up, reason in snapshot.reservations:
        account = held.reservations.open(uid)
        account.spec, account.is_used_up, account.reason = described, is_used_up, reason
        for holder, amount in taken:
            held.reservations.use(uid, holder).taken[holder] = amount
    held.migrate_after_s.update(snapshot.migrate_after)
    held.serving_since_s, held.now_s = snapshot.serving_since_s, snapshot.now_s
    held.followed = held.ledger.generation
    return core
