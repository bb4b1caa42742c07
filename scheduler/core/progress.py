"""Growth that waits for a pool's word: what is wanted is kept as a `pending` floor until the word comes.

Hold, then commit or release. One request of a pod is in progress: a duplicate joins it, a higher number cancels it, and
when the word comes everything is judged again, because the world has gone on meanwhile.
"""

from collections.abc import Callable

from msgspec.structs import replace

from protocol.hot import Ask
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import Resources
from scheduler.core import events
from scheduler.core.book import Progress, VmRecord
from scheduler.core.judging import Desk
from scheduler.core.ledger import Cause, Floor, RowState, Verdict
from scheduler.core.limits import Limit


def begin(
    desk: Desk,
    record: VmRecord,
    waiting: Progress,
    state: RowState,
    wanted: Resources,
    unit: Resources,
) -> events.ConsultNeeded:
    """Keep `wanted`, which every other limit allows, above `state`, and ask the pool."""
    assert record.progress is None
    assert record.spec.pool is not None
    held = state.with_floor(Floor(Cause.PENDING, wanted))
    desk.ledger.post(Verdict(record.row.holder, record.row.node, held))
    record.progress = waiting
    desk.consults[waiting.ticket] = record
    return events.ConsultNeeded(
        waiting.ticket, record.spec.pod, record.spec.uid, record.spec.pool, state.current, wanted, unit
    )


def join(record: VmRecord, ticket: int) -> events.Joined:
    """A duplicate waits for the same answer."""
    assert record.progress is not None
    record.progress.joined.append(ticket)
    return events.Joined(ticket, record.progress.ticket)


def release(desk: Desk, record: VmRecord) -> Progress:
    """What was kept for the request in progress ends."""
    progress = record.progress
    assert progress is not None
    row = desk.ledger.require(record.spec.holder)
    desk.ledger.post(Verdict(row.holder, row.node, row.state.without(Cause.PENDING)))
    record.progress = None
    desk.consults.pop(progress.ticket, None)
    return progress


def cancel(
    desk: Desk, record: VmRecord, refusal: Callable[[int], events.Output]
) -> tuple[events.Output, ...]:
    """The request in progress is overtaken: nothing is granted, and its callers get `refusal`."""
    if record.progress is None:
        return ()
    progress = release(desk, record)
    is_extended = isinstance(progress.request, Ask)
    told = (
        refusal(ticket) if is_extended else _hung_up(record, ticket)
        for ticket in (progress.ticket, *progress.joined)
    )
    return (events.ConsultCancelled(progress.ticket), *told)


def undecided(desk: Desk, record: VmRecord) -> tuple[events.Output, ...]:
    """The pool could not be asked by our own fault: nothing is granted, and the same number may come again."""
    progress = release(desk, record)
    tickets = (progress.ticket, *progress.joined)
    if not isinstance(progress.request, Ask):
        return tuple(_hung_up(record, ticket) for ticket in tickets)
    record.gate = record.gate.fail()
    return tuple(events.Refused(ticket, 500, ErrorCode.INTERNAL, "internal error") for ticket in tickets)


def limits_of(word: events.PoolWord) -> tuple[Limit, ...]:
    """The pool's word as a limit of the permit."""
    if word.units is None:
        return ()
    reason = word.reason or Reason(ReasonCode.POOL, "the VM's pool admits no more")
    return (Limit(word.units, reason),)


def for_all(decided: events.Decided, progress: Progress) -> tuple[events.Output, ...]:
    """The answer, for everybody who waits for it."""
    return (decided, *(replace(decided, ticket=ticket) for ticket in progress.joined))


def _hung_up(record: VmRecord, ticket: int) -> events.HungUp:
    return events.HungUp(ticket, record.spec.pod, "the request was overtaken while its pool was asked")
