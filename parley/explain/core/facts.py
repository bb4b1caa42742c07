"""An agent's document of a VM in words."""

from protocol.agent_pages import ContainersShown, RefusedDownscale, UrgentWish, VmInFull
from protocol.texts import counted


def load_of(vm: VmInFull) -> str:
    """The load in one line; empty if it is not known."""
    load = vm.load
    if load is None:
        return ""
    parts = []
    if load.busy_cpus is not None:
        parts.append(f"{load.busy_cpus:.2f} CPUs busy")
    elif load.load1 is not None:
        parts.append(f"load average {load.load1:.2f}")
    used = load.memory_used
    if used is not None:
        shown = f"{used / 2**30:.1f}Gi" if used >= 2**30 else f"{used / 2**20:.0f}Mi"
        parts.append(f"{shown} of memory in use")
    for stalled, word in ((load.cpu_pressure, "CPU"), (load.memory_pressure, "memory")):
        if stalled:
            parts.append(f"{stalled:.0f} % of the time waiting for {word}")
    return ", ".join(parts)


def containers_of(vm: VmInFull) -> ContainersShown:
    """The containers of a pod; of all else none that has a fault."""
    return vm.containers or ContainersShown()


def restarts_of(vm: VmInFull) -> str:
    """The restarts and OOM kills of a pod's containers in a few words; empty if there were none. A kill comes before its restart, and
    stays without one if the pod is never restarted."""
    found, kills = containers_of(vm), vm.counts.ends.get("OOMKilled", 0)
    if not found.restarts and not kills:
        return ""
    killed = f"{counted(kills, 'OOM kill')} since the agent's start" if kills else ""
    restarts = counted(found.restarts, "restart") if found.restarts else ""
    last = f"; last {found.last_end}" if found.last_end else ""
    joint = ", of which " if kills <= found.restarts else ", "
    return f"{joint.join(filter(None, (restarts, killed)))}{last}"


def pending_of(vm: VmInFull) -> str:
    """The thing that the VM's machine waits for; empty if it waits for nothing."""
    return (vm.machine.pending or "") if vm.machine is not None else ""


def named(amounts: RefusedDownscale | UrgentWish | None) -> str:
    """The resources that are there, with their amounts; empty without any."""
    if amounts is None:
        return ""
    found = (f"{amounts.cpu} CPU" if amounts.cpu else "", amounts.memory)
    return " / ".join(text for text in found if text)
