"""CPU strategies over the kernel's own control groups: what a busy process gets, and what the kernel refuses."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from agent.node.qos.core.actions import UNLIMITED, CgroupResource, CgroupUpdate, WriteResult
from agent.node.qos.core.metrics import NODE_CPU_USAGE, POD_CPU_USAGE
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.strategies.cpu_suppress import CPUSuppress
from tests.support.waiting import shown_blocking
from tests.unit.agent_qos.strategy_worlds import DirectClient, SetMetrics, SetStates, node, pod, ready

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
HAS_V1 = all(os.access(ROOT / name / "cgroup.procs", os.W_OK) for name in CONTROLLERS)
ALL_CPUS = frozenset(os.sched_getaffinity(0))
PERIODS = 20
QUOTA, BURST, CPUS = (
    CgroupResource.CPU_QUOTA_US,
    CgroupResource.CPU_BURST_US,
    CgroupResource.CPUSET_CPUS,
)
pytestmark = pytest.mark.skipif(
    not HAS_V1, reason="needs root and cgroup v1 with cpu, cpuacct, cpuset, memory"
)


@dataclass(frozen=True, slots=True)
class BestEffortTree:
    """A kubelet's tree with one best-effort pod of one container, below a group of the test's own."""

    top: str
    uid: str

    @property
    def group(self) -> str:
        return f"{self.top}/kubepods/besteffort"

    @property
    def container(self) -> str:
        return f"{self.group}/pod{self.uid}/app"

    def groups(self) -> list[str]:
        """All groups, outer ones first."""
        parts = self.container.split("/")
        return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]

    def number(self, controller: str, name: str, key: str = "") -> int:
        """A number in a file of the container, or beside a key there."""
        text = (ROOT / controller / self.container / name).read_text()
        return int(dict(line.split() for line in text.splitlines())[key] if key else text)


@pytest.fixture
def tree() -> Iterator[BestEffortTree]:
    found = BestEffortTree(f"parley-test-{os.getpid()}", str(uuid4()))
    paths = [ROOT / controller / group for controller in CONTROLLERS for group in found.groups()]
    try:
        for path in paths:
            path.mkdir()
            if path.is_relative_to(ROOT / "cpuset"):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (path / name).write_text((ROOT / "cpuset" / name).read_text())
        yield found
    finally:
        for path in reversed(paths):
            path.rmdir()


@contextmanager
def spinning(tree: BestEffortTree) -> Iterator[int]:
    """A process in the container that computes without end; its ID."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            for controller in CONTROLLERS:
                (ROOT / controller / tree.container / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


def test_a_busy_process_is_held_to_the_share_and_set_free_again(tree: BestEffortTree) -> None:
    """The share is a fifth of a CPU: what the others use leaves no more of the threshold."""
    plugin, client, metrics = CPUSuppress(), DirectClient(ResourceExecutor()), SetMetrics()
    states = SetStates(node(2000), (pod(tree.uid), pod("others", "Burstable")))
    metrics.values = {NODE_CPU_USAGE: {(): 2.0}, POD_CPU_USAGE: {("others",): 1.1, (tree.uid,): 0.9}}
    ready(plugin, client, metrics, states, group=tree.group)
    with spinning(tree):
        plugin.round()
        assert client.read(tree.group, QUOTA) == 20_000, client.last
        stat = ROOT / "cpu" / tree.group / "cpu.stat"

        def counters() -> tuple[int, int, int]:
            periods, throttled, *_ = (int(line.split()[1]) for line in stat.read_text().splitlines())
            return periods, throttled, tree.number("cpuacct", "cpuacct.usage")

        before = counters()
        shown_blocking("periods", lambda: counters()[0] >= before[0] + PERIODS)
        after = counters()
        used_us = (after[2] - before[2]) // 1000
        assert after[1] > before[1], "throttled"
        assert used_us <= (after[0] - before[0] + 2) * 20_000 * 5 // 4

        plugin.stop()
        assert client.read(tree.group, QUOTA) == UNLIMITED
        freed = counters()
        shown_blocking("half a second of work", lambda: counters()[2] >= freed[2] + 500_000_000)
        assert counters()[1] <= freed[1] + 1


@pytest.mark.skipif(len(ALL_CPUS) < 2, reason="needs two CPUs")
def test_a_busy_process_runs_on_the_cpus_of_its_group(tree: BestEffortTree) -> None:
    executor, groups = ResourceExecutor(), tree.groups()[2:]
    first, last = min(ALL_CPUS), max(ALL_CPUS)
    with spinning(tree) as process:
        for text, cpus in ((str(first), {first}), (str(last), {last}), ("", ALL_CPUS)):
            outcomes = executor.write([CgroupUpdate(group, CPUS, text, "test") for group in groups])
            assert {each.result for each in outcomes} == {WriteResult.WRITTEN}, outcomes
            assert os.sched_getaffinity(process) == cpus


def test_the_kernel_takes_nested_values_in_our_order_and_what_it_refuses_is_told(
    tree: BestEffortTree,
) -> None:
    executor = ResourceExecutor()
    outer, inner = tree.group, tree.container.rpartition("/")[0]

    def write(*values: tuple[str, CgroupResource, int]) -> list[WriteResult]:
        updates = [CgroupUpdate(group, resource, value, "test") for group, resource, value in values]
        return [each.result for each in executor.write(updates)]

    written = [WriteResult.WRITTEN]
    assert write((outer, QUOTA, 30_000), (inner, QUOTA, 30_000), (inner, BURST, 30_000)) == written * 3
    assert write((inner, BURST, 60_000), (inner, QUOTA, 60_000), (outer, QUOTA, 60_000)) == written * 3
    assert write((outer, QUOTA, 10_000), (inner, QUOTA, 10_000), (inner, BURST, 5000)) == written * 3
    assert write((inner, QUOTA, 20_000)) == [WriteResult.FAILED]
    assert write((outer, QUOTA, 9000)) == [WriteResult.FAILED]
    assert write((inner, BURST, 10_001)) == [WriteResult.FAILED]
    assert write((inner, CgroupResource.MEMORY_LOW_BYTES, 4096)) == [WriteResult.UNSUPPORTED]
    assert write((f"{outer}/gone", QUOTA, 9000)) == [WriteResult.GONE]
