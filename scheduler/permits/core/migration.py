"""Which VM leaves a node that is under pressure. Exact arithmetic; source: reference/neon.md section 2.4, repaired.

Repaired: both resources are treated alike (at the watermark is not above it; memory counts as accounted for, too), a
floor's buffer is subtracted once, and nothing changes before a migration has started.
"""

from msgspec.structs import replace

from protocol.values import ZERO, Resources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import NodeAccount, Verdict
from scheduler.permits.core.model import Kind, Migration
from scheduler.permits.core.state import CoreState, VmRecord, VmTable


def is_under_pressure(account: NodeAccount) -> bool:
    """Whether more is reserved and wanted beyond the watermark than migrations and buffers will give back."""
    mark = account.capacity.watermark
    if account.reserved.fits_in(mark):
        return False
    beyond = (account.reserved - mark).max(ZERO) + account.pressure
    relief = account.accounted + account.buffer + (mark - account.reserved).max(ZERO)
    return beyond.exceeds(relief)


def victim(account: NodeAccount, vms: VmTable) -> VmRecord | None:
    """The VM that should leave the node now, if any. One at a time: none while another's migration is being started.

    A VM with known load goes before one without, then the lower load, then the name. One larger than the watermark
    would fit nowhere better.
    """
    records = [
        record
        for holder in account.rows
        if holder.kind is Kind.VM and (record := vms.by_uid(holder.uid)) is not None
    ]
    if any(record.is_leaving for record in records):
        return None
    able = [record for record in records if _may_leave(record, account.capacity.watermark)]
    always = [
        record for record in able if record.spec.migration is Migration.ALWAYS and record.load1 is not None
    ]
    if not always and not is_under_pressure(account):
        return None
    return min(always or able, key=_order, default=None)


def _may_leave(record: VmRecord, watermark: Resources) -> bool:
    return (
        record.spec.migration is not Migration.NEVER
        and record.settled
        and not record.row.state.migrating
        and record.row.reserved.fits_in(watermark)
    )


def _order(record: VmRecord) -> tuple[bool, float, str]:
    return record.load1 is None, record.load1 if record.load1 is not None else 0.0, record.name


def choose(core: CoreState, now_s: float) -> list[events.MigrationWanted]:
    """The VMs that should leave their node now, at most one of each node."""
    resting = core.migrate_after_s
    for name in [name for name, after_s in resting.items() if after_s <= now_s]:
        del resting[name]
    wanted = []
    for account in core.ledger.nodes():
        chosen = None if account.capacity.name in resting else victim(account, core.vms)
        if chosen is not None:
            chosen.is_leaving = True
            spec = chosen.spec
            wanted.append(events.MigrationWanted(spec.pod, spec.uid, spec.node))
    return wanted


def started(core: CoreState, event: events.MigrationStarted) -> tuple[events.Output, ...]:
    """The migration of a VM is under way: the VM keeps its permit until it has gone."""
    _set_migrating(core, event.uid, is_under_way=True)
    return ()


def over(core: CoreState, event: events.MigrationFailed | events.MigrationEnded) -> tuple[events.Output, ...]:
    """A migration did not start, or was given up: the VM stays, and its node is left alone for a while."""
    record = _set_migrating(core, event.uid, is_under_way=False)
    if record is not None:
        core.migrate_after_s[record.spec.node] = event.retry_at_s
    return ()


def _set_migrating(core: CoreState, uid: str, *, is_under_way: bool) -> VmRecord | None:
    record = core.vms.by_uid(uid)
    if record is not None:
        row = record.row
        record.is_leaving = False
        if row.state.migrating is not is_under_way:
            state = replace(row.state, migrating=is_under_way)
            core.ledger.post(Verdict(row.holder, row.node, state))
    return record
