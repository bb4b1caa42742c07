"""Growth that waits for a pool's word: what is wanted is kept as a `pending` floor until the word comes.

Hold, then commit or release. One request of a pod is in progress: a duplicate joins it, a higher number cancels it, and
when the word comes everything is judged again, because the world has gone on meanwhile.
"""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from protocol.hot import Ask
from protocol.reasons import ErrorCode, Reason, ReasonCode
from protocol.values import Resources
from scheduler.core import events, pools
from scheduler.core.judging import CoreState
from scheduler.core.ledger import Cause, Floor, OverCause, RowState, Verdict
from scheduler.core.limits import Limit, cut_by_bounds, units_within
from scheduler.core.vms import Progress, VmRecord

_CHANGED: Final = Reason(
    ReasonCode.POOL, "the VM's pool was changed while it was asked; ask again", retry_after_s=0.0
)
_ASKED_FOR_LESS: Final = Reason(
    ReasonCode.POOL, "there is more room by now than the VM's pool was asked for", retry_after_s=0.0
)


def begin(
    core: CoreState, record: VmRecord, waiting: Progress, state: RowState
) -> events.AdmissionCallNeeded:
    """Keep what is wanted, which every other limit allows, above `state`, and ask the pool."""
    assert record.progress is None
    held = state.with_floor(Floor(Cause.PENDING, waiting.wanted))
    # Beyond what is wanted, which fits, lies only what a read has shown.
    core.ledger.post(Verdict(record.row.holder, record.row.node, held), OverCause.OBSERVED)
    record.progress = waiting
    core.admission_calls[waiting.ticket] = record
    spec = record.spec
    return events.AdmissionCallNeeded(
        waiting.ticket, spec.pod, spec.uid, waiting.pool, state.current, waiting.wanted, waiting.unit
    )


def join(record: VmRecord, ticket: int) -> events.Joined:
    """A duplicate waits for the same answer."""
    assert record.progress is not None
    record.progress.joined.append(ticket)
    return events.Joined(ticket, record.progress.ticket)


def release(core: CoreState, record: VmRecord) -> Progress:
    """What was kept for the request in progress ends."""
    progress = record.progress
    assert progress is not None
    row = core.ledger.require(record.spec.holder)
    core.ledger.post(Verdict(row.holder, row.node, row.state.without(Cause.PENDING)))
    record.progress = None
    core.admission_calls.pop(progress.ticket, None)
    return progress


def cancel(
    core: CoreState, record: VmRecord, refusal: Callable[[int], events.Output]
) -> tuple[events.Output, ...]:
    """The request in progress is overtaken: nothing is granted, and its callers get `refusal`."""
    if record.progress is None:
        return ()
    progress = release(core, record)
    is_extended = isinstance(progress.request, Ask)
    why = "the request was overtaken while its pool was asked"
    told = (
        refusal(ticket) if is_extended else events.HungUp(ticket, record.spec.pod, why)
        for ticket in (progress.ticket, *progress.joined)
    )
    return (events.AdmissionCallCancelled(progress.ticket), *told)


def undecided(core: CoreState, record: VmRecord) -> tuple[events.Output, ...]:
    """The pool could not be asked by our own fault: nothing is granted, and the same number may come again."""
    progress = release(core, record)
    tickets = (progress.ticket, *progress.joined)
    if not isinstance(progress.request, Ask):
        why = "the VM's pool could not be asked"
        return tuple(events.HungUp(ticket, record.spec.pod, why) for ticket in tickets)
    record.gate = record.gate.fail()
    return tuple(events.Refused(ticket, 500, ErrorCode.INTERNAL, "internal error") for ticket in tickets)


def limits_of(
    core: CoreState,
    record: VmRecord,
    waited: Progress,
    word: events.PoolVerdict,
    current: Resources,
    request: Resources,
    unit: Resources | None,
) -> tuple[Limit, ...]:
    """The pool's word as a limit of the permit.

    It was said of the pool's total with `waited.wanted` in it. What was born into the pool meanwhile counts; and should
    there be more room or a wider bound by now, no more than what was asked for is granted.
    """
    if unit is None or not unit.is_positive():
        return ()
    if record.spec.pool != waited.pool or waited.is_void:
        return (Limit(0, _CHANGED),)
    account = core.ledger.pool(waited.pool)
    if account is None or account.spec is None:
        return ()  # a limit of its own
    if word.generation not in (None, account.spec.generation):
        return (Limit(0, _CHANGED),)
    requested, _ = cut_by_bounds(current, request, record.spec.bounds.max)
    asked = units_within(current, requested, unit, waited.wanted)
    found = [None if asked is None else Limit(asked, _ASKED_FOR_LESS)]
    if word.total is not None:
        why = word.reason or Reason(ReasonCode.POOL, "the VM's pool admits no more")
        total = pools.total(record, account, current, request, unit, word.total, why)
        if not (word.is_all and total is not None and asked is not None and total.units >= asked):
            # Else others have cut what the pool was asked for, and it was admitted: that is not the pool's word.
            found.insert(0, total)
    return tuple(limit for limit in found if limit is not None)


def plain(verdict: Verdict) -> Verdict:
    """The verdict; that the pool was asked for less is said only where nothing else allows no more either."""
    granted = verdict.grant
    if granted is None or _ASKED_FOR_LESS not in granted.reasons[1:]:
        return verdict
    reasons = tuple(reason for reason in granted.reasons if reason is not _ASKED_FOR_LESS)
    return replace(verdict, grant=replace(granted, reasons=reasons))


def for_all(decided: events.Decided, progress: Progress) -> tuple[events.Output, ...]:
    """The answer, for everybody who waits for it. For a duplicate it changes nothing: the permit moves once."""
    repeated = replace(decided, before=decided.permit, changed=False)
    return (decided, *(replace(repeated, ticket=ticket) for ticket in progress.joined))
