"""What a settings file may say of QEMU guests: they have whole vCPUs, and memory in slots."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from agent.sources.file import VmSettings
from hosting.settings import listed
from protocol import quantities
from protocol.values import Resources

BLOCK_BYTES: Final = 128 * 2**20
"""Memory of a Linux guest comes in blocks of this size. QEMU takes other DIMMs as well; the guest uses none of them, and none that follow."""


def guest_faults(data: Mapping[Any, Any]) -> list[str]:
    """What is wrong with the VMs of a raw settings file as far as its back end goes. A VM that is wrong by itself is left to that."""
    is_qemu = data.get("backend") == "qemu"
    faults: list[str] = []
    sockets: set[str] = set()
    for index, entry in enumerate(listed(data, "vms")):
        if not isinstance(entry, dict):
            continue
        where = f"vms[{index}]"
        if is_qemu and entry.get("qmp") is None:
            faults.append(f"{where}.qmp: is needed by the back end qemu: the socket of the guest's QMP")
        if entry.get("qmp") is not None:
            # Who comes second would command the other VM's guest as soon as the first one lets its connection go.
            if str(entry["qmp"]) in sockets:
                faults.append(f"{where}.qmp: {entry['qmp']!r} is used more than once")
            sockets.add(str(entry["qmp"]))
        if not is_qemu and entry.get("qmp") is not None:
            faults.append(f"{where}.qmp: goes with the back end qemu only")
        if is_qemu:
            faults += (f"{where}.{fault}" for fault in _amount_faults(entry))
    return faults


def _amount_faults(entry: Mapping[str, Any]) -> Iterator[str]:
    try:
        vm = VmSettings.model_validate(entry)
    except ValidationError:
        return
    if vm.slot_bytes % BLOCK_BYTES:
        field = "computeUnit.memory" if vm.slot_size is None else "slotSize"
        yield f"{field}: must be a multiple of 128Mi, not {_memory(vm.slot_bytes)}"
    for name, amount in (("min", vm.min), ("max", vm.max), ("computeUnit", vm.compute_unit)):
        yield from _whole(name, amount, vm.slot_bytes)


def _whole(name: str, amount: Resources, slot_bytes: int) -> Iterator[str]:
    if amount.vcpu_milli % 1000:
        cpus = quantities.from_milli(amount.vcpu_milli).canonical()
        yield f"{name}.cpu: must be whole vCPUs, not {cpus}"
    if amount.memory_bytes % slot_bytes:
        slot = _memory(slot_bytes)
        yield f"{name}.memory: must be whole slots of {slot}, not {_memory(amount.memory_bytes)}"


def _memory(amount: int) -> str:
    return quantities.from_value(amount, binary=True).canonical()
