"""One request on its way to a permit: its amount, its limits, its grant, and the answer in words and as it travels.

`scheduler.permits.core.core` drives it; `scheduler.permits.core.parley_callers` and `scheduler.permits.core.neon_callers` fill it in for
their callers. `message` is the one place where a permit becomes a message.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from protocol import codec, wire
from protocol.extension import RawReply, ReplyExtension
from protocol.reasons import Reason, ReasonCode
from protocol.texts import counted
from protocol.values import NO_UNIT, ZERO, ComputeUnit, Resources, amount_of
from protocol.wire import AgentRequest
from scheduler.permits.core import events, limits, pools
from scheduler.permits.core.events import Decided
from scheduler.permits.core.ledger import Cause, Ledger, PoolAccount, RowState, Verdict
from scheduler.permits.core.limits import Grant, Growth, Limit, grant, growth
from scheduler.permits.core.model import Holder
from scheduler.permits.core.state import AdmissionCall, CoreState, VmRecord


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
    return dataclasses.replace(
        reason, message=f"{reason.message[:768]}; {why}, for {math.ceil(left_s)} s more at most"
    )


_NOBODY: Final = wire.PodName("", "")
_OF_POOLS: Final = (ReasonCode.POOL, ReasonCode.POOL_SATURATED)
_EXPLAINED: Final = (ReasonCode.NODE_HEADROOM, *_OF_POOLS)
_FOR_ROOM: Final = (ReasonCode.NODE_HEADROOM, ReasonCode.MIGRATING)
"""A denial counts as pressure if the node's room binds, or its VM is leaving because of that."""


class Decision(msgspec.Struct, gc=False):
    """One request of one VM while it is decided.

    `wanted` is what is asked for, `unit` the step of growth. `base` is the row's state before the permit: settled, and with what the
    caller claims. `least` is what the permit is never below, because the VM uses it (callers without the extension; nothing for
    others). A permit that covers `safe` is not below any use that the VM can have; it is `wanted` if the use is not known
    (`is_use_known`). `has_sizes` says that the cluster shows the VM's size, `may_be_held` that a later look may still be waited for.
    """

    core: CoreState
    record: VmRecord
    ticket: int
    request: AgentRequest
    now_s: float
    wanted: Resources
    unit: ComputeUnit | None
    base: RowState
    least: Resources = ZERO
    safe: Resources = ZERO
    is_use_known: bool = True
    has_sizes: bool = True
    may_be_held: bool = False

    def granted(self, verdict: Verdict) -> Resources:
        """The permit: the grant of the limits, and never less than the part of the request that the VM uses."""
        assert verdict.grant is not None
        return verdict.grant.permit if self.least is ZERO else verdict.grant.permit.max(self.least)


def judge(decision: Decision, call: AdmissionCall | None = None) -> Verdict:
    """The permit of the request by every limit, and the row after it. `call` holds the verdict of its pool. Reads only."""
    base, wanted, record = decision.base, decision.wanted, decision.record
    current, row = base.current, record.row
    if wanted.vcpu_milli <= current.vcpu_milli and wanted.memory_bytes <= current.memory_bytes:
        return Verdict(row.holder, row.node, _after(base, wanted, ZERO), Grant(wanted))
    way = growth(current, wanted, decision.unit, record.most, record.why_no_more_cpus)
    limits_found = _limits(decision, way, call)
    granted = grant(way, limits_found)
    reasons = granted.reasons
    denied = _denied_for_room(way, granted) if reasons else ZERO
    if denied != ZERO:
        # With room the pool would have been asked for more.
        others = [
            limit
            for limit in limits_found
            if limit.reason.code is not ReasonCode.NODE_HEADROOM and limit.reason != pools.ASKED_FOR_LESS
        ]
        granted = replace(granted, with_room=grant(way, others).permit)
    if any(reason.code in _EXPLAINED for reason in reasons):
        granted = replace(granted, reasons=tuple(_explained(decision, reason) for reason in reasons))
    if call is not None:
        granted = pools.without_asked_for_less(granted)
    return Verdict(row.holder, row.node, _after(base, granted.permit, denied), granted)


def _denied_for_room(way: Growth, granted: Grant) -> Resources:
    """The amount that is denied because the node has no room: of each resource for which the room binds."""
    denied = way.wanted - granted.permit
    return Resources(
        denied.vcpu_milli if granted.cpu_bound in _FOR_ROOM else 0,
        denied.memory_bytes if granted.memory_bound in _FOR_ROOM else 0,
    )


def _limits(decision: Decision, way: Growth, call: AdmissionCall | None) -> list[Limit]:
    """Every limit below what is wanted, in order: stop and recommend-only, settings that are unknown, migration, the node's room, the pool."""
    core, record = decision.core, decision.record
    pod, rules, row = record.spec.pod, core.rules, record.row
    room = way.headroom(core.ledger.headroom(row.node, row.holder)) if way.unit is not None else []
    found: list[Limit] = []
    if rules.growth.stopped:
        found.append(Limit(0, Reason(ReasonCode.STOPPED, "growth is stopped by configuration")))
    if rules.is_recommend_only(pod.namespace, pod.name):
        would = grant(way, room).permit
        message = f"growth is only recommended here; {would} would be permitted"
        found.append(Limit(0, Reason(ReasonCode.RECOMMEND_ONLY, message)))
    if record.spec.unknown_settings:
        names = ", ".join(record.spec.unknown_settings)
        message = f"no valid value of {names} is known: the VM keeps its size until that is mended"
        found.append(Limit(0, Reason(ReasonCode.VM_BOUNDS, message)))
    if row.state.migrating:
        message = "the VM is being migrated away and does not grow until it has arrived"
        found.append(Limit(0, Reason(ReasonCode.MIGRATING, message)))
    found += room
    if record.spec.pool is not None and way.unit is not None:
        found += pools.bounds(core.ledger, record, way)
    if call is not None and way.unit is not None:
        found += pools.admitted(core.ledger, record, way, call)
    return found


def _after(base: RowState, current: Resources, pressure: Resources) -> RowState:
    """The row with another permit; the same object if nothing changes, so that posting it costs nothing.

    The request was judged with the room that was kept for it: what is left of that is nobody's."""
    if base.floors:
        base = base.without(Cause.OFFERED)
    if base.current == current and base.pressure == pressure:
        return base
    return RowState(current, base.floors, pressure if pressure != ZERO else ZERO, base.migrating)


def _explained(decision: Decision, reason: Reason) -> Reason:
    """A refusal with the floors that stand in the way, on the node or in the pool; as it is if there are none."""
    core, record, now_s = decision.core, decision.record, decision.now_s
    if reason.code in _OF_POOLS:
        left_s = core.inherits_until_s(now_s) - now_s
        pool = core.ledger.pool(record.spec.pool) if record.spec.pool is not None else None
        is_passing = (
            reason.retry_after_s == 0.0
        )  # the pool was changed, or asked for less: no limit of its own
        if pool is None or pool.spec is None or left_s <= 0 or is_passing:
            return reason
        return of_pool(reason, pool, left_s)
    if reason.code is not ReasonCode.NODE_HEADROOM or reason.resource is None:
        return reason
    account = core.ledger.node(record.spec.node)
    if account is None:
        message = f"the cluster shows no node {record.spec.node}"
        return Reason(ReasonCode.NODE_HEADROOM, message, reason.resource)
    if (account.buffer - (record.row.reserved - record.row.state.current)).fits_in(ZERO):
        return reason
    found = obstacles(core.ledger, record.spec.node, record.row.holder, reason.resource)
    return named(reason, found, now_s, core.config.unsettled_s)


def decided(decision: Decision, grant: Grant, before: Resources, *, changed: bool) -> events.Decided:
    """The answer to the request; `before` was the row's permit, and `changed` says that this answer has moved it."""
    core, record, extension = decision.core, decision.record, decision.request.extension
    echo = None
    if extension is not None:
        token = None if record.settled else record.token
        echo = events.Echo(extension.sequence_number, core.config.instance, core.config.epoch, token)
    return events.Decided(
        decision.ticket,
        record.spec.pod,
        record.spec.node,
        decision.wanted,
        before,
        grant.permit,
        decision.unit if decision.unit is not None else NO_UNIT,
        core.slot_bytes(record),
        grant.reasons,
        echo,
        echo is not None and record.row.state.migrating,
        changed,
    )


def message(decided: Decided) -> wire.PluginResponse:
    """The message of a permit; its integers are the amounts rounded down to whole vCPUs and memory slots."""
    permit, unit, raw = _amounts(decided.permit, decided.unit, decided.slot_bytes)
    echo = decided.echo
    if echo is None:
        return wire.PluginResponse(permit, unit)
    extension = ReplyExtension(
        echo.sequence_number, echo.instance, echo.epoch, raw, decided.reasons, echo.token
    )
    return wire.PluginResponse(permit, unit, wire.MigrateResponse() if decided.migrate else None, extension)


@functools.lru_cache(maxsize=4096)
def _amounts(
    permit: Resources, unit: ComputeUnit, slot_bytes: int
) -> tuple[wire.SlotResources, wire.SlotResources, RawReply]:
    """The amounts of a reply in each form. Kept, because most replies repeat an earlier one's."""
    slots = wire.permit_slots(permit, slot_bytes), wire.permit_slots(unit.step, slot_bytes)
    return *slots, RawReply(permit, unit)


def encode(decided: Decided) -> bytes:
    echo = decided.echo
    if echo is None or decided.reasons or echo.token is not None:
        return codec.encode(message(decided))
    before, after = _around_number(
        decided.permit, decided.unit, decided.slot_bytes, decided.migrate, echo.instance.int, echo.epoch
    )
    return b"%b%d%b" % (before, echo.sequence_number, after)


_NUMBER: Final = b'"sequenceNumber":%d'


@functools.lru_cache(maxsize=4096)
def _around_number(
    permit: Resources, unit: ComputeUnit, slot_bytes: int, migrate: bool, instance: int, epoch: int
) -> tuple[bytes, bytes]:
    """The bytes of a reply without reasons before and after its sequence number, by which alone most replies of a process differ."""
    echo = events.Echo(1, UUID(int=instance), epoch)
    like = Decided(0, _NOBODY, "", permit, permit, permit, unit, slot_bytes, (), echo, migrate)
    before, after = codec.encode(message(like)).split(_NUMBER % 1)
    return before + _NUMBER[:-2], after
