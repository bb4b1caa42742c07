"""The reports on a guest: its size and target, the reason why the target is not reached, and the page of its machine."""

from agent.backends.qemu.core.apply import is_plugged, staying_bytes
from agent.backends.qemu.core.machine import OrderOnline, PlugCpu, PlugDimm, RequestVirtioMem, VirtioMem
from agent.backends.qemu.core.plan import wanted_virtio_bytes
from agent.backends.qemu.core.state import MILLI, QemuGuest, StepPhase
from protocol import quantities
from protocol.agent_pages import MachineShown, SlotsShown
from protocol.informant_pages import GuestMachine
from protocol.texts import counted
from protocol.values import Observation, Resources


def observation(vm: QemuGuest, now_s: float) -> Observation:
    """The guest's size (its use) and its target, which covers possible effects of a step under way, and of work in the guest's kernel.

    A guest is root of itself, and may tell anything: more than QEMU has room for is not believed.
    """
    guest = vm.guest.believed(now_s, vm.rules.silence_s)
    cpus = vm.look.plugged_cpus if guest is None else min(guest.online_cpus, len(vm.look.cpus))
    size = Resources(cpus * MILLI, vm.plugged_bytes)
    target = vm.target.max(Resources(cpus_to_come(vm, guest) * MILLI, bytes_to_come(vm)))
    return Observation(size, target, min(vm.look.begun_s, vm.guest.asked_s), refusal(vm, now_s))


def cpus_to_come(vm: QemuGuest, guest: GuestMachine | None) -> int:
    """The vCPUs that may count by steps under way: orders and the guest's kernel if the `guest` is believed, else a plug."""
    step = vm.cpu.step
    if guest is None:
        # The look may show the vCPU that the step has plugged in, while it does not count as the step's outcome yet.
        is_coming = isinstance(step, PlugCpu) and not is_plugged(vm, step.id)
        return vm.look.plugged_cpus + 1 if is_coming else 0
    ordered = step.count if isinstance(step, OrderOnline) and vm.cpu.phase is StepPhase.UNDER_WAY else 0
    coming = guest.online_cpus + guest.coming_cpus if guest.coming_cpus else 0
    # A vCPU is online before the kernel is done with bringing it online, and is told as both for a moment.
    return max(ordered, vm.guest.ordered_cpus, min(coming, guest.present_cpus, len(vm.look.cpus)))


def bytes_to_come(vm: QemuGuest) -> int:
    """The memory that the machine may have by steps under way: a step, or a request that the guest has not carried out yet."""
    device = vm.look.virtio
    requested = 0 if device is None else device.requested_bytes
    match vm.memory.step:
        case PlugDimm(id=device_id, size_bytes=size) if all(dimm.id != device_id for dimm in vm.look.dimms):
            return vm.plugged_bytes + size
        case RequestVirtioMem(requested_bytes=asked):
            requested = max(requested, asked)
        case _:
            pass
    if device is None or requested <= device.size_bytes:
        return 0
    return vm.plugged_bytes - device.size_bytes + requested


def unreachable(vm: QemuGuest, target: Resources) -> str | None:
    """Why the machine cannot have a target, for a person; None if it can."""
    most = len(vm.look.cpus)
    if target.vcpu_milli % MILLI:
        return (
            f"a guest has whole vCPUs: {quantities.from_milli(target.vcpu_milli).canonical()} cannot be had"
        )
    if target.vcpu_milli > most * MILLI:
        return f"QEMU was started with room for {counted(most, 'vCPU')} (maxcpus)"
    others = sum(dimm.size_bytes for dimm in vm.look.dimms if not dimm.is_ours)
    fixed = vm.facts.base_bytes + others
    if target.memory_bytes < fixed:
        return (
            f"{_memory(fixed)} of its memory was there at its boot, or is not ours, and cannot be taken out"
        )
    beyond = target.memory_bytes - fixed
    device = vm.look.virtio
    step = vm.slot_bytes if device is None else device.block_bytes
    if beyond % step:
        return f"beyond {_memory(fixed)} its memory comes in pieces of {_memory(step)}"
    if device is not None:
        ours = sum(dimm.size_bytes for dimm in vm.look.dimms if dimm.is_ours)
        most_bytes = fixed + ours + device.most_bytes
    else:
        foreign = sum(not dimm.is_ours for dimm in vm.look.dimms)
        most_bytes = fixed + (vm.facts.memory_slots - foreign) * vm.slot_bytes
    most_bytes = min(most_bytes, vm.facts.most_bytes)
    return (
        f"QEMU was started with room for {_memory(most_bytes)}" if target.memory_bytes > most_bytes else None
    )


def refusal(vm: QemuGuest, now_s: float) -> str | None:
    """Why the target is not carried out, or not usable, if that is known; None if all is well, or goes its way."""
    found = [unreachable(vm, vm.target), _kept(vm, now_s), _unused(vm, now_s), _unmoved(vm, now_s)]
    found += [track.fault for track in (vm.cpu, vm.memory) if _is_over(vm, track.failing_s, now_s)]
    return "; ".join(text for text in found if text) or None


def _kept(vm: QemuGuest, now_s: float) -> str | None:
    """The ejects that the guest has refused, or does not carry out."""
    told = []
    for eject in vm.ejects:
        if eject.status is not None:
            told.append(f"the guest refuses to give up {eject.id} (ACPI status {eject.status})")
        elif now_s >= eject.since_s + vm.rules.eject_deadline_s:
            told.append(f"the guest has not given up {eject.id} for {now_s - eject.since_s:.0f} s")
    return "; ".join(told) or None


def _unused(vm: QemuGuest, now_s: float) -> str | None:
    """The plugged resources that the guest has not taken up, for a person; None if there are none, or if the guest is silent."""
    guest, told = vm.guest.believed(now_s, vm.rules.silence_s), []
    if guest is None:
        return None
    if _is_over(vm, vm.memory_short_s, now_s):
        usable, plugged = _memory(guest.memory_online_bytes), _memory(staying_bytes(vm))
        told.append(f"the guest uses {usable} of the {plugged} that are plugged in")
    if _is_over(vm, vm.cpus_short_s, now_s):
        told.append(f"the guest has {guest.online_cpus} of {counted(vm.look.plugged_cpus, 'vCPU')} online")
    return "; ".join(told) or None


def _unmoved(vm: QemuGuest, now_s: float) -> str | None:
    device = vm.look.virtio
    if device is None or not _is_over(vm, vm.unmoved_s, now_s):
        return None
    wanted = wanted_virtio_bytes(vm, device)
    return f"the guest's virtio-mem device stays at {_memory(device.size_bytes)} instead of {_memory(wanted)}"


def _is_over(vm: QemuGuest, since_s: float | None, now_s: float) -> bool:
    return since_s is not None and now_s >= since_s + vm.rules.usable_deadline_s


# ---------------------------------------------------------------- the page


def machine_document(vm: QemuGuest, now_s: float) -> MachineShown:
    """The machine as `/v1/vms` shows it."""
    guest = vm.guest.believed(now_s, vm.rules.silence_s)
    return MachineShown(
        vcpus_plugged=vm.look.plugged_cpus,
        vcpus_online=None if guest is None else guest.online_cpus,
        memory_plugged=_memory(vm.plugged_bytes),
        memory_usable=None if guest is None else _memory(guest.memory_online_bytes),
        memory_slots=_slots(vm),
        provider="dimm" if vm.look.virtio is None else "virtio-mem",
        pending=pending(vm, now_s),
    )


def _slots(vm: QemuGuest) -> SlotsShown:
    device = vm.look.virtio
    if device is not None:
        return _virtio_slots(device, vm.slot_bytes)
    dimms = {dimm.id for dimm in vm.look.dimms}
    leaving = sum(eject.id in dimms for eject in vm.pending_ejects())
    return SlotsShown(
        plugged=len(vm.look.dimms) - leaving,
        ejecting=leaving,
        free=vm.facts.memory_slots - len(vm.look.dimms),
    )


def _virtio_slots(device: VirtioMem, slot_bytes: int) -> SlotsShown:
    """A virtio-mem device in slots; a part of one counts as one."""
    stays = -(-min(device.size_bytes, device.requested_bytes) // slot_bytes)
    there = -(-device.size_bytes // slot_bytes)
    return SlotsShown(plugged=stays, ejecting=there - stays, free=device.most_bytes // slot_bytes - there)


def pending(vm: QemuGuest, now_s: float) -> str | None:
    """The changes that are waited for, for a person; None if there are none."""
    told, guest = [], vm.guest.believed(now_s, vm.rules.silence_s)
    if guest is None:
        why = f": {vm.guest.fault}" if vm.guest.fault else ""
        told.append(f"its informant is silent{why}; all plugged vCPUs count")
    elif guest.online_cpus != vm.wanted_cpus:
        told.append(f"{counted(guest.online_cpus, 'vCPU')} online, {vm.wanted_cpus} wanted")
    if vm.plugged_bytes != vm.target.memory_bytes:
        told.append(f"{_memory(vm.plugged_bytes)} plugged in, {_memory(vm.target.memory_bytes)} wanted")
    told += [f"{eject.id} is being ejected" for eject in vm.pending_ejects()]
    return "; ".join(told) or None


def _memory(amount: int) -> str:
    return quantities.from_value(amount, binary=True).canonical()
