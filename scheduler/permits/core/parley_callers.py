"""Callers with the extension: the sequence gate, the claim and the settlement, and the memory of an answer.

An unsettled row is one whose VM may still use up to its maximum, because a former scheduler may have permitted that.
A request that names this process settles the row: its agent has heard from us, so what it claims is all that it holds.
"""

from typing import Final

from msgspec.structs import replace

from protocol import sequence
from protocol.extension import RequestExtension
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import NO_UNIT, ZERO, Resources
from scheduler.permits.core import admission, events, room
from scheduler.permits.core.decision import Decision, decided
from scheduler.permits.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.permits.core.limits import Grant
from scheduler.permits.core.state import AdmissionCall, CoreState, LastReply, VmRecord

_UNSETTLED: Final = Reason(
    ReasonCode.UNSETTLED, "this scheduler has just started; ask again, naming it", retry_after_s=0.0
)
_LOWERED: Final = Reason(
    ReasonCode.LOWERED, "what this request was permitted has been lowered since; ask anew", retry_after_s=0.0
)

_Outputs = tuple[events.Output, ...]


def gate(
    core: CoreState, record: VmRecord, arrived: events.RequestArrived
) -> tuple[_Outputs, Decision | events.Answer]:
    """Whether the request is the latest of its VM's agent: the decision to take, or the answer if none is due.

    The outputs before it tell those whom the request has overtaken.
    """
    request, ticket, now_s = arrived.request, arrived.ticket, arrived.now_s
    extension = _extension(request.extension)
    known = record.gate
    life = known.life
    if (
        life is None
        or life.agent_id != extension.agent_id
        or life.started_at_ms != extension.agent_started_at_ms
    ):
        life = sequence.Life(extension.agent_id, extension.agent_started_at_ms)
    judged = known.check(life, extension.sequence_number, request)
    raw = extension.raw
    unit = core.compute_unit(record, raw)
    decision = Decision(core, record, ticket, request, now_s, raw.resources, unit, record.row.state)
    overtaken: _Outputs = ()
    if isinstance(judged, sequence.Passed):
        if judged is sequence.Passed.SUPERSEDES:
            overtaken = _take_over(core, record, extension, now_s, is_later_life=True)
        elif record.admission is not None or record.owned_by_published:
            overtaken = _take_over(core, record, extension, now_s)
        record.gate = known.take(life, extension.sequence_number, request)
        record.reply = None
        room.heard(record, now_s)
    elif isinstance(judged, sequence.Retry):
        room.heard(record, now_s)  # the reply renews the agent's lease, also a repeated one
        if record.admission is not None and record.admission.request.extension is not None:
            return (), admission.join(record, ticket)
        if record.reply is not None:
            overtaken = admission.cancel(core, record, lambda other: _overtaken(other, extension))
            return overtaken, _repeat(decision, record.reply)
        overtaken = _take_over(core, record, extension, now_s)
    else:
        return (), _refused(ticket, judged)
    _note_caller(core, record, arrived)
    return overtaken, decision


def settle(decision: Decision) -> events.Answer | None:
    """Settle the row by the request's claim, if it is unsettled, and keep what is claimed beyond the permit.

    An answer if the row stays unsettled: nothing grows then.
    """
    core, record, now_s = decision.core, decision.record, decision.now_s
    extension = _extension(decision.request.extension)
    last_permit = extension.raw.last_permit
    claim = last_permit if last_permit is not None else ZERO
    if not record.settled:
        is_known = last_permit is not None or record.reading is not None
        if is_known and extension.scheduler_instance == core.config.instance:
            is_alone = record.token is not None and extension.token == record.token
            _settle(core, record, _settled_use(record, claim), now_s, is_alone=is_alone)
    _note_claim(core, record, decision.wanted, claim)
    decision.base = record.row.state
    if record.settled:
        return None
    record.token = str(extension.sequence_number)
    current = record.row.state.current
    grant = Grant(decision.wanted.min(current.max(claim)), (_UNSETTLED,))
    return decided(decision, grant, current, changed=False)


def reopen(core: CoreState, record: VmRecord, call: AdmissionCall, now_s: float) -> Decision | events.Answer:
    """The decision about a request whose pool has given its verdict: everything is judged again."""
    extension = _extension(call.request.extension)
    unit = core.compute_unit(record, extension.raw)
    return Decision(
        core, record, call.ticket, call.request, now_s, extension.resources, unit, record.row.state
    )


def refusal(decision: Decision, verdict: Verdict) -> events.Answer | None:
    """Callers with the extension understand every permit."""
    del decision, verdict
    return None


def waiting_state(decision: Decision, verdict: Verdict) -> RowState:
    """The row while the VM's pool is asked: a decrease counts at once."""
    assert verdict.state is not None
    state = replace(verdict.state, current=decision.base.current.min(decision.granted(verdict)))
    return _with_observed(decision.record, state, decision.now_s)


def conclude(decision: Decision, verdict: Verdict) -> tuple[Verdict, OverCause | None]:
    """The row with the permit; callers with the extension read exact amounts, so every permit can be told."""
    assert verdict.state is not None
    state = _with_observed(decision.record, verdict.state, decision.now_s)
    if state is verdict.state:
        return verdict, None
    return replace(verdict, state=state), OverCause.OBSERVED


def remember(decision: Decision, grant: Grant) -> None:
    """Keep the answer for a retry of the request."""
    record, unit = decision.record, decision.unit
    record.reply = LastReply(
        decision.wanted, unit if unit is not None else NO_UNIT, grant.permit, grant.reasons
    )
    if record.told is not None:
        # It bounds what a caller without the extension uses: this agent may have shrunk the VM.
        record.told = record.told.min(grant.permit)


# ------------------------------------------------------------ the gate


def _extension(found: RequestExtension | None) -> RequestExtension:
    assert found is not None, "a caller without the extension"
    return found


def _note_caller(core: CoreState, record: VmRecord, arrived: events.RequestArrived) -> None:
    record.owned_by_published = False
    heard_s = record.published_heard_s
    if heard_s is None or arrived.now_s - heard_s >= core.config.handover_s:
        record.condition = ""
    record.note_load(arrived.request.metrics, arrived.now_s)
    room.note(core, record, _extension(arrived.request.extension))


def _take_over(
    core: CoreState,
    record: VmRecord,
    extension: RequestExtension,
    now_s: float,
    *,
    is_later_life: bool = False,
) -> _Outputs:
    """Nobody waits for an earlier request any more, and the amount that another caller had stays reserved for a while."""
    outputs = admission.cancel(
        core, record, lambda other: _overtaken(other, extension, is_superseded=is_later_life)
    )
    if record.owned_by_published or is_later_life:
        _hand_over(core, record, now_s)
    return outputs


def _refused(ticket: int, judged: sequence.Judgement) -> events.Refused:
    match judged:
        case sequence.Stale(last):
            code = ErrorCode.SEQUENCE_STALE
        case sequence.Reused(last):
            code = ErrorCode.SEQUENCE_REUSED
        case sequence.Superseded(current, last):
            return _superseded(ticket, current, last)
        case _:
            raise AssertionError(judged)
    return events.Refused(ticket, 409, code, f"the last sequence number was {last}", last)


def _superseded(ticket: int, by: sequence.Life, last: int) -> events.Refused:
    message = f"agent {by.agent_id}, started at {by.started_at_ms} ms, owns this VM"
    return events.Refused(ticket, 409, ErrorCode.AGENT_SUPERSEDED, message, last, by.started_at_ms)


def _overtaken(ticket: int, by: RequestExtension, *, is_superseded: bool = False) -> events.Refused:
    number = by.sequence_number
    if is_superseded:
        return _superseded(ticket, sequence.Life(by.agent_id, by.agent_started_at_ms), number)
    message = f"request {number} of agent {by.agent_id} has overtaken this one"
    return events.Refused(ticket, 409, ErrorCode.SEQUENCE_STALE, message, number)


def _hand_over(core: CoreState, record: VmRecord, now_s: float) -> None:
    """Keep for `handover_s` what the caller before had reserved: it may still use that until its lease runs out."""
    if record.owned_by_published:
        about = "published"
    else:
        assert record.gate.life is not None
        about = str(record.gate.life.agent_id)
    row = record.row
    # The amount that it took over itself has a floor of its own; room that it was only told of it cannot use.
    had = row.state.without(Cause.HANDOVER).without(Cause.OFFERED).reserved
    floor = Floor(Cause.HANDOVER, had, until_s=now_s + core.config.handover_s, about=about)
    core.ledger.post(Verdict(row.holder, row.node, row.state.with_floor(floor)))


def _repeat(decision: Decision, reply: LastReply) -> events.Decided:
    """The remembered reply: its permit while `current` still equals it, else the smaller of the two, with a reason."""
    current = decision.record.row.state.current
    grant = Grant(reply.permit.min(current), reply.reasons)
    if grant.permit != reply.permit:
        grant = replace(grant, reasons=(_LOWERED, *reply.reasons))
    decision.unit = reply.unit
    return decided(decision, grant, current, changed=False)


# ------------------------------------------------------------ claim and settlement


def _settled_use(record: VmRecord, claim: Resources) -> Resources:
    """The amount at which a row is settled: its claim, or its use if that is more.

    A VM that came (back) while we served is settled at its use. Its room may be somebody else's by now, and the request a
    late packet: the claim becomes a floor, which keeps room and lets nothing grow (docs/decisions/0012).
    """
    if record.reading is None:
        return claim
    return record.reading.use if record.is_late else claim.max(record.reading.use)


def _settle(core: CoreState, record: VmRecord, use: Resources, now_s: float, *, is_alone: bool) -> None:
    """End the row's start-up uncertainty: `use` is its current permit from now on.

    An amount that another life may hold and this process never heard of stays reserved for as long as it may, unless the life that settles
    the row has proved that there is none (`is_alone`).
    """
    row = record.row
    state = replace(row.state, current=use).without(Cause.START_UP)
    until_s = core.inherits_until_s(now_s)
    if not is_alone and now_s < until_s:
        floor = Floor(Cause.HANDOVER, record.spec.bounds.max.max(use), until_s=until_s, about="not heard")
        state = state.with_floor(floor)
    core.ledger.post(Verdict(row.holder, row.node, state), OverCause.CLAIM)
    record.settled = True


def _note_claim(core: CoreState, record: VmRecord, wanted: Resources, claim: Resources) -> None:
    """Keep the amount that the agent says it holds if that is above `current`: an external edit that only the agent sees."""
    row = record.row
    state, current = row.state, row.state.current
    held = claim.min(wanted)
    if not state.floors and held.fits_in(current):
        return
    above = Resources(
        held.vcpu_milli if held.vcpu_milli > current.vcpu_milli else 0,
        held.memory_bytes if held.memory_bytes > current.memory_bytes else 0,
    )
    state = state.without(Cause.CLAIMED)
    if above != ZERO:
        state = state.with_floor(Floor(Cause.CLAIMED, above))
    if state != row.state:
        core.ledger.post(Verdict(row.holder, row.node, state), OverCause.CLAIM)


def _with_observed(record: VmRecord, state: RowState, now_s: float) -> RowState:
    """The amount that the last read showed stays until a later one shows less: this agent may not know of an edit yet."""
    if record.reading is None:
        return state
    use = record.reading.use
    if not use.exceeds(state.current) or any(
        floor.cause is Cause.OBSERVED and floor.amount == use for floor in state.floors
    ):
        return state
    return state.with_floor(Floor(Cause.OBSERVED, use, since_s=now_s))
