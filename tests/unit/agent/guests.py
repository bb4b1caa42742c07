"""A made-up QEMU guest with back ends over it, for stories in virtual time."""

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.backends.change_log import FILE_NAME, ChangeLog, LoggedSizes
from agent.backends.qemu.backend import QemuBackend
from agent.backends.qemu.core.state import GuestRules
from agent.backends.qemu.guest_files import GuestFiles
from agent.backends.qemu.guest_loop import GuestAccess, LoopContext
from agent.core.model import Vm, VmKind
from agent.core.ports import Fencing
from hosting import logs
from hosting.qmp import QmpEvent, QmpMonitor
from protocol.values import Bounds, ComputeUnit, Observation, Resources
from protocol.wire import PodName
from tests.support.amounts import MIB
from tests.support.qemu import BLOCK, FakeGuest, FakeQemu, Manners
from tests.support.virtual_time import now_s

BASE: Final = 512 * MIB
BRISK: Final = Manners(0.002, 0.002, knows_s=0.03, online_s=0.05, memory_s=0.05, eject_s=0.02)
"""As measured, without a load."""


def amount(cpus: int, slots: int) -> Resources:
    """So many vCPUs, and so many slots beyond what the guest was booted with."""
    return Resources(cpus * 1000, BASE + slots * BLOCK)


GUEST_VM: Final = Vm(
    PodName("vm-a", "default"),
    "uid-a",
    Bounds(amount(1, 0), amount(4, 8)),
    ComputeUnit(Resources(1000, BLOCK), is_apart=True),
    BLOCK,
    VmKind.QEMU,
)


def booted(manners: Manners = BRISK) -> FakeQemu:
    """A machine of one vCPU, just booted, with room for three more and for eight slots."""
    return FakeQemu(FakeGuest(manners, cpus=1, memory_bytes=BASE), manners, base=BASE, slots=8)


@dataclass
class Life:
    """A back end and its fence, and what it told the runner."""

    backend: QemuBackend
    fencing: Fencing
    moved: list[float]

    async def observe(self) -> Observation:
        return await self.backend.observe(GUEST_VM)

    async def fence(self) -> "Life":
        self.fencing = await self.backend.fence(GUEST_VM)
        return self

    async def resize(self, target: Resources) -> None:
        seen = (await self.observe()).target
        await self.resize_over(seen, target)

    async def resize_over(self, seen: Resources, target: Resources) -> None:
        await self.backend.resize(GUEST_VM, target, self.fencing, seen=seen, not_after_s=math.inf)

    async def reach(self, target: Resources) -> Observation:
        await self.resize(target)
        return await self.until(lambda seen: seen.size == seen.target == target)

    async def until(self, is_so: Callable[[Observation], bool], within_s: float = 60.0) -> Observation:
        """The VM as soon as something holds of it."""
        limit_s = now_s() + within_s
        seen = await self.observe()
        while not is_so(seen):
            assert now_s() < limit_s, f"never: {seen}, {self.page()}"
            await asyncio.sleep(0.05)
            seen = await self.observe()
        return seen

    def page(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self.backend.machine(GUEST_VM.name))
        return found


class Guests:
    """The machine, and lives over it."""

    def __init__(self, directory: Path, qemu: FakeQemu, rules: GuestRules) -> None:
        self.qemu = qemu
        self.files = GuestFiles(directory)
        self._rules = rules
        self._lives: list[Life] = []
        self._directory = directory
        self._log = ChangeLog(directory, "node-a")

    def changes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._directory / FILE_NAME).read_text().splitlines()]

    def open(self) -> Life:
        """A back end as a new process makes it."""
        moved: list[float] = []
        context = LoopContext(
            self.files,
            LoggedSizes(self._log),
            self._rules,
            lambda _: moved.append(now_s()),
            logs.logger("test"),
            random.Random(1),
            self._connect,
            now_s,
        )
        backend = QemuBackend(context, now_s)
        backend.describe(GUEST_VM, GuestAccess(Path("/run/qmp.sock"), self))
        self._lives.append(Life(backend, Fencing(0), moved))
        return self._lives[-1]

    async def life(self) -> Life:
        return await self.open().fence()

    async def restarted(self, life: Life) -> Life:
        """The next process, after the end of the one before."""
        await life.backend.close()
        return await self.life()

    async def _connect(self, path: Path, on_event: Callable[[QmpEvent], None]) -> QmpMonitor:
        return await self.qemu.connect(path, on_event)

    async def read(self) -> Any:
        return await self.qemu.guest.read()

    async def order(self, order: Any) -> Any:
        return await self.qemu.guest.order(order)

    async def close(self) -> None:
        for life in self._lives:
            await life.backend.close()
        await self.qemu.guest.close()
        self._log.__exit__()

    def sent(self, command: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.qemu.commands if name == command]


@asynccontextmanager
async def guests(
    directory: Path, qemu: FakeQemu | None = None, rules: GuestRules | None = None
) -> AsyncIterator[Guests]:
    """A machine, `booted` unless told, and its lives, which end with the block."""
    made = Guests(directory, qemu or booted(), rules or GuestRules())
    try:
        yield made
    finally:
        await made.close()
