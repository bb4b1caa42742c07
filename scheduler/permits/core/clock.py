"""The things that the clock ends for one VM, the time when it may end something next, and the VMs that should leave their node."""

from msgspec.structs import replace

from protocol.values import ZERO
from scheduler.permits.core import admission, events, migration, neon_callers, room
from scheduler.permits.core.ledger import Cause, RowState, Verdict
from scheduler.permits.core.state import CoreState, VmRecord


def schedule(core: CoreState, record: VmRecord) -> None:
    """Make sure that the VM is looked at when the clock may change something for it."""
    core.timers.schedule(record.spec.uid, due_s(core, record))


def tick(core: CoreState, event: events.ClockTicked) -> tuple[events.Output, ...]:
    """Time has passed: look at every VM for which something is due, and choose who migrates."""
    now_s = core.now_s = event.now_s
    if core.serving_since_s is None:
        core.serving_since_s = now_s
    core.vms.forget_retired(now_s)
    outputs: list[events.Output] = []
    due = (core.timers.take_due(now_s) if event.uids is None else core.timers.take(event.uids))[::-1]
    try:
        while due:
            record = core.vms.by_uid(due.pop())
            if record is not None:
                outputs += _look_at(core, record, now_s)
    finally:  # if one fails by our fault, the others are still due
        for uid in due:
            core.timers.schedule(uid, now_s)
    if event.is_more:
        return tuple(outputs)
    # Neighbours may have rested for long enough.
    core.to_follow.update(node for node, queue in core.queues.items() if queue.has_needy)
    if core.rules.migration_enabled:
        outputs += migration.choose(core, now_s)
    return tuple(outputs)


def _look_at(core: CoreState, record: VmRecord, now_s: float) -> list[events.Output]:
    outputs: list[events.Output] = []
    call = record.admission
    if call is not None and now_s >= call.began_s + core.config.admission_call_s:
        outputs += admission.undecided(core, record)
        outputs.append(events.AdmissionCallCancelled(call.ticket))
    outputs += elapse(core, record, now_s)
    schedule(core, record)
    return outputs


def elapse(core: CoreState, record: VmRecord, now_s: float) -> tuple[events.Output, ...]:
    """Time has passed for one VM: floors end, and a read may be wanted."""
    row, state = record.row, record.row.state
    ended = room.elapse(core, record, now_s) if record.waiting is not None or record.asked is not None else ()
    live = tuple(floor for floor in state.floors if floor.until_s is None or floor.until_s > now_s)
    if len(live) != len(state.floors):
        state = replace(state, floors=live)
    if record.published_heard_s is not None:
        state = admission.after_silence(core.config, state, now_s, record.published_heard_s)
    if state.pressure != ZERO and now_s >= _pressure_until_s(core, record):
        state, record.waiting = replace(state, pressure=ZERO), None
    if state is not row.state:
        core.ledger.post(Verdict(row.holder, row.node, state))
    if not _needs_read(core, record, state, now_s):
        return ended
    record.read_asked_s = now_s
    return (*ended, events.ReadNeeded(record.spec.pod))


def _pressure_until_s(core: CoreState, record: VmRecord) -> float:
    """When nobody wants any more what was denied: nobody has asked for so long."""
    heard_s = max(record.silent_since_s(), record.published_heard_s or 0.0)
    return heard_s + core.config.handover_s


def _needs_read(core: CoreState, record: VmRecord, state: RowState, now_s: float) -> bool:
    """Whether a read could end a floor now; asked at most once per command deadline."""
    if record.reading is None:
        return False
    deadline_s = core.config.command_deadline_s
    if record.read_asked_s is not None and now_s - record.read_asked_s < deadline_s:
        return False
    told = any(
        floor.told_less_s is not None and now_s >= floor.told_less_s + deadline_s for floor in state.floors
    )
    again = any(
        floor.cause is Cause.OBSERVED
        and floor.since_s is not None
        and now_s >= floor.since_s + core.config.read_again_s
        for floor in state.floors
    )
    is_silent = now_s >= record.silent_since_s() + core.config.handover_s
    return told or again or (is_silent and _may_fall(core, record, state))


def _may_fall(core: CoreState, record: VmRecord, state: RowState) -> bool:
    """Whether a read could lower the row of a VM whose agent is silent."""
    assert record.reading is not None
    if any(floor.cause is Cause.CLAIMED for floor in state.floors):
        return True
    return not neon_callers.is_allowed(core.config, record.spec.node) and (
        any(floor.cause is Cause.START_UP for floor in state.floors)
        or state.current.exceeds(record.reading.use)
    )


def due_s(core: CoreState, record: VmRecord) -> float | None:
    """When the clock may next change something for the VM; None while nothing can."""
    config, state = core.config, record.row.state
    may_fall = record.reading is not None and _may_fall(core, record, state)
    is_asked = record.asked is not None and record.asked.is_open
    if not (may_fall or state.floors or record.admission or is_asked or state.pressure is not ZERO):
        return None  # as most rows are
    times = [floor.until_s for floor in state.floors if floor.until_s is not None]
    if record.admission is not None:
        times.append(record.admission.began_s + config.admission_call_s)
    if record.asked is not None and is_asked:
        times.append(record.asked.until_s)
    if state.pressure != ZERO:
        times.append(_pressure_until_s(core, record))
    is_told = [floor for floor in state.floors if floor.cause is Cause.TOLD and floor.told_less_s is None]
    if record.published_heard_s is not None and is_told:
        times.append(record.published_heard_s + config.handover_s)
    if record.reading is not None:
        asked_s = record.read_asked_s
        not_before_s = asked_s + config.command_deadline_s if asked_s is not None else 0.0
        reads = [
            floor.told_less_s + config.command_deadline_s
            for floor in state.floors
            if floor.told_less_s is not None
        ]
        reads += [
            floor.since_s + config.read_again_s
            for floor in state.floors
            if floor.cause is Cause.OBSERVED and floor.since_s is not None
        ]
        if may_fall:
            reads.append(record.silent_since_s() + config.handover_s)
        times += [max(read_s, not_before_s) for read_s in reads]
    return min(times, default=None)
