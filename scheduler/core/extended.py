"""Callers with the extension: sequence gate, claim, settlement, and then the permit.

An unsettled row is one whose VM may still use up to its maximum, because a former scheduler may have permitted it.
A request that names this process settles it: its agent has heard from us, so what it claims is all that it holds.
"""

from dataclasses import replace

from protocol import sequence, translate
from protocol.extension import ExtendedRequest, ExtendedResponse, RawReply
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.core import events
from scheduler.core.book import Reply, Terms, VmRecord
from scheduler.core.ledger import Cause, Floor, Ledger, RowState, Verdict


def answer(
    terms: Terms, ledger: Ledger, record: VmRecord, ticket: int, request: ExtendedRequest, now_s: float
) -> events.Answer:
    """Answer a request for a VM whose UID is the request's."""
    life = sequence.Life(request.agent_id, request.agent_started_at_ms)
    match record.gate.judge(life, request.sequence_number, request):
        case sequence.Stale(last) | sequence.Reused(last) as judged:
            stale = isinstance(judged, sequence.Stale)
            code = ErrorCode.SEQUENCE_STALE if stale else ErrorCode.SEQUENCE_REUSED
            return events.Refused(ticket, 409, code, f"the last sequence number was {last}", last)
        case sequence.Superseded(current, last):
            message = f"agent {current.agent_id}, started at {current.started_at_ms} ms, owns this VM"
            return events.Refused(
                ticket, 409, ErrorCode.AGENT_SUPERSEDED, message, last, current.started_at_ms
            )
        case sequence.Retry():
            if record.reply is not None:
                record.heard_s = now_s  # its reply renews the agent's lease
                return _repeat(terms, ledger, record, ticket, request)
        case sequence.Passed() as passed:
            _hand_over(terms, ledger, record, passed, life, now_s)
            record.gate = record.gate.take(life, request.sequence_number, request)
            record.reply = None
    record.heard_s = now_s
    record.owned_by_published = False
    if record.published_heard_s is None or now_s - record.published_heard_s >= terms.handover_s:
        record.condition = ""
    return _decide(terms, ledger, record, ticket, request)


def _hand_over(
    terms: Terms, ledger: Ledger, record: VmRecord, passed: sequence.Passed, life: sequence.Life, now_s: float
) -> None:
    """Keep for `handover_s` what the caller before had reserved: it may still use it until its lease runs out."""
    if record.owned_by_published:
        about = "published"
    elif passed is sequence.Passed.SUPERSEDES:
        assert record.gate.life is not None
        assert record.gate.life.agent_id != life.agent_id
        about = str(record.gate.life.agent_id)
    else:
        return
    row = ledger.require(record.spec.holder)
    had = row.state.without(Cause.HANDOVER).reserved  # what it took over itself has a floor of its own
    floor = Floor(Cause.HANDOVER, had, until_s=now_s + terms.handover_s, about=about)
    ledger.post(Verdict(row.holder, row.node, row.state.with_floor(floor)))


def _repeat(
    terms: Terms, ledger: Ledger, record: VmRecord, ticket: int, request: ExtendedRequest
) -> events.Answer:
    """The remembered reply: its permit while `current` still equals it, else the smaller of the two."""
    assert record.reply is not None
    current = ledger.require(record.spec.holder).state.current
    permit = record.reply.permit if current == record.reply.permit else record.reply.permit.min(current)
    return _reply(terms, record, ticket, request, replace(record.reply, permit=permit), changed=False)


def _decide(
    terms: Terms, ledger: Ledger, record: VmRecord, ticket: int, request: ExtendedRequest
) -> events.Answer:
    wanted, claim = request.raw.resources, request.raw.last_permit or ZERO
    unit = _unit(ledger, record, request)
    is_known = request.raw.last_permit is not None or record.reading is not None
    if not record.settled and is_known and request.scheduler_instance == terms.instance:
        settle(ledger, record, claim.max(record.reading.use if record.reading else ZERO))
    _note_claim(ledger, record, wanted, claim)
    row = ledger.require(record.spec.holder)
    if not record.settled:
        permit = wanted.min(row.state.current.max(claim))
        why = Reason(
            ReasonCode.UNSETTLED, "this scheduler has just started; ask again, naming it", retry_after_s=0.0
        )
        return _reply(
            terms, record, ticket, request, Reply(wanted, unit or ZERO, permit, (why,)), changed=False
        )
    verdict = ledger.judge(row, wanted, unit, record.spec.bounds.max)
    assert verdict.grant is not None
    before = row.state.current
    ledger.post(replace(verdict, state=_with_observed(terms, record, request, verdict.state)))
    record.reply = Reply(wanted, unit or ZERO, verdict.grant.permit, verdict.grant.reasons)
    return _reply(terms, record, ticket, request, record.reply, changed=verdict.grant.permit != before)


def _with_observed(
    terms: Terms, record: VmRecord, request: ExtendedRequest, state: RowState | None
) -> RowState | None:
    """Who never heard from this process may be a packet from before its start: what a read showed stays."""
    if state is None or record.reading is None or request.scheduler_instance == terms.instance:
        return state
    use = record.reading.use
    return state.with_floor(Floor(Cause.OBSERVED, use)) if use.exceeds(state.current) else state


def settle(ledger: Ledger, record: VmRecord, use: Resources) -> None:
    """The row's start-up uncertainty ends: what is in use is its current permit from now on."""
    row = ledger.require(record.spec.holder)
    state = replace(row.state, current=use).without(Cause.START_UP)
    ledger.post(Verdict(row.holder, row.node, state))
    record.settled = True


def _note_claim(ledger: Ledger, record: VmRecord, wanted: Resources, claim: Resources) -> None:
    """Keep what the agent says it holds where that is above `current`: an external edit that only it sees."""
    row = ledger.require(record.spec.holder)
    held, current = claim.min(wanted), row.state.current
    above = Resources(
        held.vcpu_milli if held.vcpu_milli > current.vcpu_milli else 0,
        held.memory_bytes if held.memory_bytes > current.memory_bytes else 0,
    )
    state = row.state.without(Cause.CLAIMED)
    if above != ZERO:
        state = state.with_floor(Floor(Cause.CLAIMED, above))
    if state != row.state:
        ledger.post(Verdict(row.holder, row.node, state))


def _unit(ledger: Ledger, record: VmRecord, request: ExtendedRequest) -> Resources | None:
    """The compute unit: the VM's, else the request's, else the node's."""
    node = ledger.node(record.spec.node)
    return (
        record.spec.compute_unit
        or request.raw.compute_unit
        or (node.spec.compute_unit if node is not None else None)
    )


def _reply(
    terms: Terms, record: VmRecord, ticket: int, request: ExtendedRequest, reply: Reply, *, changed: bool
) -> events.Decided:
    slot = record.spec.slot_bytes
    response = ExtendedResponse(
        translate.permit_slots(reply.permit, slot),
        translate.permit_slots(reply.unit, slot),
        request.sequence_number,
        terms.instance,
        terms.epoch,
        RawReply(reply.permit, reply.unit),
        reply.reasons,
    )
    return events.Decided(
        ticket,
        response,
        record.spec.pod,
        record.spec.node,
        reply.request,
        reply.permit,
        reply.reasons,
        request.sequence_number,
        changed,
    )
