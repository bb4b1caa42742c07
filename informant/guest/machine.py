"""The sources of readings: this machine's /proc and control groups, or a seeded synthetic workload."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hosting import proc_files
from hosting.cgroups.group_files import stalls
from informant.core.cpu_orders import CpuSwitch, GuestCpus
from informant.core.report import Reading
from informant.core.workload import Workload
from informant.guest.cgroup import Cgroup
from informant.guest.kernel import Finding
from protocol.cpu_lists import cpus_of
from protocol.texts import counted
from protocol.values import Resources

SYSTEM: Final = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True)
class MemoryBlocks:
    """The size of each memory block, and the sum of those that are online."""

    block_bytes: int
    online_bytes: int


class MachineFiles:
    """The machine below `system`."""

    def __init__(self, system: Path = SYSTEM) -> None:
        self._cpus = system / "cpu"
        self._memory = system / "memory"

    def cpus(self) -> GuestCpus:
        """The CPUs now. Raises `OSError` or `ValueError` if the kernel does not tell."""
        online = cpus_of((self._cpus / "online").read_text())
        present = cpus_of((self._cpus / "present").read_text())
        if not online & present:
            raise ValueError(f"{self._cpus} shows no CPU that is online")
        return GuestCpus(present, online & present)

    def memory(self) -> MemoryBlocks:
        """The memory now. Raises `OSError` or `ValueError` if the kernel does not tell: not every kernel has memory blocks."""
        block_bytes = int((self._memory / "block_size_bytes").read_text(), 16)
        blocks = self._memory.glob("memory[0-9]*")
        return MemoryBlocks(block_bytes, block_bytes * sum(map(_is_online, blocks)))

    def switch(self, switch: CpuSwitch) -> None:
        """Switch a CPU. It takes as long as the kernel takes: 0.04 to 0.3 s in an idle guest under emulation.

        Raises `FileNotFoundError` if the CPU has gone or is not quite there, and `OSError` if the kernel refuses.
        """
        file = os.open(self._switch_of(switch.number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"1" if switch.is_on else b"0")
        finally:
            os.close(file)

    def lacks(self) -> str:
        """Why CPUs cannot be switched here; empty if they can. A CPU that was plugged a moment ago may have no file yet.

        Raises `OSError` or `ValueError` if the kernel does not tell which CPUs there are.
        """
        if not (self._cpus / "hotplug").is_dir():
            return f"{self._cpus / 'hotplug'} is not there: the kernel switches no CPUs"
        paths = (self._switch_of(number) for number in sorted(self.cpus().present))
        fixed = (path for path in paths if path.exists() and not os.access(path, os.W_OK))
        return next((f"{path} may not be written" for path in fixed), "")

    def _switch_of(self, number: int) -> Path:
        return self._cpus / f"cpu{number}" / "online"


def findings(files: MachineFiles) -> tuple[Finding, ...]:
    """The findings that say whether the machine can be shown and switched."""
    try:
        lacks, cpus, memory = files.lacks(), files.cpus(), files.memory()
    except (OSError, ValueError) as error:
        return (Finding("machine", False, str(error)),)
    blocks, size = memory.online_bytes // memory.block_bytes, memory.block_bytes // 2**20
    told = f"{len(cpus.online)} of {counted(len(cpus.present), 'CPU')} online; {counted(blocks, 'memory block')} of {size} MiB"
    return (Finding("machine", not lacks, f"{told}; {lacks}" if lacks else told),)


def _is_online(block: Path) -> bool:
    try:
        return (block / "state").read_text().strip() == "online"
    except OSError:  # it has just been plugged out
        return False


GIB = 2**30


class GuestSource(Protocol):
    """Reads the guest. `resized` names the size that the agent announced."""

    def read(self) -> Reading:
        """The reading now. Raises `OSError` or `ValueError` if the machine cannot be read."""
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

    Time is the machine's monotonic clock, so that a restarted informant goes on with the present point of the curve.
    """

    def __init__(self, workload: Workload, size: Resources) -> None:
        self._workload = workload
        self._size = size
        self._last_s = time.monotonic()
        self._busy_s = 0.0

    def read(self) -> Reading:
        self._advance()
        load = self._workload.demand(self._last_s)
        total = self._size.memory_bytes
        used = min(total, self._workload.memory_bytes(self._last_s))
        cpus = max(1, self._size.vcpu_milli // 1000)
        return Reading(load, load, load, self._busy_s, cpus, total, total - used)

    def resized(self, size: Resources) -> None:
        self._advance()
        self._size = size

    def _advance(self) -> None:
        now_s = time.monotonic()
        self._busy_s += self._workload.busy_seconds(self._last_s, now_s, self._size.vcpu_milli / 1000)
        self._last_s = now_s
