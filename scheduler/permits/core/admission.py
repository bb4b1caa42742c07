"""Growth that waits for its pool's verdict: the wanted amount is kept as a `pending` floor until the verdict comes.

Hold, then commit or release. One request of a VM waits at a time: a duplicate joins it, a higher number cancels it, and
when the verdict comes everything is judged again, because the world has gone on meanwhile.
"""

from collections.abc import Callable

from msgspec.structs import replace

from protocol.reasons import ErrorCode
from scheduler.permits.core import events
from scheduler.permits.core.decision import Decision
from scheduler.permits.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.permits.core.state import AdmissionCall, CoreState, VmRecord


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
