"""`apply(state, event, now_s)`: the guest's size and limits after something happened; `plan(state, now_s)`: the actions now, and the
moment of the next look. The plan is recomputed after every event.

Limits first, in the order that hurts nobody; then the request that is being decided goes one step on. So a limit has fallen before
a downscale is approved, and has risen before an upscale is answered.

A request goes from READING to AGREED and DECIDED. A downscale that takes memory is LOWERING in between, and READING once or twice
more. If it does not come about, it is DECIDED at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from informant.core.limits import Control, GroupLimits
from informant.core.report import Reading
from informant.core.state import (
    AdoptSize,
    AnswerRequest,
    Done,
    GroupFound,
    GuestAction,
    GuestEvent,
    GuestRead,
    GuestSampled,
    GuestState,
    GuestStats,
    ProgramEnding,
    ReadGuest,
    ReportShortage,
    RequestInProgress,
    RequestPhase,
    RequestWithdrawn,
    SizeAdopted,
    SizeRequested,
    TimePassed,
    WriteBegun,
    WriteEnded,
)
from protocol.wire import DownscaleResult, MoreResources


@dataclass(frozen=True, slots=True)
class GuestPlan:
    """Actions to perform now, in this order, and the moment of the next event `TimePassed`, None if nothing is due."""

    actions: tuple[GuestAction, ...]
    wake_at_s: float | None


def plan(state: GuestState, now_s: float) -> GuestPlan:
    """The plan at `now_s`, for a state that was brought there (`lapse`)."""
    actions: list[GuestAction] = list(state.writes())
    if state.shortage is not None:
        actions.append(ReportShortage(state.shortage))
    if state.pending is not None:
        actions += _step(state, state.pending, now_s)
    return GuestPlan(tuple(actions), min(_moments(state), default=None))


def _step(state: GuestState, pending: RequestInProgress, now_s: float) -> Iterator[GuestAction]:
    """The next step of a request, unless time or a write must pass first."""
    request = pending.request
    match pending.phase:
        case RequestPhase.READING if now_s >= pending.due_s:
            yield ReadGuest()
        case RequestPhase.AGREED:
            yield AdoptSize(request.size, state.guard.hidden_bytes, pending.grown)
        case RequestPhase.DECIDED:
            error = state.fault() if request.is_upscale else pending.error
            yield AnswerRequest(request, pending.result, error)
        case _:
            pass


def _moments(state: GuestState) -> Iterator[float]:
    """When time alone changes something."""
    thaw_s = state.guard.due_s()
    if thaw_s is not None:
        yield thaw_s
    if state.pending is not None:
        yield state.pending.due_s


_MEMORY = MoreResources(cpu=False, memory=True)


def apply(state: GuestState, event: GuestEvent, now_s: float) -> GuestState:
    state = _reduce(lapse(state, now_s), event, now_s)
    assert state.pending is not None or not state.waiting, "a request waits behind none"
    return state


def lapse(state: GuestState, now_s: float) -> GuestState:
    """The state after time alone has passed: a freeze ends, and so does the kernel's time to free memory."""
    guard = state.guard.elapsed(now_s)
    if guard is not state.guard:
        state = replace(state, guard=guard)
    pending = state.pending
    if pending is not None and pending.phase is RequestPhase.LOWERING and now_s >= pending.due_s:
        reclaim_s = state.guard.settings.reclaim_s
        return _taken_back(state, pending, f"the kernel did not free enough memory within {reclaim_s:g} s")
    return state


def _reduce(state: GuestState, event: GuestEvent, now_s: float) -> GuestState:
    match event:
        case GroupFound():
            return _found(state, event)
        case GuestSampled():
            return _sampled(replace(state, refused={}), event, now_s)
        case SizeRequested():
            state = replace(state, waiting=(*state.waiting, event))
            return state if state.pending is not None else _next(state)
        case RequestWithdrawn(number):
            return _withdrawn(state, number)
        case TimePassed():
            return replace(state, refused={})
        case ProgramEnding():
            return replace(state, guard=state.guard.ended(), refused={})
        case Done(action):
            return (
                replace(state, shortage=None)
                if isinstance(action, ReportShortage)
                else _answered(state, action)
            )
        case WriteBegun(write):
            under_way = {**state.under_way, write.falls: state.written.high_bytes}
            return replace(state, written=state.written.after(write), under_way=under_way)
        case WriteEnded():
            return _write_ended(state, event)
        case GuestRead(reading, error):
            return _read(state, reading, error, now_s)
        case SizeAdopted(met):
            assert state.pending is not None
            pending = replace(state.pending, phase=RequestPhase.DECIDED)
            return replace(state, guard=state.guard.met(met, now_s), pending=pending)
        case _:
            assert_never(event)


# ---------------------------------------------------------------- looks at the guest


def _found(state: GuestState, event: GroupFound) -> GuestState:
    """An earlier life's approval holds, and a workload that it left frozen thaws."""
    found, guard = event.reading, state.guard
    if Control.FREEZE not in event.controls:
        guard = replace(guard, settings=replace(guard.settings, freeze_s=0.0))
    if event.size is not None:
        guard = replace(guard, size=event.size, hidden_bytes=event.hidden_bytes)
    return replace(
        state,
        guard=guard,
        controls=event.controls,
        written=GroupLimits(found.high_bytes, found.max_bytes, found.cpu_quota_us, bool(found.frozen)),
        stats=GuestStats(found_frozen=int(bool(found.frozen))),
    )


def _sampled(state: GuestState, event: GuestSampled, now_s: float) -> GuestState:
    """The shortages of the moment. A limit that is being lowered is hit without anybody being short."""
    reading, hits_before = event.reading, state.detector.hits
    guard = state.guard.seen(reading, now_s)
    limit = guard.nominal(guard.size) if reading.cgroup is not None else None
    detector, shortage = state.detector.see(reading, limit, now_s, guard.coming_bytes)
    controls = state.controls if event.controls is None else event.controls
    state = replace(state, guard=guard, detector=detector, controls=controls)
    if state.is_lowering:
        return state
    state = _taken_from_files(state, reading)
    was_frozen = guard.is_frozen
    if shortage.is_hit:
        guard = guard.hit(now_s)
    more_hits = max(0, (detector.hits or 0) - hits_before) if hits_before is not None else 0
    stats = replace(
        state.stats,
        hits=state.stats.hits + more_hits,
        freezes=state.stats.freezes + (guard.is_frozen and not was_frozen),
    )
    return replace(
        state, guard=guard, stats=stats, shortage=shortage if shortage.cpu or shortage.memory else None
    )


def _taken_from_files(state: GuestState, reading: Reading) -> GuestState:
    """A group may have been made anew with its workload, or somebody has changed a limit.

    Another program that freezes the workload while this one runs has a reason; this program ends only its own freezes.
    """
    group = reading.cgroup
    if group is None:
        return state
    state = replace(state, current_bytes=group.current_bytes)
    if state.under_way:
        return state
    frozen = state.written.frozen
    return replace(state, written=GroupLimits(group.high_bytes, group.max_bytes, group.cpu_quota_us, frozen))


# ---------------------------------------------------------------- requests


def _next(state: GuestState) -> GuestState:
    """The request that has waited longest is decided now; one after the other, in the order of arrival."""
    if not state.waiting:
        return replace(state, pending=None)
    request, *waiting = state.waiting
    state = replace(state, pending=RequestInProgress(request), waiting=tuple(waiting))
    if request.is_upscale or not state.approves_all:
        return state
    pending = RequestInProgress(request, result=DownscaleResult(True, "every downscale is approved here"))
    return _agreed(replace(state, guard=state.guard.shrunk(request.size)), pending)


def _withdrawn(state: GuestState, number: int) -> GuestState:
    if state.pending is not None and state.pending.request.number == number:
        return _next(_taken_back(state, state.pending))
    return replace(state, waiting=tuple(each for each in state.waiting if each.number != number))


def _answered(state: GuestState, answer: AnswerRequest) -> GuestState:
    if not answer.request.is_upscale and not answer.error:
        stats, is_ok = state.stats, answer.result.ok
        stats = replace(stats, approved=stats.approved + is_ok, refused=stats.refused + (not is_ok))
        state = replace(state, stats=stats)
    return _next(state)


def _read(state: GuestState, reading: Reading | None, error: str, now_s: float) -> GuestState:
    """The guest was read for the request that is being decided.

    An upscale has happened, even if the guest is unknown; a downscale that takes memory needs to know.
    """
    pending = state.pending
    assert pending is not None
    if reading is not None and reading.cgroup is not None:
        state = replace(state, current_bytes=reading.cgroup.current_bytes)
    if pending.request.is_upscale:
        guard, grown = state.guard.grown(pending.request.size)
        state = replace(state, guard=guard, detector=state.detector.grown(grown, now_s))
        return _agreed(state, replace(pending, grown=grown))
    if pending.before is None and state.guard.takes_cpu_alone(pending.request.size):
        return _without_memory(state, pending, now_s)
    if reading is None:
        return _taken_back(state, pending, error=error)
    if pending.before is None:
        return _judged(state, pending, reading, now_s)
    if pending.took_cache:
        due_s = now_s + state.guard.settings.trial_s
        return replace(state, pending=replace(pending, trial=reading, trial_s=now_s, due_s=due_s))
    if pending.trial is not None:
        strain = state.detector.strain(pending.trial, reading, now_s - pending.trial_s)
        if strain:  # each trial costs the workload its page cache: for a while there is no other
            guard, detector = state.guard.met(_MEMORY, now_s), state.detector.recovering(now_s)
            return _taken_back(replace(state, guard=guard, detector=detector), pending, strain)
    again = pending.before.judge(pending.request.size, reading)
    if not again.ok:
        return _taken_back(state, pending, again.status)
    return _agreed(state, pending)


def _without_memory(state: GuestState, pending: RequestInProgress, now_s: float) -> GuestState:
    """A downscale that takes CPUs alone: neither the memory in use nor a limit that is still falling refuses it."""
    size = pending.request.size
    early = state.guard.holds(size, now_s)
    if early:
        return _taken_back(state, pending, early)
    pending = replace(pending, result=DownscaleResult(True, "no memory is taken"))
    return _agreed(replace(state, guard=state.guard.shrunk(size)), pending)


def _judged(state: GuestState, pending: RequestInProgress, reading: Reading, now_s: float) -> GuestState:
    """A downscale that fits by this reading goes on to lower memory.high, if there is something to lower."""
    size, before = pending.request.size, state.guard
    early = before.holds(size, now_s)
    result = before.judge(size, reading)
    if early or not result.ok:
        return _taken_back(state, pending, early or result.status)
    if True in state.under_way:
        return _taken_back(state, pending, "the kernel is still freeing memory for an earlier downscale")
    used_bytes = state.current_bytes or 0
    pending = replace(pending, before=before, used_bytes=used_bytes, result=result)
    state = replace(state, guard=before.shrunk(size), pending=pending, refused={})
    lowered = next((write for write in state.writes() if write.is_slow), None)
    if lowered is None:
        return state
    due_s = now_s + before.settings.reclaim_s
    pending = replace(pending, phase=RequestPhase.LOWERING, lowered=lowered, due_s=due_s)
    return replace(state, pending=pending)


def _agreed(state: GuestState, pending: RequestInProgress) -> GuestState:
    """The size holds; all that was refused before is tried anew."""
    return replace(state, pending=replace(pending, phase=RequestPhase.AGREED), refused={})


def _taken_back(
    state: GuestState, pending: RequestInProgress, status: str = "", error: str = ""
) -> GuestState:
    """The downscale does not come about: the size before it holds."""
    before, guard = pending.before, state.guard
    if before is not None:
        guard = replace(guard, size=before.size, relief_bytes=before.relief_bytes)
    result = DownscaleResult(False, status)
    pending = replace(pending, phase=RequestPhase.DECIDED, result=result, error=error)
    return replace(state, guard=guard, pending=pending, refused={})


def _write_ended(state: GuestState, event: WriteEnded) -> GuestState:
    """A write that failed is tried again with the next event from outside. The downscale that waited for this write goes on.

    Nothing was taken from a group that is gone.
    """
    write, written, under_way, pending = event.write, state.written, state.under_way, state.pending
    if write.is_slow:
        under_way = {falls: before for falls, before in under_way.items() if falls is not write.falls}
        if event.error and written.high_bytes == write.value:
            written = replace(written, high_bytes=state.under_way[write.falls])
    elif not event.error:
        written = written.after(write)
    refused = {**state.refused, write.control: event} if event.error else state.refused
    state = replace(state, written=written, under_way=under_way, refused=refused)
    if pending is None or pending.phase is not RequestPhase.LOWERING or pending.lowered != write:
        return state
    if event.error and not event.is_gone:
        return _taken_back(state, pending, error=event.error)
    lowered = None if event.error else write
    pending = replace(pending, phase=RequestPhase.READING, lowered=lowered, due_s=float("-inf"))
    return replace(state, pending=pending)
