"""The collectors over made-up files of both versions, and over this machine's own: what they find, and what they leave out."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.node.qos.collectors import Collectors
from agent.node.qos.core import metrics
from agent.node.qos.core.metrics import Aggregation, MetricKind
from agent.node.qos.core.states import NodeState, QosClass
from agent.node.qos.metric_cache import TimeSeriesCache
from hosting import logs
from hosting.cgroups.tree import CgroupTree
from hosting.proc_files import PROC
from protocol.values import ZERO, Resources
from tests.support.waiting import until
from tests.unit.agent_qos.strategy_worlds import SetStates, pod
from tests.unit.informant.pod_trees import MIB, UID, MadeGroup, made_pod

OTHER = UID.replace("1", "2")
ID, SECOND = "0123456789abcdef" * 4, "fedcba9876543210" * 4
TICKS = os.sysconf("SC_CLK_TCK")
NODE = NodeState("n", Resources(2000, 1024 * MIB), ZERO)
Found = Mapping[tuple[str, ...], float]


@dataclass
class World:
    """A machine of two CPUs and 1 GiB, made of files, with one pod; each round is a second."""

    root: Path
    is_v2: bool
    states: SetStates = field(default_factory=lambda: SetStates(NODE))
    now_s: float = 1000.0
    max_series: int = 100
    pod: MadeGroup = field(init=False)
    cache: TimeSeriesCache = field(init=False)
    collectors: Collectors = field(init=False)

    def __post_init__(self) -> None:
        self.proc, self.groups = self.root / "proc", self.root / "cgroup"
        self.proc.mkdir()
        self.pod = self.made(UID)
        self.container = self.pod.inside(ID).make()
        self.machine()
        self.cache = TimeSeriesCache(max_series=self.max_series, clock=lambda: self.now_s)
        self.collectors = Collectors(
            self.cache,
            CgroupTree(self.groups),
            self.states,
            logs.logger("test"),
            proc=self.proc,
            clock=lambda: self.now_s,
        )

    def made(self, uid: str, qos: str = "burstable") -> MadeGroup:
        return made_pod(self.groups, is_v2=self.is_v2, uid=uid, path=f"kubepods/{qos}/pod{uid}")

    def machine(self, busy_s: float = 0.0, available: int = 600, free: int = 400) -> None:
        ticks = round(busy_s * TICKS)
        (self.proc / "stat").write_text(f"cpu  {ticks} 0 0 9 9 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5\n")
        told = {"MemTotal": 1024, "MemFree": free, "MemAvailable": available}
        (self.proc / "meminfo").write_text("".join(f"{key}: {mib * 1024} kB\n" for key, mib in told.items()))

    def round(self) -> None:
        self.now_s += 1.0
        self.collectors.collect()

    def now(self, kind: MetricKind) -> Found:
        return {key: each.value for key, each in self.cache.query_each(kind, 0.5, Aggregation.LAST).items()}


@pytest.fixture(params=[True, False], ids=["v2", "v1"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, request.param)
    yield made
    made.collectors.close()


def test_use_of_the_node_its_pods_and_containers_is_collected(world: World) -> None:
    world.pod.cpu(10.0, limit=1.0, periods=100)
    world.round()
    assert world.now(metrics.NODE_CPU_USAGE) == {}, "one reading of a counter says nothing"
    world.machine(1.5)
    world.pod.cpu(10.5, limit=1.0, periods=110, throttled=4)
    world.pod.memory(100, 50)
    world.container.cpu(0.25, periods=99)
    world.container.memory(30)
    world.round()
    assert world.now(metrics.NODE_CPU_USAGE) == {(): 1.5}
    assert world.now(metrics.POD_CPU_USAGE) == {(UID,): 0.5}
    assert world.now(metrics.CONTAINER_CPU_USAGE) == {(ID,): 0.25}
    assert world.now(metrics.SYS_CPU_USAGE) == {(): 1.0}
    assert world.now(metrics.POD_CPU_THROTTLED) == {(UID,): 0.4}
    assert world.now(metrics.CONTAINER_CPU_THROTTLED) == {(ID,): 0.0}
    assert world.now(metrics.NODE_MEMORY_USAGE) == {(): 424.0 * MIB}
    assert world.now(metrics.NODE_MEMORY_WITH_PAGE_CACHE) == {(): 624.0 * MIB}
    assert world.now(metrics.POD_MEMORY_USAGE) == {(UID,): 100.0 * MIB}
    assert world.now(metrics.CONTAINER_MEMORY_USAGE) == {(ID,): 30.0 * MIB}
    assert world.now(metrics.SYS_MEMORY_USAGE) == {(): 324.0 * MIB}
    figures = world.collectors.figures
    assert (figures.rounds, figures.pods, figures.left_out) == (2, 1, {})


def test_what_the_system_uses_is_never_below_zero(world: World) -> None:
    world.pod.memory(900)
    world.round()
    world.machine(0.5)
    world.pod.cpu(0.75)
    world.round()
    assert world.now(metrics.SYS_CPU_USAGE) == {(): 0.0}
    assert world.now(metrics.SYS_MEMORY_USAGE) == {(): 0.0}


def test_pods_of_the_best_effort_group_are_added_up_beside_what_it_may_use_and_they_request(
    world: World,
) -> None:
    group = world.made(OTHER, "besteffort")
    above = MadeGroup(world.groups, "kubepods/besteffort", world.is_v2)
    if world.is_v2:
        above.events()
    else:
        for name, text in (("limit_in_bytes", "9223372036854771712"), ("usage_in_bytes", "0")):
            above.write("memory", f"memory.{name}", text)
        above.write("cpu", "cpu.cfs_period_us", "100000")
    above.cpu(limit=0.75)
    above.memory(limit=512)
    batch = Resources(250, 64 * MIB)
    by_label = replace(pod(UID, "Burstable"), qos=QosClass.BEST_EFFORT, requests=batch, batch_requests=batch)
    held_back = replace(pod(OTHER), qos=QosClass.LATENCY_SENSITIVE, batch_requests=batch)
    ended = replace(pod("ended"), is_finished=True, batch_requests=batch)
    world.states.pods = (by_label, held_back, ended)
    world.round()
    world.pod.cpu(0.5)
    group.cpu(0.25)
    group.memory(8)
    world.round()
    expected = {
        ("cpu", "usage"): 0.25,
        ("memory", "usage"): 8.0 * MIB,
        ("cpu", "request"): 0.25,
        ("memory", "request"): 64.0 * MIB,
        ("cpu", "real-limit"): 0.75,
        ("memory", "real-limit"): 512.0 * MIB,
    }
    assert world.now(metrics.NODE_BE) == expected
    above.cpu()
    cpuset = world.groups / ("" if world.is_v2 else "cpuset") / "kubepods/besteffort"
    cpuset.mkdir(parents=True, exist_ok=True)
    (cpuset / ("cpuset.cpus.effective" if world.is_v2 else "cpuset.effective_cpus")).write_text("1\n")
    world.round()
    assert world.now(metrics.NODE_BE)["cpu", "real-limit"] == 1.0, "the CPUs that the group may run on"


def test_which_pods_are_best_effort_is_unknown_until_the_states_have_synced(world: World) -> None:
    world.states.node = None
    world.round()
    assert world.now(metrics.NODE_BE) == {}


def test_pressure_is_collected_where_the_kernel_has_it(world: World) -> None:
    world.round()
    assert world.now(metrics.PSI) == {}
    (world.proc / "pressure").mkdir()
    (world.proc / "pressure/io").write_text("some avg10=2.50 avg60=0.00 avg300=0.00 total=9\n")
    world.round()
    assert world.now(metrics.PSI)["io", "avg10", "some"] == 2.5


def test_pods_and_containers_come_and_go(world: World) -> None:
    for _ in range(2):
        world.round()
    second = world.pod.inside(SECOND).make()
    other = world.made(OTHER)
    world.round()
    assert world.now(metrics.CONTAINER_MEMORY_USAGE).keys() == {(ID,), (SECOND,)}
    assert world.now(metrics.POD_MEMORY_USAGE).keys() == {(UID,), (OTHER,)}
    assert world.now(metrics.SYS_CPU_USAGE) == {}, "what a new pod used is not known, so neither is the rest"
    second.remove()
    other.remove()
    world.round()
    for kind in (metrics.POD_MEMORY_USAGE, metrics.CONTAINER_MEMORY_USAGE):
        assert len(world.cache.query_each(kind, 60.0)) == 1, "the series of what is gone end"
    assert world.now(metrics.SYS_CPU_USAGE) == {(): 0.0}


def test_a_pod_that_is_gone_between_listing_and_reading_is_left_out(world: World) -> None:
    world.made(OTHER)
    name = "memory.current" if world.is_v2 else "memory.usage_in_bytes"
    (world.pod.root / ("" if world.is_v2 else "memory") / world.pod.path / name).unlink()
    world.round()
    assert world.now(metrics.POD_MEMORY_USAGE).keys() == {(OTHER,)}
    assert world.collectors.figures.left_out == {"pod": 1}


def test_a_counter_that_jumps_back_is_another_one(world: World) -> None:
    for busy_s in (100.0, 101.0, 0.5, 1.0):
        world.pod.cpu(busy_s)
        world.machine(busy_s)
        world.round()
        if busy_s == 0.5:
            assert world.now(metrics.POD_CPU_USAGE) == world.now(metrics.NODE_CPU_USAGE) == {}
    assert world.now(metrics.POD_CPU_USAGE) == {(UID,): 0.5}
    assert world.now(metrics.NODE_CPU_USAGE) == {(): 0.5}


def test_a_round_at_the_same_moment_finds_no_rates(world: World) -> None:
    world.round()
    world.pod.cpu(1.0)
    world.collectors.collect()
    assert world.now(metrics.POD_CPU_USAGE) == {}


@pytest.mark.parametrize(
    ("name", "text", "what", "missing", "stays"),
    [
        ("stat", None, "node cpu", metrics.NODE_CPU_USAGE, metrics.NODE_MEMORY_USAGE),
        ("stat", "cpu x\n", "node cpu", metrics.SYS_CPU_USAGE, metrics.POD_CPU_USAGE),
        ("meminfo", "MemTotal: 1 kB\n", "node memory", metrics.NODE_MEMORY_USAGE, metrics.NODE_CPU_USAGE),
        ("meminfo", None, "node memory", metrics.SYS_MEMORY_USAGE, metrics.POD_MEMORY_USAGE),
    ],
)
def test_a_file_that_cannot_be_read_takes_nothing_else_along(
    name: str, text: str | None, what: str, missing: MetricKind, stays: MetricKind, world: World
) -> None:
    world.round()
    (world.proc / name).unlink()
    if text is not None:
        (world.proc / name).write_text(text)
    world.round()
    assert world.now(missing) == {}
    assert world.now(stays) != {}
    assert world.collectors.figures.left_out == {what: 1}
    world.machine()
    for _ in range(2):
        world.round()
    assert world.now(missing) != {}


def test_series_that_the_cache_has_go_on_when_it_is_full(tmp_path: Path) -> None:
    world = World(tmp_path, is_v2=True, max_series=9)
    for _ in range(2):
        world.round()
    assert world.now(metrics.NODE_CPU_USAGE) == {}, "the tenth series"
    assert world.now(metrics.NODE_MEMORY_USAGE) == {(): 424.0 * MIB}
    assert world.now(metrics.POD_MEMORY_USAGE) != {}
    left_out = world.collectors.figures.left_out
    assert left_out == {"node series": 2, "pod series": 4}
    world.collectors.close()


async def test_this_machine_is_collected_in_a_thread_until_the_end() -> None:
    cache, log = TimeSeriesCache(), logs.logger("test")
    collectors = Collectors(cache, CgroupTree(), SetStates(NODE), log, proc=PROC, interval_s=0.02)
    task = asyncio.create_task(collectors.run())
    await until(lambda: cache.query(metrics.NODE_CPU_USAGE, 60.0, Aggregation.COUNT).count > 1, beside=task)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    rounds = collectors.figures.rounds
    assert cache.query(metrics.NODE_MEMORY_USAGE, 60.0, Aggregation.COUNT).count <= rounds
    used = cache.query(metrics.NODE_MEMORY_USAGE, 60.0, Aggregation.LAST).value
    assert 0 < used <= cache.query(metrics.NODE_MEMORY_WITH_PAGE_CACHE, 60.0, Aggregation.LAST).value
