"""Rows for what is not there yet: assume, then confirm or forget. Reservations, the extender and migrations use them.

There is one account, so placement and growth never give away the same room twice.
"""

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO
from scheduler.core import events, refusals
from scheduler.core.ledger import Cause, Floor, RowState, Verdict
from scheduler.core.limits import amount_text
from scheduler.core.model import Holder
from scheduler.core.state import CoreState


def assumed(core: CoreState, event: events.PlacementAssumed) -> tuple[events.Output, ...]:
    """Somebody wants to place a holder on a node."""
    return (_assume(core, event),)


def confirmed(core: CoreState, event: events.PlacementConfirmed) -> tuple[events.Output, ...]:
    """What was kept is the holder's for good. Confirming again, or what the cluster shows already, changes nothing."""
    holder = event.holder
    if holder in core.placements:
        row = core.ledger.require(holder)
        core.ledger.post(Verdict(holder, row.node, RowState(row.state.reserved)))
        core.placements[holder] = None
    return ()


def forgotten(core: CoreState, event: events.PlacementForgotten) -> tuple[events.Output, ...]:
    """A placement will not happen."""
    forget(core, event.holder)
    return ()


def cluster_read(core: CoreState, event: events.ClusterRead) -> tuple[events.Output, ...]:
    """Forget what was not confirmed in time, and what a read begun after that does not show either.

    The clock alone ends nothing: a process that was stopped for a while is told late of what has been placed.
    """
    late = [
        holder
        for holder, until_s in core.placements.items()
        if until_s is not None and until_s <= event.begun_s
    ]
    for holder in late:
        forget(core, holder)
    return ()


def _assume(core: CoreState, asked: events.PlacementAssumed) -> events.Output:
    """Keep room for a holder, all of it or nothing. Asked again, it moves or changes its amount, where that fits."""
    row = core.ledger.row(asked.holder)
    if row is not None and asked.holder not in core.placements:
        if row.node == asked.node:
            return events.Placed(asked.ticket)
        message = f"{asked.name} is on node {row.node} already"
        return events.NotPlaced(asked.ticket, Reason(ReasonCode.PLACED_ELSEWHERE, message))
    if core.ledger.node(asked.node) is None:
        message = f"there is no node {asked.node}"
        return events.NotPlaced(asked.ticket, Reason(ReasonCode.NODE_HEADROOM, message))
    is_here = row is not None and row.node == asked.node
    kept = row.reserved if row is not None and is_here else ZERO
    if is_here and asked.amount == kept and core.placements[asked.holder] is None:
        return events.Placed(asked.ticket)  # a late repeat takes no confirmation back
    # What is kept already, and nothing at all, fit whatever became of the node since.
    room = core.ledger.headroom(asked.node, asked.holder).max(kept)
    for (resource, wanted), (_, free) in zip(asked.amount.named(), room.named(), strict=True):
        if wanted > free:
            left = amount_text(resource, max(free, 0))
            reason = Reason(ReasonCode.NODE_HEADROOM, f"the other holders leave {left} of the node", resource)
            obstacles = refusals.obstacles(core.ledger, asked.node, asked.holder, resource)
            return events.NotPlaced(
                asked.ticket, refusals.named(reason, obstacles, asked.now_s, core.config.unsettled_s)
            )
    floor = Floor(Cause.PENDING, asked.amount, until_s=asked.until_s)
    state = RowState(ZERO, (floor,))
    core.ledger.post(Verdict(asked.holder, asked.node, state, name=asked.name))
    core.placements[asked.holder] = asked.until_s
    return events.Placed(asked.ticket)


def forget(core: CoreState, holder: Holder) -> None:
    """What was kept is free. What the cluster shows is the cluster's to end."""
    if holder in core.placements:
        core.ledger.post(Verdict(holder, core.ledger.require(holder).node, None))
        del core.placements[holder]
