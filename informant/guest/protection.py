"""Keeps the informant alive and awake in a guest that is short of everything, as far as the guest permits.

The informant must be killed last and run first, or it could not report that the guest starves. `protect` tries each measure by
itself and returns a finding: the present state, or the reason why not.
"""

import os
import resource
from pathlib import Path
from typing import Final

from informant.guest import kernel
from informant.guest.cgroup import OWN, own_name
from informant.guest.kernel import Finding, reason_of

PROC_SELF: Final = Path("/proc/self")
_LEAST_SCORE: Final = -1000
_FIRST: Final = -20
_HEAVIEST: Final = 10_000


def protect(own_group: Path | None, proc: Path = PROC_SELF, *, only_us: bool = False) -> tuple[Finding, ...]:
    """Try every measure. `own_group` is the cgroup v2 of this program, None without one of its own.

    `only_us` leaves out measures that concern others in that group, too.
    """
    return (_score(proc), _priority(), _weight(own_group, only_us=only_us), _lock())


def resident_bytes(proc: Path = PROC_SELF) -> int:
    """The memory that this process occupies now."""
    return int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def own_group(root: Path | None, own: Path = OWN) -> Path | None:
    """The directory of this program's cgroup v2; None in the root group."""
    name = own_name(own)
    return root / name if root is not None and name else None


def _score(proc: Path) -> Finding:
    name, file = "oom_score_adj", proc / "oom_score_adj"
    try:
        file.write_text(str(_LEAST_SCORE))
    except OSError as error:
        return Finding(name, False, f"{_read(file)}: {_LEAST_SCORE} was refused ({reason_of(error)})")
    return Finding(name, True, _read(file))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError as error:
        return reason_of(error)


def _priority() -> Finding:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    except OSError as error:
        now = os.getpriority(os.PRIO_PROCESS, 0)
        return Finding("priority", False, f"nice {now}: {_FIRST} was refused ({reason_of(error)})")
    return Finding("priority", True, f"nice {os.getpriority(os.PRIO_PROCESS, 0)}")


def _weight(group: Path | None, *, only_us: bool) -> Finding:
    name = "cpu.weight"
    if group is None:
        return Finding(name, False, "we live in no cgroup v2 of our own")
    file = group / name
    if not file.exists():
        return Finding(name, False, f"{group} has no CPU controller")
    if only_us:
        return Finding(name, os.access(file, os.W_OK), _read(file))
    try:
        file.write_text(str(_HEAVIEST))
    except OSError as error:
        return Finding(name, False, f"{_read(file)}: {_HEAVIEST} was refused ({reason_of(error)})")
    return Finding(name, True, _read(file))


def _lock() -> Finding:
    """Lock the pages in use. Under a small limit a later allocation would fail, so nothing is locked then."""
    name = "mlock"
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit != resource.RLIM_INFINITY and not _may_lock():
        return Finding(name, False, f"only {limit} bytes may be locked (RLIMIT_MEMLOCK)")
    try:
        kernel.mlockall(kernel.MCL_CURRENT | kernel.MCL_FUTURE | kernel.MCL_ONFAULT)
    except OSError as error:
        return Finding(name, False, f"refused ({reason_of(error)})")
    return Finding(name, True, "all pages in use are locked")


def _may_lock() -> bool:
    """Whether we have CAP_IPC_LOCK (14), so that the limit does not count."""
    for line in (PROC_SELF / "status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 14 & 1)
    return False
