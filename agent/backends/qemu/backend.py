"""QEMU guests behind the `VmBackend` port (decision 35): targets stand in files, and a loop for each guest brings it there."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from agent.backends.qemu.core.report import machine_document, observation, unreachable
from agent.backends.qemu.core.state import QemuGuest
from agent.backends.qemu.guest_files import GuestRecord
from agent.backends.qemu.guest_loop import GuestAccess, GuestLoop, LoopContext
from agent.core.model import Vm
from agent.core.ports import BackendError, Capabilities, Fencing, ResizeRefusedError, check_moment
from hosting.metrics import Family
from hosting.supervisor import Supervisor
from protocol.agent_pages import MachineShown
from protocol.values import Observation, Resources


def guest_families(guests: Mapping[str, QemuGuest], now_s: float) -> Iterator[Family]:
    """The metrics of plugged resources, and of their use in the guests that tell it. Guests by the names of their VMs."""
    cpus: list[tuple[tuple[str, ...], float]] = []
    memory: list[tuple[tuple[str, ...], float]] = []
    for name, known in guests.items():
        cpus.append(((name, "plugged"), float(known.look.plugged_cpus)))
        memory.append(((name, "plugged"), float(known.plugged_bytes)))
        guest = known.guest.believed(now_s, known.rules.silence_s)
        if guest is not None:
            cpus.append(((name, "online"), float(guest.online_cpus)))
            memory.append(((name, "online"), float(guest.memory_online_bytes)))
    labels = ("vm", "state")
    yield Family(
        "gauge", "parley_agent_guest_cpus", "vCPUs of each guest, plugged in and online", labels, tuple(cpus)
    )
    yield Family(
        "gauge",
        "parley_agent_guest_memory_bytes",
        "Memory of each guest, plugged in and online",
        labels,
        tuple(memory),
    )


LOOK_EVERY_S: Final = 1.0
"""The runner is told when a guest has changed; it need not ask all the time."""
ACKNOWLEDGED_S: Final = 1.5
"""A guest that answers acknowledges a life at once. A silent one holds no fence up: nothing is believed of it."""

MAX_GENERATION: Final = 2**62
"""No agent gets there. A guest that tells a higher one harms nobody but itself: it is not believed."""


class QemuBackend:
    """The `VmBackend` port over QMP and the guests' informants. Owns the loops; `close` ends them."""

    def __init__(self, context: LoopContext, unix_clock: Callable[[], float] = time.time) -> None:
        self._context = context
        self._files = context.files
        self._unix_clock = unix_clock
        self._access: dict[str, GuestAccess] = {}
        self._loops: dict[str, GuestLoop] = {}
        self._supervisor = Supervisor(context.log, context.rng)

    @property
    def capabilities(self) -> Capabilities:
        """A target is accepted when its file is written, or never."""
        return Capabilities(command_deadline_s=0.0, look_every_s=LOOK_EVERY_S)

    def describe(self, vm: Vm, access: GuestAccess) -> None:
        """From now on `vm` is reached so. A loop that runs already goes on as it began, until the VM is forgotten."""
        self._access[vm.name] = access

    async def forget(self, name: str) -> None:
        self._access.pop(name, None)
        if self._loops.pop(name, None) is not None:
            await self._supervisor.end(name)

    async def close(self) -> None:
        await self._supervisor.stop()
        self._loops.clear()

    # ---------------------------------------------------------------- the port

    async def fence(self, vm: Vm) -> Fencing:
        """Write the next generation, hold the only connection to QEMU, and have the guest acknowledge the generation, if it answers."""
        access = self._access.get(vm.name)
        if access is None:
            raise BackendError(f"{vm.name} is no guest of this agent")
        generation = await self._next_generation(vm, access)
        if self._told_generation(vm) > generation:
            # The guest came from a host whose clock is ahead, or the file was removed.
            generation = await self._next_generation(vm, access)
        return Fencing(generation)

    async def _next_generation(self, vm: Vm, access: GuestAccess) -> int:
        """Write the next generation, and look at QEMU and at the guest under it."""
        known, told = self._files.read(vm), self._told_generation(vm)
        # Not below the time of day, so that generations go on rising if somebody removes the file.
        generation = max(known.generation if known else 0, told, int(self._unix_clock()) - 1) + 1
        self._files.write(vm, replace(known, generation=generation) if known else GuestRecord(generation))
        loop = self._loop(vm, access)
        loop.command(generation)
        await loop.looked()
        try:
            async with asyncio.timeout(ACKNOWLEDGED_S):
                await loop.until(
                    lambda guest: bool(guest.guest.fault) or (guest.guest.generation or 0) >= generation
                )
        except TimeoutError:
            pass
        self._files.owned(vm, generation)
        return generation

    async def observe(self, vm: Vm) -> Observation:
        """The size that the guest uses, and its target. Raises `BackendError`, at once if QEMU has closed QMP."""
        loop = self._loops.get(vm.name)
        if loop is None:
            raise BackendError(f"{vm.name} has not been fenced")
        loop.vm = vm
        return observation(await loop.looked(), loop.now_s())

    async def resize(
        self, vm: Vm, target: Resources, fencing: Fencing, *, seen: Resources, not_after_s: float
    ) -> None:
        """Write the target. Nothing is awaited, so nothing comes between the look at the file and the write."""
        standing = self._files.owned(vm, fencing.generation)
        if not target.is_positive():
            raise BackendError(f"a guest cannot have {target}")
        loop = self._loops.get(vm.name)
        if loop is not None:
            loop.vm = vm
            loop.reachable()
            why = unreachable(loop.known, target) if loop.known is not None else None
            if why is not None:
                raise ResizeRefusedError(why)
        check_moment(self._context.clock(), not_after_s)
        if standing.target == target:
            return
        if standing.target is None or standing.target != seen:
            raise BackendError(f"the target is {standing.target} by now, and {seen} was seen")
        self._context.sizes.commanding(vm.name, standing.target.max(target))
        try:
            self._files.write(vm, replace(standing, target=target))
        finally:
            self._context.sizes.settled(vm.name)
        if loop is not None:
            loop.wake()

    # ---------------------------------------------------------------- pages

    def machine(self, name: str) -> MachineShown | None:
        """The page of a guest's machine; None while QEMU is not reached."""
        known = self._known(name)
        return None if known is None else machine_document(known, self._context.clock())

    def families(self) -> Iterator[Family]:
        """The metrics of plugged resources, and of their use in the guests."""
        known = {name: loop.known for name, loop in self._loops.items() if loop.known is not None}
        return guest_families(known, self._context.clock())

    # ---------------------------------------------------------------- loops

    def _known(self, name: str) -> QemuGuest | None:
        loop = self._loops.get(name)
        return None if loop is None else loop.known

    def _told_generation(self, vm: Vm) -> int:
        """The generation whose orders the guest takes, as far as that is known."""
        known = self._known(vm.name)
        told = 0 if known is None else known.guest.generation or 0
        return told if told < MAX_GENERATION else 0

    def _loop(self, vm: Vm, access: GuestAccess) -> GuestLoop:
        """The loop of a VM, begun if it does not run."""
        if vm.name not in self._supervisor.names():
            loop = self._loops[vm.name] = GuestLoop(vm, access, self._context)
            self._supervisor.start(vm.name, loop.run)
        return self._loops[vm.name]
