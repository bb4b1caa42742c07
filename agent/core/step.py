"""`RunnerCore.step(state, inbox, now_s)`: one turn of a runner. The runner, the simulation and the tests all drive this code.

The events are applied, then a plan is made, then each of its actions is recorded as started. All of that is one moment:
the caller of `step` performs the started actions only after the step is over. Each action ends as exactly one event in a
later inbox. The invariants are checked after every event; a violation is a fault of ours and stops this one runner.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never
from uuid import UUID

from msgspec.structs import replace

from agent.core import events, on_informant, on_metrics, on_scheduler
from agent.core.model import PodObservation, RefusedResizes, Vm, containers_of, refused
from agent.core.plan import Plan, plan
from agent.core.policies.combined import Combined
from agent.core.state import NO_DENIALS, BackendState, Mending, ResizeFaults, RunnerState, SentResize
from agent.core.timing import Timing
from protocol.values import Value


class Transition(Value, frozen=True):
    event: events.Event
    before: RunnerState
    after: RunnerState


class RunnerStep(Value, frozen=True):
    """The result of a step. `started` are the actions to perform now, `plan.wake_at_s` is when the next step is due.

    `transitions` are the events that were applied, in order: those of the inbox, then `started`.
    """

    state: RunnerState
    plan: Plan
    started: tuple[events.Started, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class RunnerCore:
    """The constant parts of the steps of one runner. `new_id` makes the ID of a registration."""

    timing: Timing
    policy: Combined
    new_id: Callable[[], UUID]

    def step(self, state: RunnerState, inbox: Iterable[events.Event], now_s: float) -> RunnerStep:
        """Apply the events, and decide the next actions.

        Once another agent owns the VM, later events mean nothing, and nothing is started.
        """
        transitions: list[Transition] = []
        for event in inbox:
            if state.superseded_at_ms is None:
                state = self._apply(state, event, now_s, transitions)
        state = lapse(state, now_s, self.timing)
        planned = plan(state, now_s, self.timing)
        started = tuple(self._started(action) for action in planned.actions)
        for event in started:
            state = self._apply(state, event, now_s, transitions)
        return RunnerStep(state, planned, started, tuple(transitions))

    def _apply(
        self, state: RunnerState, event: events.Event, now_s: float, transitions: list[Transition]
    ) -> RunnerState:
        after = apply(state, event, now_s, self.timing, self.policy)
        transitions.append(Transition(event, state, after))
        return after

    def _started(self, action: events.Action) -> events.Started:
        return events.Started(action, self.new_id() if isinstance(action, events.Register) else None)


def apply(
    state: RunnerState, event: events.Event, now_s: float, timing: Timing, policy: Combined
) -> RunnerState:
    before = lapse(state, now_s, timing)
    state = _reduce(before, event, now_s, timing, policy)
    if state.unit != before.unit:
        state = _in_other_units(state)
    use = state.in_use()
    if use.exceeds(state.metrics.had):
        state = replace(state, metrics=replace(state.metrics, had=state.metrics.had.max(use)))
    _check(state)
    return state


def lapse(state: RunnerState, now_s: float, timing: Timing) -> RunnerState:
    return on_informant.lapse(on_scheduler.lapse(state, now_s), now_s, timing)


def _reduce(  # noqa: C901, PLR0912 - one line for each event of the closed union
    state: RunnerState, event: events.Event, now_s: float, timing: Timing, policy: Combined
) -> RunnerState:
    match event:
        case events.Started():
            return _started(state, event, now_s, timing)
        case events.Fenced():
            link = replace(state.backend, is_fenced=True, is_fencing=False, failures=0, fault="")
            return replace(state, backend=link)
        case events.FenceFailed(error, chance):
            link = replace(state.backend, is_fencing=False)
            return _backend_failed(state, link, error, chance, now_s, timing)
        case events.Observed():
            return _observed(state, event, now_s, timing)
        case events.ObserveFailed(error, chance):
            link = replace(state.backend, is_observing=False)
            return _backend_failed(state, link, error, chance, now_s, timing)
        case events.ResizeAccepted():
            sent = state.backend.sent
            accepted_s = now_s if sent is None else max(now_s, sent.sent_s + timing.command_deadline_s)
            link = _answered(state.backend, accepted_s)
            return replace(state, backend=replace(link, next_observe_s=now_s, resizing=ResizeFaults()))
        case events.ResizeFailed():
            return _resize_failed(state, event, now_s, timing)
        case events.ResizeRefused():
            return _resize_refused(state, event, now_s, timing)
        case events.ResizePostponed():
            return _resize_postponed(state, event, now_s, timing)
        case events.FencedOff():
            # The daemon that fenced it may be gone before it has asked anybody: nobody else can tell us that we are superseded.
            return replace(state, superseded_at_ms=state.life.started_at_ms)
        case events.PermitGranted():
            return on_scheduler.granted(state, event, now_s, timing)
        case events.PermitRefused():
            return on_scheduler.refused(state, event, now_s, timing)
        case events.PermitFailed():
            return on_scheduler.failed(state, event, now_s, timing)
        case events.Registered():
            return on_informant.registered(state, event, now_s)
        case events.InformantHeard() | events.Resumed() | events.Suspended():
            return on_informant.called(state, event, now_s)
        case events.TryUpscaleReceived():
            return on_informant.try_upscale_received(state, event, now_s, timing, policy.wish_share)
        case events.DownscaleApproved(amount) | events.UpscaleAnnounced(amount):
            return on_informant.size_known(state, amount)
        case events.DownscaleDenied():
            return on_informant.denied(state, event, now_s, timing)
        case events.RegisterFailed(error, chance):
            return on_informant.failed(state, error, is_lost=True, now_s=now_s, timing=timing, chance=chance)
        case events.InformantFailed(error, is_lost, chance):
            return on_informant.failed(
                state, error, is_lost=is_lost, now_s=now_s, timing=timing, chance=chance
            )
        case events.WindowsMoved(limits):
            return replace(state, limits=limits)
        case events.VmChanged(vm):
            return _changed(state, vm, now_s)
        case events.VmMoved():
            return replace(state, backend=replace(state.backend, told_s=now_s, next_observe_s=now_s))
        case events.RoomNoticed() | events.YieldNoticed() | events.EpochNoticed():
            return on_scheduler.noticed(state, event, now_s, timing)
        case events.MetricsRead():
            return on_metrics.read(state, event, now_s, timing, policy)
        case events.MetricsFailed():
            return on_metrics.failed(state, event, now_s, timing)
        case events.PoliciesAnswered():
            return on_metrics.answered(state, event, now_s, timing, policy)
        case _:
            assert_never(event)


def _started(state: RunnerState, event: events.Started, now_s: float, timing: Timing) -> RunnerState:
    backend = state.backend
    match event.action:
        case events.Fence():
            return replace(state, backend=replace(backend, is_fencing=True))
        case events.Observe():
            return replace(state, backend=replace(backend, is_observing=True))
        case events.Resize(target, seen, not_after_s):
            assert backend.sent is None, "a resize is under way already"
            assert target.fits_in(seen.max(state.held_at(now_s))), "growth without a permit"
            sent = SentResize(target, now_s, not_after_s + timing.command_deadline_s)
            mending = _mending(backend, now_s, timing)
            return replace(state, backend=replace(backend, sent=sent, is_resizing=True, mending=mending))
        case events.RequestPermit(request):
            return on_scheduler.started(state, request, now_s, timing)
        case events.Register() | events.AskDownscale() | events.AnnounceUpscale():
            return on_informant.started(state, event)
        case events.ReadMetrics():
            return replace(state, metrics=replace(state.metrics, is_reading=True))
        case events.AskPolicies():
            return on_metrics.asked(state, event.action)
        case _:
            assert_never(event.action)


def _observed(state: RunnerState, event: events.Observed, now_s: float, timing: Timing) -> RunnerState:
    """A look at the VM. A sent resize stops counting when its target was seen and is reached or replaced, or when
    this look began after the last moment at which it could still be accepted. A look begun before the
    sending shows nothing of that resize."""
    seen, sent, has_worked = event.observation, state.backend.sent, False
    containers = containers_of(seen)
    if sent is not None:
        if seen.target == sent.target and seen.begun_s >= sent.sent_s:
            sent, has_worked = replace(sent, is_seen=True), True
        has_ended = (
            seen.is_at_rest
            or seen.refusal is not None
            or bool(containers.mismatched)
            or seen.target != sent.target
        )
        is_over = (sent.is_seen and has_ended) or (
            seen.begun_s >= sent.until_s and not state.backend.is_resizing
        )
        sent = None if is_over else sent
    before = state.backend.observation
    has_moved = before is None or (before.size, before.target) != (seen.size, seen.target)
    moved_s = now_s if has_moved else state.backend.moved_s
    is_moving = not seen.is_at_rest and not containers.mismatched and now_s < moved_s + timing.stall_s
    if sent is not None or is_moving:
        wait_s = timing.observe_busy_s
    else:
        is_resting = seen.is_at_rest and not containers.waits
        wait_s = timing.observe_rest_s if is_resting else min(timing.observe_idle_s, timing.observe_rest_s)
    is_old = seen.begun_s < max(state.backend.told_s, state.scheduler.look_after_s)
    link = replace(
        state.backend,
        observation=seen,
        moved_s=moved_s,
        is_observing=False,
        sent=sent,
        resizing=ResizeFaults() if has_worked else state.backend.resizing,
        refused=_refused(state, event, now_s, timing),
        judged=containers if containers.is_judged else state.backend.judged,
        mending=Mending() if containers.is_judged and not containers.mismatched else state.backend.mending,
        next_observe_s=now_s if is_old else now_s + wait_s,
        failures=0,
        fault="",
    )
    if event.is_fenced and not is_old:
        state = replace(state, scheduler=replace(state.scheduler, is_fenced=True))
    state = replace(state, backend=link)
    return (
        on_informant.wishes_kept(state, now_s + wait_s + timing.try_upscale_s) if containers.waits else state
    )


def _mending(link: BackendState, now_s: float, timing: Timing) -> Mending:
    """After a resize is sent. While the control groups differ from the size each is meant to mend them, and the next one waits longer."""
    if not link.containers.mismatched:
        return link.mending
    times = link.mending.times + 1
    return Mending(times, now_s + timing.refused_wait_s(times, 0.0))


def _refused(state: RunnerState, event: events.Observed, now_s: float, timing: Timing) -> RefusedResizes:
    """The targets that the VM's node does not take, after a look. A look that shows the same again says nothing new."""
    seen, before = event.observation, state.backend.refused
    if seen.refusal is None or seen.is_at_rest:
        return before
    if any(each.target == seen.target for each in state.refused_at(now_s)):
        return before
    return refused(
        before,
        size=seen.size,
        target=seen.target,
        why=seen.refusal,
        now_s=now_s,
        timing=timing,
        chance=event.chance,
    )


def _resize_refused(
    state: RunnerState, event: events.ResizeRefused, now_s: float, timing: Timing
) -> RunnerState:
    """The sent target does not count any more."""
    link = state.backend
    assert link.sent is not None, "a refusal of nothing"
    assert link.observation is not None, "a resize before the first look"
    found = refused(
        link.refused,
        size=link.observation.target,
        target=link.sent.target,
        why=event.error,
        now_s=now_s,
        timing=timing,
        chance=event.chance,
    )
    link = replace(link, is_resizing=False, sent=None, refused=found, next_observe_s=now_s)
    return replace(state, backend=link)


def _resize_postponed(
    state: RunnerState, event: events.ResizePostponed, now_s: float, timing: Timing
) -> RunnerState:
    """A container does not run: the resize waits for a look that shows that it runs."""
    link, seen = state.backend, state.backend.observation
    assert seen is not None, "a resize before the first look"
    containers = replace(link.containers, waits=event.why)
    wait_s = timing.retry_after_s(1, event.chance)
    link = replace(
        link,
        is_resizing=False,
        sent=None,
        observation=PodObservation(seen.size, seen.target, seen.begun_s, seen.refusal, containers),
        next_observe_s=now_s + wait_s,
    )
    return on_informant.wishes_kept(replace(state, backend=link), now_s + wait_s + timing.try_upscale_s)


def _answered(link: BackendState, until_s: float) -> BackendState:
    """A resize call has ended: a look begun after `until_s` shows its result."""
    sent = None if link.sent is None else replace(link.sent, until_s=min(link.sent.until_s, until_s))
    return replace(link, is_resizing=False, sent=sent)


def _resize_failed(
    state: RunnerState, event: events.ResizeFailed, now_s: float, timing: Timing
) -> RunnerState:
    """The VM is looked at before the next try, because its target may have changed since the last look."""
    link = _answered(state.backend, now_s + timing.command_deadline_s)
    before = link.resizing
    failures = before.failures + 1
    resizing = ResizeFaults(
        failures,
        before.since_s if before.failures else now_s,
        event.error,
        now_s + timing.retry_after_s(failures, event.chance),
    )
    return replace(state, backend=replace(link, resizing=resizing, next_observe_s=now_s))


def _changed(state: RunnerState, vm: Vm, now_s: float) -> RunnerState:
    """New bounds lower the held amount to the larger of them and the amount in use."""
    assert (vm.pod, vm.pod_uid) == (state.vm.pod, state.vm.pod_uid), "another VM"
    held = state.held_at(now_s).min(vm.bounds.max.max(state.in_use()))
    link = replace(state.scheduler, held=held, denied=NO_DENIALS)
    return replace(state, vm=vm, scheduler=link)


def _in_other_units(state: RunnerState) -> RunnerState:
    """The VM's steps have changed, or its resources are tied or apart now and were not: refusals of the other kind mean
    nothing."""
    return replace(
        state,
        scheduler=replace(state.scheduler, denied=NO_DENIALS),
        informant=replace(state.informant, denied=NO_DENIALS),
    )


def _backend_failed(
    state: RunnerState, link: BackendState, error: str, chance: float, now_s: float, timing: Timing
) -> RunnerState:
    """One command failed; another kind that is under way goes on."""
    failures = link.failures + 1
    wait_s = timing.retry_after_s(failures, chance)
    link = replace(
        link,
        failures=failures,
        retry_at_s=now_s + wait_s,
        next_observe_s=now_s + wait_s,
        fault=error,
    )
    return replace(state, backend=link)


def _check(state: RunnerState) -> None:
    """The invariants that hold after every event."""
    link = state.scheduler
    assert link.held.vcpu_milli >= 0
    assert link.held.memory_bytes >= 0
    assert link.request is None or link.request.number <= link.source.last
    assert link.request is None or link.request.in_use.fits_in(link.request.resources), (
        "a request below what is in use"
    )
    assert state.backend.sent is None or state.backend.is_fenced, "a resize before the fence"
