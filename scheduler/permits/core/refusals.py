"""Refusals for want of room, in words: which floors of other rows stand in the way, and which VMs stay unsettled."""

import math
from dataclasses import dataclass, replace

from protocol.reasons import Reason
from protocol.texts import counted
from protocol.values import amount_of
from scheduler.permits.core import limits
from scheduler.permits.core.ledger import Cause, Ledger, PoolAccount
from scheduler.permits.core.model import Holder


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The part of another row that stands in the way: its current permit (`cause` None), or a floor, and how much it adds."""

    name: str
    cause: Cause | None
    amount: int
    since_s: float | None = None
    until_s: float | None = None


def obstacles(ledger: Ledger, node: str, holder: Holder, resource: str) -> list[Obstacle]:
    """Which rows, and which floor of each, stand in the way of `holder` in one resource; the largest first.

    Per row the current permit, and the largest floor with what it keeps beyond that.
    """
    account = ledger.node(node)
    found = []
    for row in account.rows.values() if account is not None else ():
        if row.holder == holder:
            continue
        current = amount_of(row.state.current, resource)
        if current:
            found.append(Obstacle(row.name, None, current))
        floor = max(row.state.floors, key=lambda each: amount_of(each.amount, resource), default=None)
        if floor is not None and (beyond := amount_of(floor.amount, resource) - current) > 0:
            found.append(Obstacle(row.name, floor.cause, beyond, floor.since_s, floor.until_s))
    return sorted(found, key=lambda each: (-each.amount, each.name, each.cause or ""))


def named(reason: Reason, found: list[Obstacle], now_s: float, unsettled_s: float) -> Reason:
    """A refusal for want of room that says which floors stand in the way, and names VMs that stay unsettled."""
    kept = [obstacle for obstacle in found if obstacle.cause is not None]
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
    elif obstacle.cause is Cause.HANDOVER and obstacle.until_s is not None:
        text += f", what an earlier agent may still hold: {math.ceil(obstacle.until_s - now_s)} s more"
    return text + ")"


def of_pool(reason: Reason, account: PoolAccount, left_s: float) -> Reason:
    """A pool's refusal that says how much of the pool is kept for what agents may hold from before the scheduler's start,
    `left_s` more seconds."""
    assert account.spec is not None
    unit = account.spec.compute_unit
    kept = sum(row.units - row.state.current.units(unit) for row in account.rows.values())
    if kept <= 0:
        return reason
    why = f"{kept} of its {counted(account.units, 'unit')} {'is' if kept == 1 else 'are'} kept for what agents may hold from before this scheduler's start"
    return replace(reason, message=f"{reason.message[:768]}; {why}, for {math.ceil(left_s)} s more at most")
