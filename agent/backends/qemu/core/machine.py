"""One machine as QMP shows it (its vCPUs, its memory devices, and the facts that never change from its boot on), and the steps towards a
target, of which nothing is believed until a look shows it."""

from dataclasses import dataclass
from typing import Final, TypeAlias

PERIPHERALS: Final = "/machine/peripheral/"
"""The path of devices that have an id in QEMU."""
DIMM_ID: Final = "parley-dimm-"
BACKEND_ID: Final = "parley-mem-"
"""Devices and memory of ours have ids that a later life knows again; devices that others plug in are counted, and never taken out."""
CPU_ID: Final = "parley-cpu-"


@dataclass(frozen=True, slots=True)
class CpuSlot:
    """A place for a vCPU, free if `path` is None. `kind` and `props` are QEMU's, and go back to it to plug a vCPU there."""

    kind: str
    props: tuple[tuple[str, int], ...]
    path: str | None = None

    @property
    def device_id(self) -> str | None:
        """The id of the plugged device; None for a device from boot, and for a free slot."""
        if self.path is None or not self.path.startswith(PERIPHERALS):
            return None
        return self.path.removeprefix(PERIPHERALS)


@dataclass(frozen=True, slots=True)
class Dimm:
    """A pc-dimm, and the id of the memory behind it. An `id` is empty if the device was plugged in without one."""

    id: str
    backend: str
    size_bytes: int

    @property
    def is_ours(self) -> bool:
        """Whether an agent has plugged it in."""
        return self.id.startswith(DIMM_ID)


@dataclass(frozen=True, slots=True)
class VirtioMem:
    """A virtio-mem device: the guest has taken `size_bytes`, and should have `requested_bytes`, whole blocks, at most `most_bytes`."""

    id: str
    size_bytes: int
    requested_bytes: int
    block_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts that hold from boot to end. `boot` tells one boot from another; `most_bytes` is all memory that there can be."""

    boot: str
    base_bytes: int
    memory_slots: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class MachineLook:
    """A look that began at `begun_s`. `cpus` are all slots, the lowest first; `backends` are the memory objects of ours."""

    begun_s: float
    cpus: tuple[CpuSlot, ...]
    dimms: tuple[Dimm, ...] = ()
    virtio: VirtioMem | None = None
    backends: frozenset[str] = frozenset()

    @property
    def plugged_cpus(self) -> int:
        return sum(slot.path is not None for slot in self.cpus)

    @property
    def plugged_bytes(self) -> int:
        """The memory that is plugged in beyond the memory at boot."""
        return sum(dimm.size_bytes for dimm in self.dimms) + (self.virtio.size_bytes if self.virtio else 0)

    @property
    def orphans(self) -> tuple[str, ...]:
        """Memory of ours behind no device: a plug that was cut off in its middle, or the rest of an eject."""
        return tuple(sorted(self.backends - {dimm.backend for dimm in self.dimms}))


def free_number(look: MachineLook) -> int:
    """The lowest number that no device and no memory of ours has."""
    taken = {dimm.id for dimm in look.dimms} | look.backends
    numbers = range(1, len(look.dimms) + len(look.backends) + 2)
    return next(
        number for number in numbers if taken.isdisjoint({f"{DIMM_ID}{number}", f"{BACKEND_ID}{number}"})
    )


@dataclass(frozen=True, slots=True)
class PlugCpu:
    """Plug a vCPU into a free slot."""

    slot: CpuSlot
    id: str


@dataclass(frozen=True, slots=True)
class UnplugCpu:
    """Ask for a vCPU to be taken out."""

    id: str


@dataclass(frozen=True, slots=True)
class OrderOnline:
    """Order the guest to have so many vCPUs online."""

    count: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Tell the guest which life commands from now on, and order nothing."""


@dataclass(frozen=True, slots=True)
class PlugDimm:
    """Plug memory in: an object, and a device before it."""

    id: str
    backend: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EjectDimm:
    """Ask for a DIMM to be taken out."""

    id: str


@dataclass(frozen=True, slots=True)
class DropMemoryBackend:
    """Delete memory that is behind no device."""

    id: str


@dataclass(frozen=True, slots=True)
class RequestVirtioMem:
    """Ask the guest's driver for another size."""

    id: str
    requested_bytes: int


CpuStep: TypeAlias = PlugCpu | UnplugCpu | OrderOnline | Acknowledge
MemoryStep: TypeAlias = PlugDimm | EjectDimm | DropMemoryBackend | RequestVirtioMem
Step: TypeAlias = CpuStep | MemoryStep


@dataclass(frozen=True, slots=True)
class LookAtMachine:
    """Ask QEMU which devices are plugged in."""


@dataclass(frozen=True, slots=True)
class LookAtGuest:
    """Ask the guest which resources it uses."""


GuestAction: TypeAlias = Step | LookAtMachine | LookAtGuest
"""All that the loop of a VM does."""
