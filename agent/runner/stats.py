"""What a runner counts and measures of itself."""

from collections import Counter
from dataclasses import dataclass, field

from agent.core import events
from agent.core.apply import goal_of
from agent.core.state import RunnerState
from agent.core.step import Transition
from hosting.metrics import Durations
from protocol.values import ZERO, Resources


@dataclass(slots=True)
class Latencies:
    """How long growth takes, over all runners of a daemon."""

    metric_to_permit: Durations = field(default_factory=Durations)
    permit_to_size: Durations = field(default_factory=Durations)
    try_upscale_to_permit: Durations = field(default_factory=Durations)


@dataclass(slots=True)
class RunnerStats:
    """Counts of one runner over all its lives, for status and metrics."""

    ticks: int = 0
    """Ticks of the runner's clock: what happens "within two ticks" can be counted."""
    permits: int = 0
    resizes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)

    def note(self, event: events.Event) -> None:
        match event:
            case events.Started(action):
                self.actions[type(action).__name__] += 1
            case events.PermitGranted():
                self.permits += 1
                self.refusals.update(reason.code.value for reason in event.reasons)
            case events.PermitRefused(body=body):
                self.refusals[body.body.code.value if body is not None else f"status-{event.status}"] += 1
            case events.PermitFailed():
                self.refusals["no-answer"] += 1
            case events.ResizeAccepted():
                self.resizes += 1
            case events.DownscaleDenied():
                self.refusals["downscale-denied"] += 1
            case _:
                pass


@dataclass(slots=True)
class GrowthTimer:
    """Measures growth from what asked for it to the size. Each moment is None while nothing is measured from there."""

    latencies: Latencies
    metric_s: float | None = None
    try_upscale_s: float | None = None
    permit_s: float | None = None
    size: Resources = ZERO
    """What the VM should reach."""

    def note(self, happened: Transition, now_s: float) -> None:
        event, before, after = happened.event, happened.before, happened.after
        match event:
            case events.MetricsRead() if self.metric_s is None:
                goal = goal_of(after)
                if goal is not None and (after.vm.unit.amount(goal.units())).exceeds(after.held_at(now_s)):
                    self.metric_s = now_s
            case events.TryUpscaleReceived(more_resources=more):
                if (more.cpu or more.memory) and self.try_upscale_s is None:
                    self.try_upscale_s = now_s
            case events.PermitGranted():
                if after.held_at(now_s).exceeds(before.held_at(now_s)):
                    self._permitted(after, now_s)
                elif not event.permit.exceeds(before.in_use()):
                    self.metric_s = None  # nothing more is wanted, or it was refused
            case events.Observed():
                if self.permit_s is not None and self.size.fits_in(event.observation.size):
                    self.latencies.permit_to_size.observe(now_s - self.permit_s)
                    self.permit_s = None
            case _:
                pass

    def _permitted(self, after: RunnerState, now_s: float) -> None:
        if self.try_upscale_s is not None:
            self.latencies.try_upscale_to_permit.observe(now_s - self.try_upscale_s)
        if self.metric_s is not None:
            self.latencies.metric_to_permit.observe(now_s - self.metric_s)
        self.metric_s = self.try_upscale_s = None
        self.permit_s, self.size = now_s, after.scheduler.held
