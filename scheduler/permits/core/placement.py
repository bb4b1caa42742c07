"""Rows for holders that are not there yet: assume, then confirm or forget; and reservations, which keep room for such holders.

There is one account, so placement and growth never give away the same room twice. An assumed amount counts on its node and in its
pool from that moment; when the cluster shows the holder, its row takes the place of what was assumed. A pod may have become a VM
meanwhile, or have ceased to be one: both have its UID, and the assumption for either ends.

A reservation's row keeps what its users leave of it. It shrinks at once; it grows, or begins, only if all of that fits on its
node, and is tried again with each read of the cluster; that of one that is pre-allocated takes what is free. So a reservation never makes a node over-full. The row of a user
is changed first and the reservation's after it: in between more is reserved than is used, and never less.
"""

from collections.abc import Iterator
from typing import Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import decision, events, limits, pools
from scheduler.permits.core.ledger import Cause, Floor, Row, RowState, Verdict
from scheduler.permits.core.limits import amount_text
from scheduler.permits.core.model import Holder, Kind, ReservationSpec
from scheduler.permits.core.state import CoreState, ReservationAccount

_OTHER_KIND: Final = {Kind.VM: Kind.POD, Kind.POD: Kind.VM}


def assumed(core: CoreState, event: events.PlacementAssumed) -> tuple[events.Output, ...]:
    """Somebody wants to place a holder on a node: all of what is needed is kept, or nothing. Asked again, it moves or
    changes its amount, if that fits."""
    shown = next((row for row in _rows(core, event.holder) if row.holder not in core.placements), None)
    if shown is not None:
        if shown.node == event.node:
            return (events.Placed(event.ticket),)
        message = f"{event.name} is on node {shown.node} already"
        return (events.NotPlaced(event.ticket, Reason(ReasonCode.PLACED_ELSEWHERE, message)),)
    before = next(_rows(core, event.holder), None)
    if before is not None and _is_late_repeat(core, event, before):
        return (events.Placed(event.ticket),)
    reason = _obstacle(core, event, before)
    if reason is not None:
        return (events.NotPlaced(event.ticket, reason),)
    _keep(core, event)
    return (events.Placed(event.ticket),)


def confirmed(core: CoreState, event: events.PlacementConfirmed) -> tuple[events.Output, ...]:
    """The amount that was kept is the holder's for good. Confirming again, or a row that the cluster shows already, changes nothing."""
    holder = event.holder
    if holder in core.placements:
        row = core.ledger.require(holder)
        core.ledger.post(Verdict(holder, row.node, RowState(row.state.reserved)))
        core.placements[holder] = None
    return ()


def forgotten(core: CoreState, event: events.PlacementForgotten) -> tuple[events.Output, ...]:
    forget(core, event.holder)
    return ()


def cluster_read(core: CoreState, event: events.ClusterRead) -> tuple[events.Output, ...]:
    """Forget the holders that were not confirmed in time, and that a read begun after that does not show either.

    The clock alone ends nothing: a process that was stopped for a while is told late of what has been placed.
    """
    late = [
        holder
        for holder, until_s in core.placements.items()
        if until_s is not None and until_s <= event.begun_s
    ]
    for holder in late:
        forget(core, holder)
    try_again(core)
    return ()


def forget(core: CoreState, holder: Holder) -> None:
    """Free the amount that was kept for a holder, or for the same pod of the other kind. The cluster itself ends a row that it shows."""
    for row in tuple(_rows(core, holder)):
        if row.holder in core.placements:
            _drop(core, row)


def shown(core: CoreState, holder: Holder, reservation: str | None, amount: Resources | None) -> None:
    """The cluster shows a holder, whose row says so by now: the assumption for it ends.

    The holder uses the reservation that it names, else the one whose room it was given, for up to `amount`; None if
    its use is not known: then the amount that it was given counts.
    """
    core.placements.pop(holder, None)
    uid = reservation or core.reservations.used_by(holder)
    taken = core.reservations.taken_by(holder)
    for row in tuple(_rows(core, holder)):
        if row.holder in core.placements:
            uid = uid or core.reservations.used_by(row.holder)
            taken = taken.max(core.reservations.taken_by(row.holder))
            _drop(core, row)
    join(core, uid, holder, taken if amount is None else amount)


def _rows(core: CoreState, holder: Holder) -> Iterator[Row]:
    """The rows of a pod: under its kind, and under the other one."""
    for kind in (holder.kind, _OTHER_KIND.get(holder.kind)):
        row = core.ledger.row(Holder(kind, holder.uid)) if kind is not None else None
        if row is not None:
            yield row


def _is_late_repeat(core: CoreState, asked: events.PlacementAssumed, row: Row) -> bool:
    """Whether the very same is confirmed by now: a late repeat takes no confirmation back."""
    is_same = row.holder == asked.holder and row.node == asked.node and row.reserved == asked.amount
    return is_same and core.placements[row.holder] is None


def _obstacle(core: CoreState, asked: events.PlacementAssumed, before: Row | None) -> Reason | None:
    """Why what is asked for cannot be kept; None if it can. The amount that is kept already (`before`) always fits, and so does
    zero, even if the node and the pool have changed."""
    if core.ledger.node(asked.node) is None:
        return Reason(ReasonCode.NODE_HEADROOM, f"there is no node {asked.node}")
    holder = before.holder if before is not None else asked.holder
    kept = before.reserved if before is not None and before.node == asked.node else ZERO
    room = core.ledger.headroom(asked.node, holder).max(kept)
    if asked.reservation is not None:
        given = room_from(core, asked.reservation, holder, asked.node, asked.amount)
        if isinstance(given, Reason):
            return given
        room += given
    for (resource, wanted), (_, free) in zip(asked.amount.named(), room.named(), strict=True):
        if wanted > free:
            left = amount_text(resource, max(free, 0))
            reason = Reason(ReasonCode.NODE_HEADROOM, f"the other holders leave {left} of the node", resource)
            found = decision.obstacles(core.ledger, asked.node, holder, resource)
            return decision.named(reason, found, asked.now_s, core.config.unsettled_s)
    if asked.pool is None:
        return None
    counted = before.state.firm if before is not None and before.pool == asked.pool else ZERO
    return pools.no_room_for(core.ledger, asked.pool, asked.amount, counted)


def _keep(core: CoreState, asked: events.PlacementAssumed) -> None:
    holder = asked.holder
    state = RowState(ZERO, (Floor(Cause.ASSUMED, asked.amount, until_s=asked.until_s),))
    core.ledger.post(Verdict(holder, asked.node, state, name=asked.name))
    core.ledger.join_pool(holder, asked.pool, comes=False)
    core.placements[holder] = asked.until_s
    for row in tuple(_rows(core, holder)):
        if row.holder != holder:
            _drop(core, row)
    join(core, asked.reservation, holder, asked.amount)


def _drop(core: CoreState, row: Row) -> None:
    del core.placements[row.holder]
    core.ledger.post(Verdict(row.holder, row.node, None))
    leave(core, row.holder)


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
    room = core.ledger.headroom(spec.node, holder).max(kept) if spec.is_pre_allocated else kept
    amount = wanted if fits else wanted.min(room)
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
