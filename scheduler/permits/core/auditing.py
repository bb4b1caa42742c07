"""Every sum of the ledger computed again from its rows. Tests and `/v1/audit` ask for it."""

from protocol.values import ZERO
from scheduler.permits.core.ledger import Cause, Ledger, NodeAccount, PoolAccount, Row, units_of
from scheduler.permits.core.state import CoreState


def audit(core: CoreState) -> list[str]:
    """The faults of the accounts and the VMs, as far as they can be seen from within: none, ever."""
    faults = audit_ledger(core.ledger)
    for record in core.vms:
        if core.ledger.row(record.spec.holder) is not record.row:
            faults.append(f"{record.name}: its row is not the ledger's")
        is_pending = any(floor.cause is Cause.PENDING for floor in record.row.state.floors)
        if is_pending is not (record.admission is not None):
            faults.append(f"{record.name}: a pending floor and no request that waits, or the reverse")
    return faults + audit_placements(core) + audit_reservations(core)


def audit_placements(core: CoreState) -> list[str]:
    """Rows that are assumed by nobody, and placements without their row."""
    assumed = {
        row.holder
        for row in core.ledger.rows()
        if any(floor.cause is Cause.ASSUMED for floor in row.state.floors)
    }
    waiting = {holder for holder, until_s in core.placements.items() if until_s is not None}
    faults = [
        f"{holder}: assumed in its row or as a placement, and not as both" for holder in assumed ^ waiting
    ]
    return faults + [
        f"{holder}: a placement and no row" for holder in core.placements if core.ledger.row(holder) is None
    ]


def audit_reservations(core: CoreState) -> list[str]:
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


def audit_ledger(ledger: Ledger) -> list[str]:
    """The differences between the sums and their rows, none when the identity holds."""
    rows: dict[str, list[Row]] = {}
    members: dict[str, list[Row]] = {}
    for row in ledger.rows():
        rows.setdefault(row.node, []).append(row)
        if row.pool is not None:
            members.setdefault(row.pool, []).append(row)
    faults = []
    for account in ledger.nodes():
        faults += audit_node(account, rows.get(account.capacity.name, []))
    for pool in ledger.pools():
        faults += audit_pool(pool, members.pop(pool.name, []))
    return faults + [f"pool {name}: it has members and no account" for name in members]


def audit_node(account: NodeAccount, rows: list[Row]) -> list[str]:
    """The faults of one node's account, given all the rows that name the node."""
    name, wrong = account.capacity.name, []
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
            f"{name}: {account.reserved} of {account.capacity.reservable} is reserved, and no cause is recorded"
        )
    return wrong


def audit_pool(account: PoolAccount, rows: list[Row]) -> list[str]:
    """The faults of one pool's account, given all the rows that name the pool."""
    wrong = []
    if {row.holder for row in rows} != set(account.rows):
        wrong.append(f"pool {account.name}: its rows are not the rows that name it")
    units, amount = 0, ZERO
    for row in rows:
        units += units_of(account, row.state.firm)
        amount += row.state.firm
    if account.units != units:
        wrong.append(f"pool {account.name}: units is {account.units}, its rows' {units}")
    if account.amount != amount:
        wrong.append(f"pool {account.name}: amount is {account.amount}, its rows' {amount}")
    return wrong
