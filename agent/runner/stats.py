"""The counts and measurements of runners about themselves, and their metrics, whose names are listed in docs/reference/metrics.md."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agent.core import events
from agent.core.condition import Health
from agent.core.on_metrics import goal_of
from agent.core.state import RunnerState
from agent.core.step import Transition
from hosting.metrics import Durations, Family, HistogramFamily
from protocol.values import ZERO, Resources

if TYPE_CHECKING:  # a runner has the stats
    from agent.runner.runner import Runner


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
    """Ticks of the runner's clock: "within two ticks" can be measured."""
    permits: int = 0
    resizes: int = 0
    restarts: int = 0
    """Of containers, since the runner began."""
    ends: Counter[str] = field(default_factory=Counter)
    """How containers ended since the runner began, by reason as the node tells it, such as `OOMKilled`."""
    refusals: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)

    def note(self, happened: Transition) -> None:
        event = happened.event
        if happened.after.backend.refused != happened.before.backend.refused:
            self.refusals["resize-refused"] += 1
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
            case events.Observed() if happened.before.backend.observation is not None:
                before, after = happened.before.backend.containers, happened.after.backend.containers
                self.restarts += max(0, after.restarts - before.restarts)
                self.ends.update(
                    reason for identity, reason in after.ends if (identity, reason) not in before.ends
                )
            case _:
                pass


_RESOURCES: Final = ("cpu", "memory")


@dataclass(slots=True)
class GrowthTimer:
    """Measures growth of each resource from its cause to the size. A resource has a moment only while its growth is
    measured from there; resources that grow together, as those of a tied VM do, are measured once."""

    latencies: Latencies
    metric_s: dict[str, float] = field(default_factory=dict)
    try_upscale_s: dict[str, float] = field(default_factory=dict)
    permit_s: dict[str, float] = field(default_factory=dict)
    size: Resources = ZERO
    """The size that the VM should reach."""

    def note(self, happened: Transition, now_s: float) -> None:
        event, before, after = happened.event, happened.before, happened.after
        match event:
            case events.MetricsRead():
                goal = goal_of(after)
                if goal is not None:
                    wanted = _more(after.unit.amount(goal.units()), after.held_at(now_s), after)
                    self.metric_s = {name: at_s for name, at_s in self.metric_s.items() if name in wanted}
                    self._begin(self.metric_s, wanted, now_s)
            case events.TryUpscaleReceived(more_resources=more):
                named = [name for name, is_named in (("cpu", more.cpu), ("memory", more.memory)) if is_named]
                self._begin(self.try_upscale_s, _together(named, after), now_s)
            case events.PermitGranted():
                grown = _more(after.held_at(now_s), before.held_at(now_s), after)
                self._permitted(grown, after, now_s)
                for name in _refused(event, before, after):
                    self.metric_s.pop(name, None)
            case events.Observed():
                short = _more(self.size, event.observation.size, after)
                there = [name for name in _RESOURCES if name not in short]
                _end(self.permit_s, there, self.latencies.permit_to_size, now_s)
            case _:
                pass

    def _begin(self, moments: dict[str, float], names: list[str], now_s: float) -> None:
        for name in names:
            moments.setdefault(name, now_s)

    def _permitted(self, grown: list[str], after: RunnerState, now_s: float) -> None:
        if not grown:
            return
        _end(self.try_upscale_s, grown, self.latencies.try_upscale_to_permit, now_s)
        _end(self.metric_s, grown, self.latencies.metric_to_permit, now_s)
        self.permit_s.update(dict.fromkeys(grown, now_s))
        self.size = after.scheduler.held


def _together(names: list[str], state: RunnerState) -> list[str]:
    """`names`, or both resources if one of a tied VM is named."""
    return names if state.unit.is_apart or not names else list(_RESOURCES)


def _more(amount: Resources, than: Resources, state: RunnerState) -> list[str]:
    """The resources of which `amount` has more."""
    if not amount.exceeds(than):
        return []
    pairs = zip(amount.named(), than.named(), strict=True)
    return _together([name for (name, more), (_, less) in pairs if more > less], state)


def _refused(event: events.PermitGranted, before: RunnerState, after: RunnerState) -> list[str]:
    """The resources of which more was asked for than is in use, and no more permitted."""
    request, use = before.scheduler.request, before.in_use()
    if request is None or request.number != event.number:
        return []
    permitted = _more(event.permit, use, after)
    return [name for name in _more(request.resources, use, after) if name not in permitted]


def _end(moments: dict[str, float], names: list[str], durations: Durations, now_s: float) -> None:
    """The growth that began with these resources has ended; beginnings at one moment are one growth."""
    began_s = {moments.pop(name) for name in names if name in moments}
    for since_s in began_s:
        durations.observe(now_s - since_s)


def latency_families(latencies: Latencies) -> Iterator[HistogramFamily]:
    parts = (
        ("metric-to-permit", latencies.metric_to_permit),
        ("permit-to-size", latencies.permit_to_size),
        ("try-upscale-to-permit", latencies.try_upscale_to_permit),
    )
    yield HistogramFamily(
        "parley_agent_growth_seconds",
        "How long the parts of a growth took",
        tuple(((part,), durations.now()) for part, durations in parts),
        ("part",),
    )


def state_families(runners: "list[Runner]") -> Iterator[Family]:
    """Runners by state, the stuck ones by the peer that they wait for, and the denied ones by the code of the reason."""
    now_s = time.monotonic()
    states: Counter[str] = Counter({health.value: 0 for health in Health})
    stuck: list[tuple[tuple[str, ...], float]] = []
    denied: list[tuple[tuple[str, ...], float]] = []
    for runner in runners:
        now = runner.condition(now_s)
        states[now.health.value] += 1
        stuck += [((runner.vm.name, peer), 1.0) for peer in now.peers]
        if now.health is Health.DENIED and not now.mismatch:
            binding = runner.binding_reason(now_s)
            denied.append(((runner.vm.name, binding.code.value if binding is not None else ""), 1.0))
    yield Family(
        "gauge",
        "parley_agent_runners",
        "Runners by state",
        ("state",),
        tuple(((state,), float(count)) for state, count in states.items()),
    )
    yield Family(
        "gauge",
        "parley_agent_vm_stuck",
        "VMs whose runner waits for a peer that was not heard for two ticks",
        ("vm", "peer"),
        tuple(stuck),
    )
    yield Family(
        "gauge",
        "parley_agent_vm_denied",
        "VMs that should have more than is permitted, by the code of the binding reason",
        ("vm", "code"),
        tuple(denied),
    )


def _containers(runners: "list[Runner]") -> Iterator[Family]:
    looks = [(runner.vm.name, runner.state.backend.containers) for runner in runners]
    judged = [(runner.vm.name, runner.state.backend.judged) for runner in runners]
    yield Family(
        "gauge",
        "parley_agent_container_restarts",
        "Restarts of the containers of each pod since the pod began",
        ("vm",),
        tuple(((name,), float(found.restarts)) for name, found in looks),
    )
    yield Family(
        "gauge",
        "parley_agent_containers_down",
        "Pods of which a container that is scaled does not run, so that they are not resized",
        ("vm",),
        tuple(((name,), 1.0) for name, found in looks if found.waits),
    )
    yield Family(
        "gauge",
        "parley_agent_cgroup_mismatch",
        "Pods whose control groups allow another amount of a resource than is in force by their status",
        ("vm", "resource"),
        tuple(((name, resource), 1.0) for name, found in judged for resource in found.mismatched),
    )


def families(
    runners: "list[Runner]", restarts: int, tasks: int = 0, calls: tuple[int, int] = (0, 0)
) -> Iterator[Family]:
    """Counts and sizes of the runners, and the daemon's counts of itself."""

    def counter(name: str, text: str, label: str, read: Any) -> Family:
        samples = tuple(
            ((runner.vm.name, key), float(value))
            for runner in runners
            for key, value in sorted(read(runner.stats).items())
        )
        return Family("counter", name, text, ("vm", label), samples)

    yield counter("parley_agent_actions", "Actions taken up, by kind", "action", lambda stats: stats.actions)
    yield counter(
        "parley_agent_refusals", "Refusals and failures, by code", "code", lambda stats: stats.refusals
    )
    yield counter(
        "parley_agent_container_ends",
        "Ends of containers of each pod that were seen, by the node's reason, such as OOMKilled",
        "reason",
        lambda stats: stats.ends,
    )
    yield from _containers(runners)
    sizes: list[tuple[tuple[str, ...], float]] = []
    for runner in runners:
        seen = runner.state.backend.observation
        if seen is not None:
            sizes.append(((runner.vm.name, "cpu"), seen.size.vcpu_milli / 1000))
            sizes.append(((runner.vm.name, "memory"), float(seen.size.memory_bytes)))
    yield Family(
        "gauge", "parley_agent_vm_size", "CPUs and bytes of each VM", ("vm", "resource"), tuple(sizes)
    )
    yield Family(
        "counter", "parley_agent_child_restarts", "Restarts of failed runners", (), (((), restarts),)
    )
    yield Family(
        "counter",
        "parley_agent_scheduler_calls",
        "Calls to the scheduler: requests by themselves, and batches",
        ("kind",),
        (
            (("single",), float(calls[0])),
            (("batch",), float(calls[1])),
        ),
    )
    yield Family("gauge", "parley_agent_tasks", "Tasks of the event loop", (), (((), float(tasks)),))
