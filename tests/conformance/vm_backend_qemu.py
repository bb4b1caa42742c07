"""Plants of QEMU guests: a machine and a guest that are made up (`tests/support/qemu.py`), in virtual time."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.backends.change_log import FILE_NAME, LoggedSizes
from agent.backends.qemu.backend import QemuBackend
from agent.backends.qemu.core.state import GuestRules
from agent.backends.qemu.guest_files import GuestFiles, GuestRecord
from agent.backends.qemu.guest_loop import GuestAccess, LoopContext
from agent.core.model import Vm
from agent.core.ports import VmBackend
from hosting import logs
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_clauses import BackendPlant, Traits
from tests.conformance.vm_backend_pods import UseLog
from tests.support.amounts import GIB
from tests.support.qemu import FakeDimm, FakeGuest, FakeQemu, FakeVirtioMem, Manners
from tests.support.virtual_time import now_s, turns
from tests.unit.agent.driver import VM

MOMENT_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class QemuProfile:
    """How machine and guest behave, and what gives the machine its memory."""

    manners: Manners
    has_virtio: bool = False

    @property
    def has_chance(self) -> bool:
        return bool(self.manners.lost or self.manners.unanswered)


_SLOW: Final = Manners(0.02, 0.02, knows_s=0.05, online_s=0.3, memory_s=0.08, eject_s=0.2)
PROFILES: Final[dict[str, QemuProfile]] = {
    "at once": QemuProfile(Manners()),
    "latency": QemuProfile(Manners(there_s=0.05, back_s=0.05)),
    "slow guest": QemuProfile(_SLOW),
    "failing": QemuProfile(replace(_SLOW, online_s=0.05, lost=0.05, unanswered=0.05)),
    "silent in between": QemuProfile(replace(_SLOW, online_s=0.1, spells=(4.0, 1.5))),
    "virtio-mem": QemuProfile(_SLOW, has_virtio=True),
    "virtio-mem, failing": QemuProfile(
        replace(_SLOW, online_s=0.05, lost=0.05, unanswered=0.05), has_virtio=True
    ),
}


def machine(profile: QemuProfile, seed: int) -> FakeQemu:
    """A machine of two units: one of its boot, and one that an earlier life has plugged in."""
    manners = profile.manners
    guest = FakeGuest(manners, cpus=2, memory_bytes=2 * GIB)
    cpus = ["boot", "parley-cpu-1", *([None] * 6)]
    qemu = FakeQemu(guest, manners, cpus=cpus, rng=random.Random(seed))
    if profile.has_virtio:
        qemu.virtio = FakeVirtioMem(GIB, GIB, 15 * GIB)
    else:
        qemu.dimms.append(FakeDimm("parley-dimm-1", "parley-mem-1", GIB))
        qemu.backends["parley-mem-1"] = GIB
    return qemu


def coming(qemu: FakeQemu) -> Resources:
    """The resources that the guest has or will have by what is on its way to it."""
    sent = qemu.client.on_its_way() if qemu.client is not None else []
    memory = qemu.plugged_bytes
    for command, arguments in sent:
        if command == "device_add" and arguments["driver"] == "pc-dimm":
            memory += qemu.backends.get(arguments["memdev"], GIB)
    if qemu.virtio is not None:
        asked = [arguments["value"] for command, arguments in sent if command == "qom-set"]
        memory += max(0, max([qemu.virtio.requested, *asked]) - qemu.virtio.size)
    return Resources(qemu.guest.coming_cpus * 1000, memory)


def truth(qemu: FakeQemu, files: GuestFiles, vm: Vm = VM) -> Observation:
    """The guest's size, and the target that stands for it; the target covers what is on its way."""
    size = Resources(qemu.guest.online * 1000, qemu.plugged_bytes)
    standing = files.read(vm)
    target = size if standing is None or standing.target is None else standing.target
    on_its_way = coming(qemu)
    if on_its_way.exceeds(size):
        target = target.max(on_its_way)
    return Observation(size, target, now_s())


class WatchedFiles(GuestFiles):
    """Files that are compared with the log after each write."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.on_write: list[Callable[[], None]] = []

    def write(self, vm: Vm, standing: GuestRecord) -> None:
        super().write(vm, standing)
        for told in self.on_write:
            told()


@asynccontextmanager
async def planted(
    directory: Path,
    profile: QemuProfile,
    seed: int = 0,
    kind: type[QemuBackend] = QemuBackend,
) -> AsyncIterator[BackendPlant]:
    """A plant whose back ends are of `kind`. Call it in virtual time."""
    qemu, files = machine(profile, seed), WatchedFiles(directory)
    opened: list[QemuBackend] = []

    with UseLog(directory, lambda: truth(qemu, files)) as log:
        qemu.on_change.append(lambda: log.compare("after a change"))
        files.on_write.append(lambda: log.compare("after a write"))

        def open_one() -> VmBackend:
            context = LoopContext(
                files,
                LoggedSizes(log),
                GuestRules(),
                lambda _: None,
                logs.logger("test"),
                random.Random(seed),
                qemu.connect,
                now_s,
            )
            backend = kind(context, now_s)
            backend.describe(VM, GuestAccess(Path("/run/qmp.sock"), qemu.guest))
            opened.append(backend)
            return backend

        async def look() -> Observation:
            log.compare("at a look")
            return truth(qemu, files)

        async def wait(seconds: float) -> None:
            await turns(4)
            await asyncio.sleep(seconds)

        try:
            yield BackendPlant(
                Traits(is_slow=profile.manners.there_s > 0),
                open_one,
                look,
                qemu.quit,
                lambda: [json.loads(line) for line in (directory / FILE_NAME).read_text().splitlines()],
                lambda: log.faults,
                now_s,
                lambda: wait(MOMENT_S),
                wait,
            )
        finally:
            for backend in opened:
                await backend.close()
            await qemu.guest.close()
