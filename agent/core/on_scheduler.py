"""Applies the scheduler's answers: held and its lease, versions, sequence numbers, supersession.

The rule of `held` (design section 4): sending a request lowers `held` to the requested amount; the reply to the
latest number sets `held`, up or down; replies to older numbers are dropped; an error, a time-out or a 409 changes nothing.
"""

from typing import assert_never

from msgspec.structs import replace

from agent.core import events
from agent.core.model import Denial, PerResource, amounts
from agent.core.state import (
    NO_DENIALS,
    PermitRequest,
    RefusedRequest,
    RunnerState,
    SchedulerState,
    Yielding,
)
from agent.core.timing import Timing
from protocol.fields import UINT64_MAX
from protocol.reasons import ErrorCode, ReasonCode
from protocol.sequence import SequenceSource
from protocol.values import ZERO, Resources
from protocol.versions import Negotiation, PluginProtoVersion, VersionRange


def started(state: RunnerState, request: PermitRequest, now_s: float, timing: Timing) -> RunnerState:
    link = state.scheduler
    assert not link.is_requesting
    held = state.held_at(now_s).min(request.resources)
    lease_until_s = link.lease_until_s if now_s < link.lease_until_s else 0.0
    return _with(
        state,
        replace(
            link,
            source=SequenceSource(max(link.source.last, request.number)),
            request=request,
            is_requesting=True,
            is_answered=False,
            held=held,
            lease_until_s=lease_until_s,
            next_tick_s=now_s + timing.tick_s,
        ),
    )


def granted(state: RunnerState, event: events.PermitGranted, now_s: float, timing: Timing) -> RunnerState:
    link = replace(state.scheduler, is_requesting=False)
    request = link.request
    if request is None or event.number != request.number:
        return _with(state, link)
    wrong = _unusable(request, event, link)
    link = replace(link, refusal=None)
    if wrong:
        return _failed(state, link, wrong, now_s, timing, event.chance)
    is_unsettled = any(reason.code is ReasonCode.UNSETTLED for reason in event.reasons)
    is_tied = _is_tied(request, event, link)
    changed_peer = event.instance != link.instance
    negotiation = Negotiation(request.version) if changed_peer else link.negotiation
    is_still_alone = not changed_peer or link.is_alone(now_s)
    if is_unsettled:
        state = replace(state, backend=replace(state.backend, next_observe_s=now_s))
    return _with(
        state,
        replace(
            link,
            negotiation=negotiation.on_success(),
            instance=event.instance,
            seen_epoch=max(link.seen_epoch, event.epoch),
            is_answered=True,
            has_succeeded=True,
            answered_s=now_s,
            is_unsettled=is_unsettled,
            look_after_s=now_s if is_unsettled else 0.0,
            token=event.token,
            is_fenced=False,
            alone_after_s=link.alone_after_s if is_still_alone else now_s + timing.alone_s,
            is_migrating=event.migrate,
            # A scheduler that does not know yet what we hold cannot raise it.
            held=link.held.min(event.permit) if is_unsettled else event.permit,
            lease_until_s=event.sent_s + timing.hold_s,
            permit=event.permit,
            reasons=event.reasons,
            unit=event.unit.step if event.instance is None else None,
            is_tied=is_tied,
            denied=NO_DENIALS if is_unsettled else _denied(link, event, is_tied, now_s, timing),
            next_tick_s=link.next_tick_s - 0.1 * timing.tick_s * event.chance,
            retry_at_s=now_s + timing.unsettled_s
            if is_unsettled and (not changed_peer or link.is_unsettled)
            else 0.0,
            failures=0,
            fault="",
        ),
    )


def _is_tied(request: PermitRequest, event: events.PermitGranted, link: SchedulerState) -> bool:
    """Whether the scheduler takes the VM's resources as tied. A request that did not ask for apart leaves that open."""
    if event.instance is None:
        return True
    return not event.unit.is_apart if request.is_apart else link.is_tied


def _denied(
    link: SchedulerState, event: events.PermitGranted, is_tied: bool, now_s: float, timing: Timing
) -> PerResource[Denial | None]:
    """The resources of the request that were not granted in full; if the VM is tied, that is about both resources."""
    request = link.request
    assert request is not None
    if event.permit == request.resources:
        return NO_DENIALS
    is_both = is_tied or not request.is_apart
    found: list[Denial | None] = []
    asked, permitted = amounts(request.resources), amounts(event.permit)
    for name, before, ask, permit in zip(("cpu", "memory"), link.denied, asked, permitted, strict=True):
        if permit == ask and not is_both:
            found.append(None)
            continue
        named = [reason for reason in event.reasons if is_both or reason.resource in (None, name)]
        named_s = named[0].retry_after_s if named else None
        found.append(Denial(ask, now_s + _denied_for_s(before, named_s, timing)))
    return PerResource(*found)


def _denied_for_s(before: Denial | None, named_s: float | None, timing: Timing) -> float:
    """The time before the next request for denied amounts, in seconds: as the binding reason says, at most a tick.

    A wait of zero is accepted the first time only.
    """
    if named_s is None:
        return timing.denied_s
    wait_s = min(named_s, timing.tick_s)
    return wait_s if before is None else max(wait_s, timing.denied_s)


def _unusable(request: PermitRequest, event: events.PermitGranted, link: SchedulerState) -> str:
    """The fault of a reply; empty if the reply can be used."""
    if event.instance is not None and event.echoed_number != request.number:
        return f"the reply is to number {event.echoed_number}, not {request.number}"
    if event.instance is not None and event.epoch < link.seen_epoch:
        return f"the scheduler's epoch {event.epoch} is below {link.seen_epoch}, which was seen already"
    if event.instance is None and link.instance is not None and link.seen_epoch > 0:
        return "the scheduler sent no epoch, but an epoch was seen already"
    if event.permit.exceeds(request.resources):
        return f"the permit {event.permit} exceeds the request {request.resources}"
    if event.instance is None and not event.permit.is_positive():
        return f"the permit {event.permit} is zero"
    if event.instance is None and not event.unit.step.is_positive():
        return f"the compute unit {event.unit} is zero"
    return ""


def refused(state: RunnerState, event: events.PermitRefused, now_s: float, timing: Timing) -> RunnerState:
    link = replace(state.scheduler, is_requesting=False)
    request, read = link.request, event.body
    if request is None or event.number != request.number:
        return _with(state, link)
    code = read.body.code if read is not None else None
    refusal = RefusedRequest(event.status, code, read.supported if read is not None else None)
    link = replace(link, refusal=refusal)
    fault = f"status {event.status}" + (f" {code.value}: {read.body.message}" if read and code else "")
    if event.status == 409:
        if read is not None and code is ErrorCode.AGENT_SUPERSEDED:
            named = read.body.current_started_at_ms or state.life.started_at_ms
            return replace(_with(state, replace(link, fault=fault)), superseded_at_ms=named)
        last = (read.body.last_sequence_number if read is not None else None) or 0
        # Nothing lies above the last number of all: that peer is wrong, and no number helps.
        link = replace(link, source=link.source.above(last if last < UINT64_MAX else 0), request=None)
    if event.status == 400:
        link = replace(link, negotiation=_negotiate(link.negotiation, event), request=None)
    if event.status == 404:
        link = replace(link, request=None)
    may_change = event.status == 503
    after = _failed(state, link, fault, now_s, timing, event.chance, may_change=may_change)
    if event.retry_after_s is not None:
        wait_s = min(event.retry_after_s, timing.tick_s) * (1 + 0.2 * event.chance)
        retry_at_s = max(after.scheduler.retry_at_s, now_s + wait_s)  # 0 is no leave to hurry
        after = _with(after, replace(after.scheduler, retry_at_s=retry_at_s))
    return after


def _negotiate(negotiation: Negotiation, event: events.PermitRefused) -> Negotiation:
    if event.body is None:
        return negotiation.on_plain_refusal()
    if event.body.body.code is ErrorCode.UNSUPPORTED_VERSION and event.body.supported is not None:
        low, high = (PluginProtoVersion(min(number, 2**32 - 1)) for number in event.body.supported)
        return negotiation.on_supported(VersionRange(low, high))
    return negotiation


def failed(state: RunnerState, event: events.PermitFailed, now_s: float, timing: Timing) -> RunnerState:
    """No usable answer came. The scheduler may have posted the request all the same, so the same number is sent again."""
    link = replace(state.scheduler, is_requesting=False)
    if link.request is None or event.number != link.request.number:
        return _with(state, link)
    link = replace(link, refusal=None)
    return _failed(state, link, event.error, now_s, timing, event.chance, may_change=True)


def _failed(
    state: RunnerState,
    link: SchedulerState,
    fault: str,
    now_s: float,
    timing: Timing,
    chance: float,
    *,
    may_change: bool = False,
) -> RunnerState:
    """`may_change`: another scheduler may lead soon, and is to be met soon."""
    failures = link.failures + 1
    wait = timing.leader_retry_after_s if may_change else timing.retry_after_s
    retry_at_s = now_s + wait(failures, chance)
    link = replace(link, failures=failures, retry_at_s=retry_at_s, fault=fault)
    return _with(state, link)


def noticed(
    state: RunnerState,
    event: events.RoomNoticed | events.YieldNoticed | events.EpochNoticed,
    now_s: float,
    timing: Timing,
) -> RunnerState:
    """The scheduler has spoken first: a hint, after which the plan asks or shrinks as ever."""
    link = state.scheduler
    match event:
        case events.RoomNoticed():
            return _with(state, replace(link, denied=NO_DENIALS))
        case events.YieldNoticed(keep, waiter, priority):
            least = _still_to_keep(state, keep, now_s)
            return replace(state, yielding=Yielding(least, waiter, priority, now_s + timing.yield_s))
        case events.EpochNoticed(chance):  # soon, and not all runners at once
            soon_s = now_s + timing.epoch_spread_s * chance
            next_tick_s, retry_at_s = min(link.next_tick_s, soon_s), min(link.retry_at_s, soon_s)
            return _with(state, replace(link, next_tick_s=next_tick_s, retry_at_s=retry_at_s))
        case _:
            assert_never(event)


def _still_to_keep(state: RunnerState, keep: Resources, now_s: float) -> Resources:
    """`keep` of each resource that is asked for; of another one any amount will do. A notice that comes late takes back nothing of a later
    one."""
    use, most, before = state.in_use(), state.vm.bounds.max, state.yielding
    kept = Resources(
        keep.vcpu_milli if keep.vcpu_milli < use.vcpu_milli else max(most.vcpu_milli, use.vcpu_milli),
        keep.memory_bytes
        if keep.memory_bytes < use.memory_bytes
        else max(most.memory_bytes, use.memory_bytes),
    )
    return kept if before is None or now_s >= before.until_s else kept.min(before.keep)


def lapse(state: RunnerState, now_s: float) -> RunnerState:
    """The state with a lease that has run out written down: held is nothing then."""
    link = state.scheduler
    if link.held == ZERO or now_s < link.lease_until_s:
        return state
    return _with(state, replace(link, held=ZERO, lease_until_s=0.0))


def _with(state: RunnerState, link: SchedulerState) -> RunnerState:
    return replace(state, scheduler=link)
