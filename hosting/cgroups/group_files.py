"""The control files of a group in both versions of cgroups, as figures. All files are only read."""

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hosting.cgroups.tree import PodGroup

_MOST_BYTES: Final = 16384
_ABSENT: Final = -1


class KeptFiles:
    """Reads files of one directory, each from its start again and again."""

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._open: dict[str, int] = {}

    def read(self, name: str) -> bytes:
        """The present content of the file; nothing if the first attempt to open it found no file, or none that may be read.

        Raises `OSError` once the cgroup of an open file is gone.
        """
        file = self.descriptor(name)
        return b"" if file == _ABSENT else os.pread(file, _MOST_BYTES, 0)

    def descriptor(self, name: str) -> int:
        """The open file; below zero if there is none. It belongs to this object. Raises `OSError` as `read` does."""
        file = self._open.get(name)
        if file is None:
            try:
                file = os.open(f"{self._directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                file = _ABSENT
            self._open[name] = file
        return file

    def silent(self, name: str) -> OSError:
        """The error of a file that should have told something."""
        return OSError(errno.ENOENT, f"{self._directory}/{name} says nothing")

    def close(self) -> None:
        """Let go of all files."""
        for file in self._open.values():
            if file != _ABSENT:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._open.clear()


LONGEST_NUMBER: Final = 21
"""Digits: no number of the kernel has so many."""


def number(text: bytes) -> int | None:
    """The number in a file; None for "max", an empty text or nonsense."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) < LONGEST_NUMBER else None


def value(text: bytes, name: bytes) -> int:
    """The number beside a name in a file of names and numbers; 0 if there is none. `name` ends with a space."""
    at = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if at == 0 and not text.startswith(name):
        return 0
    found = text[at + len(name) :].partition(b"\n")[0]
    return number(found) or 0


_UNLIMITED: Final = 2**60
"""cgroup v1 writes "no limit" as the largest number of whole pages."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a group: all that is in use, and the part that the kernel could not drop."""

    current_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class LimitReading:
    """The limits of a group and how often they held its tasks back; None if there is no limit.

    `throttled` of `periods` had tasks waiting because the CPU limit was used up, for `throttled_s` in all. `hits` counts how often
    the memory limit was reached, `kills` the tasks killed for lack of memory.
    """

    quota_cpus: float | None
    period_s: float
    periods: int
    throttled: int
    throttled_s: float
    max_bytes: int | None
    hits: int
    kills: int


class GroupFiles(ABC):
    """The files of one group, in each hierarchy, which may be the same directory."""

    tells_kills: bool
    """Whether `memory.events` of the group counts what happens in the groups inside, too."""

    def __init__(self, group: PodGroup) -> None:
        self._cpu = KeptFiles(group.cpu)
        self._cpuacct = KeptFiles(group.cpuacct)
        self._memory = KeptFiles(group.memory)

    @abstractmethod
    def busy_s(self) -> float:
        """The CPU time that the group has used. Raises `OSError` if the group is gone, or does not tell."""

    @abstractmethod
    def limits(self) -> LimitReading:
        """The limits of the group, with its counters. Raises `OSError` if the group is gone."""

    @abstractmethod
    def memory(self) -> MemoryUse:
        """The memory in use. Raises `OSError` if the group is gone."""

    @abstractmethod
    def pressure_s(self) -> dict[str, float]:
        """The time spent waiting in seconds, as `stalls` names it; empty if the kernel does not tell."""

    @abstractmethod
    def counters(self) -> tuple[int, int]:
        """The open files that change when the CPU limit holds tasks back, and when the memory limit is reached.

        Below zero if there is no such file.
        """

    def throttling(self) -> tuple[int, int]:
        """The periods of the CPU limit so far, and those of them in which tasks were held back; (0, 0) if there never was a limit."""
        stat = self._cpu.read("cpu.stat")
        return value(stat, b"nr_periods "), value(stat, b"nr_throttled ")

    def close(self) -> None:
        for each in (self._cpu, self._cpuacct, self._memory):
            each.close()

    def _amount(self, files: KeptFiles, name: str) -> int:
        found = number(files.read(name))
        if found is None:
            raise files.silent(name)
        return found


class FilesV1(GroupFiles):
    tells_kills = False

    def busy_s(self) -> float:
        return self._amount(self._cpuacct, "cpuacct.usage") / 1e9

    def limits(self) -> LimitReading:
        stat = self._cpu.read("cpu.stat")
        period_us = number(self._cpu.read("cpu.cfs_period_us")) or 100_000
        quota_us = number(self._cpu.read("cpu.cfs_quota_us"))  # -1: none
        most = self._amount(self._memory, "memory.limit_in_bytes")
        return LimitReading(
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
        current, stat = self._amount(self._memory, "memory.usage_in_bytes"), self._memory.read("memory.stat")
        cache = value(stat, b"total_inactive_file ") + value(stat, b"total_active_file ")
        return MemoryUse(current, max(0, current - cache))

    def pressure_s(self) -> dict[str, float]:
        return {}

    def counters(self) -> tuple[int, int]:
        return self._cpu.descriptor("cpu.stat"), self._memory.descriptor("memory.failcnt")


class FilesV2(GroupFiles):
    tells_kills = True

    def busy_s(self) -> float:
        stat = self._cpu.read("cpu.stat")
        if not stat:
            raise self._cpu.silent("cpu.stat")
        return value(stat, b"usage_usec ") / 1e6

    def limits(self) -> LimitReading:
        stat, events = self._cpu.read("cpu.stat"), self._memory.read("memory.events")
        own = self._memory.read("memory.events.local") or events
        quota, _, period = self._cpu.read("cpu.max").partition(b" ")
        quota_us, period_us = number(quota), number(period) or 100_000
        return LimitReading(
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
        current, stat = self._amount(self._memory, "memory.current"), self._memory.read("memory.stat")
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
    return FilesV2(group) if group.is_v2 else FilesV1(group)


def stalls(resource: str, text: str) -> dict[str, float]:
    """The totals of a pressure file in seconds, as `cpu_waiting` and `cpu_stalled`; lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        kind, _, fields = line.partition(" ")
        name = {"some": "waiting", "full": "stalled"}.get(kind)
        total = fields.rpartition("total=")[2]
        if name is not None and total.isdecimal():
            found[f"{resource}_{name}"] = int(total) / 1e6
    return found
