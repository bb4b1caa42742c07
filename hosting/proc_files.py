"""The figures of the whole machine, as /proc tells them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_MEMORY: Final = ("MemTotal", "MemAvailable", "MemFree")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """The CPU time that all CPUs have been busy, the time that others on the host took from this machine included, and how many CPUs are
    online."""

    busy_s: float
    cpus: int


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """All memory, the part that programs could get without swapping, and the part that nothing uses at all."""

    total_bytes: int
    available_bytes: int
    free_bytes: int


def cpu_time(proc: Path = PROC) -> CpuTime:
    """The CPU time now. Raises `OSError` or `ValueError`."""
    lines = (proc / "stat").read_text().split("\n")
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(part) for part in lines[0].split()[1:9])
    cpus = sum(line.startswith("cpu") for line in lines) - 1
    return CpuTime((user + nice + system + irq + softirq + steal) / _TICKS_PER_S, cpus)


def memory(proc: Path = PROC) -> MachineMemory:
    """The memory now. Raises `OSError` or `ValueError`."""
    found = {}
    for line in (proc / "meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _MEMORY:
            found[name] = int(rest.removesuffix("kB")) * 1024
    missing = [name for name in _MEMORY if name not in found]
    if missing:
        raise ValueError(f"meminfo shows no {' and no '.join(missing)}")
    return MachineMemory(*(found[name] for name in _MEMORY))
