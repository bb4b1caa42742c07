"""CPU strategies over the kernel's own control groups: what a busy process gets, and what the kernel refuses."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from agent.node.qos.core.actions import CgroupResource, CgroupUpdate, WriteResult
from agent.node.qos.executor import ResourceExecutor

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory")
HAS_V1 = all(os.access(ROOT / name / "cgroup.procs", os.W_OK) for name in CONTROLLERS)
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
