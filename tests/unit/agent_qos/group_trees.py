"""Control groups as plain files in a temporary tree, and an executor over one that refuses what the kernel refuses."""

import errno
from collections.abc import Callable
from pathlib import Path

from agent.node.qos import executor
from protocol.cpu_lists import cpus_of

FILES_V1 = {
    "cpu": {
        "cpu.cfs_quota_us": "-1",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_burst_us": "0",
        "cpu.shares": "1024",
    },
    "cpuset": {"cpuset.cpus": "0-7"},
    "memory": {},
}
FILES_V2 = {
    "cpu.max": "max 100000",
    "cpu.max.burst": "0",
    "cpu.weight": "100",
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-7",
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
}


class GroupTree:
    """Groups below `root`, with the kernel's files and values of new groups."""

    def __init__(self, root: Path, *, is_v2: bool = False) -> None:
        self.root = root
        self.is_v2 = is_v2
        self.make("")

    def make(self, *groups: str) -> None:
        """Make groups, and those around them that are not there."""
        for group in groups:
            if around := group.rpartition("/")[0]:
                self.make(around)
            for controller, files in {"": FILES_V2}.items() if self.is_v2 else FILES_V1.items():
                directory = self.root / controller / group
                if group and directory.is_dir():
                    continue
                directory.mkdir(parents=True, exist_ok=True)
                for name, text in files.items():
                    (directory / name).write_text(f"{text}\n")

    def file(self, group: str, name: str) -> Path:
        return self.root / ("" if self.is_v2 else name.partition(".")[0]) / group / name

    def text(self, group: str, name: str) -> str:
        return self.file(group, name).read_text().strip()

    def set(self, group: str, name: str, text: str) -> None:
        self.file(group, name).write_text(f"{text}\n")


class RefusingExecutor(executor.ResourceExecutor):
    """Writes as the kernel of cgroup v1 does: what would leave a group wider than the group around it is refused. `written` is called after
    each write; groups in `broken` cannot be written at all."""

    def __init__(self, tree: GroupTree, written: Callable[[], None] = lambda: None) -> None:
        super().__init__(tree.root)
        self._files = tree
        self._written = written
        self.broken: set[str] = set()
        self.tried: list[str] = []

    def _write(self, target: executor._Target, directory: int, text: str) -> None:
        group, name = "/".join(target.parts), target.file.name
        self.tried.append(group)
        if group in self.broken:
            raise OSError(errno.EIO, "broken")
        before = self._files.text(group, name)
        super()._write(target, directory, text)
        if faults(self._files):
            self._files.set(group, name, before)
            raise OSError(errno.EBUSY if name == "cpuset.cpus" else errno.EINVAL, "refused")
        self._written()


def faults(tree: GroupTree) -> list[str]:
    """Which groups of a tree of cgroup v1 are wider than the group around them allows, or have a burst above their quota."""
    found = []
    top = tree.root / "cpu"
    for file in top.rglob("cpu.cfs_quota_us"):
        group = file.parent.relative_to(top).as_posix()
        quota, burst = int(file.read_text()), int(tree.text(group, "cpu.cfs_burst_us"))
        around = [_quota(each) for each in file.parent.parents if each.is_relative_to(top)]
        if quota != -1 and (burst > quota or quota > min(around, default=quota)):
            found.append(f"{group}: quota {quota}, burst {burst}, around it {around}")
        parent = file.parent.parent
        if parent.is_relative_to(top):
            name = parent.relative_to(top).as_posix()
            if not cpus_of(tree.text(group, "cpuset.cpus")) <= cpus_of(tree.text(name, "cpuset.cpus")):
                found.append(f"{group}: CPUs outside those of {name}")
    return found


def _quota(directory: Path) -> float:
    quota = int((directory / "cpu.cfs_quota_us").read_text())
    return float("inf") if quota == -1 else quota
