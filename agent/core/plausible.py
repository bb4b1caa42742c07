"""Which figures of a reading can be true: a VM uses no more than it has.

A counter that jumps, or an exporter's garbage, would show as load that nobody could ever use, and hold the VM at its maximum for as
long as peaks and surges are remembered. Such a figure is not known then; the others of the reading count.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from agent.core.model import Sample, Vm, VmKind
from agent.core.policies.values import MILLION, Load
from protocol.plurals import counted
from protocol.values import ZERO, Resources

LATE_S: Final = 2.0
"""A reading may have been taken so much before it was received: the time between two readings is known no better."""
BURST: Final = 8
"""A pod without limits, or with higher ones than its requests, may use more than its size. Where nobody tells how much, so many times
its maximum are believed."""
_MACHINES: Final = (VmKind.QEMU, VmKind.NEONVM)


@dataclass(frozen=True, slots=True)
class Usable:
    """The most that a VM can have used between two readings: CPUs, and bytes of memory; None where that is not known."""

    cpus: float
    memory_bytes: int | None


def usable(vm: Vm, had: Resources, before: Sample | None, after: Sample) -> Usable:
    """What `vm` can have used. `had` is the most that it had since the reading before; zero where that is not known.

    A machine of its own has nothing beyond that. Where a guest tells its CPUs (those of its limits, of a pod), it tells its memory as
    well, and both are believed; else what the VM may have at most counts.
    """
    most = vm.bounds.max.max(had)
    told = [each.cpus for each in (before, after) if each is not None and each.cpus is not None]
    if vm.kind in _MACHINES:
        has = most if had == ZERO else had
        return Usable(max([math.ceil(has.vcpu_milli / 1000), *told]), has.memory_bytes)
    if told:
        return Usable(max([most.vcpu_milli / 1000, *told]), None)
    times = BURST if vm.kind is VmKind.POD else 1
    return Usable(most.vcpu_milli / 1000 * times, most.memory_bytes * times)


def plausible(load: Load, most: Usable, before: Sample | None, after: Sample) -> tuple[Load, str]:
    """The load without what cannot be true, and why that cannot be; empty where all of it can."""
    why, used = [], load.memory_used()
    if load.busy_micro is not None and before is not None:
        span_s = after.at_s - before.at_s
        if load.busy_micro * span_s > most.cpus * MILLION * (span_s + LATE_S):
            why.append(f"{load.busy_micro / MILLION:.0f} busy CPUs, of {counted(most.cpus, 'CPU')} at most")
            load = replace(load, busy_micro=None)
    if used is not None and most.memory_bytes is not None and used > most.memory_bytes:
        why.append(f"{_mib(used)} MiB of memory in use, of {_mib(most.memory_bytes)} MiB at most")
        load = replace(load, memory_total=None, memory_available=None)
    return load, f"implausible, and not counted: {'; '.join(why)}" if why else ""


def _mib(amount: int) -> int:
    return -(-amount // 2**20)
