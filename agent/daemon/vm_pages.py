"""The documents of VMs, written from the state of their runners: `/v1/vms` and `/v1/vms/NAMESPACE/NAME`."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from agent.core.condition import Health
from agent.core.model import Denial, PerResource, PodObservation, amounts
from agent.core.on_metrics import goal_of
from agent.core.plan import Plan, WaitsFor
from agent.core.policies.values import Load, Psi, ResourceGoal
from agent.core.state import BackendState, RegistrationPhase, RunnerState
from agent.core.timing import Timing
from agent.daemon.server import GUARDED
from agent.runner.runner import Runner
from agent.runner.runner_log import event_document, without_ids
from hosting.problems import DocumentedAnswer, Operation
from hosting.server import Reply, problem
from protocol.agent_pages import (
    AgentVms,
    BoundsShown,
    ContainersShown,
    CountsShown,
    GoalParts,
    GoalReasons,
    GuestShown,
    JournalEvent,
    LoadShown,
    LookShown,
    MachineShown,
    PlanShown,
    PluginPolicyShown,
    PolicyPart,
    ReadingShown,
    RefusedDownscale,
    RefusedSizeShown,
    ResizePhase,
    ResizeShown,
    SchedulerFault,
    SchedulerLinkShown,
    StandingFault,
    TakeoverShown,
    UrgentWish,
    VmInFull,
    VmInShort,
    VmNotScaled,
)
from protocol.explaining import AmountShown, ReasonShown
from protocol.reasons import ErrorCode
from protocol.values import Resources
from protocol.versions import PLUGIN_SPOKEN, UINT32_MAX, PluginProtoVersion, VersionRange

LIST: Final = Operation(
    "All VMs of the node that are scaled, in short",
    {200: DocumentedAnswer("The VMs, and those that cannot be scaled.", AgentVms)},
    "vms",
    shared=GUARDED,
)
ONE: Final = Operation(
    "One VM in full: its plan, what it waits for, and what happened last",
    {200: DocumentedAnswer("The VM.", VmInFull)},
    "vms",
    shared=GUARDED,
)


@dataclass(frozen=True, slots=True)
class VmNotes:
    """The knowledge beside the runners, by VM: warnings about those that are scaled, why others are not, and their machines, if the back
    end knows of any."""

    warnings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_scaled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    machines: Mapping[str, MachineShown | None] = field(default_factory=dict)

    def with_warnings(self, more: Mapping[str, str]) -> "VmNotes":
        added = {name: (*self.warnings.get(name, ()), text) for name, text in more.items()}
        return replace(self, warnings={**self.warnings, **added})


NO_NOTES: Final = VmNotes()


def vms_page(node: str, daemon: str, runners: list[Runner], notes: VmNotes = NO_NOTES) -> bytes:
    """The whole of `/v1/vms`. `daemon` tells one life of this process from another."""
    now_s = time.monotonic()
    vms = tuple(VmInShort(**_in_short(runner, notes, now_s)) for runner in runners)
    not_scaled = tuple(VmNotScaled(vm=name, reasons=reasons) for name, reasons in notes.not_scaled.items())
    return msgspec.json.encode(AgentVms(node=node, daemon=daemon, vms=vms, not_scaled=not_scaled))


def vm_page(runner: Runner, notes: VmNotes = NO_NOTES, *, now_s: float | None = None) -> bytes:
    """One VM in full. `now_s` is the runner's clock, that of this process if it is left out."""
    now_s = time.monotonic() if now_s is None else now_s
    state, planned = runner.state, runner.last_plan
    journal = (
        JournalEvent(seconds_ago=round(ago_s, 3), **event_document(event))
        for ago_s, event in runner.journal(now_s)
    )
    parts = _in_short(runner, notes, now_s) | in_full(state, planned, runner.timing, now_s)
    return msgspec.json.encode(VmInFull(**parts, journal=tuple(journal)))


def not_here(name: str, reasons: Iterable[str] = ()) -> Reply:
    """The answer for a VM without a runner: it is not scaled for `reasons`, or not known here."""
    why = tuple(reasons)
    if why:
        return problem(404, ErrorCode.VM_NOT_SCALED, f"{name} is not scaled: {'; '.join(why)}", why)
    return problem(404, ErrorCode.UNKNOWN_VM, f"there is no VM {name[:300]} here")


# ---------------------------------------------------------------- in short


def _in_short(runner: Runner, notes: VmNotes, now_s: float) -> dict[str, Any]:
    """The fields of `VmInShort`."""
    state, planned, stats, name = runner.state, runner.last_plan, runner.stats, runner.vm.name
    link, seen = state.scheduler, state.backend.observation
    now = runner.condition(now_s)
    # reasons stay with the permit, also once that covers the goal
    binding = runner.binding_reason(now_s) if now.health is Health.DENIED else None
    why = planned.told(state.in_use()) if planned is not None else "starting"
    read_s = state.metrics.read_s
    return {
        "vm": name,
        "agent_id": str(state.life.agent_id),
        "size": None if seen is None else AmountShown.of(seen.size),
        "target": None if seen is None else AmountShown.of(seen.target),
        "tied": not state.unit.is_apart,
        "goal": None if planned is None else AmountShown.of(planned.desired),
        "goal_reasons": None
        if planned is None
        else GoalReasons(cpu=planned.reason.cpu, memory=planned.reason.memory),
        "permit": None if link.permit is None else AmountShown.of(link.permit),
        "held": AmountShown.of(state.held_at(now_s)),
        "sequence_number": link.source.last,
        "load": _load(state.metrics.load),
        "metrics_age_seconds": None if read_s is None else round(now_s - read_s, 1),
        "metrics_plugin": state.metrics.source or None,
        "informant": state.informant.phase.value,
        "reason": str(binding) if binding is not None else why,
        "reason_code": binding.code.value if binding is not None else None,
        "faults": tuple(without_ids(f"{peer}: {fault}") for peer, fault in _faults(state)),
        "state": now.health.value,
        "state_reasons": tuple(without_ids(reason) for reason in now.reasons),
        "mismatch": without_ids(now.mismatch) or None,
        "counts": CountsShown(
            ticks=stats.ticks,
            permits=stats.permits,
            resizes=stats.resizes,
            restarts=stats.restarts,
            ends=dict(stats.ends),
            refusals=dict(stats.refusals),
        ),
        "machine": notes.machines.get(name),
        "warnings": notes.warnings.get(name, ()),
    }


def _faults(state: RunnerState) -> list[tuple[str, str]]:
    """The standing fault of each counterpart: one that was not made good since."""
    seen = state.backend.observation
    found = (
        ("scheduler", state.scheduler.fault),
        ("VM", state.backend.fault),
        ("VM", state.backend.resizing.fault),
        ("VM", seen.refusal if seen is not None else None),
        ("informant", state.informant.fault),
        ("metrics", state.metrics.fault),
        ("policies", state.policies.fault),
    )
    return [(peer, fault) for peer, fault in found if fault]


def _load(load: Load | None) -> LoadShown | None:
    if load is None:
        return None
    return LoadShown(
        busy_cpus=None if load.busy_micro is None else round(load.busy_micro / 1e6, 3),
        load1=None if load.load1 is None else round(load.load1, 2),
        memory_used=load.memory_used(),
        cpu_pressure=_pressure(load.cpu_psi),
        memory_pressure=_pressure(load.memory_psi),
    )


def _pressure(psi: Psi | None) -> float | None:
    return None if psi is None or psi.some_avg10 is None else round(psi.some_avg10, 1)


# ---------------------------------------------------------------- in full


def in_full(state: RunnerState, planned: Plan | None, timing: Timing, now_s: float) -> dict[str, Any]:
    """The fields of `VmInFull` beyond those of `VmInShort` and the journal."""
    bounds, goal = state.vm.bounds, goal_of(state)
    return {
        "bounds": BoundsShown(min=AmountShown.of(bounds.min), max=AmountShown.of(bounds.max)),
        "compute_unit": AmountShown.of(state.vm.unit.step),
        "plan": None if planned is None else _plan(planned, now_s),
        "reasons": tuple(
            ReasonShown(
                code=each.code.value,
                resource=each.resource,
                message=each.message,
                retry_after_seconds=each.retry_after_s,
            )
            for each in state.scheduler.reasons
        ),
        "goal_before_bounds": _goal_before_bounds(state),
        "goal_parts": None if goal is None else GoalParts(cpu=_parts(goal.cpu), memory=_parts(goal.memory)),
        "scheduler": _scheduler(state, planned, now_s),
        "look": _look(state.backend, now_s),
        "resize": _resize(state, planned, timing, now_s),
        "refused_sizes": _refused_sizes(state, now_s),
        "metrics": _metrics(state, timing, now_s),
        "guest": _guest(state, now_s),
        "containers": _containers(state.backend),
        "takeover": _takeover(state, now_s),
        "plugin_policies": tuple(
            PluginPolicyShown(plugin=each.plugin, fault=_shown(each.error)) for each in state.policies.answers
        ),
        "standing_faults": _standing_faults(state),
    }


def _plan(planned: Plan, now_s: float) -> PlanShown:
    return PlanShown(
        desired=AmountShown.of(planned.desired),
        reason=str(planned.reason),
        actions=tuple(type(action).__name__ for action in planned.actions),
        next_look_seconds=round(max(planned.wake_at_s - now_s, 0.0), 2),
    )


def _standing_faults(state: RunnerState) -> tuple[StandingFault, ...]:
    """The code and the status are those of the scheduler's answer."""
    refusal = state.scheduler.refusal
    return tuple(
        StandingFault(
            peer=peer,
            message=without_ids(fault),
            code=refusal.code if refusal is not None and peer == "scheduler" else None,
            status=refusal.status if refusal is not None and peer == "scheduler" else None,
        )
        for peer, fault in _faults(state)
    )


def _goal_before_bounds(state: RunnerState) -> AmountShown | None:
    goal = goal_of(state)
    if goal is None or goal.cpu.units is None or goal.memory.units is None:
        return None
    step = state.vm.unit.step
    return AmountShown.of(Resources(goal.cpu.units * step.vcpu_milli, goal.memory.units * step.memory_bytes))


def _parts(goal: ResourceGoal) -> tuple[PolicyPart, ...]:
    return tuple(PolicyPart(policy=each.policy, units=each.units, reason=each.reason) for each in goal.parts)


def _scheduler(state: RunnerState, planned: Plan | None, now_s: float) -> SchedulerLinkShown:
    link = state.scheduler
    following = planned.next_request if planned is not None else None
    at_s = following.at_s if following is not None else None
    waits_for = following.waits_for if following is not None else None
    if state.superseded_at_ms is not None:  # no plan is made after that
        at_s, waits_for = None, WaitsFor.TAKEOVER
    elif link.is_requesting:  # begun after the plan was made
        at_s, waits_for = None, WaitsFor.ANSWER
    fault = None
    if link.fault:
        refusal = link.refusal
        fault = SchedulerFault(
            message=without_ids(link.fault),
            status=refusal.status if refusal is not None else None,
            code=refusal.code if refusal is not None else None,
            supported=_versions(refusal.supported) if refusal is not None else None,
        )
    return SchedulerLinkShown(
        number=None if link.request is None else link.request.number,
        wanted=None if link.request is None else AmountShown.of(link.request.resources),
        version=None if link.negotiation.version is None else str(link.negotiation.version),
        supported_versions=str(PLUGIN_SPOKEN),
        is_exhausted=link.negotiation.exhausted or link.negotiation.version is None,
        has_extension=(link.instance is not None) if link.has_succeeded else None,
        instance=None if link.instance is None else str(link.instance),
        epoch=link.seen_epoch,
        answered_seconds_ago=round(now_s - link.answered_s, 1) if link.has_succeeded else None,
        lease_left_seconds=_left(link.lease_until_s, now_s),
        is_under_way=link.is_requesting,
        next_seconds=None if at_s is None else _left(at_s, now_s),
        waits_for=waits_for,
        is_unsettled=link.is_unsettled,
        is_migrating=link.is_migrating,
        failures=link.failures,
        fault=fault,
    )


def _look(link: BackendState, now_s: float) -> LookShown:
    seen = link.observation
    age_s = None if seen is None else _left(now_s, seen.begun_s)
    return LookShown(age_seconds=age_s, failures=link.failures, fault=_shown(link.fault))


def _resize(state: RunnerState, planned: Plan | None, timing: Timing, now_s: float) -> ResizeShown:
    link = state.backend
    phase = _phase(state, planned, timing, now_s)
    seen, sent, failing = link.observation, link.sent, link.resizing
    target = sent.target if sent is not None else seen.target if seen is not None else None
    if phase is ResizePhase.FAILING and sent is None and planned is not None and seen is not None:
        target = planned.desired.min(state.held_at(now_s).max(seen.target))
    since_s = None
    if phase is ResizePhase.FAILING:
        since_s = failing.since_s
    elif phase is ResizePhase.SENDING and sent is not None:
        since_s = sent.sent_s
    elif phase is not ResizePhase.UNKNOWN:
        since_s = link.moved_s
    return ResizeShown(
        phase=phase,
        from_=None if seen is None else AmountShown.of(seen.size),
        to=None if target is None else AmountShown.of(target),
        since_seconds=None if since_s is None else _left(now_s, since_s),
        failures=failing.failures,
        fault=_shown(failing.fault),
        refusal=_shown(seen.refusal or "") if seen is not None else None,
        retry_in_seconds=_left(failing.retry_at_s, now_s) if failing.failures else None,
    )


def _phase(state: RunnerState, planned: Plan | None, timing: Timing, now_s: float) -> ResizePhase:
    link: BackendState = state.backend
    seen = link.observation
    if seen is None:
        return ResizePhase.UNKNOWN
    if link.resizing.failures and planned is not None and (planned.resizes or link.sent is not None):
        return ResizePhase.FAILING
    if link.sent is not None and not link.sent.is_seen:
        return ResizePhase.SENDING
    if seen.is_at_rest:
        return ResizePhase.AT_REST
    if seen.refusal is not None:
        return ResizePhase.REFUSED
    return ResizePhase.STALLED if now_s >= link.moved_s + timing.stall_s else ResizePhase.MOVING


def _containers(link: BackendState) -> ContainersShown | None:
    """None for all that is no pod."""
    if not isinstance(link.observation, PodObservation):
        return None
    found = link.containers
    return ContainersShown(
        not_running=_shown(found.waits),
        mismatch=_shown(link.judged.mismatch),
        mismatched=tuple(link.judged.mismatched),
        restarts=found.restarts,
        last_end=_shown(found.last_end),
    )


def _refused_sizes(state: RunnerState, now_s: float) -> tuple[RefusedSizeShown, ...]:
    return tuple(
        RefusedSizeShown(
            kind="growth" if each.is_growth else "shrink",
            size=AmountShown.of(each.size),
            target=AmountShown.of(each.target),
            why=without_ids(each.why),
            times=each.times,
            retry_in_seconds=_left(each.until_s, now_s),
        )
        for each in state.refused_at(now_s)
    )


def _metrics(state: RunnerState, timing: Timing, now_s: float) -> ReadingShown:
    link = state.metrics
    age_s = None if link.read_s is None else now_s - link.read_s
    has_port = state.informant.metrics_port is not None
    return ReadingShown(
        is_stale=age_s is not None and age_s > timing.metrics_stale_s,
        age_seconds=None if age_s is None else round(age_s, 1),
        stale_after_seconds=timing.metrics_stale_s,
        failures=link.failures,
        fault=_shown(link.fault),
        plugin=link.source or None,
        next_read_seconds=_left(link.next_read_s, now_s) if has_port and not link.is_reading else None,
        waits_for=None if has_port else "informant",
    )


def _guest(state: RunnerState, now_s: float) -> GuestShown:
    link = state.informant
    return GuestShown(
        phase=link.phase.value,
        has_suspended=link.phase is RegistrationPhase.SUSPENDED and link.version is not None,
        version=None if link.version is None else str(link.version),
        heard_seconds_ago=_left(now_s, link.heard_s) if link.is_registered else None,
        failures=link.failures,
        fault=_shown(link.fault),
        refused_downscale=_denials(link.denied, now_s),
        urgent=_wishes(state, now_s),
    )


def _denials(denied: PerResource[Denial | None], now_s: float) -> RefusedDownscale | None:
    found = [each for each in denied if each is not None]
    if not found:
        return None
    known = _known(*(None if each is None else each.amount for each in denied))
    return RefusedDownscale(retry_in_seconds=_left(min(each.until_s for each in found), now_s), **known)


def _wishes(state: RunnerState, now_s: float) -> UrgentWish | None:
    pairs = zip(state.informant.wishes, amounts(state.in_use()), strict=True)
    urgent = [
        each if each is not None and not each.is_over and each.amount > in_use else None
        for each, in_use in pairs
    ]
    found = [each for each in urgent if each is not None]
    if not found:
        return None
    known = _known(*(None if each is None else each.amount for each in urgent))
    return UrgentWish(left_seconds=_left(max(each.until_s for each in found), now_s), **known)


def _takeover(state: RunnerState, now_s: float) -> TakeoverShown | None:
    if state.superseded_at_ms is None:
        return None
    rivalry = state.rivalry
    return TakeoverShown(times_in_a_row=rivalry.count, next_life_seconds=_left(rivalry.wait_until_s, now_s))


# ---------------------------------------------------------------- words and numbers


def _known(vcpu_milli: int | None, memory_bytes: int | None) -> dict[str, str]:
    written = Resources(vcpu_milli or 0, memory_bytes or 0).written()
    known = {"cpu": vcpu_milli is not None, "memory": memory_bytes is not None}
    return {name: amount for name, amount in written.items() if known[name]}


def _left(until_s: float, now_s: float) -> float:
    """Seconds from `now_s` to `until_s`, 0 if that is past."""
    return round(max(until_s - now_s, 0.0), 1)


def _versions(supported: tuple[int, int] | None) -> str | None:
    """The versions that a scheduler speaks, as people name them."""
    if supported is None:
        return None
    low, high = (PluginProtoVersion(min(number, UINT32_MAX)) for number in supported)
    return str(VersionRange(low, high))


def _shown(fault: str) -> str | None:
    """A text of a peer for people; None if there is none."""
    return without_ids(fault) if fault else None
