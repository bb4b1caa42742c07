"""Callers without the extension: no claim and no lease, so their word is checked by reads of the cluster.

Any status but 200 is fatal in the published agent, so what is not clearly the caller's fault closes the connection
without a response. A permit is never below min(request, use) and never zero. What the caller was told before stays
reserved (`told`) until a read, begun a command deadline after it was told less, shows less. Source: design section 4.
"""

import fnmatch
from dataclasses import dataclass, replace

from protocol import translate, wire
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.core import events, limits
from scheduler.core.book import Terms, VmRecord
from scheduler.core.ledger import Cause, Floor, Ledger, Row, RowState, Verdict

TWO_KINDS = "an agent with the extension and one without it run for this VM; remove one of them"


@dataclass(frozen=True, slots=True)
class _Caller:
    """One request with everything that judging it takes."""

    ticket: int
    request: wire.AgentRequest
    wanted: Resources
    use: Resources
    unit: Resources
    now_s: float


def is_allowed(terms: Terms, node: str) -> bool:
    """Whether callers without the extension are served on `node`."""
    return any(fnmatch.fnmatchcase(node, pattern) for pattern in terms.published_agents)


def answer(terms: Terms, ledger: Ledger, record: VmRecord, arrived: events.RequestArrived) -> events.Answer:
    """Answer a request for a VM that a fresh look has just shown."""
    spec, request, ticket = record.spec, arrived.request, arrived.ticket
    if not is_allowed(terms, spec.node):
        message = f"callers without the extension are not served on node {spec.node} (--published-agents)"
        return events.Refused(ticket, 403, ErrorCode.PUBLISHED_AGENT_NOT_ALLOWED, message)
    reading = arrived.look.reading if arrived.look is not None else None
    wanted = translate.from_slots(request.resources, spec.slot_bytes)
    node = ledger.node(spec.node)
    unit = spec.compute_unit or (node.spec.compute_unit if node is not None else None)
    why = _unanswerable(terms, record, wanted, unit, has_sizes=reading is not None)
    if why:
        record.condition = why
        return events.HungUp(ticket, spec.pod, why)
    assert unit is not None
    use = reading.use if reading is not None else wanted
    caller = _Caller(ticket, request, wanted, use, unit, arrived.now_s)
    if record.published_since_s is None:
        record.published_since_s = arrived.now_s
    if record.heard_s is not None and arrived.now_s - record.heard_s < terms.handover_s:
        return _stand_by(ledger, record, caller)
    return _own(terms, ledger, record, caller)


def _unanswerable(
    terms: Terms, record: VmRecord, wanted: Resources, unit: Resources | None, *, has_sizes: bool
) -> str:
    """Why this caller cannot be answered at all, or nothing."""
    slot, bounds = record.spec.slot_bytes, record.spec.bounds
    if not wanted.is_positive():
        return "a request of zero resources"
    if unit is None:
        return "no compute unit is known for the VM"
    if not all(translate.is_whole(amount, slot) for amount in (unit, bounds.min, bounds.max)):
        return "the VM needs fractions of a CPU or slot, which callers without the extension cannot express"
    if not has_sizes and not terms.trust_published:
        return "the cluster shows no size of the VM, and --trust-published is off"
    return ""


def _stand_by(ledger: Ledger, record: VmRecord, caller: _Caller) -> events.Answer:
    """A bystander: an agent with the extension was answered lately. It gets what is current and changes nothing."""
    record.condition = TWO_KINDS
    row = ledger.require(record.spec.holder)
    permit = caller.wanted.min(row.state.current).max(caller.wanted.min(caller.use))
    told = _with_told(_tell(row.state, permit, caller.now_s), permit, "bystander")
    why = Reason(ReasonCode.BYSTANDER, "an agent with the extension owns this VM")
    grant = limits.Grant(permit, (why,) if permit != caller.wanted else ())
    outcome = _reply(ledger, record, caller, grant, told)
    if isinstance(outcome, events.Decided):
        record.published_heard_s = caller.now_s
    return outcome


def _own(terms: Terms, ledger: Ledger, record: VmRecord, caller: _Caller) -> events.Answer:
    row = ledger.require(record.spec.holder)
    base = row
    if not record.settled:
        state = _settled_state(row.state, caller.wanted.min(caller.use))
        base = Row(row.holder, row.node, state, state.reserved)
    verdict = ledger.judge(base, caller.wanted, caller.unit, record.spec.bounds.max)
    assert verdict.grant is not None
    permit = verdict.grant.permit.max(caller.wanted.min(caller.use))
    assert record.published_since_s is not None
    waited_s = caller.now_s - record.published_since_s
    if not record.settled and permit != caller.wanted and waited_s < terms.first_answer_s:
        why = "the scheduler has just started and waits for a read that shows the VM's use"
        return events.HungUp(caller.ticket, record.spec.pod, why)
    before = base.state
    if not before.current.fits_in(permit):
        before = _with_told(before, before.current, "before")
    told = _tell(before, permit, caller.now_s)
    if terms.trust_published:
        told = after_read(terms, told, caller.wanted, caller.now_s)
    grant = replace(verdict.grant, permit=permit)
    outcome = _reply(ledger, record, caller, grant, replace(told, current=permit))
    if isinstance(outcome, events.Decided):
        record.settled, record.owned_by_published, record.condition = True, True, ""
        record.published_heard_s = caller.now_s
    return outcome


def _with_told(state: RowState, amount: Resources, about: str) -> RowState:
    """The state with one more amount that its caller was told and was not told less than yet.

    It lasts longer than every `told` floor that it covers, so these go.
    """
    kept = tuple(
        floor for floor in state.floors if floor.cause is not Cause.TOLD or not floor.amount.fits_in(amount)
    )
    return replace(state, floors=(*kept, Floor(Cause.TOLD, amount, about=about)))


def _settled_state(state: RowState, base: Resources) -> RowState:
    """A row settled by such a caller: the request up to the use counts, the start-up floor becomes `told`."""
    settled = replace(state, current=base)
    for floor in state.floors:
        if floor.cause is Cause.START_UP:
            settled = settled.without(Cause.START_UP).with_floor(
                Floor(Cause.TOLD, floor.amount, about="start-up")
            )
    return settled


def _tell(state: RowState, permit: Resources, now_s: float) -> RowState:
    """Note on each `told` floor above `permit` that its caller has now been told less."""
    floors = tuple(
        replace(floor, told_less_s=now_s)
        if floor.cause is Cause.TOLD and floor.told_less_s is None and floor.amount.exceeds(permit)
        else floor
        for floor in state.floors
    )
    return replace(state, floors=floors)


def after_read(terms: Terms, state: RowState, use: Resources, begun_s: float) -> RowState:
    """The state after a read begun at `begun_s` showed `use`: `told` floors that it proves unused end."""
    kept = tuple(
        floor
        for floor in state.floors
        if floor.cause is not Cause.TOLD
        or floor.told_less_s is None
        or begun_s < floor.told_less_s + terms.command_deadline_s
        or floor.amount.fits_in(use)
    )
    return replace(state, floors=kept)


def _reply(
    ledger: Ledger, record: VmRecord, caller: _Caller, grant: limits.Grant, state: RowState
) -> events.Answer:
    slot = record.spec.slot_bytes
    permit = translate.permit_slots(grant.permit, slot)
    if caller.wanted.min(caller.use).exceeds(translate.from_slots(permit, slot)):
        why = "the VM uses fractions of a CPU or slot, which callers without the extension cannot express"
        record.condition = why
        return events.HungUp(caller.ticket, record.spec.pod, why)
    if permit.vcpu == 0 or permit.mem == 0 or permit.has_field_greater_than(caller.request.resources):
        return events.HungUp(
            caller.ticket, record.spec.pod, f"a permit of {grant.permit} would be fatal to the caller"
        )
    row = ledger.require(record.spec.holder)
    before = row.state.current
    ledger.post(Verdict(row.holder, row.node, state))
    response = wire.PluginResponse(permit, translate.permit_slots(caller.unit, slot))
    return events.Decided(
        caller.ticket,
        response,
        record.spec.pod,
        record.spec.node,
        caller.wanted,
        grant.permit,
        grant.reasons,
        None,
        before != state.current,
    )


def silent(terms: Terms, state: RowState, now_s: float, heard_s: float) -> RowState:
    """The state once a caller has been silent for the hand-over: its `told` floors may end by a later read."""
    return _tell(state, ZERO, now_s) if now_s - heard_s >= terms.handover_s else state
