"""Callers with the extension: sequence gate, claim, settlement, and then the permit.

An unsettled row is one whose VM may still use up to its maximum, because a former scheduler may have permitted it.
A request that names this process settles it: its agent has heard from us, so what it claims is all that it holds.
"""

from msgspec.structs import replace

from protocol import sequence
from protocol.hot import Ask
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.core import events, pools, progress
from scheduler.core.judging import CoreState, compute_unit, judge, slot_bytes
from scheduler.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.core.vms import Progress, Reply, VmRecord

_UNSETTLED = Reason(
    ReasonCode.UNSETTLED, "this scheduler has just started; ask again, naming it", retry_after_s=0.0
)
_LOWERED = Reason(
    ReasonCode.LOWERED, "what this request was permitted has been lowered since; ask anew", retry_after_s=0.0
)


def answer(
    core: CoreState, record: VmRecord, ticket: int, ask: Ask, now_s: float
) -> tuple[events.Output, ...]:
    """Answer a request for a VM whose UID is the request's."""
    gate = record.gate
    life = gate.life
    if life is None or life.agent_id != ask.agent_id or life.started_at_ms != ask.started_at_ms:
        life = sequence.Life(ask.agent_id, ask.started_at_ms)
    judged = gate.judge(life, ask.number, ask)
    overtaken: tuple[events.Output, ...] = ()
    if isinstance(judged, sequence.Passed):
        if judged is sequence.Passed.FIRST_LIFE:
            record.may_follow_another = _may_follow_another(core, ask, now_s)
        overtaken = _take_over(core, record, ask, now_s, is_later_life=judged is sequence.Passed.SUPERSEDES)
        record.gate = gate.take(life, ask.number, ask)
        record.reply = None
    elif not isinstance(judged, sequence.Retry):
        return (_refused(ticket, judged),)
    record.heard_s = now_s  # the reply renews the agent's lease, also a repeated one
    if isinstance(judged, sequence.Retry):
        if record.progress is not None and isinstance(record.progress.request, Ask):
            return (progress.join(record, ticket),)
        if record.reply is not None:
            overtaken = progress.cancel(core, record, lambda other: _overtaken(other, ask))
            return (*overtaken, _repeat(core, record, ticket, ask, record.reply))
        overtaken = _take_over(core, record, ask, now_s)
    record.owned_by_published = False
    if record.published_heard_s is None or now_s - record.published_heard_s >= core.config.handover_s:
        record.condition = ""
    if ask.load1 is not None:
        record.load1 = ask.load1
    decided = _decide(core, record, ticket, ask, now_s)
    return (*overtaken, decided) if overtaken else (decided,)


def _may_follow_another(core: CoreState, ask: Ask, now_s: float) -> bool:
    """Whether a life that this process never heard may still hold what an earlier process permitted it.

    A life that any scheduler has answered superseded those before it then; of one of some age it is taken that this was
    long ago, because a life asks as soon as it can (docs/decisions/0017).
    """
    age_s = now_s + core.config.unix_offset_s - ask.started_at_ms / 1000
    return ask.names is None or age_s < core.config.handover_s


def _take_over(
    core: CoreState, record: VmRecord, ask: Ask, now_s: float, *, is_later_life: bool = False
) -> tuple[events.Output, ...]:
    """Nobody waits for an earlier request any more, and what another caller had stays reserved for a while."""
    overtaken: tuple[events.Output, ...] = ()
    if record.progress is not None:
        overtaken = progress.cancel(
            core, record, lambda other: _overtaken(other, ask, is_superseded=is_later_life)
        )
    if record.owned_by_published or is_later_life:
        _hand_over(core, record, now_s)
    return overtaken


def _refused(ticket: int, judged: sequence.Judgement) -> events.Refused:
    match judged:
        case sequence.Stale(last):
            code = ErrorCode.SEQUENCE_STALE
        case sequence.Reused(last):
            code = ErrorCode.SEQUENCE_REUSED
        case sequence.Superseded(current, last):
            message = f"agent {current.agent_id}, started at {current.started_at_ms} ms, owns this VM"
            return events.Refused(
                ticket, 409, ErrorCode.AGENT_SUPERSEDED, message, last, current.started_at_ms
            )
        case _:
            raise AssertionError(judged)
    return events.Refused(ticket, 409, code, f"the last sequence number was {last}", last)


def _overtaken(ticket: int, by: Ask, *, is_superseded: bool = False) -> events.Refused:
    if is_superseded:
        message = f"agent {by.agent_id}, started at {by.started_at_ms} ms, owns this VM"
        return events.Refused(ticket, 409, ErrorCode.AGENT_SUPERSEDED, message, by.number, by.started_at_ms)
    message = f"request {by.number} of agent {by.agent_id} has overtaken this one"
    return events.Refused(ticket, 409, ErrorCode.SEQUENCE_STALE, message, by.number)


def _hand_over(core: CoreState, record: VmRecord, now_s: float) -> None:
    """Keep for `handover_s` what the caller before had reserved: it may still use it until its lease runs out."""
    if record.owned_by_published:
        about = "published"
    else:
        assert record.gate.life is not None
        about = str(record.gate.life.agent_id)
    row = record.row
    had = row.state.without(Cause.HANDOVER).reserved  # what it took over itself has a floor of its own
    floor = Floor(Cause.HANDOVER, had, until_s=now_s + core.config.handover_s, about=about)
    core.ledger.post(Verdict(row.holder, row.node, row.state.with_floor(floor)))


def _repeat(core: CoreState, record: VmRecord, ticket: int, ask: Ask, reply: Reply) -> events.Decided:
    """The remembered reply: its permit while `current` still equals it, else the smaller of the two, with a reason."""
    current = record.row.state.current
    permit = reply.permit.min(current)
    if permit != reply.permit:
        reply = replace(reply, permit=permit, reasons=(_LOWERED, *reply.reasons))
    return _decided(core, record, ticket, ask, reply, before=current)


def _decide(core: CoreState, record: VmRecord, ticket: int, ask: Ask, now_s: float) -> events.Output:
    config, reading = core.config, record.reading
    claim = ask.claim if ask.claim is not None else ZERO
    if not record.settled:
        is_known = ask.claim is not None or reading is not None
        if is_known and ask.names == config.instance:
            settle(core, record, _settled_at(record, claim), now_s)
    _note_claim(core, record, ask.want, claim)
    unit = compute_unit(core, record, ask.unit)
    current = record.row.state.current
    if not record.settled:
        permit = ask.want.min(current.max(claim))
        return _decided(
            core, record, ticket, ask, Reply(ask.want, unit or ZERO, permit, (_UNSETTLED,)), before=current
        )
    verdict = judge(core, record, ask.want, unit, now_s)
    assert verdict.grant is not None
    assert verdict.state is not None
    pool = record.spec.pool
    if pool is not None and pools.must_be_asked(core.ledger, pool, current, verdict.grant.permit):
        assert unit is not None
        state = replace(verdict.state, current=current.min(verdict.grant.permit))
        waiting = Progress(ticket, ask, now_s, current, verdict.grant.permit, unit, pool)
        return progress.begin(core, record, waiting, _with_observed(record, state, now_s))
    return _commit(core, record, ticket, ask, verdict, unit, now_s)


def commit(
    core: CoreState, record: VmRecord, waited: Progress, ask: Ask, word: events.PoolVerdict, now_s: float
) -> tuple[events.Output, ...]:
    """The pool's word is here: judge the request again with it."""
    unit = compute_unit(core, record, ask.unit)
    admitted = progress.limits_of(core, record, waited, word, record.row.state.current, ask.want, unit)
    verdict = progress.plain(judge(core, record, ask.want, unit, now_s, admitted))
    decided = _commit(core, record, waited.ticket, ask, verdict, unit, now_s)
    # What the request gave back counted when it began to wait; it is told together with what it got.
    decided = replace(decided, before=waited.before, changed=decided.permit != waited.before)
    return progress.for_all(decided, waited)


def _commit(
    core: CoreState,
    record: VmRecord,
    ticket: int,
    ask: Ask,
    verdict: Verdict,
    unit: Resources | None,
    now_s: float,
) -> events.Decided:
    granted, state = verdict.grant, verdict.state
    assert granted is not None
    assert state is not None
    before = record.row.state.current
    observed = _with_observed(record, state, now_s)
    if observed is state:
        core.ledger.post(verdict)
    else:
        core.ledger.post(replace(verdict, state=observed), OverCause.OBSERVED)
    record.reply = Reply(ask.want, unit or ZERO, granted.permit, granted.reasons)
    if (
        record.told is not None
    ):  # it bounds what a caller without the extension uses: this agent may have shrunk the VM
        record.told = record.told.min(granted.permit)
    return _decided(core, record, ticket, ask, record.reply, before=before, changed=granted.permit != before)


def _with_observed(record: VmRecord, state: RowState, now_s: float) -> RowState:
    """What the last read showed stays until a later one shows less: this agent may not know of an edit yet."""
    if record.reading is None:
        return state
    use = record.reading.use
    if not use.exceeds(state.current) or any(
        floor.cause is Cause.OBSERVED and floor.amount == use for floor in state.floors
    ):
        return state
    return state.with_floor(Floor(Cause.OBSERVED, use, since_s=now_s))


def _settled_at(record: VmRecord, claim: Resources) -> Resources:
    """What a row is settled at: its claim, or its use where that is more.

    A VM that came (back) while we served is settled at its use. Its room may be somebody else's by now, and the request a
    late packet: the claim becomes a floor, which keeps room and lets nothing grow (docs/decisions/0012).
    """
    if record.reading is None:
        return claim
    return record.reading.use if record.is_late else claim.max(record.reading.use)


def settle(core: CoreState, record: VmRecord, use: Resources, now_s: float) -> None:
    """The row's start-up uncertainty ends: what is in use is its current permit from now on.

    What a life that this process never heard may still hold stays reserved for as long as it may.
    """
    row = record.row
    state = replace(row.state, current=use).without(Cause.START_UP)
    until_s = core.inherits_until_s(now_s)
    if record.may_follow_another and now_s < until_s:
        floor = Floor(Cause.HANDOVER, record.spec.bounds.max.max(use), until_s=until_s, about="not heard")
        state = state.with_floor(floor)
    core.ledger.post(Verdict(row.holder, row.node, state), OverCause.CLAIM)
    record.settled = True


def _note_claim(core: CoreState, record: VmRecord, wanted: Resources, claim: Resources) -> None:
    """Keep what the agent says it holds where that is above `current`: an external edit that only it sees."""
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


def _decided(
    core: CoreState,
    record: VmRecord,
    ticket: int,
    ask: Ask,
    reply: Reply,
    *,
    before: Resources,
    changed: bool = False,
) -> events.Decided:
    config, spec = core.config, record.spec
    return events.Decided(
        ticket,
        spec.pod,
        spec.node,
        reply.request,
        before,
        reply.permit,
        reply.unit,
        slot_bytes(core, record),
        reply.reasons,
        events.Echo(ask.number, config.instance, config.epoch),
        record.row.state.migrating,
        changed,
    )
