"""Long random walks over one QEMU guest: targets, faults of QEMU and of the guest, and ends of agents, in any order.

The laws: at every moment the guest uses no more than the log shows, never more than was wanted at some time since the VM was last at rest,
and no more memory than its slots; memory behind a device is never deleted, and nothing is plugged in beyond the target. When the faults
stop, the VM reaches its target, and nothing is left over.
"""

import asyncio
import math
import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from agent.backends.change_log import LoggedSizes
from agent.backends.qemu.backend import QemuBackend
from agent.backends.qemu.core.state import GuestRules
from agent.backends.qemu.guest_files import GuestFiles
from agent.backends.qemu.guest_loop import GuestAccess, LoopContext
from agent.core.ports import BackendError, Fencing
from hosting import logs
from protocol.values import Observation, Resources
from tests.conformance.vm_backend_pods import UseLog
from tests.conformance.vm_backend_qemu import truth
from tests.support.qemu import BLOCK, FakeQemu, FakeVirtioMem, Manners
from tests.support.virtual_time import now_s, virtually
from tests.unit.agent.guests import BASE, GUEST_VM, amount, booted

SEEDS: Final = range(int(os.environ.get("PARLEY_QEMU_WALKS", "24")))
MOVES: Final = 60
CALM: Final = Manners(0.005, 0.005, knows_s=0.04, online_s=0.1, memory_s=0.05, eject_s=0.03)


@dataclass
class QemuWalk:
    """One machine, and the agent of the moment."""

    directory: Path
    rng: random.Random
    qemu: FakeQemu
    log: UseLog
    backend: QemuBackend | None = None
    fencing: Fencing | None = None
    most_bytes: int = BASE
    """The most memory that a target named since the machine was at rest."""
    wrong: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """The laws, after each change of the machine."""
        self.log.compare("after a change")
        qemu = self.qemu
        if qemu.plugged_bytes > self.most_bytes:
            self.wrong.append(f"{qemu.plugged_bytes >> 20} MiB plugged in, {self.most_bytes >> 20} wanted")
        held = {dimm.backend for dimm in qemu.dimms}
        if not held <= set(qemu.backends):
            self.wrong.append(f"{held - set(qemu.backends)} was deleted below its device")

    async def take_over(self) -> None:
        """The agent ends, and the next one begins."""
        if self.backend is not None:
            await self.backend.close()
        context = LoopContext(
            GuestFiles(self.directory),
            LoggedSizes(self.log),
            GuestRules(),
            lambda _: None,
            logs.logger("test"),
            self.rng,
            self.qemu.connect,
            now_s,
        )
        self.backend, self.fencing = QemuBackend(context, now_s), None
        self.backend.describe(GUEST_VM, GuestAccess(Path("/run/qmp.sock"), self.qemu.guest))

    async def look(self) -> Observation | None:
        """The agent looks at the VM, which it fences first if it has not yet."""
        assert self.backend is not None
        try:
            if self.fencing is None:
                self.fencing = await self.backend.fence(GUEST_VM)
            return await self.backend.observe(GUEST_VM)
        except BackendError:
            return None

    async def resize(self, target: Resources) -> bool:
        seen = await self.look()
        if seen is None or self.fencing is None or self.backend is None:
            return False
        self.most_bytes = max(self.most_bytes, target.memory_bytes)
        try:
            await self.backend.resize(GUEST_VM, target, self.fencing, seen=seen.target, not_after_s=math.inf)
        except BackendError:
            return False
        return True

    # ---------------------------------------------------------------- moves

    async def move(self) -> None:
        guest, manners, rng = self.qemu.guest, self.qemu.manners, self.rng
        match rng.choice(
            (
                "resize",
                "resize",
                "resize",
                "wait",
                "wait",
                "silence",
                "spare",
                "qmp",
                "slow",
                "life",
                "refuse",
                "late",
            )
        ):
            case "resize":
                await self.resize(amount(rng.randint(1, 4), rng.randint(0, 8)))
            case "wait":
                await asyncio.sleep(rng.choice((0.01, 0.1, 0.5, 2, 6)))
            case "silence":
                guest.is_silent = not guest.is_silent
                if not guest.is_silent and rng.random() < 0.3:
                    guest.begin_anew()
            case "spare":
                guest.spares_memory = not guest.spares_memory
            case "refuse":
                guest.refuses_ejects = not guest.refuses_ejects
            case "late":
                guest.late_s = rng.choice((0.0, 0.0, 0.5, 4.0, 15.0))
            case "qmp":
                is_bad = rng.random() < 0.5
                self._behave(replace(manners, lost=0.2 * is_bad, unanswered=0.2 * is_bad))
            case "slow":
                self._behave(
                    replace(
                        manners, online_s=rng.choice((0.0, 0.3, 2.0)), memory_s=rng.choice((0.0, 0.05, 1.0))
                    )
                )
            case "life":
                await self.take_over()

    def _behave(self, manners: Manners) -> None:
        self.qemu.manners = self.qemu.guest.manners = manners

    async def calm_down(self) -> None:
        """No faults any more: the VM reaches a target, and nothing is left over."""
        guest = self.qemu.guest
        guest.is_silent = guest.refuses_ejects = False
        guest.spares_memory = True
        guest.late_s = 0.0
        self._behave(CALM)
        target = amount(self.rng.randint(1, 4), self.rng.randint(0, 8))
        limit_s = now_s() + 300
        while not await self.resize(target):
            assert now_s() < limit_s, "no target is taken"
            await asyncio.sleep(0.5)
        while (seen := await self.look()) is None or not seen.size == seen.target == target:
            assert now_s() < limit_s, f"it never gets to {target}: {seen}"
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        seen = await self.look()
        assert seen is not None
        assert seen.refusal is None
        assert (guest.online * 1000, self.qemu.plugged_bytes) == (target.vcpu_milli, target.memory_bytes)
        assert guest.memory_bytes == target.memory_bytes
        assert set(self.qemu.backends) == {dimm.backend for dimm in self.qemu.dimms}
        assert self.qemu.is_alive


async def walked(directory: Path, seed: int, *, has_virtio: bool) -> None:
    rng, qemu = random.Random(seed), booted(CALM)
    qemu.rng = random.Random(seed + 1)
    if has_virtio:
        qemu.virtio = FakeVirtioMem(0, 0, 8 * BLOCK)
        assert qemu.virtio.block < BLOCK
    files = GuestFiles(directory)
    with UseLog(directory, lambda: truth(qemu, files, GUEST_VM)) as log:
        walk = QemuWalk(directory, rng, qemu, log)
        # A virtio-mem device that has given up may be asked for one block more than nothing.
        walk.most_bytes += qemu.virtio.block if qemu.virtio is not None else 0
        qemu.on_change.append(walk.watch)
        qemu.guest.on_change.append(walk.watch)
        try:
            await walk.take_over()
            for _ in range(MOVES):
                await walk.move()
            await walk.calm_down()
        finally:
            if walk.backend is not None:
                await walk.backend.close()
            await qemu.guest.close()
        assert walk.wrong == []
        assert log.faults == []


@pytest.mark.parametrize("has_virtio", [False, True], ids=["dimm", "virtio-mem"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_guest_reaches_its_target_when_the_faults_stop_and_never_has_more(
    seed: int, has_virtio: bool, tmp_path: Path
) -> None:
    @virtually
    async def run() -> None:
        await walked(tmp_path, seed, has_virtio=has_virtio)

    run()
