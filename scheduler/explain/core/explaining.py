"""The explanation of one VM: its size, its request, its limits, and the holders of the room. Reads only."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from protocol.explaining import (
    AmountShown,
    DecisionOutcome,
    DecisionShown,
    Explanation,
    FloorShown,
    HolderShown,
    PoolCondition,
    PoolRoom,
    Presence,
    ProgressCode,
    ReasonShown,
    Room,
)
from protocol.extension import RawRequest
from protocol.reasons import Reason, ReasonCode
from protocol.texts import counted
from protocol.values import ZERO, Resources
from protocol.wire import AgentRequest, PodName
from scheduler.explain.core import records
from scheduler.explain.core.memory import DecisionMemory, Trail
from scheduler.explain.core.records import Moment, RememberedDecision, amount_of, shown_amount
from scheduler.permits.core import room
from scheduler.permits.core.ledger import Cause, Floor, PoolAccount, Row
from scheduler.permits.core.state import CoreState, VmRecord, Waiting
from scheduler.pools.core.admission_state import PoolAdmissionState, saturated
from scheduler.pools.core.probe import ProbeResultKind

MOST_HOLDERS: Final = 8
"""Holders of a node's or a pool's room that are named; the others are counted."""
_ZERO: Final = shown_amount(ZERO)

PoolStates = Callable[[str], PoolAdmissionState]


@dataclass(frozen=True, slots=True)
class ExplainView:
    """All that an explanation is made from. `now_s` is a time of the core's clock, `moment` writes times of Unix time."""

    core: CoreState
    memory: DecisionMemory
    pool_states: PoolStates
    moment: Moment
    now_s: float

    @property
    def unix_s(self) -> float:
        return self.now_s + self.core.config.unix_offset_s

    def trail_of(self, record: VmRecord) -> Trail | None:
        """The memory of a VM itself: nothing of another one that had its name before."""
        return self.memory.trail_of(record.spec.pod, record.spec.uid)


def explain(view: ExplainView, pod: PodName, most: int) -> Explanation | None:
    """Why a VM is permitted what it is, with its last decisions, at most `most`; None if nothing is known of it."""
    record = view.core.vms.find(pod)
    if record is not None:
        return _explain_live(view, record, most)
    trail = view.memory.absent(pod, view.unix_s)
    return _explain_absent(view, pod, trail, most) if trail is not None else None


def _explain_live(view: ExplainView, record: VmRecord, most: int) -> Explanation:
    core, spec, row, reading = view.core, record.spec, record.row, record.reading
    trail = view.trail_of(record)
    unit = core.compute_unit(record, _raw_of(record))
    return Explanation(
        vm=record.name,
        uid=spec.uid,
        node=spec.node,
        at=view.moment(view.unix_s),
        instance=str(core.config.instance),
        epoch=core.config.epoch,
        permit=shown_amount(row.state.current),
        reserved=shown_amount(row.reserved),
        maximum=shown_amount(spec.bounds.max),
        minimum=shown_amount(spec.bounds.min),
        is_settled=record.settled,
        is_migrating=row.state.migrating,
        is_growth_stopped=core.rules.growth.stopped,
        is_recommend_only=core.rules.is_recommend_only(spec.pod.namespace, spec.pod.name),
        is_recommend_only_everywhere=core.rules.growth.recommend_only,
        size=amount_of(reading.size) if reading is not None else None,
        target=amount_of(reading.target) if reading is not None else None,
        resize_refusal=reading.refusal if reading is not None else None,
        unit=amount_of(unit.step) if unit is not None else None,
        wanted=wanted(record, trail),
        asked_seconds_ago=asked_ago_s(record, view.now_s),
        condition=record.condition or None,
        waiting=waiting(record, trail, view.now_s),
        refusal=_refusal(view, trail),
        migration=_migration(view, record, trail),
        negotiation=_negotiation(view, record),
        limits=limits_now(view, record, trail),
        floors=tuple([floor_shown(floor, view.now_s) for floor in row.state.floors]),
        room=node_room(view, row),
        pool=pool_room(view, record),
        decisions=last_decisions(view, view.memory.trail(spec.pod), most),
    )


def _explain_absent(view: ExplainView, pod: PodName, trail: Trail, most: int) -> Explanation:
    """A VM that has gone, or a pod for which an agent asks in vain."""
    core = view.core
    decisions = last_decisions(view, trail, most)
    latest = decisions[0] if decisions else None
    refused = trail.refusals.latest
    is_refused = latest is not None and latest.outcome in (DecisionOutcome.REFUSED, DecisionOutcome.HELD)
    since_s = trail.absent_since_s if trail.absent_since_s is not None else view.unix_s
    return Explanation(
        vm=pod.full_name,
        uid=trail.uid,
        node=latest.node if latest is not None else "",
        at=view.moment(view.unix_s),
        instance=str(core.config.instance),
        epoch=core.config.epoch,
        permit=_ZERO,
        reserved=_ZERO,
        maximum=_ZERO,
        minimum=_ZERO,
        is_settled=False,
        is_migrating=False,
        is_growth_stopped=core.rules.growth.stopped,
        is_recommend_only=core.rules.is_recommend_only(pod.namespace, pod.name),
        is_recommend_only_everywhere=core.rules.growth.recommend_only,
        presence=Presence.GONE if trail.uid else Presence.UNKNOWN,
        gone_seconds_ago=_seconds(view.unix_s - since_s) if trail.uid else None,
        waiting=_held(trail),
        limits=records.limits(refused) if refused is not None and is_refused else (),
        decisions=decisions,
    )


# ------------------------------------------------------------ the request


def _raw_of(record: VmRecord) -> RawRequest | None:
    body = record.gate.body
    extension = body.extension if isinstance(body, AgentRequest) else None
    return extension.raw if extension is not None else None


def wanted(record: VmRecord, trail: Trail | None) -> AmountShown | None:
    """The amount that the VM's agent asked for last; None before the first request."""
    if record.owned_by_published:
        if trail is not None and _denied(trail) is not None:
            return amount_of(trail.decided.requested)
        return amount_of(record.told)
    raw = _raw_of(record)
    return amount_of(raw.resources) if raw is not None else None


def asked_ago_s(record: VmRecord, now_s: float) -> float | None:
    """The time since an agent of the VM was heard, in seconds; None if none was."""
    heard_s = _heard_s(record)
    return _seconds(now_s - heard_s) if heard_s is not None else None


def _heard_s(record: VmRecord) -> float | None:
    heard_s, other_s = record.heard_s, record.published_heard_s
    return other_s if heard_s is None or (other_s is not None and other_s > heard_s) else heard_s


def is_waiting(record: VmRecord, trail: Trail | None) -> bool:
    """Whether a request of the VM waits now, for its pool or for a look at the cluster that helps."""
    return record.admission is not None or (trail is not None and trail.is_held)


def waiting(record: VmRecord, trail: Trail | None, now_s: float) -> ReasonShown | None:
    """The reason why the VM's request waits; None if none waits."""
    call = record.admission
    if call is None:
        return _held(trail)
    message = f"pool {call.pool} is asked for {call.wanted} since {max(now_s - call.began_s, 0.0):.1f} s"
    return records.told(ProgressCode.POOL_ASKED, message)


def _held(trail: Trail | None) -> ReasonShown | None:
    """The reason why a request waits that was told as held, as it was told."""
    latest = trail.waits.latest if trail is not None and trail.is_held else None
    return next(iter(records.limits(latest)), None) if latest is not None else None


def limits_now(view: ExplainView, record: VmRecord, trail: Trail | None) -> tuple[ReasonShown, ...]:
    """The limits of the latest decision that still stand, the binding one first. A refused request is one, until the agent is heard."""
    core, now_s = view.core, view.now_s
    refused = latest_refusal(core, record, trail, now_s)
    if refused is not None:
        return _still(records.limits(refused), view.unix_s - refused.last_s)
    reply = record.reply
    if reply is not None and not record.owned_by_published:
        since_s = now_s - (record.heard_s if record.heard_s is not None else now_s)
        return _still(map(records.shown_reason, reply.reasons), since_s)
    denied = _denied(trail)
    return _still(records.limits(denied), view.unix_s - denied.last_s) if denied is not None else ()


def first_limit(view: ExplainView, record: VmRecord, trail: Trail | None) -> ReasonShown | None:
    """The limit that binds, for lists."""
    return next(iter(limits_now(view, record, trail)), None)


def latest_refusal(
    core: CoreState, record: VmRecord, trail: Trail | None, now_s: float
) -> RememberedDecision | None:
    """The VM's latest refused request, if no agent of the VM was heard since."""
    if trail is None or trail.refusals.latest is None:
        return None
    offset_s = core.config.unix_offset_s
    refused, heard_s = trail.refusal(now_s + offset_s), _heard_s(record)
    if refused is None or (heard_s is not None and refused.last_s < heard_s + offset_s):
        return None
    return refused


def _denied(trail: Trail | None) -> RememberedDecision | None:
    """The latest decision, if it permitted less than was asked for and still stands."""
    if trail is None or trail.decided.content is None:
        return None
    is_less = trail.decided.content.outcome in (DecisionOutcome.DENIED, DecisionOutcome.PARTIAL)
    return trail.decided.latest if is_less else None


def _refusal(view: ExplainView, trail: Trail | None) -> ReasonShown | None:
    refused = trail.refusal(view.unix_s) if trail is not None else None
    return next(iter(records.limits(refused)), None) if refused is not None else None


def _migration(view: ExplainView, record: VmRecord, trail: Trail | None) -> ReasonShown | None:
    """The latest outcome of the wish that the VM leaves its node, with the time until the next migration from there may be tried."""
    latest = trail.migration(view.unix_s) if trail is not None else None
    if latest is None or record.row.state.migrating:
        return None
    limit, next_s = records.limits(latest)[0], view.core.migrate_after_s.get(record.spec.node)
    if limit.code == ProgressCode.MIGRATION_STARTED:
        return None
    return records.told(
        ProgressCode(limit.code),
        limit.message,
        retry_after_s=None if next_s is None else max(next_s - view.now_s, 0.0),
    )


def _negotiation(view: ExplainView, record: VmRecord) -> ReasonShown | None:
    """The room that the VM waits for, or that is kept for it; else the room that it was asked for lately."""
    asked, now_s = record.asked, view.now_s
    if record.waiting is not None and (asked is None or not asked.is_open):
        return _waits_for_room(view, record, record.waiting)
    if asked is None or now_s >= record.rests_until_s:
        return None
    whom = str(asked.beneficiary)
    ago = f"{max(now_s - asked.asked_s, 0):.1f} s ago"
    if asked.is_open:
        text = f"was asked {ago} to give back {records.part_text(asked.amount)} for {whom}"
        return records.told(ProgressCode.YIELD_ASKED, text)
    code = ProgressCode.YIELD_REFUSED if asked.given == ZERO else ProgressCode.YIELDED
    return records.told(code, f"gave back {records.part_text(asked.given)} to {whom}, asked {ago}")


def _waits_for_room(view: ExplainView, record: VmRecord, wish: Waiting) -> ReasonShown:
    state, now_s = record.row.state, view.now_s
    offer = next((floor for floor in state.floors if floor.cause is Cause.OFFERED), None)
    if offer is not None and offer.until_s is not None:
        more = records.part_text((offer.amount - state.current).max(ZERO))
        left_s = max(offer.until_s - now_s, 0)
        text = f"{more} more are kept for it until its agent asks, for {left_s:.0f} s at most"
        return records.told(ProgressCode.ROOM_OFFERED, text)
    asked = [
        f"{records.part_text(each.amount)} that {pod.full_name} was asked for {max(now_s - each.asked_s, 0):.1f} s ago"
        for pod, each in room.asked_for(view.core, record)
    ]
    if asked:
        return records.told(ProgressCode.WAITS_FOR_ROOM, f"waits for {' and '.join(asked)}")
    lacks = records.part_text((wish.wanted - state.current).max(ZERO))
    why = "nobody on its node can spare that now"
    if not room.is_in_need(record):
        why = "that is comfort, for which nobody is asked"
    text = f"waits for {lacks} since {max(now_s - wish.since_s, 0):.0f} s: {why}"
    return records.told(ProgressCode.WAITS_FOR_ROOM, text)


def _still(limits: Iterable[ReasonShown], since_s: float) -> tuple[ReasonShown, ...]:
    """Limits that were told some seconds ago: the rest of their waits."""
    return tuple([records.later(limit, max(since_s, 0.0)) for limit in limits])


def last_decisions(view: ExplainView, trail: Trail | None, most: int) -> tuple[DecisionShown, ...]:
    if trail is None:
        return ()
    newest = [remembered for _, remembered in zip(range(most), reversed(trail.ring), strict=False)]
    return tuple([records.recall(remembered, view.moment) for remembered in newest])


# ------------------------------------------------------------ the room


def floor_shown(floor: Floor, now_s: float) -> FloorShown:
    return FloorShown(
        cause=floor.cause.value,
        amount=shown_amount(floor.amount),
        about=floor.about or None,
        ends_in_seconds=round(floor.until_s - now_s, 1) if floor.until_s is not None else None,
    )


def holder_shown(row: Row) -> HolderShown:
    return HolderShown(
        kind=row.holder.kind.value,
        name=row.name,
        current=shown_amount(row.state.current),
        reserved=shown_amount(row.reserved),
    )


def node_room(view: ExplainView, own: Row) -> Room:
    """The room of a VM's node, and its other holders."""
    account = view.core.ledger.node(own.node)
    if account is None:
        return Room(node=own.node, reservable=_ZERO, reserved=_ZERO, free=_ZERO, is_known=False)
    whole = account.capacity.reservable
    others = [row for row in account.rows.values() if row is not own and row.reserved != ZERO]
    largest = nlargest(MOST_HOLDERS, others, key=lambda row: _share(row.reserved, whole))
    return Room(
        node=own.node,
        reservable=shown_amount(whole),
        reserved=shown_amount(account.reserved),
        free=shown_amount((whole - account.reserved).max(ZERO)),
        over_full_because_of=tuple([cause.value for cause in account.over]),
        holders=tuple(map(holder_shown, largest)),
        more_holders=len(others) - len(largest),
    )


def _share(amount: Resources, whole: Resources) -> float:
    return max(amount.vcpu_milli / max(whole.vcpu_milli, 1), amount.memory_bytes / max(whole.memory_bytes, 1))


def pool_room(view: ExplainView, record: VmRecord) -> PoolRoom | None:
    """The room of a VM's pool, and its other holders; None for a VM without one."""
    name = record.spec.pool
    if name is None:
        return None
    account = view.core.ledger.pool(name)
    if account is None or account.spec is None:
        missing = records.told(ReasonCode.POOL, f"there is no pool {name}; nothing grows in it")
        return PoolRoom(pool=name, held_units=0, state=PoolCondition.UNKNOWN, reason=missing)
    spec, row = account.spec, record.row
    others = [each for each in account.rows.values() if each is not row and each.units]
    largest = nlargest(MOST_HOLDERS, others, key=lambda each: each.units)
    condition, reason = _condition(view, account, record)
    return PoolRoom(
        pool=name,
        held_units=account.units,
        vm_units=row.units,
        unit=shown_amount(spec.compute_unit),
        most_units=spec.max_units,
        most_units_per_vm=spec.max_units_per_vm,
        state=condition,
        reason=reason,
        holders=tuple(map(holder_shown, largest)),
        more_holders=len(others) - len(largest),
    )


def _condition(
    view: ExplainView, account: PoolAccount, record: VmRecord
) -> tuple[PoolCondition, ReasonShown | None]:
    """Whether the pool is asked at all for this VM, and why it is not."""
    spec, name, now_s = account.spec, account.name, view.now_s
    assert spec is not None
    state = view.pool_states(name).at(spec.generation, now_s)
    if spec.is_deleting:
        return PoolCondition.DELETING, records.told(ReasonCode.POOL, f"pool {name} is being deleted")
    parked = state.parked_verdict(record.spec.uid, name)
    if parked is not None and parked.reason is not None:
        return PoolCondition.PARKED, records.shown_reason(parked.reason)
    if state.refusals:
        return PoolCondition.SATURATED, records.shown_reason(saturated(state.refusals[0], name, now_s))
    if spec.max_units is not None and account.units >= spec.max_units:
        message = f"pool {name} holds {account.units} of its {counted(spec.max_units, 'unit')}"
        return PoolCondition.FULL, records.told(ReasonCode.POOL, message)
    last = state.last
    if last is not None and last.kind is ProbeResultKind.INTERNAL_ERROR:
        message = f"the plugins of pool {name} failed: {last.message or 'no reason was given'}"
        return PoolCondition.FAILED, records.shown_reason(Reason(ReasonCode.POOL_FAILED, message))
    return PoolCondition.OPEN, None


def _seconds(seconds: float) -> float:
    return round(max(seconds, 0.0), 3)
