"""The steps towards a target. Each is one thing to do, and nothing is believed of it until a look shows it."""

from dataclasses import dataclass
from typing import TypeAlias

from agent.backends.qemu.core.machine import CpuSlot


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
