"""MemoryEvict and CPUEvict as extensions: flags, rounds, what they tell."""

import random
from typing import Any

import pytest

from agent.node.qos.core.actions import EvictResult
from agent.node.qos.core.metrics import (
    NODE_BE,
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
)
from agent.node.qos.core.states import QosClass
from agent.node.qos.strategies.evicting import CPUEvict, EvictStrategy, MemoryEvict
from hosting.settings import FaultsError
from protocol.values import Resources
from tests.support.evictions import GIB, FakeClient, FakeMetrics, FakeStates, Never, args_of, pod

ALLOWED = {"koordinator.sh/eviction-enabled": "true"}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A strategy on a made-up node; `go` has it do a round."""

    def __init__(self, made: type[MemoryEvict] | type[CPUEvict], **args: object) -> None:
        self.client, self.metrics, self.states, self.clock = (
            FakeClient(),
            FakeMetrics(),
            FakeStates(),
            Clock(),
        )
        self.strategy: EvictStrategy[Any] = made(self.clock, random.Random(1))
        self.strategy.init_flags(args_of(made, **args))
        self.strategy.setup(self.client, self.metrics, self.states)

    def go(self, after_s: float = 1) -> tuple[str, str]:
        """The code and the message of a round, with the names of those evicted by then."""
        self.clock.now_s += after_s
        self.strategy.round(Never())
        decision = self.client.decisions[-1]
        assert decision.is_action == (
            decision.reason in {"evicted", "gone", "recommended", "refused", "failed"}
        )
        return decision.reason, " ".join(name for name, _ in self.client.evicted)


def memory_bench(**args: object) -> Bench:
    bench = Bench(MemoryEvict, **args)
    bench.states.pods = (
        pod("batch", qos=QosClass.BEST_EFFORT),
        pod("low", priority=1, qos=QosClass.LATENCY_SENSITIVE, labels=ALLOWED),
        pod("high", priority=9, qos=QosClass.LATENCY_SENSITIVE, labels=ALLOWED),
        pod("silent", qos=QosClass.LATENCY_SENSITIVE),
    )
    for name, gib in (("batch", 1), ("low", 4), ("high", 20), ("silent", 30)):
        bench.metrics.set(POD_MEMORY_USAGE, gib * GIB, f"u-{name}")
    return bench


def test_memory_goes_to_best_effort_pods_first_and_then_by_priority() -> None:
    bench = memory_bench()
    assert bench.go() == ("no-metric", "")
    bench.metrics.set(NODE_MEMORY_USAGE, 69 * GIB)
    assert bench.go() == ("no-pressure", "")
    bench.metrics.set(NODE_MEMORY_USAGE, 71 * GIB)
    assert bench.go() == ("evicted", "batch low")
    assert [reason for _, reason in bench.client.evicted] == [
        "BEMemoryEvict: memory in use 71.0 % (releasing until 68 %); 3072 MiB to release, of which this pod has 1024 MiB",
        "MemoryEvict: memory in use 71.0 % (releasing until 68 %); 2048 MiB to release, of which this pod has 4096 MiB",
    ]
    assert bench.client.decisions[-1].message == (
        "default/batch evicted, for BEMemoryEvict; default/low evicted, for MemoryEvict; memory in use 71.0 % (releasing until 68 %)"
    )
    assert bench.go() == ("releasing", "batch low")
    inputs = bench.client.decisions[-1].inputs
    assert (inputs["MemoryEvict.taken"], inputs["MemoryEvict.to_release"]) == (71 * GIB, 3 * GIB)
    bench.metrics.set(NODE_MEMORY_USAGE, 90 * GIB)
    assert bench.go() == ("cooling-down", "batch low")
    assert bench.go(4) == ("evicted", "batch low high")
    bench.metrics.set(NODE_MEMORY_USAGE, 99 * GIB)
    assert bench.go(4) == ("no-victim", "batch low high")
    assert "MemoryEvict lacks 6144 MiB" in bench.client.decisions[-1].message


def test_a_mark_that_cannot_be_read_is_told_once_for_each_text() -> None:
    bench = memory_bench()

    def told(text: str) -> list[tuple[str, str]]:
        marks = {"parley.dev/eviction-priority": text}
        bench.states.pods = (pod("a", labels=ALLOWED, annotations=marks), pod("b", labels=ALLOWED))
        bench.go()
        return bench.client.events

    first = told("soon")
    assert [(reason, "found soon" in message) for reason, message in first] == [("WrongAnnotation", True)]
    assert len(told("soon")) == 1
    assert len(told("later")) == 2
    assert len(told("3")) == 2


def test_releasing_goes_on_until_the_lower_threshold() -> None:
    bench = memory_bench(threshold_percent=80, lower_percent=60)
    bench.client.results = [
        EvictResult.REFUSED,
        EvictResult.REFUSED,
        EvictResult.REFUSED,
        EvictResult.EVICTED,
    ]
    bench.metrics.set(NODE_MEMORY_USAGE, 80 * GIB)
    assert bench.go() == ("refused", "batch low high")
    bench.metrics.set(NODE_MEMORY_USAGE, 70 * GIB)
    assert bench.go() == ("no-victim", "batch low high")
    assert "memory in use 70.0 % (begun at 80 %, releasing until 60 %)" in bench.client.decisions[-1].message
    assert bench.go(90) == ("evicted", "batch low high batch low high")
    bench.metrics.set(NODE_MEMORY_USAGE, 60 * GIB)
    assert bench.go() == ("no-pressure", "batch low high batch low high")


def test_what_is_recommended_is_told_once() -> None:
    bench = memory_bench()
    bench.client.results = [EvictResult.RECOMMENDED]
    bench.metrics.set(NODE_MEMORY_USAGE, 71 * GIB)
    assert [bench.go()[0] for _ in range(600)] == ["recommended"] + ["releasing"] * 599
    assert [name for name, _ in bench.client.evicted] == ["batch", "low"]


def test_best_effort_pods_go_where_cpu_does_not_satisfy_them() -> None:
    bench = Bench(CPUEvict)
    bench.states.pods = (
        pod("batch", batch_requests=Resources(4_000, 0)),
        pod("other", priority=1, batch_requests=Resources(6_000, 0)),
        pod("web", qos=QosClass.LATENCY_SENSITIVE, requests=Resources(1_000, 0), labels=ALLOWED),
    )
    for name, value in (("usage", 2.0), ("real-limit", 2.0), ("request", 10.0)):
        bench.metrics.set(NODE_BE, value, "cpu", name)
    bench.metrics.set(NODE_CPU_USAGE, 5.0)
    assert bench.go() == ("evicted", "batch")
    assert "CPU of best-effort pods: use 2000m, limit 2000m, requests 10000m" in bench.client.evicted[0][1]
    assert bench.go(25) == ("releasing", "batch")
    for name in ("web", "other"):
        bench.metrics.set(POD_CPU_USAGE, 3.0, f"u-{name}")
    bench.metrics.set(NODE_CPU_USAGE, 9.9)
    assert bench.go(25) == ("evicted", "batch web")
    bench.metrics.span_s = 19
    assert bench.go(25) == ("no-metric", "batch web")


def test_without_a_node_nobody_goes() -> None:
    bench = memory_bench()
    bench.states.node = None
    assert bench.go() == ("no-node", "")


class SoonOver:
    """An end that is asked for after some waits."""

    def __init__(self, waits: int) -> None:
        self.waits, self.waited_s = waits, 0.0

    def is_set(self) -> bool:
        return self.waits <= 0

    def wait(self, timeout_s: float) -> bool:
        self.waits -= 1
        self.waited_s += timeout_s
        return self.is_set()


def test_a_round_in_each_interval_until_the_end_is_asked_for() -> None:
    bench = memory_bench(interval=2.0)
    stop = SoonOver(4)
    bench.strategy.run(stop)
    bench.strategy.stop()
    assert (len(bench.client.decisions), stop.waited_s) == (3, 8.0)


def test_where_the_end_is_asked_for_nobody_else_goes() -> None:
    bench = memory_bench()
    bench.metrics.set(NODE_MEMORY_USAGE, 71 * GIB)
    bench.strategy.round(SoonOver(0))
    assert bench.client.evicted == []


def test_all_faults_of_the_args_are_told_at_once() -> None:
    with pytest.raises(FaultsError) as caught:
        Bench(
            MemoryEvict,
            threshold_percent=101,
            lower_percent=100,
            allocatable_threshold_percent=50,
            allocatable_lower_percent=50,
            tasks=["MemoryEvict", "MemoryEvict", "CPUEvict"],
            max_victims=0,
            interval=0.0,
        )
    assert caught.value.faults == [
        "thresholdPercent: must be at most 100 (found 101)",
        "lowerPercent: must be at most 99 (found 100)",
        "interval: must be at least 0.1 (found 0.0)",
        "maxVictims: must be at least 1 (found 0)",
        "tasks[1]: MemoryEvict comes more than once",
        "tasks[2]: there is no task 'CPUEvict' (there are: BEMemoryEvict, MemoryAllocatableEvict, MemoryEvict)",
        "allocatableLowerPercent: must be below its threshold, which is 50 (found 50)",
    ]


def test_faults_of_satisfaction_and_of_tasks() -> None:
    with pytest.raises(FaultsError) as caught:
        Bench(CPUEvict, satisfaction_lower_percent=60, satisfaction_upper_percent=59, tasks=[])
    assert caught.value.faults == [
        "tasks: must not be empty (found 0)",
        "satisfactionUpperPercent: must not be below satisfactionLowerPercent, which is 60 (found 59)",
    ]
