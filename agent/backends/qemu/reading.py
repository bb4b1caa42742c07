"""QEMU's answers as values, and steps as its commands; and the guest's machine over HTTP. An answer of QEMU that is not understood raises
`QmpError`."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, TypeAlias, assert_never
from uuid import uuid4

from agent.backends.qemu.core.machine import (
    BACKEND_ID,
    PERIPHERALS,
    CpuSlot,
    Dimm,
    DropMemoryBackend,
    EjectDimm,
    MachineFacts,
    MachineLook,
    MemoryStep,
    PlugCpu,
    PlugDimm,
    RequestVirtioMem,
    UnplugCpu,
    VirtioMem,
)
from hosting import signed_link
from hosting.client import Answered, HttpClient
from hosting.qmp import QmpError, QmpEvent, QmpMonitor
from hosting.signed_link import SignedLink
from protocol import codec
from protocol.errors import RemoteProtocolError
from protocol.informant_pages import GuestMachine, MachineOrder
from protocol.texts import clean

MachineStep: TypeAlias = PlugCpu | UnplugCpu | MemoryStep
"""The steps that QEMU is told; the others are the guest's."""
Write = Callable[[str, Mapping[str, Any]], Awaitable[None]]
RESET: Final = "RESET"
"""The event of a guest that boots anew within its machine."""
CHANGES: Final = frozenset({"DEVICE_DELETED", "MEMORY_DEVICE_SIZE_CHANGE", "ACPI_DEVICE_OST", RESET})
"""Events after which QEMU may show another machine."""
EJECT_REQUEST: Final = 3
DONE: Final = (0, 132)
"""Statuses of an eject (ACPI's `_OST`) that are no refusal: success, and in progress."""
NO_UUID: Final = "00000000-0000-0000-0000-000000000000"


@contextmanager
def _understood(command: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise QmpError(f"{command}: QEMU's answer cannot be understood: {error!r}") from None


async def read_facts(monitor: QmpMonitor) -> MachineFacts:
    """The facts that hold for this boot. Raises `QmpError`."""
    uuid = await monitor.execute("query-uuid")
    memory = await monitor.execute("qom-get", {"path": "/machine", "property": "memory"})
    with _understood("query-uuid, qom-get /machine memory"):
        facts = MachineFacts(uuid["UUID"], memory["size"], memory.get("slots", 0), memory["max-size"])
    if facts.boot == NO_UUID:
        raise QmpError(
            "start QEMU with -uuid, another one for each boot: nothing else tells one boot from another"
        )
    return facts


async def read_look(monitor: QmpMonitor, begun_s: float) -> MachineLook:
    """The devices that are plugged in now. Raises `QmpError`."""
    cpus = await monitor.execute("query-hotpluggable-cpus")
    devices = await monitor.execute("query-memory-devices")
    objects = await monitor.execute("query-memdev")
    with _understood("query-hotpluggable-cpus, query-memory-devices, query-memdev"):
        slots = sorted((_slot(each) for each in cpus), key=lambda slot: [number for _, number in slot.props])
        dimms = tuple(_dimm(each["data"]) for each in devices if each["type"] == "dimm")
        virtio = [_virtio(each["data"]) for each in devices if each["type"] == "virtio-mem"]
        others = [each["type"] for each in devices if each["type"] not in ("dimm", "virtio-mem")]
        ours = frozenset(each["id"] for each in objects if str(each.get("id", "")).startswith(BACKEND_ID))
    if others or len(virtio) > 1:
        what = f"a memory device of type {others[0]}" if others else f"{len(virtio)} virtio-mem devices"
        raise QmpError(
            f"QEMU has {what}: its memory would be counted nowhere; start it with DIMMs, or one virtio-mem"
        )
    return MachineLook(begun_s, tuple(slots), dimms, virtio[0] if virtio else None, ours)


def _slot(found: Mapping[str, Any]) -> CpuSlot:
    props = tuple((name, found["props"][name]) for name in CPU_PROPS if name in found["props"])
    return CpuSlot(found["type"], props, found.get("qom-path"))


CPU_PROPS: Final = ("socket-id", "die-id", "cluster-id", "core-id", "thread-id")
"""The properties of the place of a vCPU, the coarsest first. The node (`node-id`) follows from it."""


def _dimm(data: Mapping[str, Any]) -> Dimm:
    return Dimm(str(data.get("id", "")), str(data["memdev"]).removeprefix("/objects/"), data["size"])


def _virtio(data: Mapping[str, Any]) -> VirtioMem:
    sizes = (data["size"], data["requested-size"], data["block-size"], data["max-size"])
    return VirtioMem(data["id"], *sizes)


def refused_eject(event: QmpEvent) -> tuple[str, int] | None:
    """The device that the guest will not give up, with its status; None if the event tells of something else."""
    info = event.data.get("info")
    if event.name != "ACPI_DEVICE_OST" or not isinstance(info, dict):
        return None
    device, status = info.get("device"), info.get("status")
    if info.get("source") != EJECT_REQUEST or status in DONE:
        return None
    return (device, status) if isinstance(device, str) and isinstance(status, int) else None


async def carry_out(step: MachineStep, write: Write) -> None:
    """Do a step with the commands of QEMU. Passes on the errors of `write`."""
    match step:
        case PlugCpu(slot, device):
            await write("device_add", {"driver": slot.kind, "id": device, **dict(slot.props)})
        case UnplugCpu(device) | EjectDimm(device):
            await write("device_del", {"id": device})
        case PlugDimm(device, backend, size_bytes):
            await write("object-add", {"qom-type": "memory-backend-ram", "id": backend, "size": size_bytes})
            await write("device_add", {"driver": "pc-dimm", "id": device, "memdev": backend})
        case DropMemoryBackend(backend):
            await write("object-del", {"id": backend})
        case RequestVirtioMem(device, requested_bytes):
            where = {"path": f"{PERIPHERALS}{device}", "property": "requested-size"}
            await write("qom-set", {**where, "value": requested_bytes})
        case _:
            assert_never(step)


class GuestSilentError(Exception):
    """The guest did not answer, or not with its machine. An order may be carried out all the same. The text is for a person."""


class GuestUnableError(GuestSilentError):
    """The guest has answered that it can neither show nor do this: an order has no effect."""


class GuestPort(Protocol):
    """The machine as the guest's informant shows and switches it. Every call has a deadline."""

    async def read(self) -> GuestMachine:
        """The resources that the guest uses. Raises `GuestSilentError`."""

    async def order(self, order: MachineOrder) -> GuestMachine:
        """The resources that the guest uses after it took the order, or refused it because it takes those of a later life: the answer's
        generation tells. Raises `GuestSilentError`."""


READ_DEADLINE_S: Final = 1.0
"""A guest under load answers within 0.2 s."""
ORDER_DEADLINE_S: Final = 10.0
"""Under emulation a vCPU comes online in 0.3 s, in a guest that has no time for it in 1.8 s."""
REASON_CHARS: Final = 200
UNABLE: Final = (400, 501)


class InformantMachine:
    """The `GuestPort` of the informant at `url`: `GET /machine` and `PUT /machine`."""

    def __init__(self, client: HttpClient, url: str, signed: SignedLink | None = None) -> None:
        self._client = client
        self._url = f"{url.rstrip('/')}/machine"
        self._signed = signed
        # A look and an order may overtake each other, so each has numbers of its own.
        self._senders = {"GET": uuid4(), "PUT": uuid4()}

    async def read(self) -> GuestMachine:
        return await self._call("GET", READ_DEADLINE_S, None, (200,))

    async def order(self, order: MachineOrder) -> GuestMachine:
        return await self._call("PUT", ORDER_DEADLINE_S, codec.encode(order), (200, 409))

    async def _call(
        self, method: Literal["GET", "PUT"], deadline_s: float, body: bytes | None, statuses: tuple[int, ...]
    ) -> GuestMachine:
        outcome = await signed_link.call(
            self._client,
            self._signed,
            self._senders[method],
            method,
            self._url,
            body=body,
            deadline_s=deadline_s,
        )
        if not isinstance(outcome, Answered):
            raise GuestSilentError(outcome.message)
        if outcome.status == 404:
            raise GuestUnableError("its informant knows no /machine")
        if outcome.status not in statuses:
            told = f"status {outcome.status}: {clean(outcome.body.decode(errors='replace'), REASON_CHARS)}"
            raise GuestUnableError(told) if outcome.status in UNABLE else GuestSilentError(told)
        try:
            return codec.decode(GuestMachine, outcome.body)
        except RemoteProtocolError as error:
            raise GuestSilentError(clean(str(error), REASON_CHARS)) from None
