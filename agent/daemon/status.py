"""What the agent tells of itself: `/v1/vms` for people and tools, and its metric families."""

import json
import time
from collections.abc import Iterator
from typing import Any

from agent.runner.runner import Runner
from hosting.metrics import Family, server_families
from hosting.server import Server
from protocol import quantities
from protocol.values import Resources


def amount(resources: Resources) -> dict[str, str]:
    """An amount as quantities."""
    memory = quantities.from_value(resources.memory_bytes, binary=True)
    return {"cpu": str(quantities.from_milli(resources.vcpu_milli)), "memory": str(memory)}


def vm_status(runner: Runner, now_s: float) -> dict[str, Any]:
    """One VM: what it has, wants and may use, and why."""
    state, planned, tally = runner.state, runner.last_plan, runner.tally
    link, seen, load = state.scheduler, state.backend.observation, state.metrics.load
    why = planned.reason if planned is not None else "starting"
    by_peer = {
        "scheduler": link.fault,
        "VM": state.backend.fault,
        "informant": state.informant.fault,
        "metrics": state.metrics.fault,
    }
    age_s = None if state.metrics.read_s is None else round(now_s - state.metrics.read_s, 1)
    faults = [f"{peer}: {fault}" for peer, fault in by_peer.items() if fault]
    binding = link.reasons[0] if link.reasons else None
    return {
        "vm": runner.vm.name,
        "agentID": str(state.life.agent_id),
        "size": amount(seen.size) if seen is not None else None,
        "target": amount(seen.target) if seen is not None else None,
        "goal": amount(planned.desired) if planned is not None else None,
        "permit": amount(link.permit) if link.permit is not None else None,
        "held": amount(state.held_at(now_s)),
        "sequenceNumber": link.source.last,
        "load": None
        if load is None
        else {
            "busyCPUs": None if load.busy_cpus is None else round(load.busy_cpus, 3),
            "load1": round(load.load1, 2),
        },
        "metricsAgeSeconds": age_s,
        "informant": state.informant.phase.value,
        "reason": f"{binding.code.value}: {binding.message}" if binding is not None else why,
        "reasonCode": binding.code.value if binding is not None else None,
        "faults": faults,
        "counts": {
            "permits": tally.permits,
            "resizes": tally.resizes,
            "refusals": dict(tally.refusals),
        },
    }


def document(node: str, daemon: str, runners: list[Runner]) -> bytes:
    """The whole of `/v1/vms`. `daemon` tells one life of this process from another."""
    now_s = time.monotonic()
    return json.dumps(
        {"node": node, "daemon": daemon, "vms": [vm_status(runner, now_s) for runner in runners]}
    ).encode()


def families(runners: list[Runner], server: Server, restarts: int) -> Iterator[Family]:
    """Every metric with its samples now. The names are listed in docs/operations.md."""

    def counter(name: str, text: str, label: str, read: Any) -> Family:
        samples = tuple(
            ((runner.vm.name, key), float(value))
            for runner in runners
            for key, value in sorted(read(runner.tally).items())
        )
        return Family("counter", name, text, ("vm", label), samples)

    yield counter("parley_agent_actions", "Actions taken up, by kind", "action", lambda tally: tally.actions)
    yield counter(
        "parley_agent_refusals", "Refusals and failures, by code", "code", lambda tally: tally.refusals
    )
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
    yield from server_families(server)
