"""Which VM leaves a node that is under pressure. Exact arithmetic; source: reference/neon.md section 2.4, repaired.

Repaired: both resources are treated alike (at the watermark is not above it; memory counts as accounted for, too), a
floor's buffer is subtracted once, and nothing changes before a migration has started.
"""

from protocol.values import ZERO, Resources
from scheduler.core.ledger import NodeAccount
from scheduler.core.model import Kind, Migration
from scheduler.core.vms import VmRecord, VmTable


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
