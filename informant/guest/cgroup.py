"""The workload's cgroup (v2): a port, and the files behind it.

Any file may be missing (the memory controller may belong to cgroup v1) or read-only. The informant uses the files that are there;
`lacks` names the others. Source: reference/real-vm.md 4.2.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from hosting.cgroups.group_files import LONGEST_NUMBER, stalls
from informant.core.limits import PERIOD_US, Control
from informant.core.report import CgroupReading

MOUNTS: Final = Path("/proc/self/mounts")
OWN: Final = Path("/proc/self/cgroup")
_DROPPABLE: Final = ("active_file", "inactive_file", "slab_reclaimable")
"""The parts of memory.stat that the kernel drops under pressure; files in memory (tmpfs, shared memory) are not among them."""


class Cgroup(Protocol):
    """The group that the workload lives in. Its files below `path` may be waited on."""

    path: Path

    def read(self) -> CgroupReading:
        """The values of the files now; None or empty if a file is missing or cannot be read."""
        ...

    def write(self, control: Control, text: str) -> None:
        """Write a control file; lowering a memory limit may take as long as the kernel takes to reclaim.

        Raises `OSError`.
        """
        ...

    def lacks(self) -> Mapping[str, str]:
        """Why each file that we would read or write cannot be."""
        ...


class CgroupError(Exception):
    """The group that was named cannot be used; the text says why."""


def find(name: str, *, mounts: Path = MOUNTS, own: Path = OWN) -> "FileCgroup":
    """The group of that name: an absolute path, or a name below the mount of cgroup v2.

    Raises `CgroupError` if there is no such group, or if this program lives in that group and would freeze with it.
    """
    path, mount = Path(name), root(mounts)
    if not path.is_absolute():
        if mount is None:
            raise CgroupError(
                f"{name!r}: no cgroup v2 is mounted here; name its directory by an absolute path"
            )
        path = mount / path
    try:
        is_group = (path / "cgroup.procs").exists()
    except OSError as error:  # a name that is too long, a directory that may not be looked into
        raise CgroupError(f"{path}: cannot be looked at: {error.strerror}") from None
    if not is_group:
        raise CgroupError(f"{path}: is no cgroup (there is no cgroup.procs)")
    if mount is not None:
        with contextlib.suppress(OSError):
            path = path.resolve()
            name_of_ours = own_name(own)
            if name_of_ours is not None and (mount.resolve() / name_of_ours).is_relative_to(path):
                raise CgroupError(
                    f"{path}: the informant itself lives in it, and would freeze with it; give the workload a "
                    "cgroup of its own"
                )
    return FileCgroup(path)


def root(mounts: Path = MOUNTS) -> Path | None:
    """The mount of cgroup v2; None if there is none."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    return next((Path(parts[1]) for parts in map(str.split, lines) if parts[2:3] == ["cgroup2"]), None)


def own_name(own: Path = OWN) -> str | None:
    """Our own group below the mount point of cgroup v2: empty for the root, None if we live in none."""
    try:
        lines = own.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)


class FileCgroup:
    """A directory of cgroup v2."""

    _READ: Final = ("memory.current", "memory.stat", "memory.events", "memory.pressure", "cpu.pressure")

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> CgroupReading:
        current = _number(self._text("memory.current"))
        stat = _pairs(self._text("memory.stat"))
        droppable = sum(stat.get(name, 0) for name in _DROPPABLE)
        frozen = self._text("cgroup.freeze").strip()
        return CgroupReading(
            current_bytes=current,
            needed_bytes=None if current is None else max(0, current - droppable),
            high_bytes=_number(self._text("memory.high")),
            max_bytes=_number(self._text("memory.max")),
            events=self._events(),
            cpu_quota_us=_quota(self._text("cpu.max")),
            frozen=None if not frozen else frozen == "1",
            pressure_s={
                **stalls("cpu", self._text("cpu.pressure")),
                **stalls("memory", self._text("memory.pressure")),
            },
        )

    def write(self, control: Control, text: str) -> None:
        """Write a control file, which must exist."""
        file = os.open(self.path / control, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def lacks(self) -> Mapping[str, str]:
        """Why each file that we would read or write cannot be."""
        found = {}
        for name in self._READ:
            if not os.access(self.path / name, os.R_OK):
                found[name] = "may not be read" if (self.path / name).exists() else "is not there"
        for control in Control:
            if not os.access(self.path / control, os.W_OK):
                found[control] = "may not be written" if (self.path / control).exists() else "is not there"
        return found

    def _events(self) -> dict[str, int]:
        """The counts of events; those of limits (`high`, `max`) without the groups below, if the kernel tells them apart."""
        own = _pairs(self._text("memory.events.local"))
        return _pairs(self._text("memory.events")) | {
            name: own[name] for name in ("high", "max") if name in own
        }

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text()
        except (OSError, UnicodeDecodeError):
            return ""


def _number(text: str) -> int | None:
    """The number in a file; None for "max", an empty text or nonsense."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < LONGEST_NUMBER else None


def _quota(text: str) -> int | None:
    """The CPU time of cpu.max for each 100 ms, with a period of any length."""
    quota, _, period = text.partition(" ")
    allowed, period_us = _number(quota), _number(period) or PERIOD_US
    return None if allowed is None else allowed * PERIOD_US // period_us


def _pairs(text: str) -> dict[str, int]:
    """A file of names and numbers."""
    found = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.isdecimal() and len(number) < LONGEST_NUMBER:
            found[name] = int(number)
    return found
