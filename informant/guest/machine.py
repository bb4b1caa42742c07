"""Where readings come from: this machine's /proc, or a seeded synthetic workload."""

import time
from pathlib import Path
from typing import Protocol

from hosting import proc_files
from hosting.cgroups.group_files import stalls
from informant.core.report import Reading
from informant.core.workload import Workload
from informant.guest.cgroup import Cgroup
from protocol.values import Resources

GIB = 2**30


class GuestSource(Protocol):
    """Reads the guest. `resized` names the size that the agent announced."""

    def read(self) -> Reading:
        """The reading now. Raises `OSError` or `ValueError` where the machine cannot be read."""
        ...

    def resized(self, size: Resources) -> None:
        """The VM has, or is about to have, this size."""
        ...


class ProcSource:
    """Reads /proc. Missing parts (PSI on old kernels) are left out; load, CPU time and memory must be there."""

    def __init__(self, proc: Path = proc_files.PROC, cgroup: Cgroup | None = None) -> None:
        self._proc = proc
        self._cgroup = cgroup

    def read(self) -> Reading:
        """The machine now."""
        load1, load5, load15 = (self._proc / "loadavg").read_text().split()[:3]
        cpu, memory = proc_files.cpu_time(self._proc), proc_files.memory(self._proc)
        return Reading(
            float(load1),
            float(load5),
            float(load15),
            cpu.busy_s,
            cpu.cpus,
            memory.total_bytes,
            memory.available_bytes,
            self._pressure(),
            self._oom_kills(),
            self._cgroup.read() if self._cgroup is not None else None,
        )

    def resized(self, size: Resources) -> None:
        """A machine knows its own size."""

    def _pressure(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for resource in ("cpu", "memory", "io"):
            try:
                found |= stalls(resource, (self._proc / "pressure" / resource).read_text())
            except OSError:
                continue  # no PSI in this kernel
        return found

    def _oom_kills(self) -> int | None:
        try:
            lines = (self._proc / "vmstat").read_text().splitlines()
        except OSError:
            return None
        found = (line.removeprefix("oom_kill ") for line in lines if line.startswith("oom_kill "))
        return next((int(count) for count in found if count.isdecimal()), None)


class WorkloadSource:
    """A guest that follows a synthetic workload, inside the size that its agent announced.

    Time is the machine's monotonic clock, so that a restarted informant goes on where the curve is by now.
    """

    def __init__(self, workload: Workload, size: Resources) -> None:
        self._workload = workload
        self._size = size
        self._last_s = time.monotonic()
        self._busy_s = 0.0

    def read(self) -> Reading:
        """The guest now."""
        self._advance()
        load = self._workload.demand(self._last_s)
        total = self._size.memory_bytes
        used = min(total, self._workload.memory_bytes(self._last_s))
        cpus = max(1, self._size.vcpu_milli // 1000)
        return Reading(load, load, load, self._busy_s, cpus, total, total - used)

    def resized(self, size: Resources) -> None:
        """From now on the guest has this size."""
        self._advance()
        self._size = size

    def _advance(self) -> None:
        now_s = time.monotonic()
        self._busy_s += self._workload.busy_seconds(self._last_s, now_s, self._size.vcpu_milli / 1000)
        self._last_s = now_s
