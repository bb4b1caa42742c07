"""The places of this machine's CPUs: cores, sockets and NUMA nodes, as the kernel tells in /sys."""

import re
from pathlib import Path
from typing import Final

from agent.node.qos.core.cpu_suppress import CpuPlace

CPUS: Final = Path("/sys/devices/system/cpu")
_CPU: Final = re.compile(r"cpu(\d+)")
_NODE: Final = re.compile(r"node(\d+)")


def read_topology(cpus: Path = CPUS) -> tuple[CpuPlace, ...]:
    """Every CPU that the kernel knows, by number. A number that it does not tell is 0, and its core is the CPU's own number."""
    found = []
    for directory in cpus.glob("cpu[0-9]*"):
        if (match := _CPU.fullmatch(directory.name)) is not None:
            cpu = int(match[1])
            nodes = [int(each[1]) for path in directory.glob("node*") if (each := _NODE.fullmatch(path.name))]
            core = _number(directory / "topology" / "core_id", cpu)
            socket = _number(directory / "topology" / "physical_package_id", 0)
            found.append(CpuPlace(cpu, core, socket, min(nodes, default=0)))
    return tuple(sorted(found, key=lambda place: place.cpu))


def _number(file: Path, default: int) -> int:
    """The number in a file, of which the kernel says -1 if it does not know."""
    try:
        found = int(file.read_text())
    except (OSError, ValueError):
        return default
    return found if found >= 0 else default
