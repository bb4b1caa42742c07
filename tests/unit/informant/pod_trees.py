"""Made-up cgroup trees of kubelets, in both versions: the files of a pod and its containers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 2**20
UID: Final = "1f0c5d2e-3b4a-4c5d-8e9f-0a1b2c3d4e5f"
_V1: Final = {
    "cpuacct": {"cpuacct.usage": "0\n"},
    "cpu": {
        "cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        "cpu.cfs_quota_us": "-1\n",
        "cpu.cfs_period_us": "100000\n",
    },
    "memory": {
        "memory.usage_in_bytes": "0\n",
        "memory.stat": "",
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.failcnt": "0\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    },
}
_STALLS: Final = (
    "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
)


@dataclass(frozen=True)
class MadeGroup:
    """The files of one made-up cgroup; amounts of memory are in MiB, those of CPU in CPUs and seconds."""

    root: Path
    path: str
    is_v2: bool

    def make(self) -> "MadeGroup":
        """Make the group: it uses nothing, and has no limit."""
        if self.is_v2:
            (self.root / self.path).mkdir(parents=True)
            self.memory()
            self.cpu()
            self.events()
            for resource in ("cpu", "memory", "io"):
                self.write("", f"{resource}.pressure", _STALLS.format(0))
            return self
        for hierarchy, files in _V1.items():
            (self.root / hierarchy / self.path).mkdir(parents=True)
            for name, text in files.items():
                self.write(hierarchy, name, text)
        return self

    def write(self, hierarchy: str, name: str, text: str) -> None:
        file = self.root / self.path / name if self.is_v2 else self.root / hierarchy / self.path / name
        file.write_text(text)

    def cpu(
        self,
        busy_s: float = 0,
        limit: float | None = None,
        throttled: int = 0,
        throttled_s: float = 0,
        periods: int = 99,
    ) -> None:
        """The CPU time used, the limit, and what it has held back in how many periods."""
        quota = None if limit is None else round(limit * 100_000)
        if self.is_v2:
            stat = f"usage_usec {round(busy_s * 1e6)}\nuser_usec 0\nnr_periods {periods}\nnr_throttled {throttled}\n"
            self.write("", "cpu.stat", stat + f"throttled_usec {round(throttled_s * 1e6)}\n")
            self.write("", "cpu.max", f"{'max' if quota is None else quota} 100000\n")
            return
        self.write("cpuacct", "cpuacct.usage", f"{round(busy_s * 1e9)}\n")
        self.write("cpu", "cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")
        held = f"nr_throttled {throttled}\nthrottled_time {round(throttled_s * 1e9)}\n"
        self.write("cpu", "cpu.stat", f"nr_periods {periods}\n{held}")

    def memory(self, used: int = 0, cache: int = 0, limit: int | None = None) -> None:
        """The memory used without page cache, page cache, and the limit."""
        if self.is_v2:
            self.write("", "memory.current", f"{(used + cache) * MIB}\n")
            self.write(
                "", "memory.stat", f"anon 1\nactive_file {cache * MIB}\ninactive_file 0\nslab_reclaimable 0\n"
            )
            self.write("", "memory.max", "max\n" if limit is None else f"{limit * MIB}\n")
            return
        self.write("memory", "memory.usage_in_bytes", f"{(used + cache) * MIB}\n")
        # The parts without "total_" are those of the group itself, without the groups inside.
        stat = f"cache 7\nactive_file 7\ntotal_inactive_file {cache * MIB}\ntotal_active_file 0\n"
        self.write("memory", "memory.stat", stat)
        if limit is not None:
            self.write("memory", "memory.limit_in_bytes", f"{limit * MIB}\n")

    def events(self, hits: int = 0, kills: int = 0) -> None:
        """How often the limit was reached, and how many tasks were killed."""
        if self.is_v2:
            text = f"low 0\nhigh 0\nmax {hits}\noom 0\noom_kill {kills}\n"
            self.write("", "memory.events", text)
            self.write("", "memory.events.local", text)
            return
        self.write("memory", "memory.failcnt", f"{hits}\n")
        self.write("memory", "memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")

    def populated(self, *, is_so: bool) -> None:
        if self.is_v2:
            self.write("", "cgroup.events", f"populated {int(is_so)}\nfrozen 0\n")
        else:
            self.write("memory", "cgroup.procs", "7\n" if is_so else "")

    def waited(self, resource: str, waited_s: float) -> None:
        """The time that tasks have waited for a resource (v2)."""
        self.write("", f"{resource}.pressure", _STALLS.format(round(waited_s * 1e6)))

    def inside(self, name: str) -> "MadeGroup":
        return MadeGroup(self.root, f"{self.path}/{name}", self.is_v2)

    def remove(self) -> None:
        """Remove the group, as the kernel does: the directories go with all their files."""
        hierarchies = (self.root,) if self.is_v2 else (self.root / name for name in _V1)
        for hierarchy in hierarchies:
            _remove(hierarchy / self.path)


def _remove(path: Path) -> None:
    for each in path.iterdir():
        if each.is_dir():
            _remove(each)
        else:
            each.unlink()
    path.rmdir()


def made_pod(root: Path, *, is_v2: bool = True, uid: str = UID, path: str | None = None) -> MadeGroup:
    """A pod with one container called `app`, both without limits."""
    pod = MadeGroup(root, path or f"kubepods/burstable/pod{uid}", is_v2).make()
    pod.inside("app").make()
    return pod
