"""The control files of a pod's groups in both versions of cgroups, as figures. All files are only read."""

import errno
from dataclasses import dataclass
from typing import Final, Protocol

from informant.core.containers import ContainerReading
from informant.guest.cgroup import stalls
from informant.guest.kept_files import KeptFiles, number, value
from informant.guest.kubelet import PodGroup

_UNLIMITED: Final = 2**60
"""cgroup v1 writes "no limit" as the largest number of whole pages."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a group: all that is in use, and what of it the kernel could not drop."""

    current_bytes: int
    needed_bytes: int


class GroupFiles(Protocol):
    """The files of one group."""

    tells_kills: bool
    """Whether `memory.events` of the group counts what happens in the groups inside, too."""

    def busy_s(self) -> float:
        """The CPU time that the group has used."""
        ...

    def limits(self) -> ContainerReading:
        """The limits of the group, with its counters; memory in use is left out. Raises `OSError` where the group is gone."""
        ...

    def memory(self) -> MemoryUse:
        """The memory in use. Raises `OSError` where the group is gone."""
        ...

    def pressure_s(self) -> dict[str, float]:
        """The time spent waiting, as in `Reading`; empty where the kernel does not tell."""
        ...

    def counters(self) -> tuple[int, int]:
        """The open files that change when the CPU limit holds tasks back, and when the memory limit is reached.

        Below zero where there is no such file.
        """
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class _Files:
    """What both versions have in common: the files of each hierarchy, which may be the same directory."""

    def __init__(self, group: PodGroup) -> None:
        self._cpu = KeptFiles(group.cpu)
        self._cpuacct = KeptFiles(group.cpuacct)
        self._memory = KeptFiles(group.memory)
        self._directory = group.memory

    def _amount(self, name: str) -> int:
        found = number(self._memory.read(name))
        if found is None:
            raise OSError(errno.ENOENT, f"{self._directory / name} says nothing")
        return found

    def close(self) -> None:
        for each in (self._cpu, self._cpuacct, self._memory):
            each.close()


class FilesV1(_Files):
    """A group of cgroup v1."""

    tells_kills = False

    def busy_s(self) -> float:
        return (number(self._cpuacct.read("cpuacct.usage")) or 0) / 1e9

    def limits(self) -> ContainerReading:
        stat = self._cpu.read("cpu.stat")
        period_us = number(self._cpu.read("cpu.cfs_period_us")) or 100_000
        quota_us = number(self._cpu.read("cpu.cfs_quota_us"))  # -1: none
        most = self._amount("memory.limit_in_bytes")
        return ContainerReading(
            quota_cpus=quota_us / period_us if quota_us else None,
            period_s=period_us / 1e6,
            periods=value(stat, b"nr_periods "),
            throttled=value(stat, b"nr_throttled "),
            throttled_s=value(stat, b"throttled_time ") / 1e9,
            max_bytes=most if most < _UNLIMITED else None,
            hits=number(self._memory.read("memory.failcnt")) or 0,
            kills=value(self._memory.read("memory.oom_control"), b"oom_kill "),
        )

    def memory(self) -> MemoryUse:
        current, stat = self._amount("memory.usage_in_bytes"), self._memory.read("memory.stat")
        cache = value(stat, b"total_inactive_file ") + value(stat, b"total_active_file ")
        return MemoryUse(current, max(0, current - cache))

    def pressure_s(self) -> dict[str, float]:
        return {}

    def counters(self) -> tuple[int, int]:
        return self._cpu.descriptor("cpu.stat"), self._memory.descriptor("memory.failcnt")


class FilesV2(_Files):
    """A group of cgroup v2."""

    tells_kills = True

    def busy_s(self) -> float:
        return value(self._cpu.read("cpu.stat"), b"usage_usec ") / 1e6

    def limits(self) -> ContainerReading:
        stat, events = self._cpu.read("cpu.stat"), self._memory.read("memory.events")
        own = self._memory.read("memory.events.local") or events
        quota, _, period = self._cpu.read("cpu.max").partition(b" ")
        quota_us, period_us = number(quota), number(period) or 100_000
        return ContainerReading(
            quota_cpus=quota_us / period_us if quota_us else None,
            period_s=period_us / 1e6,
            periods=value(stat, b"nr_periods "),
            throttled=value(stat, b"nr_throttled "),
            throttled_s=value(stat, b"throttled_usec ") / 1e6,
            max_bytes=number(self._memory.read("memory.max")),
            hits=sum(value(own, name) for name in (b"high ", b"max ", b"oom ")),
            kills=value(events, b"oom_kill "),
        )

    def memory(self) -> MemoryUse:
        current, stat = self._amount("memory.current"), self._memory.read("memory.stat")
        cache = sum(value(stat, name) for name in (b"active_file ", b"inactive_file ", b"slab_reclaimable "))
        return MemoryUse(current, max(0, current - cache))

    def pressure_s(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for resource in ("cpu", "memory"):
            found |= stalls(resource, self._cpu.read(f"{resource}.pressure").decode(errors="replace"))
        return found

    def counters(self) -> tuple[int, int]:
        return self._cpu.descriptor("cpu.stat"), self._memory.descriptor("memory.events")


def open_files(group: PodGroup) -> GroupFiles:
    """The files of a group, which the caller closes."""
    return FilesV2(group) if group.is_v2 else FilesV1(group)
