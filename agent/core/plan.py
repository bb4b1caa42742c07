"""`plan(state, now_s, timing)`: the actions now, the moment of the next look, and the reasons. Recomputed after every event.

Order up: scheduler, then VM, then informant. Order down: informant, then VM, then scheduler. At most one action of
each kind is in flight. Reads only: the shell records `Started` for each action that it takes up.
"""

import enum
from typing import Final

from agent.core import events
from agent.core.desire import desire, lower, means, shrink, taken_back, takes_back, whole
from agent.core.model import PerResource, Reasons
from agent.core.state import PermitRequest, RegistrationPhase, RunnerState
from agent.core.timing import Timing
from protocol import float32
from protocol.values import ZERO, Observation, Resources, Value
from protocol.versions import PluginProtoVersion
from protocol.wire import Metrics

_ALL_CALM: Final = PerResource(True, True)
_NONE_CALM: Final = PerResource(False, False)


class WaitsFor(enum.StrEnum):
    """The event that must come before the scheduler is asked again, if that is no moment."""

    TAKEOVER = "takeover"
    """Another agent owns the VM."""
    FENCE = "fence"
    LOOK = "look"
    METRICS = "metrics"
    """The scheduler takes no request without metrics."""
    ANSWER = "answer"
    """A request is under way."""


class NextRequest(Value, frozen=True):
    """When the scheduler is asked next: at `at_s` (absolute seconds), or, if that is None, after the event that is waited for."""

    at_s: float | None = None
    waits_for: WaitsFor | None = None


class Plan(Value, frozen=True):
    """Actions to start now, the moment of the next step (absolute seconds), and why each resource is desired so.

    `resizes` says that a resize is due, also while it waits for its next try. `next_request` is when the scheduler is asked next,
    as far as it is known now: events may bring it forward.
    """

    actions: tuple[events.Action, ...]
    wake_at_s: float
    desired: Resources
    reason: Reasons
    resizes: bool = False
    next_request: NextRequest = NextRequest()

    def told(self, use: Resources) -> str:
        """Why, in one line for people: the reason of the resource that grows alone beyond the amount in use, else both."""
        cpu_grows = self.desired.vcpu_milli > use.vcpu_milli
        memory_grows = self.desired.memory_bytes > use.memory_bytes
        if cpu_grows == memory_grows:
            return str(self.reason)
        return self.reason.cpu if cpu_grows else self.reason.memory


def plan(state: RunnerState, now_s: float, timing: Timing) -> Plan:
    """The plan at `now_s`. `state` must have been brought to `now_s` (`step.lapse`)."""
    if state.superseded_at_ms is not None:
        why = Reasons.same("superseded by another agent of this VM")
        asking = NextRequest(waits_for=WaitsFor.TAKEOVER)
        return Plan((), now_s + timing.tick_s, state.in_use(), why, next_request=asking)
    steps = _Steps(state, now_s, timing)
    if not state.backend.is_fenced:
        steps.fence()
        return steps.done(ZERO, Reasons.same("waiting for the fence"))
    steps.observe()
    steps.register()
    steps.read_metrics()
    steps.ask_policies()
    if state.backend.observation is None:
        return steps.done(ZERO, Reasons.same("waiting for the first look at the VM"))
    desired, why = desire(state, now_s, timing)
    steps.request(desired)
    steps.resize(desired)
    steps.inform(desired)
    return steps.done(desired, why)


class _Steps:
    """Collects the actions of one plan and the earliest deadline. Lives for one call of `plan` only."""

    def __init__(self, state: RunnerState, now_s: float, timing: Timing) -> None:
        self._state = state
        self._now_s = now_s
        self._timing = timing
        self._actions: list[events.Action] = []
        self._wake_at_s = now_s + timing.tick_s
        self._resizes = False
        self._next_request = NextRequest(
            waits_for=WaitsFor.LOOK if state.backend.is_fenced else WaitsFor.FENCE
        )

    def done(self, desired: Resources, why: Reasons) -> Plan:
        lease_until_s = self._state.scheduler.lease_until_s
        if lease_until_s > self._now_s:
            self._at(lease_until_s)
        for wish in self._state.informant.wishes:
            if wish is not None:
                self._at(wish.until_s)
        return Plan(tuple(self._actions), self._wake_at_s, desired, why, self._resizes, self._next_request)

    def _at(self, moment_s: float) -> None:
        self._wake_at_s = min(self._wake_at_s, moment_s)

    def _is_due(self, *moments_s: float) -> bool:
        """Whether all moments have come; if not, the next look is at the last of them."""
        latest = max(moments_s)
        if latest <= self._now_s:
            return True
        self._at(latest)
        return False

    # ---------------------------------------------------------------- one method for each kind of action

    def fence(self) -> None:
        link = self._state.backend
        if not link.is_fencing and self._is_due(link.retry_at_s):
            self._actions.append(events.Fence())

    def observe(self) -> None:
        link = self._state.backend
        if not link.is_observing and not link.is_resizing and self._is_due(link.next_observe_s):
            is_asked = self._state.scheduler.is_unsettled and link.sent is None
            self._actions.append(events.Observe(checks_fence=is_asked))

    def register(self) -> None:
        link = self._state.informant
        if (
            link.phase is RegistrationPhase.UNREGISTERED
            and not link.is_calling
            and self._is_due(link.retry_at_s)
        ):
            self._actions.append(events.Register())
        if link.is_registered and not link.is_calling:
            self._at(link.heard_s + self._timing.informant_silence_s)

    def read_metrics(self) -> None:
        link, port = self._state.metrics, self._state.informant.metrics_port
        if port is not None and not link.is_reading and self._is_due(link.next_read_s):
            self._actions.append(events.ReadMetrics(port))

    def ask_policies(self) -> None:
        link = self._state.policies
        if link.next is not None and link.asked is None:
            self._actions.append(events.AskPolicies(link.next.load, link.next.sizing))

    def request(self, desired: Resources) -> None:
        link = self._state.scheduler
        self._next_request = NextRequest(waits_for=WaitsFor.ANSWER)
        if link.is_requesting:
            return
        self._next_request = NextRequest(link.retry_at_s)
        if link.negotiation.version is None and not self._is_due(link.retry_at_s):
            return
        resources = self._resources(desired)
        again = self._unanswered(resources)
        version, has_metrics = self._version(), self._metrics_known()
        if again is not None:
            resources, version, has_metrics = again.resources, again.version, again.metrics is not None
        if not has_metrics and not version.allows_nil_metrics():
            self._next_request = NextRequest(waits_for=WaitsFor.METRICS)
            return  # such a scheduler takes no request without metrics, and inventing some would mislead it
        seen = self._state.backend.observation
        if link.is_unsettled and (seen is None or seen.begun_s < link.look_after_s):
            self._next_request = NextRequest(waits_for=WaitsFor.LOOK)
            return  # look first, then name the new process
        is_new = resources != link.held or not link.has_succeeded or link.is_unsettled
        moments = [link.retry_at_s]
        if link.has_succeeded and not link.is_unsettled and link.failures == 0:
            if is_new:
                moments.append(min(link.denied_until_s(resources), link.next_tick_s))
            elif not takes_back(self._state, resources, self._now_s, self._timing):
                moments.append(link.next_tick_s)
        self._next_request = NextRequest(max(moments))
        if self._is_due(*moments):
            # Made only now: most plans send none.
            self._actions.append(events.RequestPermit(again or self._request(resources, version)))

    def _resources(self, desired: Resources) -> Resources:
        """The amount to ask for."""
        state, link = self._state, self._state.scheduler
        use = state.in_use()
        # The first request of a life names the use: it settles, and an old peer's unit is not known before it.
        wanted = desired.max(use) if link.has_succeeded else use
        if not link.has_succeeded and link.negotiation.exhausted:
            return whole(use, state.vm.unit.step)
        return wanted if link.unit is None else whole(wanted, link.unit)

    def _version(self) -> PluginProtoVersion:
        negotiation = self._state.scheduler.negotiation
        version = negotiation.version
        if version is None:  # nothing is shared: ask with the highest again, the peer may have been replaced
            version = type(negotiation)().version
            assert version is not None
        return version

    def _unanswered(self, wanted: Resources) -> PermitRequest | None:
        """The last request, which is sent again if no answer came and it is still true."""
        state, link = self._state, self._state.scheduler
        last = link.request
        if last is None or link.is_answered:
            return None
        is_true = (
            last.resources.fits_in(wanted)
            and state.in_use().fits_in(last.in_use)
            and last.claim.fits_in(state.claim_at(self._now_s))
            and last.version == link.negotiation.version
        )
        return last if is_true else None

    def _request(self, resources: Resources, version: PluginProtoVersion) -> PermitRequest:
        """A new request."""
        state, link = self._state, self._state.scheduler
        has_told = link.instance is not None
        return PermitRequest(
            life=state.life,
            number=link.source.next().last,
            version=version,
            resources=resources,
            claim=state.claim_at(self._now_s),
            in_use=state.in_use(),
            metrics=self._metrics(),
            instance=link.instance,
            seen_epoch=link.seen_epoch,
            # Also if the last reply said tied: the scheduler may have learned more, or may be another one by now.
            is_apart=state.vm.unit.is_apart,
            token=link.proof(self._now_s),
            told=means(state, resources, self._now_s, self._timing) if has_told else None,
        )

    def _metrics_known(self) -> bool:
        load = self._state.metrics.load
        return load is not None and load.load1 is not None and load.load5 is not None

    def _metrics(self) -> Metrics | None:
        load = self._state.metrics.load
        return (
            None
            if load is None or load.load1 is None or load.load5 is None
            else Metrics(float32.round32(load.load1), float32.round32(load.load5))
        )

    def resize(self, desired: Resources) -> None:
        state, link = self._state, self._state.backend
        if link.sent is not None or link.is_resizing or state.informant.phase is RegistrationPhase.SUSPENDED:
            return
        if state.scheduler.is_migrating:
            return
        seen = link.observation
        assert seen is not None
        if link.containers.waits:
            back = taken_back(state, self._now_s)
            if back is not None:
                self._actions.append(events.Resize(back, seen.target, self._not_after_s(back, seen.target)))
            return
        if desired == seen.size == seen.target and not link.is_mending_due(self._now_s):
            return  # as in nearly every plan
        held = state.held_at(self._now_s)
        known = state.informant.known_size if state.informant.phase is RegistrationPhase.ACTIVE else None
        calm = self._calm(seen)
        target = Resources(
            _target(
                calm.cpu,
                (seen.size.vcpu_milli, seen.target.vcpu_milli),
                min(desired.vcpu_milli, held.vcpu_milli),
                None if known is None else max(desired.vcpu_milli, known.vcpu_milli),
            ),
            _target(
                calm.memory,
                (seen.size.memory_bytes, seen.target.memory_bytes),
                min(desired.memory_bytes, held.memory_bytes),
                None if known is None else max(desired.memory_bytes, known.memory_bytes),
            ),
        )
        # An amount that is not held may be somebody else's by now: without a lease a target is lowered only.
        target = target.min(held.max(seen.target))
        cannot_grow = not desired.exceeds(seen.target) or any(state.scheduler.denied)
        if target == seen.target and cannot_grow and link.is_mending_due(self._now_s):
            target = lower(state, seen.target)
        self._resizes = target != seen.target
        if self._resizes and self._is_due(link.resizing.retry_at_s):
            self._actions.append(events.Resize(target, seen.target, self._not_after_s(target, seen.target)))

    def _not_after_s(self, target: Resources, seen: Resources) -> float:
        """The moment after which a resize must not be sent: for growth not later than the end of the lease."""
        not_after_s = self._now_s + self._timing.backend_deadline_s
        return min(not_after_s, self._state.scheduler.lease_until_s) if target.exceeds(seen) else not_after_s

    def inform(self, desired: Resources) -> None:
        """Announce growth that has happened to the informant, or ask for approval of a shrink."""
        state, link = self._state, self._state.informant
        seen = state.backend.observation
        assert seen is not None
        if link.phase is not RegistrationPhase.ACTIVE or link.is_calling or not self._is_due(link.retry_at_s):
            return
        if state.backend.containers.waits:  # a dead container would agree to anything
            return
        calm = self._calm(seen)
        known = link.known_size if link.known_size is not None else ZERO
        if not (calm.cpu or calm.memory) or (known == ZERO and not (calm.cpu and calm.memory)):
            return
        # A resource that still moves is told of, or asked for, when that is over.
        kept = _if_calm(calm, seen.size.min(desired), known)
        if kept.exceeds(known):
            # Growth that was seen; or a shrink that was approved and is not wanted any more.
            self._actions.append(events.AnnounceUpscale(seen.size if known == ZERO else kept.max(known)))
        elif seen.size.exceeds(desired) and known.exceeds(kept):
            found = shrink(state, seen.size, desired, known, self._now_s, self._timing)
            if found.until_s is not None:
                self._at(found.until_s)
            lower = _if_calm(calm, found.amount, known)
            if not known.fits_in(lower):  # else it is approved already, and the VM's turn; or it has to wait
                self._actions.append(events.AskDownscale(lower))

    def _calm(self, seen: Observation) -> PerResource[bool]:
        """Which resources move no more; the resources of a tied VM move together."""
        is_calm = self._state.is_calm(self._now_s, self._timing.stall_s)
        if is_calm:
            return _ALL_CALM
        if not self._state.unit.is_apart or self._state.backend.sent is not None:
            return _NONE_CALM
        size, target = seen.size, seen.target
        return PerResource(size.vcpu_milli == target.vcpu_milli, size.memory_bytes == target.memory_bytes)


def _if_calm(calm: PerResource[bool], amount: Resources, known: Resources) -> Resources:
    """`amount`, but the `known` amount of a resource that still moves."""
    return Resources(
        amount.vcpu_milli if calm.cpu else known.vcpu_milli,
        amount.memory_bytes if calm.memory else known.memory_bytes,
    )


def _target(is_calm: bool, seen: tuple[int, int], allowed: int, approved: int | None) -> int:
    """The next target of one resource, `seen` with its size and target; it may grow to `allowed`, and shrink to `approved`.

    The end of a resize that moves (somebody else's, one of an earlier life, or a slow one) is waited for, but
    growth beyond it need not wait; nor need the end of a shrink that is not wanted any more: the guest may not be able to spare it.
    """
    size, target = seen
    if not is_calm:
        return allowed if allowed > target and allowed >= size else target
    return approved if approved is not None and approved < size else max(size, allowed)
