"""A guest's /sys/devices/system made of files, and a kernel behind it that switches CPUs."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from informant.core.cpu_orders import CpuSwitch
from informant.guest.machine import MachineFiles

BLOCK = 128 * 2**20


def ranges(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers))) + "\n"


@dataclass
class MachineTree:
    """The files. CPU 0 has no switch, as in a kernel that cannot take it offline."""

    root: Path
    present: set[int] = field(default_factory=lambda: {0, 1, 2, 3})
    online: set[int] = field(default_factory=lambda: {0})
    blocks: dict[int, str] = field(default_factory=lambda: dict.fromkeys(range(4), "online"))

    def write(self) -> "MachineTree":
        cpu, memory = self.root / "cpu", self.root / "memory"
        (cpu / "hotplug").mkdir(exist_ok=True, parents=True)
        (cpu / "present").write_text(ranges(self.present))
        (cpu / "online").write_text(ranges(self.online))
        for number in self.present:
            (cpu / f"cpu{number}").mkdir(exist_ok=True)
            if number:
                (cpu / f"cpu{number}" / "online").write_text(f"{int(number in self.online)}\n")
        for number, state in self.blocks.items():
            (memory / f"memory{number}").mkdir(exist_ok=True, parents=True)
            (memory / f"memory{number}" / "state").write_text(f"{state}\n")
        (memory / "block_size_bytes").write_text("8000000\n")
        return self


class MadeUpMachine(MachineFiles):
    """A kernel behind such files. A CPU in `failing` is refused with that error; one in `held` waits until it is let go."""

    def __init__(self, tree: MachineTree) -> None:
        super().__init__(tree.root)
        self.tree = tree.write()
        self.failing: dict[int, OSError] = {}
        self.held: dict[int, threading.Event] = {}
        self.switched: list[tuple[int, bool]] = []

    def switch(self, switch: CpuSwitch) -> None:
        self.switched.append((switch.number, switch.is_on))
        if switch.number in self.held:
            assert self.held[switch.number].wait(60)
        if switch.number in self.failing:
            raise self.failing[switch.number]
        super().switch(switch)
        self.tree.online ^= {switch.number}
        self.tree.write()
