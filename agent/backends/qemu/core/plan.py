"""The actions for one guest now, and the moment of the next look. Recomputed after each event.

At most one step of each resource is under way, and the next one waits for a look that began after its end: level-triggered. A step of the
vCPUs may wait for the guest, and memory must not wait for that.
"""

import math
from dataclasses import dataclass

from agent.backends.qemu.core.cpus import next_cpu_step
from agent.backends.qemu.core.due import Due
from agent.backends.qemu.core.memory import next_memory_step
from agent.backends.qemu.core.state import QemuGuest, StepTrack
from agent.backends.qemu.core.steps import GuestAction, LookAtGuest, LookAtMachine, Step


@dataclass(frozen=True, slots=True)
class QemuPlan:
    """The actions to begin now, and the moment of the next plan, if nothing happens before it (absolute seconds)."""

    actions: tuple[GuestAction, ...]
    wake_at_s: float


def plan_guest(vm: QemuGuest, now_s: float) -> QemuPlan:
    """The plan at `now_s`."""
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
