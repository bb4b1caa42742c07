"""A pod on a real node whose load the test sets, and the contents of its cgroups."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hosting.kubernetes.resources import Manifest
from labs.clusters.node.load_file import LoadFile
from tests.support.kube.objects import pod


class Load(LoadFile):
    """The work of a pod's container. At first there is none."""

    def pod(self, name: str, **arguments: Any) -> Manifest:
        """A pod with this load; the arguments are those of `objects.pod`."""
        return self.given_to(pod(name, **arguments))


def throttled_periods(cgroup: Path) -> int:
    """In how many periods the CPU limit of a cgroup has stopped its processes so far; the same in v1 and v2."""
    return _numbers(cgroup / "cpu.stat")["nr_throttled"]


def memory_in_use(cgroup: Path) -> int:
    files = (cgroup / "memory.current", cgroup / "memory.usage_in_bytes")
    return int(next(each for each in files if each.exists()).read_text())


def limits(cpu: Path, memory: Path) -> dict[str, int]:
    """`cpu_milli` and `memory_bytes` that are in force for the cgroups, in v1 and v2. Raises `ValueError` for no limit."""
    if (cpu / "cpu.max").exists():
        quota, period = (cpu / "cpu.max").read_text().split()
        return {
            "cpu_milli": int(quota) * 1000 // int(period),
            "memory_bytes": int((memory / "memory.max").read_text()),
        }
    quota_us, period_us = (int((cpu / f"cpu.cfs_{each}_us").read_text()) for each in ("quota", "period"))
    return {
        "cpu_milli": quota_us * 1000 // period_us,
        "memory_bytes": int((memory / "memory.limit_in_bytes").read_text()),
    }


def _numbers(file: Path) -> Mapping[str, int]:
    return {name: int(value) for name, value in (line.split() for line in file.read_text().splitlines())}
