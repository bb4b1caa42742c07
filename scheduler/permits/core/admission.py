"""Floors that outlast a request: `pending`, while its pool is asked, and `told`, for callers without the extension.

Growth that waits for its pool's verdict keeps the wanted amount as a `pending` floor until the verdict comes. Hold, then commit or release.
One request of a VM waits at a time: a duplicate joins it, a higher number cancels it, and when the verdict comes everything is judged
again, because the world has gone on meanwhile.

The amount that a caller without the extension was told stays reserved (`told`), because it holds no lease that ends. Such a floor ends by
a read of the cluster that shows less, begun a command deadline after its caller was told less.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from protocol.reasons import ErrorCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import events
from scheduler.permits.core.decision import Decision
from scheduler.permits.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.permits.core.state import AdmissionCall, CoreState, SchedulerConfig, VmRecord


def begin(decision: Decision, verdict: Verdict, state: RowState) -> events.AdmissionCallNeeded:
    """Keep what `verdict` grants, which every other limit allows, above `state`, and ask the pool."""
    core, record = decision.core, decision.record
    spec, granted, unit = record.spec, verdict.grant, decision.unit
    assert record.admission is None
    assert granted is not None
    assert unit is not None
    assert spec.pool is not None
    wanted, before = granted.permit, record.row.state.current
    held = state.with_floor(Floor(Cause.PENDING, wanted))
    # Beyond what is wanted, which fits, lies only what a read has shown.
    core.ledger.post(Verdict(record.row.holder, record.row.node, held), OverCause.OBSERVED)
    ticket = decision.ticket
    record.admission = AdmissionCall(ticket, decision.request, decision.now_s, before, wanted, spec.pool)
    core.admission_calls[ticket] = record
    return events.AdmissionCallNeeded(ticket, spec.pod, spec.uid, spec.pool, state.current, wanted, unit)


def join(record: VmRecord, ticket: int) -> events.Joined:
    """A duplicate waits for the same answer."""
    assert record.admission is not None
    record.admission.joined.append(ticket)
    return events.Joined(ticket, record.admission.ticket)


def release(core: CoreState, record: VmRecord) -> AdmissionCall:
    """End the reservation for the request that waits."""
    call = record.admission
    assert call is not None
    row = record.row
    core.ledger.post(Verdict(row.holder, row.node, row.state.without(Cause.PENDING)))
    record.admission = None
    core.admission_calls.pop(call.ticket, None)
    return call


def cancel(
    core: CoreState, record: VmRecord, refusal: Callable[[int], events.Output]
) -> tuple[events.Output, ...]:
    """The request that waits is overtaken: nothing is granted, and its callers get `refusal`."""
    if record.admission is None:
        return ()
    call = release(core, record)
    why = "the request was overtaken while its pool was asked"
    answers = (
        refusal(ticket) if call.request.extension is not None else events.HungUp(ticket, record.spec.pod, why)
        for ticket in (call.ticket, *call.joined)
    )
    return (events.AdmissionCallCancelled(call.ticket), *answers)


def undecided(core: CoreState, record: VmRecord) -> tuple[events.Output, ...]:
    """The pool could not be asked by our own fault: nothing is granted, and the same number may come again."""
    call = release(core, record)
    tickets = (call.ticket, *call.joined)
    if call.request.extension is None:
        why = "the VM's pool could not be asked"
        return tuple(events.HungUp(ticket, record.spec.pod, why) for ticket in tickets)
    record.gate = record.gate.fail()
    return tuple(events.Refused(ticket, 500, ErrorCode.INTERNAL, "internal error") for ticket in tickets)


def for_all(answer: events.Answer, call: AdmissionCall) -> tuple[events.Output, ...]:
    """The answer, for everybody who waits for it. For a duplicate it changes nothing: the permit moves once.

    The amount that the request gave back counted when it began to wait; it is told together with the amount that was granted.
    """
    if not isinstance(answer, events.Decided):
        return (answer,)
    answer = replace(answer, before=call.before, changed=answer.permit != call.before)
    repeated = replace(answer, before=answer.permit, changed=False)
    return (answer, *(replace(repeated, ticket=ticket) for ticket in call.joined))


_START_UP: Final = "start-up"


def with_told(state: RowState, amount: Resources, about: str) -> RowState:
    """The state with one more amount that a caller was told, and was not told less than yet.

    That floor lasts longer than every `told` floor that it covers, so these go.
    """
    kept = tuple(
        floor for floor in state.floors if floor.cause is not Cause.TOLD or not floor.amount.fits_in(amount)
    )
    return replace(state, floors=(*kept, Floor(Cause.TOLD, amount, about=about)))


def told_less(state: RowState, permit: Resources, now_s: float) -> RowState:
    """Note on each `told` floor above `permit` that its caller has now been told less."""
    floors = tuple(
        replace(floor, told_less_s=now_s)
        if floor.cause is Cause.TOLD and floor.told_less_s is None and floor.amount.exceeds(permit)
        else floor
        for floor in state.floors
    )
    return state if floors == state.floors else replace(state, floors=floors)


def settled(state: RowState, current: Resources) -> RowState:
    """A row that is settled by a caller without the extension: its start-up floor becomes a `told` floor."""
    after = replace(state, current=current)
    for floor in state.floors:
        if floor.cause is Cause.START_UP:
            kept = Floor(Cause.TOLD, floor.amount, about=_START_UP)
            after = after.without(Cause.START_UP).with_floor(kept)
    return after


def without_start_up(state: RowState) -> Resources:
    """The amount that a row keeps beside the one that its VM might have had before this process began."""
    return state.without(Cause.START_UP).without(Cause.TOLD, _START_UP).reserved


def after_read(config: SchedulerConfig, state: RowState, use: Resources, begun_s: float) -> RowState:
    """The state after a read begun at `begun_s` showed `use`: `told` floors that it proves unused end."""
    kept = tuple(
        floor
        for floor in state.floors
        if floor.cause is not Cause.TOLD
        or floor.told_less_s is None
        or begun_s < floor.told_less_s + config.command_deadline_s
        or floor.amount.fits_in(use)
    )
    return state if len(kept) == len(state.floors) else replace(state, floors=kept)


def after_silence(config: SchedulerConfig, state: RowState, now_s: float, heard_s: float) -> RowState:
    """The state once a caller has been silent for the hand-over: its `told` floors may end by a later read."""
    return told_less(state, ZERO, now_s) if now_s - heard_s >= config.handover_s else state
