"""QEMU and a guest that are made up, with the quirks that were measured (reference/real-vm.md). They go by the clock of the event loop.

`FakeQemu` serves one client at a time, as QEMU does: `connect` of a second one waits until the first is gone. A command that was sent
takes effect, even if its sender goes away. `FakeGuest` is the guest's kernel and its informant.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from agent.backends.qemu.reading import ORDER_DEADLINE_S, GuestSilentError, GuestUnableError
from hosting.qmp import QmpAbsentError, QmpClosedError, QmpError, QmpEvent, QmpRefusedError
from protocol.informant_pages import GuestMachine, MachineOrder
from tests.support.amounts import GIB, MIB

BLOCK: Final = 128 * MIB
ANSWER_S: Final = 3.0
CPU_KIND: Final = "max-x86_64-cpu"


@dataclass(frozen=True, slots=True)
class Manners:
    """How machine and guest behave. Seconds: `there` and `back` of a call; until the kernel knows a vCPU, has it online, and has memory
    online; until it gives a DIMM back. Chances: a command is lost before it arrives, or its answer is. `spells`: every so many seconds the
    informant is silent for so long."""

    there_s: float = 0.0
    back_s: float = 0.0
    knows_s: float = 0.0
    online_s: float = 0.0
    memory_s: float = 0.0
    eject_s: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    spells: tuple[float, float] = (0.0, 0.0)


class FakeGuest:
    """The kernel and the informant of one boot. Tests set what it does wrong."""

    def __init__(self, manners: Manners, *, cpus: int, memory_bytes: int) -> None:
        self.manners = manners
        self.present = self.online = cpus
        self.memory_bytes = memory_bytes
        self.generation = 0
        self.is_silent = False
        self.ignores_memory = False
        self.keeps_cpus_offline = False
        self.is_unable = False
        self.spares_memory = True
        self.refuses_ejects = False
        self.late_s = 0.0
        """So long orders are on their way while nobody waits for them any more; 0 for orders that arrive at once."""
        self.on_change: list[Callable[[], None]] = []
        self.orders: list[MachineOrder] = []
        self._wanted: int | None = None
        self._sequence_number = 0
        self._brings_online = False
        self._at_rest = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    @property
    def coming_cpus(self) -> int:
        """How many vCPUs may be online soon by what was ordered, and by what the kernel is at."""
        return max(min(self._wanted or 0, self.present), self.online + self._brings_online)

    def begin_anew(self) -> None:
        """The informant ends and begins again; the kernel finishes what it is at."""
        self.generation, self._sequence_number, self._wanted = 0, 0, None

    def shown(self) -> GuestMachine:
        return GuestMachine(
            generation=self.generation,
            present_cpus=self.present,
            online_cpus=self.online,
            memory_online_bytes=self.memory_bytes,
            memory_block_bytes=BLOCK,
            coming_cpus=int(self._brings_online),
        )

    async def read(self) -> GuestMachine:
        await self._arrive()
        shown = self.shown()
        await asyncio.sleep(self.manners.back_s)
        return shown

    async def order(self, order: MachineOrder) -> GuestMachine:
        """As the informant: the newest order stands, even if nobody waits for its answer, which comes after 3 s at most."""
        await self._arrive()
        if self.is_unable and order.online_cpus is not None:
            raise GuestUnableError("status 501: CPUs cannot be switched here")
        if self.late_s:
            asyncio.get_running_loop().call_later(self.late_s, self._take, order)
            await asyncio.sleep(min(self.late_s, ORDER_DEADLINE_S))
            raise GuestSilentError("no answer in time")
        if self._take(order):
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._at_rest.wait()
            except TimeoutError:
                pass
        shown = self.shown()
        await asyncio.sleep(self.manners.back_s)
        return shown

    def _take(self, order: MachineOrder) -> bool:
        if (order.generation, order.sequence_number) < (self.generation, self._sequence_number):
            return False
        self._sequence_number = order.sequence_number
        self.orders.append(order)
        if order.online_cpus is not None or order.generation > self.generation:
            self._wanted = order.online_cpus
        self.generation = order.generation
        self._at_rest.clear()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._switch(), name="guest")
        return True

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _arrive(self) -> None:
        await asyncio.sleep(self.manners.there_s)
        every_s, lasts_s = self.manners.spells
        is_spell = every_s > 0 and asyncio.get_running_loop().time() % every_s < lasts_s
        if self.is_silent or is_spell:
            raise GuestSilentError("connection refused")

    async def _switch(self) -> None:
        """One vCPU after the other, as the order of the moment says."""
        while self._wanted is not None and not self.keeps_cpus_offline:
            missing = min(self._wanted, self.present) - self.online
            if missing == 0:
                break
            self._brings_online = missing > 0
            await asyncio.sleep(self.manners.online_s)
            self.online += 1 if self._brings_online else -1
            self._brings_online = False
            for told in self.on_change:
                told()
        self._wanted = None
        self._at_rest.set()


@dataclass
class FakeDimm:
    id: str
    backend: str
    size: int
    is_leaving: bool = False
    is_used: bool = True
    """Whether the guest has its memory online; memory that was there at the begin is online."""


@dataclass
class FakeVirtioMem:
    """A driver that gives up shrinking while the guest cannot spare memory, and tries again when another size is requested."""

    size: int
    requested: int
    most: int
    id: str = "vmem0"
    block: int = 2 * MIB


@dataclass
class FakeQemu:
    """One machine: `cpus` says which slots are taken, by a device's id (`boot` for what was there at boot)."""

    guest: FakeGuest
    manners: Manners
    base: int = GIB
    slots: int = 16
    cpus: list[str | None] = field(default_factory=lambda: ["boot", None, None, None])
    dimms: list[FakeDimm] = field(default_factory=list)
    backends: dict[str, int] = field(default_factory=dict)
    virtio: FakeVirtioMem | None = None
    uuid: str = "11111111-0000-4000-8000-000000000001"
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    is_alive: bool = True
    aborts_after_unplug: bool = True
    commands: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    on_change: list[Callable[[], None]] = field(default_factory=list)
    client: "FakeMonitor | None" = None
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    to_retry: set[str] = field(default_factory=set)
    has_unplugged: bool = False
    refuses_plugs: bool = False
    """Whether no more vCPUs can be plugged in."""
    keeps_cpus: bool = False
    """Whether the guest gives up no vCPU, and says nothing about that."""
    more_memory: list[dict[str, Any]] = field(default_factory=list)
    """Memory devices as QEMU shows them, beside the others."""

    @property
    def plugged_bytes(self) -> int:
        virtio = self.virtio.size if self.virtio else 0
        return self.base + sum(dimm.size for dimm in self.dimms) + virtio

    @property
    def plugged_cpus(self) -> int:
        return sum(cpu is not None for cpu in self.cpus)

    async def connect(self, path: Path, on_event: Callable[[QmpEvent], None]) -> "FakeMonitor":
        """As `hosting.qmp.connect`."""
        try:
            async with asyncio.timeout(3.0):
                while self.is_alive and self.client is not None:
                    self.freed.clear()
                    await self.freed.wait()
        except TimeoutError:
            raise QmpClosedError(f"{path}: no greeting within 3 s; QEMU may serve another client") from None
        if not self.is_alive:
            raise QmpAbsentError(f"{path}: no QEMU answers there: connection refused")
        self.client = FakeMonitor(self, on_event)
        return self.client

    def quit(self) -> None:
        """The process ends, its guest with it."""
        self.is_alive = False
        self.guest.is_silent = True
        self.freed.set()
        if self.client is not None:
            self.client.lose()

    def reset(self) -> None:
        """The guest boots anew: its kernel brings all vCPUs online, and its informant is not there yet."""
        self.guest.begin_anew()
        self.guest.is_silent, self.guest.online = True, self.guest.present
        self.tell("RESET", guest=True, reason="guest-reset")
        self.changed()

    def tell(self, name: str, **data: Any) -> None:
        if self.client is not None:
            self.client.on_event(QmpEvent(name, data))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Let something happen, unless the machine has ended by then."""

        def act() -> None:
            if self.is_alive:
                action()
                self.changed()

        asyncio.get_running_loop().call_later(delay_s, act)

    def changed(self) -> None:
        for told in self.on_change:
            told()

    # ---------------------------------------------------------------- commands

    def apply(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """Carry a command out. Raises `QmpRefusedError`."""
        self.commands.append((command, dict(arguments)))
        answer = _COMMANDS[command](self, dict(arguments))
        if not command.startswith(("query-", "qom-get")):
            self.changed()
        return answer

    def _query_uuid(self, _: dict[str, Any]) -> Any:
        return {"UUID": self.uuid}

    def _qom_get(self, _: dict[str, Any]) -> Any:
        return {"size": self.base, "slots": self.slots, "max-size": 64 * GIB}

    def _query_cpus(self, _: dict[str, Any]) -> Any:
        found = []
        for core, taken in enumerate(self.cpus):
            props = {"core-id": core, "thread-id": 0, "node-id": 0, "socket-id": 0}
            where = {"boot": "/machine/unattached/device[0]"}.get(taken or "", f"/machine/peripheral/{taken}")
            path = {} if taken is None else {"qom-path": where}
            found.append({"props": props, "vcpus-count": 1, "type": CPU_KIND, **path})
        return found[::-1]

    def _query_devices(self, _: dict[str, Any]) -> Any:
        found: list[dict[str, Any]] = [
            {"type": "dimm", "data": {"id": each.id, "memdev": f"/objects/{each.backend}", "size": each.size}}
            for each in self.dimms
        ]
        if self.virtio is not None:
            sizes = {"size": self.virtio.size, "requested-size": self.virtio.requested}
            limits = {"block-size": self.virtio.block, "max-size": self.virtio.most}
            found.append({"type": "virtio-mem", "data": {"id": self.virtio.id, **sizes, **limits}})
        return found + self.more_memory

    def _query_memdev(self, _: dict[str, Any]) -> Any:
        return [{"id": "pc.ram"}, *({"id": backend, "size": size} for backend, size in self.backends.items())]

    def _object_add(self, sent: dict[str, Any]) -> Any:
        if sent["id"] in self.backends:
            raise QmpRefusedError("GenericError", f"attempt to add duplicate property '{sent['id']}'")
        self.backends[sent["id"]] = sent["size"]

    def _object_del(self, sent: dict[str, Any]) -> Any:
        name = sent["id"]
        if name not in self.backends:
            raise QmpRefusedError("GenericError", f"object '{name}' not found")
        if any(dimm.backend == name for dimm in self.dimms) or name in self.to_retry:
            self.to_retry.discard(name)
            raise QmpRefusedError("GenericError", f"object '{name}' is in use, can not be deleted")
        del self.backends[name]

    def _device_add(self, sent: dict[str, Any]) -> Any:
        if sent["driver"] == "pc-dimm":
            return self._plug_dimm(sent)
        assert sent["driver"] == CPU_KIND, sent
        if self.refuses_plugs:
            raise QmpRefusedError("GenericError", "no more vCPUs")
        core = sent["core-id"]
        if self.cpus[core] is not None:
            raise QmpRefusedError("GenericError", f"CPU[{core}] with APIC ID {core} exists")
        if self.has_unplugged and self.aborts_after_unplug:
            self.quit()  # under emulation: double free or corruption
            raise QmpClosedError("device_add: QEMU has closed the connection")
        self.cpus[core] = sent["id"]
        self.later(self.manners.knows_s, self._know_cpus)
        return {}

    def _know_cpus(self) -> None:
        self.guest.present = self.plugged_cpus

    def _plug_dimm(self, sent: dict[str, Any]) -> Any:
        if len(self.dimms) >= self.slots:
            raise QmpRefusedError("GenericError", "no free slots available")
        if sent["memdev"] not in self.backends:
            raise QmpRefusedError("DeviceNotFound", "no such memory")
        size = self.backends[sent["memdev"]]
        dimm = FakeDimm(sent["id"], sent["memdev"], size, is_used=False)
        self.dimms.append(dimm)
        if dimm.size % BLOCK == 0 and not self.guest.ignores_memory:
            self.later(self.manners.memory_s, lambda: self._use(dimm))
        self.tell("ACPI_DEVICE_OST", info={"device": dimm.id, "source": 1, "status": 0})
        return {}

    def _use(self, dimm: FakeDimm) -> None:
        if dimm in self.dimms:
            dimm.is_used = True
            self.guest.memory_bytes += dimm.size

    def _device_del(self, sent: dict[str, Any]) -> Any:
        name = sent["id"]
        if name in self.cpus:
            if not self.keeps_cpus:
                self.later(self.manners.eject_s, lambda: self._unplug(name))
            return {}
        dimm = next((each for each in self.dimms if each.id == name), None)
        if dimm is None:
            raise QmpRefusedError("DeviceNotFound", f"Device '{name}' not found")
        dimm.is_leaving = True
        self.later(self.manners.eject_s, lambda: self._eject(dimm))
        return {}

    def _unplug(self, name: str) -> None:
        """Nothing tells of the vCPU itself, but ACPI."""
        core = self.cpus.index(name)
        self.cpus[core] = None
        self.has_unplugged = True
        self.guest.present = self.plugged_cpus
        self.guest.online = min(self.guest.online, self.guest.present)
        self.tell("DEVICE_DELETED", path=f"/machine/peripheral/{name}/lapic")
        for status in (132, 0):
            self.tell("ACPI_DEVICE_OST", info={"device": name, "source": 3, "status": status})

    def _eject(self, dimm: FakeDimm) -> None:
        if dimm not in self.dimms:
            return
        if self.guest.refuses_ejects:
            dimm.is_leaving = False
            self.tell("ACPI_DEVICE_OST", info={"device": dimm.id, "source": 3, "status": 130})
            return
        if not self.guest.spares_memory:  # the kernel tries for ever
            self.later(0.5, lambda: self._eject(dimm))
            return
        self.dimms.remove(dimm)
        self.guest.memory_bytes -= dimm.size if dimm.is_used else 0
        self.to_retry.add(dimm.backend)
        self.tell("DEVICE_DELETED", device=dimm.id, path=f"/machine/peripheral/{dimm.id}")

    def _qom_set(self, sent: dict[str, Any]) -> Any:
        assert self.virtio is not None
        assert sent["path"].endswith(self.virtio.id)
        if sent["value"] % self.virtio.block or sent["value"] > self.virtio.most:
            raise QmpRefusedError("GenericError", "'requested-size' has to be multiples of 'block-size'")
        is_other = sent["value"] != self.virtio.requested
        self.virtio.requested = sent["value"]
        if is_other:
            self.later(self.manners.memory_s, self._move)
        return {}

    def _move(self) -> None:
        """The guest's driver goes an eighth of a GiB at a time, and gives up if memory cannot be spared."""
        device = self.virtio
        assert device is not None
        if device.size > device.requested and not self.guest.spares_memory:
            return
        gap = device.requested - device.size
        step = max(-GIB // 2, min(GIB // 2, gap))
        device.size += step
        self.guest.memory_bytes += step
        self.tell("MEMORY_DEVICE_SIZE_CHANGE", size=device.size)
        if device.size != device.requested:
            self.later(self.manners.memory_s, self._move)


_COMMANDS: Final[Mapping[str, Callable[[FakeQemu, dict[str, Any]], Any]]] = {
    "query-uuid": FakeQemu._query_uuid,
    "qom-get": FakeQemu._qom_get,
    "query-hotpluggable-cpus": FakeQemu._query_cpus,
    "query-memory-devices": FakeQemu._query_devices,
    "query-memdev": FakeQemu._query_memdev,
    "object-add": FakeQemu._object_add,
    "object-del": FakeQemu._object_del,
    "device_add": FakeQemu._device_add,
    "device_del": FakeQemu._device_del,
    "qom-set": FakeQemu._qom_set,
}


class FakeMonitor:
    """The `QmpMonitor` port of the only client. Commands are carried out in order, also after the client has gone."""

    def __init__(self, qemu: FakeQemu, on_event: Callable[[QmpEvent], None]) -> None:
        self.on_event = on_event
        self._qemu = qemu
        self._closed = asyncio.Event()
        self._sent: list[tuple[str, Mapping[str, Any], asyncio.Future[Any]]] = []

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def closed(self) -> None:
        await self._closed.wait()

    def on_its_way(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(command, arguments) for command, arguments, _ in self._sent]

    async def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        if self.is_closed:
            raise QmpClosedError("QEMU has closed the connection")
        qemu = self._qemu
        if qemu.rng.random() < qemu.manners.lost:
            raise QmpError(f"{command}: QEMU did not answer within 3 s")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._sent.append((command, arguments or {}, done))
        loop.call_later(qemu.manners.there_s, self._carry_out)
        answer = await done
        await asyncio.sleep(qemu.manners.back_s)
        if qemu.rng.random() < qemu.manners.unanswered:
            raise QmpError(f"{command}: QEMU did not answer within 3 s")
        return answer

    async def close(self) -> None:
        while self._sent and self._qemu.is_alive:
            self._carry_out()
        self.lose()

    def lose(self) -> None:
        """The connection is gone."""
        if self._closed.is_set():
            return
        self._closed.set()
        for _, _, done in self._sent:
            if not done.done():
                done.set_exception(QmpClosedError("QEMU has closed the connection"))
                done.exception()
        if self._qemu.client is self:
            self._qemu.client = None
            self._qemu.freed.set()

    def _carry_out(self) -> None:
        if not self._sent or not self._qemu.is_alive:
            return
        command, arguments, done = self._sent.pop(0)
        try:
            answer = self._qemu.apply(command, arguments)
        except QmpError as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(answer)


def rebooted(qemu: FakeQemu, number: int) -> FakeQemu:
    """Another boot of the same machine: only what it was started with is plugged in."""
    guest = FakeGuest(qemu.manners, cpus=1, memory_bytes=qemu.base)
    uuid = f"11111111-0000-4000-8000-{number:012}"
    fresh: Any = {
        "dimms": [],
        "backends": {},
        "commands": [],
        "on_change": [],
        "client": None,
        "is_alive": True,
    }
    cpus = ["boot", *([None] * (len(qemu.cpus) - 1))]
    return replace(qemu, guest=guest, uuid=uuid, cpus=cpus, freed=asyncio.Event(), **fresh)
