"""A full node negotiates before it denies: VMs that wait for room, what is freed for them, and neighbours that are asked to give back some.

Growth that is denied for want of room makes its VM wait, until it asks for less, is permitted all, or is silent. Whatever changes on its
node, free room is offered to those in need in their order, and kept for each (an `offered` floor) until its agent has asked, or for a
while. If room is lacking, neighbours are asked (`yields`): one negotiation for each resource of a node at a time. All of it rests on
requests and the rows of the ledger; what agents are told are hints (docs/decisions/0048).
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from hosting.backoff import Backoff
from protocol.extension import RequestExtension
from protocol.values import RESOURCE_NAMES, ZERO, Resources, amount_of
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.decision import Decision
from scheduler.permits.core.ledger import Cause, Floor, NodeAccount, Verdict
from scheduler.permits.core.limits import Grant, growth
from scheduler.permits.core.model import Beneficiary, Kind
from scheduler.permits.core.state import AskedYield, CoreState, NodeQueue, VmRecord, Waiting
from scheduler.permits.core.yields import Lacking, Neighbour, choose, give_back, reached

_Outputs = tuple[events.Output, ...]

HEARD_S: Final = 35.0
"""An agent that was not heard for so long, two of its ticks, neither waits nor gives anything back."""
MOST_TRIED: Final = 8
"""Neighbours are looked through for so many of those who wait on a node, if those before them cannot be helped."""
GOES_ON_S: Final = 20.0
"""So soon after it was asked a VM may be asked for more by the same one."""
SOON_S: Final = 600.0
"""A VM that needs within this time what it gave has not given comfort. What it really does not need its own down window gives back."""
LONGEST_REST_S: Final = 1800.0
"""A VM that needs again and again what it gave is left alone for longer each time, up to this."""


# ------------------------------------------------------------ what a request says


def heard(record: VmRecord, now_s: float) -> None:
    """The VM's agent is answered. If it was silent for so long that it waited no more, it waits from its next new request on: also if
    nothing has looked at its node meanwhile."""
    if not _is_heard(record, now_s):
        record.waiting = None
    record.heard_s = now_s


def note(core: CoreState, record: VmRecord, extension: RequestExtension) -> None:
    """Keep what a request says of the VM's priority and of what it can give, beyond what the request itself gives back."""
    record.priority = extension.priority or 0
    spare, to_higher = extension.spare or ZERO, extension.spare_to_higher or ZERO
    if spare is not ZERO or to_higher is not ZERO:
        given = ((extension.last_permit or ZERO) - extension.resources).max(ZERO)
        spare, to_higher = (spare - given).max(ZERO), (to_higher - given).max(ZERO)
        if spare.exceeds(record.spare) or to_higher.exceeds(record.spare_to_higher):
            core.to_follow.add(record.spec.node)
    record.spare, record.spare_to_higher = spare, to_higher


def answered(decision: Decision, grant: Grant) -> None:
    """A request was answered: its VM waits, or waits no more."""
    core, record, extension = decision.core, decision.record, decision.request.extension
    if extension is None or (grant.with_room is None and record.waiting is None and record.asked is None):
        return
    wanted, current = grant.with_room, record.row.state.current
    if wanted is None or not wanted.exceeds(current) or decision.unit is None:
        record.waiting = None
    else:
        needed = wanted if extension.need is None else wanted.min(extension.need.max(current))
        known = record.waiting
        since_s, offered = (known.since_s, known.offered.min(current)) if known else (decision.now_s, ZERO)
        record.waiting = Waiting(wanted, needed, decision.unit, since_s, offered)
        core.queue(record.spec.node).waiting[record.spec.uid] = None
        if record.waiting != known:
            core.to_follow.add(record.spec.node)
    if record.asked is not None:
        core.to_follow.add(record.spec.node)
        _note_relapse(core, record, decision.now_s)


def _note_relapse(core: CoreState, record: VmRecord, now_s: float) -> None:
    """A VM that soon needs what it gave is left alone for longer."""
    asked, current = record.asked, record.row.state.current
    if asked is None or asked.is_open or asked.is_missed or not asked.is_comfort:
        return
    if now_s >= asked.asked_s + SOON_S:
        return
    lacks = ZERO if record.waiting is None else (record.waiting.needed - current).max(ZERO)
    if asked.given != ZERO and any(_is_of(asked, name) for name, amount in lacks.named() if amount):
        record.asked = replace(asked, is_missed=True)
        record.relapses += 1
        record.rests_until_s = now_s + _rest_s(core, record)


def _heard_of_yield(core: CoreState, record: VmRecord) -> _Outputs:
    """A VM that was asked has given all that back, or tells that it can give no more. Room that a read still shows in use is not given."""
    asked, row = record.asked, record.row
    assert asked is not None
    if row.reserved.fits_in(_target(asked, row.reserved)):
        return _closed(core, record, "")
    left = (row.state.current - asked.keep).max(ZERO)
    spare = record.spare.max(record.spare_to_higher)
    names = [name for name, amount in left.named() if amount and _is_of(asked, name)]
    if names and all(amount_of(spare, name) == 0 for name in names):
        return _closed(core, record, "it has no more to spare")
    return ()


def _target(asked: AskedYield, has: Resources) -> Resources:
    """`keep` of a resource that was asked for; of another one what there is will do."""
    return Resources(
        asked.keep.vcpu_milli if _is_of(asked, "cpu") else has.vcpu_milli,
        asked.keep.memory_bytes if _is_of(asked, "memory") else has.memory_bytes,
    )


def _is_of(asked: AskedYield, resource: str) -> bool:
    return amount_of(asked.amount, resource) > 0


def _closed(core: CoreState, record: VmRecord, why: str) -> _Outputs:
    """A VM has given back what it was asked for, or will not (`why`)."""
    asked, spec = record.asked, record.spec
    assert asked is not None
    given = (asked.before - record.row.state.current).max(ZERO).min(asked.amount)
    record.asked = replace(asked, is_open=False, given=given)
    core.queue(spec.node).asked.pop(spec.uid, None)
    return (events.YieldEnded(spec.pod, spec.uid, spec.node, given, asked.beneficiary, why),)


def _rest_s(core: CoreState, record: VmRecord) -> float:
    return Backoff(core.config.rest_s, cap_s=LONGEST_REST_S).delay_s(record.relapses + 1, 0)


# ------------------------------------------------------------ what time ends


def elapse(core: CoreState, record: VmRecord, now_s: float) -> _Outputs:
    """Time has passed for one VM: room that was kept for it and not asked for, or a neighbour that has not answered."""
    row, asked = record.row, record.asked
    outputs: _Outputs = ()
    for floor in row.state.floors:
        if floor.cause is Cause.OFFERED and floor.until_s is not None and floor.until_s <= now_s:
            record.waiting = None  # until it asks again
            lost = (floor.amount - row.state.current).max(ZERO)
            outputs = (events.OfferLapsed(record.spec.pod, record.spec.uid, record.spec.node, lost),)
    if asked is None or not asked.is_open or now_s < asked.until_s:
        return outputs
    why = f"it has not given it back within {core.config.yield_s:.0f} s"
    return (*outputs, *_closed(core, record, why))


def _is_heard(record: VmRecord, now_s: float) -> bool:
    return record.heard_s is not None and now_s - record.heard_s < HEARD_S


# ------------------------------------------------------------ after each input


def follow(core: CoreState) -> _Outputs:
    """Offer free room and ask neighbours on the nodes of which something was changed or said."""
    outputs: list[events.Output] = []
    changed = {account.capacity.name for account in core.ledger.changed_since(core.followed)}
    nodes, core.to_follow = sorted(changed | core.to_follow), set()
    for node in nodes:
        queue, account = core.queues.get(node), core.ledger.node(node)
        if queue is None:
            continue
        for record in _asked(core, queue, node):
            outputs += _heard_of_yield(core, record)
        waiting = _in_order(core, queue, node)
        queue.has_needy = any(map(is_in_need, waiting[:1]))
        if account is not None and waiting:
            outputs += _reads(core, account)
            outputs += _offer(core, account, waiting)
            outputs += _negotiate(core, account, queue, waiting)
        if not queue.waiting and not queue.asked:
            del core.queues[node]
    return tuple(outputs)


def _asked(core: CoreState, queue: NodeQueue, node: str) -> list[VmRecord]:
    """The VMs of a node that were asked and have not answered yet."""
    found = []
    for uid in tuple(queue.asked):
        record = core.vms.by_uid(uid)
        if record is None or record.asked is None or not record.asked.is_open or record.spec.node != node:
            del queue.asked[uid]
        else:
            found.append(record)
    return found


def _in_order(core: CoreState, queue: NodeQueue, node: str) -> list[VmRecord]:
    """Those who wait on a node: those in need before those who want comfort, then the higher priority, then those who gave lately, then the
    older wish. Who waits no more leaves the queue."""
    found = []
    for uid in tuple(queue.waiting):
        record = core.vms.by_uid(uid)
        if record is not None and not _is_heard(record, core.now_s):
            record.waiting = None
        if record is None or record.waiting is None or record.spec.node != node:
            del queue.waiting[uid]
        elif record.settled and not record.row.state.migrating and not record.owned_by_published:
            found.append(record)
    return sorted(found, key=lambda record: _order(core, record))


def _order(core: CoreState, record: VmRecord) -> tuple[bool, int, bool, float, str]:
    waiting, asked = record.waiting, record.asked
    assert waiting is not None
    has_given = asked is not None and asked.given != ZERO and core.now_s < record.rests_until_s
    return not is_in_need(record), -record.priority, not has_given, waiting.since_s, record.name


def is_in_need(record: VmRecord) -> bool:
    """Whether a VM waits for more than comfort."""
    return record.waiting is not None and record.waiting.needed.exceeds(record.row.state.current)


def _reads(core: CoreState, account: NodeAccount) -> Iterator[events.Output]:
    """Read the VMs that have just given something back which the last read still shows in use: somebody waits for it."""
    for record in _records(core, account):
        state = record.row.state
        if record.row.reserved is state.current:
            continue
        if any(floor.cause is Cause.OBSERVED and floor.since_s == core.now_s for floor in state.floors):
            yield events.ReadNeeded(record.spec.pod)


def asked_for(core: CoreState, waiter: VmRecord) -> list[tuple[PodName, AskedYield]]:
    """The neighbours that were asked for a VM that waits, and have not answered yet."""
    queue = core.queues.get(waiter.spec.node)
    found = [core.vms.by_uid(uid) for uid in queue.asked] if queue is not None else []
    return [
        (each.spec.pod, each.asked)
        for each in found
        if each is not None and each.asked is not None and each.asked.beneficiary.pod == waiter.spec.pod
    ]


def _offer(core: CoreState, account: NodeAccount, waiting: list[VmRecord]) -> Iterator[events.Output]:
    """Tell those who wait of room that they would get, and keep it for those in need."""
    for record in waiting:
        row, wish = record.row, record.waiting
        assert wish is not None
        free = account.capacity.reservable - account.reserved
        if free.fits_in(ZERO) and row.reserved is row.state.current:
            continue
        is_needed = is_in_need(record)
        way = growth(row.state.current, wish.needed if is_needed else wish.wanted, wish.unit, record.most)
        amount = reached(way, core.ledger.headroom(account.capacity.name, row.holder))
        if (
            record.admission is not None
            or not amount.exceeds(row.state.current)
            or amount.fits_in(wish.offered)
        ):
            continue
        if is_needed and amount.exceeds(row.reserved):
            # An earlier offer is not taken back before its time, if there is less room of one resource by now.
            kept = next((each.amount for each in row.state.floors if each.cause is Cause.OFFERED), ZERO)
            floor = Floor(Cause.OFFERED, amount.max(kept), until_s=core.now_s + core.config.offer_s)
            core.ledger.post(Verdict(row.holder, row.node, row.state.with_floor(floor)))
            core.timers.schedule(record.spec.uid, floor.until_s)
        record.waiting = replace(wish, offered=amount)
        yield events.RoomOffered(record.spec.pod, record.spec.uid, record.spec.node, amount)


def _negotiate(
    core: CoreState, account: NodeAccount, queue: NodeQueue, waiting: list[VmRecord]
) -> Iterator[events.Output]:
    """Ask neighbours for the first of those in need, in each resource for which nobody was asked yet."""
    busy = {name for uid in queue.asked for name in RESOURCE_NAMES if _is_asked(core, uid, name)}
    able: list[VmRecord] | None = None
    sparable: set[str] = set()
    tries = 0
    for record in waiting:
        if len(busy) == len(RESOURCE_NAMES) or not is_in_need(record) or tries == MOST_TRIED:
            return
        row, wish = record.row, record.waiting
        assert wish is not None
        way = growth(row.state.current, wish.needed, wish.unit, record.most)
        room = core.ledger.headroom(account.capacity.name, row.holder)
        lacks = {
            name
            for (name, want), (_, have) in zip(way.wanted.named(), room.named(), strict=True)
            if want > max(have, amount_of(way.current, name))
        }
        if not lacks or lacks & busy or record.admission is not None:
            continue
        if able is None:
            able = [each for each in _records(core, account) if _is_able(each, core.now_s)]
            sparable = {name for each in able for name in RESOURCE_NAMES if _can_spare(each, name)}
        if not sparable:
            return
        if not (lacks & sparable if wish.unit.is_apart else lacks <= sparable):
            continue
        tries += 1
        beneficiary = Beneficiary(record.spec.pod, record.priority)
        neighbours = [
            _neighbour(each)
            for each in able
            if each is not record and _may_be_asked(each, beneficiary, core.now_s)
        ]
        asked = choose(Lacking(way, room, record.priority), neighbours)
        for neighbour, amount in asked.items():
            yield _ask(core, neighbour, amount, beneficiary)
        if asked:
            busy |= lacks
            able = None


def _is_asked(core: CoreState, uid: str, resource: str) -> bool:
    record = core.vms.by_uid(uid)
    return record is not None and record.asked is not None and _is_of(record.asked, resource)


def _records(core: CoreState, account: NodeAccount) -> Iterator[VmRecord]:
    for holder in account.rows:
        record = core.vms.by_uid(holder.uid) if holder.kind is Kind.VM else None
        if record is not None:
            yield record


def _is_able(record: VmRecord, now_s: float) -> bool:
    """Whether a VM could be asked by anybody, but for its rest: settled, heard of, with something to spare, and not asked already."""
    return (
        (record.spare is not ZERO or record.spare_to_higher is not ZERO)
        and record.settled
        and record.reply is not None
        and record.admission is None
        and not record.owned_by_published
        and not record.row.state.migrating
        and not (record.asked is not None and record.asked.is_open)
        and _is_heard(record, now_s)
    )


def _can_spare(record: VmRecord, resource: str) -> bool:
    return amount_of(record.spare, resource) > 0 or amount_of(record.spare_to_higher, resource) > 0


def _may_be_asked(record: VmRecord, beneficiary: Beneficiary, now_s: float) -> bool:
    """Whether a VM has rested. One that has just given all that it was asked for may be asked for more for the same one, of whom may be
    seen only by and by how much it needs: that is one negotiation, after which it rests. A quota knows that from the beginning."""
    asked, current = record.asked, record.row.state.current
    if now_s >= record.rests_until_s or asked is None:
        return True
    is_same = beneficiary.pod is not None and asked.beneficiary.pod == beneficiary.pod
    goes_on = is_same and now_s < asked.asked_s + GOES_ON_S and not asked.is_missed
    return goes_on and current.fits_in(_target(asked, current))


def _neighbour(record: VmRecord) -> Neighbour:
    """The VM as one that is asked. One that waits in need itself gives no comfort; if it allows that, it gives what it needs to a VM of
    higher priority, or an equal share."""
    assert record.reply is not None
    current = record.row.state.current
    most = (current - record.spec.bounds.min).max(ZERO)
    return Neighbour(
        record.spec.uid,
        record.name,
        record.priority,
        current,
        record.reply.unit,
        ZERO if is_in_need(record) else record.spare.min(most),
        record.spare_to_higher.min(most),
    )


def _ask(
    core: CoreState, neighbour: Neighbour, amount: Resources, beneficiary: Beneficiary
) -> events.YieldAsked:
    record = core.vms.by_uid(neighbour.uid)
    assert record is not None
    now_s, before = core.now_s, record.row.state.current
    if record.asked is not None and not record.asked.is_missed:
        record.relapses = max(record.relapses - 1, 0)
    keep, until_s = before - amount, now_s + core.config.yield_s
    is_comfort = amount.fits_in(neighbour.spare)
    record.asked = AskedYield(keep, before, beneficiary, now_s, until_s, is_comfort)
    record.rests_until_s = now_s + _rest_s(core, record)
    core.queue(record.spec.node).asked[neighbour.uid] = None
    core.timers.schedule(neighbour.uid, until_s)
    spec = record.spec
    return events.YieldAsked(spec.pod, spec.uid, spec.node, keep, amount, beneficiary)


# ------------------------------------------------------------ a quota that has borrowed


def quota_exceeded(core: CoreState, event: events.QuotaExceeded) -> _Outputs:
    """Ask the quota's own VMs for what others want back of it, beside what these were asked for already, by anybody."""
    core.now_s = event.now_s
    records = [record for uid in event.holders if (record := core.vms.by_uid(uid)) is not None]
    promised = sum((_promised(record) for record in records), ZERO)
    beneficiary = Beneficiary(quota=event.quota)
    able = [
        _neighbour(record)
        for record in records
        if _is_able(record, core.now_s) and _may_be_asked(record, beneficiary, core.now_s)
    ]
    asked = give_back((event.excess - promised).max(ZERO), able)
    return tuple(_ask(core, neighbour, amount, beneficiary) for neighbour, amount in asked.items())


def _promised(record: VmRecord) -> Resources:
    """The amount that a VM was asked for and has not given back yet."""
    asked, has = record.asked, record.row.reserved
    return (has - _target(asked, has)).max(ZERO) if asked is not None and asked.is_open else ZERO
