"""The metrics of QEMU guests."""

from collections.abc import Iterator, Mapping

from agent.backends.qemu.core.state import QemuGuest
from hosting.metrics import Family


def guest_families(guests: Mapping[str, QemuGuest], now_s: float) -> Iterator[Family]:
    """What is plugged in, and what the guests use of it where they tell. Guests by the names of their VMs."""
    cpus: list[tuple[tuple[str, ...], float]] = []
    memory: list[tuple[tuple[str, ...], float]] = []
    for name, known in guests.items():
        cpus.append(((name, "plugged"), float(known.look.plugged_cpus)))
        memory.append(((name, "plugged"), float(known.plugged_bytes)))
        guest = known.guest.believed(now_s, known.rules.silence_s)
        if guest is not None:
            cpus.append(((name, "online"), float(guest.online_cpus)))
            memory.append(((name, "online"), float(guest.memory_online_bytes)))
    labels = ("vm", "state")
    yield Family(
        "gauge", "parley_agent_guest_cpus", "vCPUs of each guest, plugged in and online", labels, tuple(cpus)
    )
    yield Family(
        "gauge",
        "parley_agent_guest_memory_bytes",
        "Memory of each guest, plugged in and online",
        labels,
        tuple(memory),
    )
