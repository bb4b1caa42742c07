"""Every sum of the ledger computed again from its rows. Tests and `/v1/audit` ask for it."""

from collections.abc import Iterator

from protocol.values import ZERO
from scheduler.permits.core.ledger import Cause, Ledger, NodeAccount, PoolAccount, Row, units_of
from scheduler.permits.core.state import CoreState, VmRecord


def audit(core: CoreState) -> list[str]:
    """The faults of the accounts and the VMs, as far as they can be seen from within: none, ever."""
    return [fault for part in parts(core) for fault in part]


def parts(core: CoreState) -> Iterator[list[str]]:
    """The same in small parts. Each is of one moment, and compares nothing with what was so at another: the core may go on between them."""
    ledger = core.ledger
    for account in list(ledger.nodes()):
        if ledger.node(account.capacity.name) is account:
            yield _audit_node(ledger, account)
    for pool in list(ledger.pools()):
        if ledger.pool(pool.name) is pool:
            yield _audit_pool(ledger, pool)
    for row in list(ledger.rows()):
        if ledger.row(row.holder) is row:
            yield _audit_row(core, row)
    for record in list(core.vms):
        if core.vms.by_uid(record.spec.uid) is record:
            yield _audit_vm(core, record)
    yield _audit_placements(core)
    yield _audit_reservations(core)


def _audit_row(core: CoreState, row: Row) -> list[str]:
    """The faults of one row: accounts that do not have it, though it names them, and an assumption that nothing else knows of."""
    faults = []
    node = core.ledger.node(row.node)
    if node is not None and node.rows.get(row.holder) is not row:
        faults.append(f"{row.node}: the node's rows are not the rows of the node, without {row.holder}")
    if row.pool is not None:
        pool = core.ledger.pool(row.pool)
        if pool is None:
            faults.append(f"pool {row.pool}: it has members and no account")
        elif pool.rows.get(row.holder) is not row:
            faults.append(f"pool {row.pool}: its rows are not the rows that name it, without {row.holder}")
    is_placement = core.placements.get(row.holder) is not None
    if is_placement is not any(floor.cause is Cause.ASSUMED for floor in row.state.floors):
        faults.append(f"{row.holder}: assumed in its row or as a placement, and not as both")
    return faults


def _audit_vm(core: CoreState, record: VmRecord) -> list[str]:
    faults = []
    if core.ledger.row(record.spec.holder) is not record.row:
        faults.append(f"{record.name}: its row is not the ledger's")
    is_pending = any(floor.cause is Cause.PENDING for floor in record.row.state.floors)
    if is_pending is not (record.admission is not None):
        faults.append(f"{record.name}: a pending floor and no request that waits, or the reverse")
    return faults


def _audit_placements(core: CoreState) -> list[str]:
    return [
        f"{holder}: a placement and no row" for holder in core.placements if core.ledger.row(holder) is None
    ]


def _audit_reservations(core: CoreState) -> list[str]:
    """The faults of reservations: users without a row, more taken than there is, a row that keeps what was taken."""
    faults = []
    used = dict(core.reservations.users())
    for account in core.reservations:
        faults += [
            f"{holder}: uses a reservation and has no row"
            for holder in account.taken
            if core.ledger.row(holder) is None
        ]
        if {holder for holder, uid in used.items() if uid == account.uid} != set(account.taken):
            faults.append(f"reservation {account.uid}: its users are not those that use it")
        row = core.ledger.row(account.holder)
        kept = row.reserved if row is not None else ZERO
        spec = account.spec
        if account.is_open and spec is not None and (account.allocated + kept).exceeds(spec.allocatable):
            faults.append(
                f"reservation {account.uid}: {account.allocated} taken and {kept} kept of {spec.allocatable}"
            )
        if not account.is_open and row is not None and account.holder not in core.placements:
            faults.append(f"reservation {account.uid}: a row, and nothing to keep")
    return faults


def _audit_node(ledger: Ledger, account: NodeAccount) -> list[str]:
    """The faults of one node's account."""
    name, wrong = account.capacity.name, []
    reserved = buffer = pressure = accounted = ZERO
    for row in account.rows.values():
        state = row.state
        if row.node != name or ledger.row(row.holder) is not row:
            wrong.append(f"{name}: the node's rows are not the rows of the node, with {row.holder}")
        if row.reserved != state.reserved:
            wrong.append(f"{name}: row {row.holder} keeps {row.reserved}, its state {state.reserved}")
        reserved += state.reserved
        buffer += state.reserved - state.current
        pressure += state.pressure
        accounted += state.accounted
    sums = {
        "reserved": (account.reserved, reserved),
        "buffer": (account.buffer, buffer),
        "pressure": (account.pressure, pressure),
        "accounted": (account.accounted, accounted),
    }
    wrong += [f"{name}: {what} is {has}, its rows' {is_}" for what, (has, is_) in sums.items() if has != is_]
    if account.is_over_full and not account.over:
        wrong.append(
            f"{name}: {account.reserved} of {account.capacity.reservable} is reserved, and no cause is recorded"
        )
    return wrong


def _audit_pool(ledger: Ledger, account: PoolAccount) -> list[str]:
    """The faults of one pool's account."""
    wrong = []
    units, amount = 0, ZERO
    for row in account.rows.values():
        if row.pool != account.name or ledger.row(row.holder) is not row:
            wrong.append(f"pool {account.name}: its rows are not the rows that name it, with {row.holder}")
        units += units_of(account, row.state.firm)
        amount += row.state.firm
    if account.units != units:
        wrong.append(f"pool {account.name}: units is {account.units}, its rows' {units}")
    if account.amount != amount:
        wrong.append(f"pool {account.name}: amount is {account.amount}, its rows' {amount}")
    return wrong
