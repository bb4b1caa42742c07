"""The next step of the memory: of DIMMs, or of a virtio-mem device if the machine has one."""

from agent.backends.qemu.core.due import Due, eject_due_s
from agent.backends.qemu.core.machine import BACKEND_ID, DIMM_ID, VirtioMem, free_number
from agent.backends.qemu.core.state import QemuGuest
from agent.backends.qemu.core.steps import (
    DropMemoryBackend,
    EjectDimm,
    MemoryStep,
    PlugDimm,
    RequestVirtioMem,
)


def next_memory_step(vm: QemuGuest) -> Due[MemoryStep] | None:
    """The next step of the memory; None if it is as it should be, or if the guest has to be waited for."""
    if vm.look.orphans:
        return Due(DropMemoryBackend(vm.look.orphans[0]), vm.memory.retry_at_s)
    if vm.look.virtio is not None:
        return _request(vm, vm.look.virtio)
    if vm.plugged_bytes + vm.slot_bytes <= vm.target.memory_bytes:
        return _plug(vm)
    return _eject(vm)


def _plug(vm: QemuGuest) -> Due[MemoryStep] | None:
    """Plug a slot in. A device that is being ejected counts until it is gone: the machine never has more than its target."""
    if len(vm.look.dimms) >= vm.facts.memory_slots:
        return None
    number = free_number(vm.look)
    return Due(PlugDimm(f"{DIMM_ID}{number}", f"{BACKEND_ID}{number}", vm.slot_bytes), vm.memory.retry_at_s)


def _eject(vm: QemuGuest) -> Due[MemoryStep] | None:
    """Take one DIMM out at a time. One that the guest does not give up holds back the others: it would run out of memory sooner."""
    surplus = vm.plugged_bytes - vm.target.memory_bytes
    ours = [dimm for dimm in vm.look.dimms if dimm.is_ours and dimm.size_bytes <= surplus]
    pending = {eject.id for eject in vm.pending_ejects()} & {dimm.id for dimm in vm.look.dimms}
    candidates = [dimm for dimm in ours if dimm.id in pending] or ([] if pending else ours)
    due = [
        Due(EjectDimm(each.id), eject_due_s(vm.eject_of(each.id), vm.memory.retry_at_s))
        for each in candidates
    ]
    # The one that was plugged in last goes first, unless it was refused: then another one may be easier to spare.
    return min(reversed(due), key=lambda each: each.at_s, default=None)


def wanted_virtio_bytes(vm: QemuGuest, device: VirtioMem) -> int:
    """The size that the device should have: the part of the target that is neither there from boot on, nor in DIMMs."""
    beyond = vm.target.memory_bytes - (vm.plugged_bytes - device.size_bytes)
    return min(max(beyond, 0), device.most_bytes) // device.block_bytes * device.block_bytes


def _request(vm: QemuGuest, device: VirtioMem) -> Due[MemoryStep] | None:
    """Ask for the wanted size. A driver that has given up shrinking tries again at once when it is asked for any other size."""
    wanted = wanted_virtio_bytes(vm, device)
    if device.requested_bytes != wanted:
        return Due(RequestVirtioMem(device.id, wanted), vm.memory.retry_at_s)
    if device.size_bytes <= wanted:
        return None
    # Below the wanted size if that is possible: the guest may have given everything back by now, and must not take more.
    other = wanted - device.block_bytes if wanted else device.block_bytes
    return Due(RequestVirtioMem(device.id, other), max(vm.nudge_at_s, vm.memory.retry_at_s))
