"""Changes a `QemuGuest` after an event. `chance` is a random number in [0, 1) drawn by the shell, for jitter."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from agent.backends.qemu.core.machine import (
    Acknowledge,
    CpuStep,
    DropMemoryBackend,
    EjectDimm,
    GuestAction,
    LookAtGuest,
    LookAtMachine,
    MachineLook,
    OrderOnline,
    RequestVirtioMem,
    Step,
    UnplugCpu,
)
from agent.backends.qemu.core.plan import next_cpu_step, next_memory_step, wanted_virtio_bytes
from agent.backends.qemu.core.state import Eject, QemuGuest, StepPhase, StepTrack
from protocol.informant_pages import GuestMachine
from protocol.texts import counted
from protocol.values import Resources


def connected(known: QemuGuest, ejects: Iterable[tuple[str, float]], now_s: float) -> QemuGuest:
    """The first that a life knows of a guest, with the `ejects` that an earlier life has begun, each with the moment of its begin."""
    rules = known.rules
    begun = tuple(
        Eject(device, min(since_s, now_s), 1, min(since_s, now_s) + rules.eject_again_s(1, 0.0))
        for device, since_s in ejects
    )
    return _tidied(replace(known, ejects=begun, nudge_at_s=now_s + rules.nudge_after_s(1, 0.0)), now_s)


def commanded(vm: QemuGuest, generation: int, target: Resources, slot_bytes: int, now_s: float) -> QemuGuest:
    """Another target stands in the VM's file, or another life has fenced the VM."""
    if generation != vm.generation:
        vm = replace(vm, guest=replace(vm.guest, answer=None))
    if target != vm.target:
        # A step that failed for another target says nothing about this one.
        cpu, memory = _retrying_now(vm.cpu, now_s), _retrying_now(vm.memory, now_s)
        vm = replace(vm, cpu=cpu, memory=memory, unmoved_s=None, nudges=0)
    return _tidied(replace(vm, generation=generation, target=target, slot_bytes=slot_bytes), now_s)


def look_wanted(vm: QemuGuest, now_s: float) -> QemuGuest:
    return replace(vm, wanted_look_s=now_s)


def machine_told(vm: QemuGuest) -> QemuGuest:
    """QEMU has told that something changed."""
    return replace(vm, is_stale=True)


def guest_reset(vm: QemuGuest, now_s: float) -> QemuGuest:
    """The guest boots anew within its machine. Its kernel brings all vCPUs online, long before its informant tells."""
    return replace(vm, guest=replace(vm.guest, answer=None, heard_s=now_s))


def began(vm: QemuGuest, action: GuestAction, now_s: float, chance: float) -> QemuGuest:
    """Something is being done from now on."""
    match action:
        case LookAtMachine():
            cpu, memory = (
                _moved(track, StepPhase.ENDED, StepPhase.LOOKED_AT) for track in (vm.cpu, vm.memory)
            )
            return replace(vm, is_looking=True, is_stale=False, cpu=cpu, memory=memory)
        case LookAtGuest():
            return replace(vm, is_asking=True)
        case EjectDimm(device) | UnplugCpu(device):
            vm = _ejecting(vm, device, now_s, chance)
        case RequestVirtioMem(_, requested):
            vm = _requesting(vm, requested, now_s, chance)
        case _:
            pass
    return _with_track(vm, action, replace(_track_of(vm, action), step=action, phase=StepPhase.UNDER_WAY))


def looked(vm: QemuGuest, look: MachineLook, now_s: float) -> QemuGuest:
    """QEMU has shown which devices are plugged in."""
    # A step that makes progress has not failed, even if an error was told of it.
    if look.plugged_bytes != vm.look.plugged_bytes:
        vm = replace(vm, unmoved_s=None, nudges=0, memory=_retrying_now(vm.memory, now_s))
    if look.plugged_cpus != vm.look.plugged_cpus:
        vm = replace(vm, cpu=_retrying_now(vm.cpu, now_s))
    vm = replace(vm, look=look, is_looking=False, cpu=_seen(vm.cpu), memory=_seen(vm.memory))
    return _tidied(vm, now_s)


def look_failed(vm: QemuGuest, now_s: float, chance: float) -> QemuGuest:
    """QEMU has not shown which devices are plugged in."""
    cpu, memory = (_moved(track, StepPhase.LOOKED_AT, StepPhase.ENDED) for track in (vm.cpu, vm.memory))
    retry_s = now_s + vm.rules.retry_after_s(2, chance)
    return replace(vm, is_looking=False, is_stale=True, look_retry_s=retry_s, cpu=cpu, memory=memory)


def answered(vm: QemuGuest, answer: GuestMachine, begun_s: float, now_s: float) -> QemuGuest:
    """The guest has shown itself, in a look that began at `begun_s`. The answer counts once it has acknowledged this life."""
    return _tidied(replace(_heard(vm, answer, begun_s), is_asking=False), now_s)


def unanswered(vm: QemuGuest, error: str, begun_s: float, now_s: float) -> QemuGuest:
    """The guest has not shown itself."""
    guest = replace(vm.guest, asked_s=max(begun_s, vm.guest.asked_s), fault=error)
    return _tidied(replace(vm, guest=guest, is_asking=False), now_s)


def order_stands(vm: QemuGuest, step: OrderOnline | Acknowledge) -> QemuGuest:
    """The guest may carry out an order, now or later."""
    if isinstance(step, Acknowledge):
        return vm
    return replace(vm, guest=replace(vm.guest, ordered_cpus=max(step.count, vm.guest.ordered_cpus)))


def ordered(
    vm: QemuGuest, step: OrderOnline | Acknowledge, answer: GuestMachine, now_s: float, chance: float
) -> QemuGuest:
    """The guest has answered an order. If it has not carried the order out by then, it may still go on with it."""
    vm = order_stands(vm, step)
    # An order that goes on slowly has not failed.
    is_news = vm.guest.answer is None or vm.guest.answer.online_cpus != answer.online_cpus
    track = StepTrack() if is_news else replace(vm.cpu, step=None)
    vm = _tidied(replace(_heard(vm, answer, now_s), cpu=track), now_s)
    if answer.generation > vm.generation:
        return _failed(vm, step, "the guest takes orders of a later life", now_s, chance)
    if isinstance(step, Acknowledge):
        return replace(vm, cpu=StepTrack())
    if answer.online_cpus != min(step.count, answer.present_cpus):
        fault = f"the guest has {counted(answer.online_cpus, 'vCPU')} online after it was ordered to have {step.count}"
        return _failed(vm, step, fault, now_s, chance)
    return replace(vm, cpu=StepTrack(), guest=replace(vm.guest, ordered_cpus=0))


def step_ended(vm: QemuGuest, step: Step, error: str | None, now_s: float, chance: float) -> QemuGuest:
    """A step has ended, with an `error` if it failed or may have. The next look shows its outcome."""
    vm = _with_track(replace(vm, is_stale=True), step, replace(_track_of(vm, step), phase=StepPhase.ENDED))
    if error is not None:
        if isinstance(step, EjectDimm | UnplugCpu):
            # It may not have been heard: the back-off of the track is enough.
            vm = _with_eject(vm, step.id, retry_at_s=now_s)
        return _failed(vm, step, error, now_s, chance)
    if isinstance(step, DropMemoryBackend):
        return vm  # a plug that failed before is no better for it
    return _with_track(vm, step, replace(_track_of(vm, step), failures=0, failing_s=None, fault=""))


def eject_refused(vm: QemuGuest, device: str, status: int, now_s: float, chance: float) -> QemuGuest:
    eject = vm.eject_of(device)
    if eject is None:
        return vm
    retry_at_s = now_s + vm.rules.nudge_after_s(eject.times, chance)
    return _with_eject(vm, device, status=status, retry_at_s=retry_at_s)


def _track_of(vm: QemuGuest, step: Step) -> StepTrack:
    return vm.cpu if isinstance(step, CpuStep) else vm.memory


def _with_track(vm: QemuGuest, step: Step, track: StepTrack) -> QemuGuest:
    return replace(vm, cpu=track) if isinstance(step, CpuStep) else replace(vm, memory=track)


def _failed(vm: QemuGuest, step: Step, error: str, now_s: float, chance: float) -> QemuGuest:
    track = _track_of(vm, step)
    failures = track.failures + 1
    retry_at_s = now_s + vm.rules.retry_after_s(failures, chance)
    since_s = now_s if track.failing_s is None else track.failing_s
    failed = replace(track, failures=failures, failing_s=since_s, retry_at_s=retry_at_s, fault=error)
    return _with_track(vm, step, failed)


def _retrying_now(track: StepTrack, now_s: float) -> StepTrack:
    return replace(track, failures=0, failing_s=None, retry_at_s=min(track.retry_at_s, now_s), fault="")


def _seen(track: StepTrack) -> StepTrack:
    return replace(track, step=None) if track.phase is StepPhase.LOOKED_AT else track


def _moved(track: StepTrack, before: StepPhase, after: StepPhase) -> StepTrack:
    return replace(track, phase=after) if track.phase is before else track


def _heard(vm: QemuGuest, answer: GuestMachine, begun_s: float) -> QemuGuest:
    guest = replace(vm.guest, generation=answer.generation, asked_s=max(begun_s, vm.guest.asked_s), fault="")
    # A look that began before the answer to an order may show the guest as it was before.
    if answer.generation != vm.generation or begun_s < guest.heard_s:
        return replace(vm, guest=guest)
    before, guest = guest.answer, replace(guest, answer=answer, heard_s=begun_s)
    # A guest that takes up one device after the other is not short of anything yet.
    if before is not None and answer.online_cpus > before.online_cpus:
        vm = replace(vm, cpus_short_s=None)
    if before is not None and answer.memory_online_bytes > before.memory_online_bytes:
        vm = replace(vm, memory_short_s=None)
    return replace(vm, guest=guest)


def _requesting(vm: QemuGuest, requested: int, now_s: float, chance: float) -> QemuGuest:
    """A request for anything but the wanted size makes a driver try again that has given up."""
    assert vm.look.virtio is not None, "a request without a device"
    nudges = vm.nudges + (requested != wanted_virtio_bytes(vm, vm.look.virtio))
    return replace(vm, nudges=nudges, nudge_at_s=now_s + vm.rules.nudge_after_s(nudges + 1, chance))


def _with_eject(vm: QemuGuest, device: str, **changes: Any) -> QemuGuest:
    """With `changes` of one eject."""
    return replace(
        vm, ejects=tuple(replace(each, **changes) if each.id == device else each for each in vm.ejects)
    )


def _ejecting(vm: QemuGuest, device: str, now_s: float, chance: float) -> QemuGuest:
    before = vm.eject_of(device)
    times = 1 if before is None else before.times + 1
    since_s = now_s if before is None or before.status is not None else before.since_s
    eject = Eject(device, since_s, times, now_s + vm.rules.eject_again_s(times, chance))
    return replace(vm, ejects=(*(each for each in vm.ejects if each is not before), eject))


def _tidied(vm: QemuGuest, now_s: float) -> QemuGuest:
    """Without ejects and failures that are over, and with the moments since which the guest uses too little, or does not move."""
    vm = replace(vm, ejects=tuple(each for each in vm.ejects if _is_open(vm, each, now_s)))
    if vm.cpu.step is None and next_cpu_step(vm, now_s) is None:
        vm = replace(vm, cpu=StepTrack())
    if vm.memory.step is None and next_memory_step(vm) is None:
        vm = replace(vm, memory=StepTrack())
    device = vm.look.virtio
    is_moving = device is not None and device.size_bytes != wanted_virtio_bytes(vm, device)
    guest = vm.guest.believed(now_s, vm.rules.silence_s)
    cpus_short = guest is not None and guest.online_cpus < min(vm.wanted_cpus, vm.look.plugged_cpus)
    memory_short = guest is not None and (
        guest.memory_online_bytes + guest.memory_block_bytes <= staying_bytes(vm)
    )
    return replace(
        vm,
        cpus_short_s=_since(vm.cpus_short_s, cpus_short, now_s),
        memory_short_s=_since(vm.memory_short_s, memory_short, now_s),
        unmoved_s=_since(vm.unmoved_s, is_moving, now_s),
    )


def staying_bytes(vm: QemuGuest) -> int:
    """The memory that is plugged in and not being ejected: the guest should use all of it."""
    leaving = {eject.id for eject in vm.pending_ejects()}
    return vm.plugged_bytes - sum(dimm.size_bytes for dimm in vm.look.dimms if dimm.id in leaving)


def _is_open(vm: QemuGuest, eject: Eject, now_s: float) -> bool:
    """Whether an eject may still happen, or is still wanted. A device that is wanted again counts as plugged after the deadline."""
    if now_s < eject.since_s + vm.rules.eject_deadline_s and eject.status is None:
        return is_plugged(vm, eject.id)
    surplus = vm.plugged_bytes - vm.target.memory_bytes
    sizes = (dimm.size_bytes for dimm in vm.look.dimms if dimm.id == eject.id)
    if any(size <= surplus for size in sizes):
        return True
    is_cpu = any(slot.device_id == eject.id for slot in vm.look.cpus)
    return is_cpu and vm.look.plugged_cpus > vm.wanted_cpus


def is_plugged(vm: QemuGuest, device: str) -> bool:
    return any(dimm.id == device for dimm in vm.look.dimms) or any(
        slot.device_id == device for slot in vm.look.cpus
    )


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    """Since when something holds; None if it does not."""
    if not holds:
        return None
    return now_s if before_s is None else before_s
