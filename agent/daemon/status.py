"""What the agent shows: `/v1/vms` for people and tools, and the metric families."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agent.core.condition import Health, denial_reasons
from agent.core.plan import Plan
from agent.core.policies.values import Psi
from agent.daemon import vm_details
from agent.runner.event_json import event_document, without_ids
from agent.runner.runner import Runner
from agent.runner.stats import Latencies
from hosting.metrics import Family, HistogramFamily
from hosting.server import Reply, problem
from protocol.reasons import ErrorCode, Reason


def vm_status(runner: Runner, now_s: float) -> dict[str, Any]:
    """The status of one VM: its size, goal and permit, with reasons."""
    state, planned, stats = runner.state, runner.last_plan, runner.stats
    link, seen, load = state.scheduler, state.backend.observation, state.metrics.load
    why = planned.told(state.in_use()) if planned is not None else "starting"
    by_peer = {
        "scheduler": link.fault,
        "VM": state.backend.fault
        or state.backend.resizing.fault
        or (seen.refusal if seen is not None else None),
        "informant": state.informant.fault,
        "metrics": state.metrics.fault,
        "policies": state.policies.fault,
    }
    now = runner.condition(now_s)
    age_s = None if state.metrics.read_s is None else round(now_s - state.metrics.read_s, 1)
    faults = [without_ids(f"{peer}: {fault}") for peer, fault in by_peer.items() if fault]
    # reasons stay with the permit, also once that covers the goal
    binding = _binding_reason(runner, now_s) if now.health is Health.DENIED else None
    return {
        "vm": runner.vm.name,
        "agentID": str(state.life.agent_id),
        "size": seen.size.written() if seen is not None else None,
        "target": seen.target.written() if seen is not None else None,
        "tied": not state.unit.is_apart,
        "goal": planned.desired.written() if planned is not None else None,
        "goalReasons": _goal_reasons(planned),
        "permit": link.permit.written() if link.permit is not None else None,
        "held": state.held_at(now_s).written(),
        "sequenceNumber": link.source.last,
        "load": None
        if load is None
        else {
            "busyCPUs": None if load.busy_micro is None else round(load.busy_micro / 1e6, 3),
            "load1": None if load.load1 is None else round(load.load1, 2),
            "memoryUsed": load.memory_used(),
            "cpuPressure": _pressure(load.cpu_psi),
            "memoryPressure": _pressure(load.memory_psi),
        },
        "metricsAgeSeconds": age_s,
        "metricsPlugin": state.metrics.source or None,
        "informant": state.informant.phase.value,
        "reason": str(binding) if binding is not None else why,
        "reasonCode": binding.code.value if binding is not None else None,
        "faults": faults,
        "state": now.health.value,
        "stateReasons": [without_ids(reason) for reason in now.reasons],
        "counts": {
            "ticks": stats.ticks,
            "permits": stats.permits,
            "resizes": stats.resizes,
            "restarts": stats.restarts,
            "ends": dict(stats.ends),
            "refusals": dict(stats.refusals),
        },
    }


def _binding_reason(runner: Runner, now_s: float) -> Reason | None:
    """What the scheduler says first of a denied VM. None where another size than that is denied, or it names no reason."""
    if runner.last_plan is None:
        return None
    return next(iter(denial_reasons(runner.state, runner.last_plan, now_s)), None)


def _pressure(psi: Psi | None) -> float | None:
    """Per cent of the last period in which some task of the guest waited for the resource."""
    return None if psi is None or psi.some_avg10 is None else round(psi.some_avg10, 1)


def _goal_reasons(planned: Plan | None) -> dict[str, str] | None:
    return None if planned is None else {"cpu": planned.reason.cpu, "memory": planned.reason.memory}


@dataclass(frozen=True, slots=True)
class Beside:
    """What is told beside the runners, by VM: warnings about those that are scaled, why others are not, and their machines, where the
    back end knows of any."""

    warnings: Mapping[str, tuple[str, ...]]
    not_scaled: Mapping[str, tuple[str, ...]]
    machines: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)

    def with_warnings(self, more: Mapping[str, str]) -> "Beside":
        """The same with one more warning for some VMs."""
        added = {name: (*self.warnings.get(name, ()), text) for name, text in more.items()}
        return replace(self, warnings={**self.warnings, **added})


NOTHING_BESIDE: Final = Beside({}, {})


def document(node: str, daemon: str, runners: list[Runner], beside: Beside = NOTHING_BESIDE) -> bytes:
    """The whole of `/v1/vms`. `daemon` tells one life of this process from another."""
    now_s = time.monotonic()
    vms = [
        vm_status(runner, now_s)
        | {
            "machine": beside.machines.get(runner.vm.name),
            "warnings": list(beside.warnings.get(runner.vm.name, ())),
        }
        for runner in runners
    ]
    not_scaled = [{"vm": name, "reasons": list(reasons)} for name, reasons in beside.not_scaled.items()]
    return json.dumps({"node": node, "daemon": daemon, "vms": vms, "notScaled": not_scaled}).encode()


def details(
    runner: Runner,
    machine: Mapping[str, Any] | None = None,
    warnings: Iterable[str] = (),
    *,
    now_s: float | None = None,
) -> bytes:
    """One VM in full, for `/v1/vms/NAMESPACE/NAME`: its status, its machine, its plan, what it waits for, and what happened last.

    `now_s` is the runner's clock, that of this process where it is left out.
    """
    now_s = time.monotonic() if now_s is None else now_s
    planned, state = runner.last_plan, runner.state
    shown = vm_status(runner, now_s) | {
        "machine": machine,
        "warnings": list(warnings),
        "bounds": {"min": state.vm.bounds.min.written(), "max": state.vm.bounds.max.written()},
        "computeUnit": state.vm.unit.step.written(),
        "plan": {
            "desired": planned.desired.written(),
            "reason": str(planned.reason),
            "actions": [type(action).__name__ for action in planned.actions],
            "nextLookSeconds": round(max(planned.wake_at_s - now_s, 0.0), 2),
        }
        if planned is not None
        else None,
        "reasons": [
            {
                "code": reason.code.value,
                "resource": reason.resource,
                "message": reason.message,
                "retryAfterSeconds": reason.retry_after_s,
            }
            for reason in state.scheduler.reasons
        ],
        "journal": [
            {"secondsAgo": round(ago_s, 3), **event_document(event)} for ago_s, event in runner.journal(now_s)
        ],
    }
    return json.dumps(shown | vm_details.parts(state, planned, runner.timing, now_s)).encode()


def not_here(name: str, reasons: Iterable[str] = ()) -> Reply:
    """The answer for a VM without a runner: it is not scaled for `reasons`, or not known here."""
    why = tuple(reasons)
    if why:
        return problem(404, ErrorCode.VM_NOT_SCALED, f"{name} is not scaled: {'; '.join(why)}", why)
    return problem(404, ErrorCode.UNKNOWN_VM, f"there is no VM {name[:300]} here")


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


def state_families(runners: list[Runner]) -> Iterator[Family]:
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
            binding = _binding_reason(runner, now_s)
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


def _containers(runners: list[Runner]) -> Iterator[Family]:
    """What the last looks at pods showed of their containers."""
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
    runners: list[Runner], restarts: int, tasks: int = 0, calls: tuple[int, int] = (0, 0)
) -> Iterator[Family]:
    """Every metric with its samples now. The names are listed in docs/reference/metrics.md."""

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
