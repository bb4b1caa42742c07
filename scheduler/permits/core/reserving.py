"""Reservations: rows that keep room for pods which are still to come, and the amounts that their users take of them.

A reservation's row keeps what its users leave of it. It shrinks at once; it grows, or begins, only if all of that fits on its
node, and is tried again with each read of the cluster. So a reservation never makes a node over-full. The row of a user
is changed first and the reservation's after it: in between more is reserved than is used, and never less.
"""

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import events, limits
from scheduler.permits.core.ledger import RowState, Verdict
from scheduler.permits.core.model import Holder, ReservationSpec
from scheduler.permits.core.reservations import ReservationAccount
from scheduler.permits.core.state import CoreState

# ------------------------------------------------------------ what the cluster shows


def seen(core: CoreState, event: events.ReservationSeen) -> tuple[events.Output, ...]:
    spec = event.reservation
    account = core.reservations.open(spec.uid)
    before, account.spec = account.spec, spec
    if before is None or before.node != spec.node or before.allocatable != spec.allocatable:
        _count_anew(core, account)
    settle(core, account)
    return ()


def gone(core: CoreState, event: events.ReservationGone) -> tuple[events.Output, ...]:
    """A reservation was deleted. Its users keep what they have."""
    account = core.reservations.open(event.uid)
    core.placements.pop(account.holder, None)
    account.spec, account.is_used_up = None, False
    settle(core, account)
    core.reservations.drop_unused(account)
    return ()


def _count_anew(core: CoreState, account: ReservationAccount) -> None:
    """Compute anew the amount that each user takes of it, as it is described now."""
    users, account.taken = account.taken, dict.fromkeys(account.taken, ZERO)
    for holder, before in users.items():
        row = core.ledger.row(holder)
        held = row.reserved if row is not None else ZERO
        _count(core, account, holder, before if before != ZERO else held)


# ------------------------------------------------------------ what users take


def room_from(core: CoreState, uid: str, holder: Holder, node: str, amount: Resources) -> Resources | Reason:
    """How much of `amount` the row of a reservation gives to a holder, beside what that has of it; or why it gives nothing."""
    account = core.reservations.find(uid)
    if account is None or account.spec is None or not account.is_open or account.spec.node != node:
        return Reason(ReasonCode.NODE_HEADROOM, f"node {node} has no reservation {uid} that can be used")
    spec = account.spec
    if spec.allocate_once and any(other != holder for other in account.taken):
        return Reason(ReasonCode.NODE_HEADROOM, f"reservation {spec.name} serves another pod")
    row = core.ledger.row(account.holder)
    kept = row.reserved if row is not None else ZERO
    left = account.left_to(holder)
    return kept - kept.min(left - amount.min(left))


def join(core: CoreState, uid: str | None, holder: Holder, amount: Resources) -> None:
    """A holder, whose row says so already, uses a reservation for up to `amount` of what it holds; None for none."""
    if uid != core.reservations.used_by(holder):
        leave(core, holder)
    if uid is not None:
        account = core.reservations.use(uid, holder)
        _count(core, account, holder, amount)
        settle(core, account)


def leave(core: CoreState, holder: Holder) -> None:
    """A holder, whose row has ended or moved already, gives back what it had of a reservation."""
    account = core.reservations.leave(holder)
    if account is not None:
        settle(core, account)


def _count(core: CoreState, account: ReservationAccount, holder: Holder, amount: Resources) -> None:
    """Count what a user takes: nothing if it is on another node. The first that is seen uses one up that is made for one."""
    row, spec = core.ledger.row(holder), account.spec
    is_here = spec is not None and row is not None and row.node == spec.node
    account.taken[holder] = amount.min(account.left_to(holder)) if is_here else ZERO
    if is_here and spec is not None and spec.allocate_once and holder not in core.placements:
        account.is_used_up = True


# ------------------------------------------------------------ rows


def settle(core: CoreState, account: ReservationAccount) -> None:
    """Bring the row of a reservation in line with what its users leave."""
    holder, spec = account.holder, account.spec
    row = core.ledger.row(holder)
    if spec is None or not account.is_open:
        account.reason = None
        if spec is not None and (spec.has_ended or account.is_used_up):
            core.placements.pop(holder, None)
        if row is not None and holder not in core.placements:
            core.ledger.post(Verdict(holder, row.node, None))
        return
    core.placements.pop(holder, None)
    wanted = (spec.allocatable - account.allocated).max(ZERO)
    kept = row.reserved if row is not None and row.node == spec.node else ZERO
    fits = _has_room(core, spec, wanted, kept)
    amount = wanted if fits else wanted.min(kept)
    account.reason = None if fits else _no_room(core, spec, wanted)
    if amount == ZERO and wanted != ZERO:
        if row is not None:
            core.ledger.post(Verdict(holder, row.node, None))
    elif row is None or row.node != spec.node or row.state != RowState(amount):
        core.ledger.post(Verdict(holder, spec.node, RowState(amount), name=spec.name))


def _has_room(core: CoreState, spec: ReservationSpec, wanted: Resources, kept: Resources) -> bool:
    """Whether a reservation can keep what is wanted; it can always keep what it keeps already (`kept`)."""
    return wanted.fits_in(core.ledger.headroom(spec.node, spec.holder).max(kept))


def try_again(core: CoreState) -> None:
    """Keep now what could not be kept before, if that fits by now."""
    for account in core.reservations:
        if account.reason is not None:
            settle(core, account)


def _no_room(core: CoreState, spec: ReservationSpec, wanted: Resources) -> Reason:
    if core.ledger.node(spec.node) is None:
        return Reason(ReasonCode.NODE_HEADROOM, f"there is no node {spec.node}")
    room = core.ledger.headroom(spec.node, spec.holder)
    for (resource, amount), (_, free) in zip(wanted.named(), room.named(), strict=True):
        if amount > free:
            left = limits.amount_text(resource, max(free, 0))
            return Reason(ReasonCode.NODE_HEADROOM, f"the other holders leave {left} of the node", resource)
    raise AssertionError("it fits")
