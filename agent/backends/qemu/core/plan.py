"""The actions for one guest now, and the moment of the next look. Recomputed after each event.

At most one step of each resource is under way, and the next one waits for a look that began after its end: level-triggered. A step of the
vCPUs may wait for the guest, and memory must not wait for that.
"""

import math
from dataclasses import dataclass

from agent.backends.qemu.core.machine import (
    BACKEND_ID,
    CPU_ID,
    DIMM_ID,
    Acknowledge,
    CpuStep,
    DropMemoryBackend,
    EjectDimm,
    GuestAction,
    LookAtGuest,
    LookAtMachine,
    MemoryStep,
    OrderOnline,
    PlugCpu,
    PlugDimm,
    RequestVirtioMem,
    Step,
    UnplugCpu,
    VirtioMem,
    free_number,
)
from agent.backends.qemu.core.state import Due, QemuGuest, StepTrack, eject_due_s


@dataclass(frozen=True, slots=True)
class QemuPlan:
    """The actions to begin now, and the moment of the next plan, if nothing happens before it (absolute seconds)."""

    actions: tuple[GuestAction, ...]
    wake_at_s: float


def plan_guest(vm: QemuGuest, now_s: float) -> QemuPlan:
    due: list[Due[GuestAction]] = []
    if not vm.is_looking:
        due.append(Due(LookAtMachine(), _machine_look_s(vm)))
    if not vm.is_asking:
        due.append(Due(LookAtGuest(), _guest_look_s(vm, now_s)))
    steps: tuple[tuple[StepTrack, Due[Step] | None], ...] = (
        (vm.cpu, next_cpu_step(vm, now_s)),
        (vm.memory, next_memory_step(vm)),
    )
    due += [step for track, step in steps if step is not None and track.step is None]
    later = [each.at_s for each in due if each.at_s > now_s]
    deadlines = [at_s for at_s in _deadlines_s(vm) if at_s > now_s]
    return QemuPlan(
        tuple(each.step for each in due if each.at_s <= now_s), min([*later, *deadlines], default=math.inf)
    )


def _machine_look_s(vm: QemuGuest) -> float:
    begun_s, rules = vm.look.begun_s, vm.rules
    device = vm.look.virtio
    is_moving = vm.pending_ejects() or (device is not None and device.size_bytes != device.requested_bytes)
    pace_s = rules.look_moving_s if is_moving else rules.look_at_rest_s
    due_s = begun_s if vm.is_stale or begun_s < vm.wanted_look_s else begun_s + pace_s
    return max(due_s, vm.look_retry_s)


def _guest_look_s(vm: QemuGuest, now_s: float) -> float:
    """When the guest is to be asked again. A guest that does not answer is asked at the pace of one at rest."""
    asked_s, rules = vm.guest.asked_s, vm.rules
    if asked_s < vm.wanted_look_s:
        return asked_s
    is_moving = not vm.guest.fault and _takes_something_up(vm, now_s)
    return asked_s + (rules.guest_moving_s if is_moving else rules.guest_at_rest_s)


def _takes_something_up(vm: QemuGuest, now_s: float) -> bool:
    """Whether the guest should soon know a vCPU, or use memory, that was plugged in. An order is answered when it is carried out."""
    guest = vm.guest.believed(now_s, vm.rules.silence_s)
    short = [at_s for at_s in (vm.cpus_short_s, vm.memory_short_s) if at_s is not None]
    is_fresh = any(now_s < at_s + vm.rules.usable_deadline_s for at_s in short)
    is_ordering = vm.cpu.step is not None and guest is not None and guest.present_cpus >= vm.look.plugged_cpus
    return is_fresh and not (is_ordering and vm.memory_short_s is None)


def _deadlines_s(vm: QemuGuest) -> list[float]:
    """When something is to be told, although nothing has happened."""
    rules = vm.rules
    short = (vm.cpus_short_s, vm.memory_short_s, vm.unmoved_s, vm.cpu.failing_s, vm.memory.failing_s)
    return [
        vm.guest.heard_s + rules.silence_s,
        *(at_s + rules.usable_deadline_s for at_s in short if at_s is not None),
        *(eject.since_s + rules.eject_deadline_s for eject in vm.pending_ejects()),
    ]


# ---------------------------------------------------------------- the next step of each resource


def next_cpu_step(vm: QemuGuest, now_s: float) -> Due[CpuStep] | None:
    """The next step of the vCPUs: plug, let the guest bring online, let it take offline; and unplug if the settings allow that. None if they
    are as they should be, or if the guest has to be waited for."""
    # A plug that fails again and again keeps no vCPU offline that is there.
    step = (
        (_order(vm, now_s) or _plug_cpu(vm)) if vm.cpu.failures % 2 else (_plug_cpu(vm) or _order(vm, now_s))
    )
    if step is not None:
        return Due(step, vm.cpu.retry_at_s)
    return _unplug(vm, now_s)


def _plug_cpu(vm: QemuGuest) -> PlugCpu | None:
    if vm.look.plugged_cpus >= vm.wanted_cpus:
        return None
    free = next(((place, slot) for place, slot in enumerate(vm.look.cpus) if slot.path is None), None)
    return None if free is None else PlugCpu(free[1], f"{CPU_ID}{free[0]}")


def _order(vm: QemuGuest, now_s: float) -> OrderOnline | Acknowledge | None:
    """An order to the guest. A guest that does not answer gets none; one that has not acknowledged this life is asked for that first."""
    guest = vm.guest
    if guest.fault or guest.generation is None or guest.generation > vm.generation:
        return None
    believed = guest.believed(now_s, vm.rules.silence_s)
    if guest.generation < vm.generation:
        return Acknowledge()
    if believed is None:
        return None
    # An order that was not answered, or not carried out by then, is over when another one is.
    if believed.online_cpus != min(vm.wanted_cpus, believed.present_cpus) or guest.ordered_cpus:
        return OrderOnline(vm.wanted_cpus)
    return None


def _unplug(vm: QemuGuest, now_s: float) -> Due[CpuStep] | None:
    """Take out the highest vCPU of ours, once the guest has as many online as it should."""
    believed = vm.guest.believed(now_s, vm.rules.silence_s)
    is_offline = believed is not None and believed.online_cpus <= vm.wanted_cpus
    if not vm.rules.unplugs_cpus or not is_offline or vm.look.plugged_cpus <= vm.wanted_cpus:
        return None
    ours = [slot.device_id for slot in vm.look.cpus if slot.device_id and slot.device_id.startswith(CPU_ID)]
    if not ours:
        return None
    return Due(UnplugCpu(ours[-1]), eject_due_s(vm.eject_of(ours[-1]), vm.cpu.retry_at_s))


def next_memory_step(vm: QemuGuest) -> Due[MemoryStep] | None:
    """The next step of the memory, of DIMMs, or of a virtio-mem device if the machine has one. None if it is as it should be, or if the guest has to be waited for."""
    if vm.look.orphans:
        return Due(DropMemoryBackend(vm.look.orphans[0]), vm.memory.retry_at_s)
    if vm.look.virtio is not None:
        return _request(vm, vm.look.virtio)
    if vm.plugged_bytes + vm.slot_bytes <= vm.target.memory_bytes:
        return _plug_dimm(vm)
    return _eject(vm)


def _plug_dimm(vm: QemuGuest) -> Due[MemoryStep] | None:
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
