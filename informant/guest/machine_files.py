"""The guest's CPUs and memory blocks as its kernel shows and switches them, in /sys/devices/system.

What is plugged in and out while the files are read may be missing from them. A CPU's own file waits while that CPU is being switched; the
lists of CPUs, which are read here, never wait. Source: reference/real-vm.md 2.1, 2.3, 3.1.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from informant.core.cpu_orders import CpuSwitch, GuestCpus
from informant.guest.findings import Finding
from protocol.plurals import counted

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
        """The CPUs now. Raises `OSError` or `ValueError` where the kernel does not tell."""
        online = _numbers((self._cpus / "online").read_text())
        present = _numbers((self._cpus / "present").read_text())
        if not online & present:
            raise ValueError(f"{self._cpus} shows no CPU that is online")
        return GuestCpus(present, online & present)

    def memory(self) -> MemoryBlocks:
        """The memory now. Raises `OSError` or `ValueError` where the kernel does not tell: not every kernel has memory blocks."""
        block_bytes = int((self._memory / "block_size_bytes").read_text(), 16)
        blocks = self._memory.glob("memory[0-9]*")
        return MemoryBlocks(block_bytes, block_bytes * sum(map(_is_online, blocks)))

    def switch(self, switch: CpuSwitch) -> None:
        """Switch a CPU. It takes as long as the kernel takes: 0.04 to 0.3 s in an idle guest under emulation.

        Raises `FileNotFoundError` where the CPU has gone or is not quite there, and `OSError` where the kernel refuses.
        """
        file = os.open(self._switch_of(switch.number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, b"1" if switch.is_on else b"0")
        finally:
            os.close(file)

    def lacks(self) -> str:
        """Why CPUs cannot be switched here; empty where they can. A CPU that was plugged a moment ago may have no file yet.

        Raises `OSError` or `ValueError` where the kernel does not tell which CPUs there are.
        """
        if not (self._cpus / "hotplug").is_dir():
            return f"{self._cpus / 'hotplug'} is not there: the kernel switches no CPUs"
        paths = (self._switch_of(number) for number in sorted(self.cpus().present))
        fixed = (path for path in paths if path.exists() and not os.access(path, os.W_OK))
        return next((f"{path} may not be written" for path in fixed), "")

    def _switch_of(self, number: int) -> Path:
        return self._cpus / f"cpu{number}" / "online"


def findings(files: MachineFiles) -> tuple[Finding, ...]:
    """Whether the machine can be shown and switched."""
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


def _numbers(text: str) -> frozenset[int]:
    """The numbers in a list such as `0-2,5`. Raises `ValueError` for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        found |= set(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)
