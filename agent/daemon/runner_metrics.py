"""The metric families of runners. The names are listed in docs/reference/metrics.md."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agent.core.condition import Health
from agent.daemon.vm_pages import binding_reason
from agent.runner.runner import Runner
from agent.runner.stats import Latencies
from hosting.metrics import Family, HistogramFamily


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
            binding = binding_reason(runner, now_s)
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
