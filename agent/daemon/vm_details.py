"""What one VM waits for and what stands against it, field by field: the parts of `/v1/vms/NAMESPACE/NAME` that `parley explain` reads.

Durations are seconds from the moment of the answer, so that no clock must be shared. Nothing here is a text to be taken apart: texts
are for people, and beside each stands the code, the number or the phase that a program needs.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from agent.core.model import PodObservation
from agent.core.on_metrics import goal_of
from agent.core.per_resource import Denial, PerResource, amounts
from agent.core.plan import Plan, WaitsFor
from agent.core.policies.values import ResourceGoal
from agent.core.state import BackendState, RunnerState
from agent.core.timing import Timing
from agent.runner.event_json import without_ids
from protocol.values import Resources
from protocol.versions import PLUGIN_SPOKEN, UINT32_MAX, PluginProtoVersion, VersionRange


class ResizePhase(enum.StrEnum):
    """Where a VM stands between its size and what it should have."""

    UNKNOWN = "unknown"
    """The VM was not looked at yet."""
    AT_REST = "at-rest"
    SENDING = "sending"
    """A resize was decided, and a look does not show it yet."""
    MOVING = "moving"
    """The VM's size is on its way to the target."""
    STALLED = "stalled"
    """The size has not come nearer to the target for long; it is not waited for any more."""
    REFUSED = "refused"
    """The VM's node does not carry the target out."""
    FAILING = "failing"
    """Resizes fail; the next try is due in `retryInSeconds`."""


def parts(state: RunnerState, planned: Plan | None, timing: Timing, now_s: float) -> dict[str, Any]:
    """All parts, as a JSON object's fields."""
    return {
        "goalBeforeBounds": _goal_before_bounds(state),
        "goalParts": _goal_parts(state),
        "scheduler": _scheduler(state, planned, now_s),
        "look": _look(state, now_s),
        "resize": _resize(state, planned, timing, now_s),
        "refusedSizes": _refused_sizes(state, now_s),
        "metrics": _metrics(state, timing, now_s),
        "guest": _guest(state, now_s),
        "containers": _containers(state),
        "takeover": _takeover(state, now_s),
        "pluginPolicies": [
            {"plugin": each.plugin, "fault": _told(each.error)} for each in state.policies.answers
        ],
        "standingFaults": standing_faults(state),
    }


def standing_faults(state: RunnerState) -> list[dict[str, Any]]:
    """What went wrong with each counterpart and was not made good since. `code` is that of an answer of the scheduler."""
    refusal = state.scheduler.refusal
    seen = state.backend.observation
    found: Iterable[tuple[str, str | None]] = (
        ("scheduler", state.scheduler.fault),
        ("VM", state.backend.fault),
        ("VM", state.backend.resizing.fault),
        ("VM", seen.refusal if seen is not None else None),
        ("informant", state.informant.fault),
        ("metrics", state.metrics.fault),
        ("policies", state.policies.fault),
    )
    return [
        {
            "peer": peer,
            "code": refusal.code if refusal is not None and peer == "scheduler" else None,
            "status": refusal.status if refusal is not None and peer == "scheduler" else None,
            "message": without_ids(fault),
        }
        for peer, fault in found
        if fault
    ]


# -------------------------------------------------------------------- the goal


def _goal_before_bounds(state: RunnerState) -> dict[str, str] | None:
    """What policies and time windows ask for, before the VM's bounds cut it; None before the first metrics."""
    goal = goal_of(state)
    if goal is None or goal.cpu.units is None or goal.memory.units is None:
        return None
    step = state.vm.unit.step
    return Resources(goal.cpu.units * step.vcpu_milli, goal.memory.units * step.memory_bytes).written()


def _goal_parts(state: RunnerState) -> dict[str, list[dict[str, Any]]] | None:
    """Every policy's part of the goal, the binding one first."""
    goal = goal_of(state)
    return None if goal is None else {"cpu": _listed(goal.cpu), "memory": _listed(goal.memory)}


def _listed(goal: ResourceGoal) -> list[dict[str, Any]]:
    return [{"policy": each.policy, "units": each.units, "reason": each.reason} for each in goal.parts]


# -------------------------------------------------------------------- the counterparts


def _scheduler(state: RunnerState, planned: Plan | None, now_s: float) -> dict[str, Any]:
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
        fault = {
            "status": refusal.status if refusal is not None else None,
            "code": refusal.code if refusal is not None else None,
            "supported": _versions(refusal.supported) if refusal is not None else None,
            "message": without_ids(link.fault),
        }
    return {
        "number": link.request.number if link.request is not None else None,
        "wanted": link.request.resources.written() if link.request is not None else None,
        "version": str(link.negotiation.version) if link.negotiation.version is not None else None,
        "supportedVersions": str(PLUGIN_SPOKEN),
        "isExhausted": link.negotiation.exhausted or link.negotiation.version is None,
        "hasExtension": (link.instance is not None) if link.has_succeeded else None,
        "instance": str(link.instance) if link.instance is not None else None,
        "epoch": link.seen_epoch,
        "answeredSecondsAgo": round(now_s - link.answered_s, 1) if link.has_succeeded else None,
        "leaseLeftSeconds": _left(link.lease_until_s, now_s),
        "isUnderWay": link.is_requesting,
        "nextSeconds": None if at_s is None else _left(at_s, now_s),
        "waitsFor": waits_for,
        "isUnsettled": link.is_unsettled,
        "isMigrating": link.is_migrating,
        "failures": link.failures,
        "fault": fault,
    }


def _look(state: RunnerState, now_s: float) -> dict[str, Any]:
    """The last look at the VM that worked, and what is wrong with those after it."""
    link = state.backend
    seen = link.observation
    return {
        "ageSeconds": None if seen is None else _left(now_s, seen.begun_s),
        "failures": link.failures,
        "fault": _told(link.fault),
    }


def _resize(state: RunnerState, planned: Plan | None, timing: Timing, now_s: float) -> dict[str, Any]:
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
    return {
        "phase": phase,
        "from": seen.size.written() if seen is not None else None,
        "to": target.written() if target is not None else None,
        "sinceSeconds": None if since_s is None else _left(now_s, since_s),
        "failures": failing.failures,
        "fault": _told(failing.fault),
        "refusal": _told(seen.refusal or "") if seen is not None else None,
        "retryInSeconds": _left(failing.retry_at_s, now_s) if failing.failures else None,
    }


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


def _containers(state: RunnerState) -> dict[str, Any] | None:
    """What the last look at a pod showed of its containers; None for what is no pod."""
    if not isinstance(state.backend.observation, PodObservation):
        return None
    found = state.backend.containers
    return {
        "notRunning": _told(found.waits),
        "mismatch": _told(state.backend.judged.mismatch),
        "mismatched": list(state.backend.judged.mismatched),
        "restarts": found.restarts,
        "lastEnd": _told(found.last_end),
    }


def _refused_sizes(state: RunnerState, now_s: float) -> list[dict[str, Any]]:
    return [
        {
            "kind": "growth" if each.is_growth else "shrink",
            "size": each.size.written(),
            "target": each.target.written(),
            "why": without_ids(each.why),
            "times": each.times,
            "retryInSeconds": _left(each.until_s, now_s),
        }
        for each in state.refused_at(now_s)
    ]


def _metrics(state: RunnerState, timing: Timing, now_s: float) -> dict[str, Any]:
    link = state.metrics
    age_s = None if link.read_s is None else now_s - link.read_s
    has_port = state.informant.metrics_port is not None
    return {
        "isStale": age_s is not None and age_s > timing.metrics_stale_s,
        "ageSeconds": None if age_s is None else round(age_s, 1),
        "staleAfterSeconds": timing.metrics_stale_s,
        "failures": link.failures,
        "fault": _told(link.fault),
        "plugin": link.source or None,
        "nextReadSeconds": _left(link.next_read_s, now_s) if has_port and not link.is_reading else None,
        "waitsFor": None if has_port else "informant",
    }


def _guest(state: RunnerState, now_s: float) -> dict[str, Any]:
    link = state.informant
    return {
        "phase": link.phase.value,
        "version": str(link.version) if link.version is not None else None,
        "heardSecondsAgo": _left(now_s, link.heard_s) if link.is_registered else None,
        "failures": link.failures,
        "fault": _told(link.fault),
        "refusedDownscale": _denials(link.denied, now_s),
        "urgent": _wishes(state, now_s),
    }


def _denials(denied: PerResource[Denial | None], now_s: float) -> dict[str, Any] | None:
    """The downscale that the guest refused, and when it is asked again."""
    found = [each for each in denied if each is not None]
    if not found:
        return None
    told = _amounts(*(None if each is None else each.amount for each in denied))
    return {**told, "retryInSeconds": _left(min(each.until_s for each in found), now_s)}


def _wishes(state: RunnerState, now_s: float) -> dict[str, Any] | None:
    """What the guest cannot wait for, as far as it has not come, and for how long that counts."""
    pairs = zip(state.informant.wishes, amounts(state.in_use()), strict=True)
    urgent = [
        each if each is not None and not each.is_over and each.amount > in_use else None
        for each, in_use in pairs
    ]
    found = [each for each in urgent if each is not None]
    if not found:
        return None
    told = _amounts(*(None if each is None else each.amount for each in urgent))
    return {**told, "leftSeconds": _left(max(each.until_s for each in found), now_s)}


def _takeover(state: RunnerState, now_s: float) -> dict[str, Any] | None:
    """Another agent owns the VM: how often in a row that happened, and when this one asks for the VM again."""
    if state.superseded_at_ms is None:
        return None
    rivalry = state.rivalry
    return {"timesInARow": rivalry.count, "nextLifeSeconds": _left(rivalry.wait_until_s, now_s)}


# -------------------------------------------------------------------- words and numbers


def _amounts(vcpu_milli: int | None, memory_bytes: int | None) -> Mapping[str, str]:
    """The amounts that are known, as documents write them."""
    written = Resources(vcpu_milli or 0, memory_bytes or 0).written()
    known = {"cpu": vcpu_milli is not None, "memory": memory_bytes is not None}
    return {name: amount for name, amount in written.items() if known[name]}


def _left(until_s: float, now_s: float) -> float:
    """Seconds from `now_s` to `until_s`, 0 where that is past."""
    return round(max(until_s - now_s, 0.0), 1)


def _versions(supported: tuple[int, int] | None) -> str | None:
    """What a scheduler speaks, as people name it."""
    if supported is None:
        return None
    low, high = (PluginProtoVersion(min(number, UINT32_MAX)) for number in supported)
    return str(VersionRange(low, high))


def _told(fault: str) -> str | None:
    """A text of a peer for people; None where there is none."""
    return without_ids(fault) if fault else None
