"""The next step of the vCPUs: plug, let the guest bring online, let it take offline; and unplug if the settings allow that."""

from agent.backends.qemu.core.due import Due, eject_due_s
from agent.backends.qemu.core.machine import CPU_ID
from agent.backends.qemu.core.state import QemuGuest
from agent.backends.qemu.core.steps import Acknowledge, CpuStep, OrderOnline, PlugCpu, UnplugCpu


def next_cpu_step(vm: QemuGuest, now_s: float) -> Due[CpuStep] | None:
    """The next step of the vCPUs; None if they are as they should be, or if the guest has to be waited for."""
    # A plug that fails again and again keeps no vCPU offline that is there.
    step = (_order(vm, now_s) or _plug(vm)) if vm.cpu.failures % 2 else (_plug(vm) or _order(vm, now_s))
    if step is not None:
        return Due(step, vm.cpu.retry_at_s)
    return _unplug(vm, now_s)


def _plug(vm: QemuGuest) -> PlugCpu | None:
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
