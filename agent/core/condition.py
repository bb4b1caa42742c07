"""The condition of a runner, in one word and with reasons: an operator asks for it first. Pure; reads only.

A runner is *stuck* when a peer that it needs was not heard for two ticks, or when every resize has failed for so long. A
runner that was refused, or that waits for an action under way, has a reason of its own.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from agent.core.plan import Plan
from agent.core.state import RunnerState
from agent.core.timing import Timing
from protocol.reasons import Reason, ReasonCode
from protocol.texts import counted
from protocol.values import ZERO, Resources

VM: Final = "VM"
"""The peer that a runner waits for when it cannot look at its VM, or cannot resize it."""


class Health(enum.StrEnum):
    STARTING = "starting"
    """The runner has not yet had the time to see its VM and to hear its scheduler."""
    OK = "ok"
    DENIED = "denied"
    """The VM should have more than is permitted, or another size than its node takes or puts into force; the reasons say why."""
    MIGRATING = "migrating"
    STUCK = "stuck"
    DORMANT = "dormant"
    """Another agent owns the VM."""


@dataclass(frozen=True, slots=True)
class DeniedGrowth:
    """The scheduler denies a part (`denied`) of the size that the VM should have (`wanted`).

    `lacks_room` says that the room of the VM's node binds. `has_room_elsewhere` says whether another node has room for all of `wanted`;
    None if the scheduler cannot tell, because it does not speak the extension.
    """

    wanted: Resources
    denied: Resources
    lacks_room: bool = False
    has_room_elsewhere: bool | None = None

    def __str__(self) -> str:
        cpu, memory = self.denied.written().values()
        parts = [f"{cpu} CPU"] * (self.denied.vcpu_milli > 0)
        parts += [f"{memory} of memory"] * (self.denied.memory_bytes > 0)
        return f"denied {' and '.join(parts)}, of the {self.wanted} that it should have"


@dataclass(frozen=True, slots=True)
class Condition:
    """A runner's health with its reasons; `peers` are the peers that do not answer. `mismatch` says how the VM's control groups differ
    from its size; empty if they do not. `growth` is what the scheduler denies; None if it denies nothing, or something else is the matter."""

    health: Health
    reasons: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    mismatch: str = ""
    growth: DeniedGrowth | None = None


def condition(state: RunnerState, planned: Plan | None, now_s: float, timing: Timing) -> Condition:
    found = _found(state, planned, now_s, timing)
    warnings = [state.rivalry.warning(now_s - state.began_s), *_built_in(state)]
    said = tuple(warning for warning in warnings if warning)
    return replace(found, reasons=(*found.reasons, *said)) if said else found


def _built_in(state: RunnerState) -> Iterator[str]:
    """The parts of the VM's scaling that go on with built-in code, because plugins did not answer."""
    if state.metrics.fault and not state.metrics.failures:  # a reading came, from elsewhere
        yield f"metrics: {state.metrics.fault}"
    if state.policies.fault:
        yield f"policies: {state.policies.fault}"


def _found(state: RunnerState, planned: Plan | None, now_s: float, timing: Timing) -> Condition:
    if state.superseded_at_ms is not None:
        left_s = max(state.rivalry.wait_until_s - now_s, 0.0)
        why = f"superseded by another agent of this VM; asks for it again in {left_s:.0f} s"
        return Condition(Health.DORMANT, (why,))
    containers, mismatch = state.backend.containers, state.backend.judged.mismatch
    waits = _waits(state, planned, now_s, timing)
    if waits:
        reasons = tuple(f"{peer}: {why}" for peer, why in waits)
        return Condition(Health.STUCK, reasons, tuple(dict.fromkeys(peer for peer, _ in waits)), mismatch)
    if state.scheduler.is_migrating:
        return Condition(Health.MIGRATING, ("the VM is being migrated away",), mismatch=mismatch)
    if not state.scheduler.has_succeeded or state.backend.observation is None:
        return Condition(Health.STARTING, (str(planned.reason),) if planned is not None else ())
    if mismatch:
        both = (mismatch, containers.waits)
        return Condition(Health.DENIED, tuple(filter(None, both)), mismatch=mismatch)
    if planned is not None and denied_resources(state, planned, now_s):
        reasons = _denied(state, planned, now_s)
        return Condition(Health.DENIED, reasons, growth=_denied_growth(state, planned, now_s))
    refused = state.refused_at(now_s)
    if refused:
        return Condition(Health.DENIED, tuple(map(str, refused)))
    said = (str(planned.reason),) if planned is not None else ()
    if containers.waits:
        return Condition(Health.OK, (*said, containers.waits))
    if planned is not None and any(state.informant.denied) and state.in_use().exceeds(planned.desired):
        return Condition(
            Health.OK, (*said, f"informant: {state.informant.fault or 'it refused a downscale'}")
        )
    return Condition(Health.OK, said)


def _denied(state: RunnerState, planned: Plan, now_s: float) -> tuple[str, ...]:
    """Why the VM does not get more, and of which resource."""
    reasons = tuple(map(str, denial_reasons(state, planned, now_s)))
    names = denied_resources(state, planned, now_s) if state.unit.is_apart else ()
    what = f" {' and '.join(names)}" if names else ""
    if reasons:
        return reasons
    if state.scheduler.is_requesting:
        return (f"the scheduler is asked for more{what} and has not answered yet",)
    return (f"the scheduler permits no more{what} and names no reason",)


def _denied_growth(state: RunnerState, planned: Plan, now_s: float) -> DeniedGrowth:
    link = state.scheduler
    elsewhere = any(reason.code is ReasonCode.ROOM_ELSEWHERE for reason in link.reasons)
    return DeniedGrowth(
        planned.desired,
        (planned.desired - state.claim_at(now_s)).max(ZERO),
        any(reason.code is ReasonCode.NODE_HEADROOM for reason in denial_reasons(state, planned, now_s)),
        elsewhere if link.instance is not None else None,
    )


def denial_reasons(state: RunnerState, planned: Plan, now_s: float) -> tuple[Reason, ...]:
    """The scheduler's reasons for the resources that should grow and may not, the binding reason first. Room on another node is none."""
    denied = denied_resources(state, planned, now_s)
    if not denied:
        return ()
    reasons = (each for each in state.scheduler.reasons if each.code is not ReasonCode.ROOM_ELSEWHERE)
    if not state.unit.is_apart:
        return tuple(reasons)
    about = (None, *denied)
    return tuple(reason for reason in reasons if reason.resource in about)


def denied_resources(state: RunnerState, planned: Plan, now_s: float) -> tuple[str, ...]:
    """The resources of which the VM should have more than it may use, as reasons name them."""
    pairs = zip(planned.desired.named(), state.claim_at(now_s).named(), strict=True)
    return tuple(name for (name, want), (_, most) in pairs if want > most)


def _waits(state: RunnerState, planned: Plan | None, now_s: float, timing: Timing) -> list[tuple[str, str]]:
    """The peers that were not heard for two ticks (or for their usual time, if that is longer), each with its last fault;
    and the VM if a resize is due and all have failed for that long."""
    patience_s = 2 * timing.tick_s
    link, seen, informant, metrics = (
        state.scheduler,
        state.backend.observation,
        state.informant,
        state.metrics,
    )
    looks_s = max(timing.observe_idle_s, timing.observe_rest_s) + timing.backend_deadline_s
    peers = (
        (VM, None if seen is None else seen.begun_s, looks_s, state.backend.fault),
        ("scheduler", link.answered_s if link.has_succeeded else None, 0.0, link.fault),
        (
            "informant",
            informant.heard_s if informant.is_registered else None,
            timing.informant_silence_s,
            informant.fault,
        ),
        ("metrics", metrics.read_s, 2 * timing.metrics_s, metrics.fault),
    )
    found = []
    for peer, last_s, usual_s, fault in peers:
        since_s = last_s if last_s is not None else state.began_s
        if now_s - since_s >= max(patience_s, usual_s):
            found.append((peer, fault or f"not heard for {now_s - since_s:.0f} s"))
    resizing = state.backend.resizing
    is_due = planned is not None and (planned.resizes or state.backend.sent is not None)
    if resizing.failures and is_due and now_s - resizing.since_s >= patience_s:
        times = f"{counted(resizing.failures, 'resize')} failed since {now_s - resizing.since_s:.0f} s ago"
        found.append((VM, f"{times}, the last one: {resizing.fault}"))
    return found
