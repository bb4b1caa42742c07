"""Control groups of 110 pods with three containers each: real ones if cgroup v1 can be written, else files that look like cgroup v2."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

PODS: Final = 110
CONTAINERS: Final = 3
CGROUPS: Final = Path("/sys/fs/cgroup")
HIERARCHIES: Final = ("cpu", "cpuacct", "memory")
_FILES: Final = {
    "cpu.stat": "usage_usec 1000\nuser_usec 0\nnr_periods 10\nnr_throttled 1\nthrottled_usec 7\n",
    "memory.current": "1048576\n",
    "memory.stat": "anon 1\nfile 2\nactive_file 4096\ninactive_file 4096\nslab_reclaimable 0\n",
}


def has_real() -> bool:
    """Whether groups of cgroup v1 can be made here."""
    return all(os.access(CGROUPS / name / "cgroup.procs", os.W_OK) for name in HIERARCHIES)


def uid_of(number: int) -> str:
    return str(UUID(int=(1 << 124) + number))


def _paths(tree: str) -> Iterator[str]:
    for number in range(PODS):
        pod = f"{tree}/burstable/pod{uid_of(number)}"
        yield pod
        yield from (f"{pod}/{number * CONTAINERS + each:064x}" for each in range(CONTAINERS))


@contextlib.contextmanager
def made(directory: Path) -> Iterator[tuple[str, Path]]:
    """The kind of the groups, and the folder in which they are mounted, for the length of a `with` block."""
    if not has_real():
        for path in _paths("kubepods"):
            (directory / path).mkdir(parents=True)
            for name, text in _FILES.items():
                (directory / path / name).write_text(text)
        yield "made-up files", directory
        return
    tree = f"parley-benchmark-{os.getpid()}"
    try:
        for path in _paths(f"{tree}/kubepods"):
            for hierarchy in HIERARCHIES:
                (CGROUPS / hierarchy / path).mkdir(parents=True)
        yield "cgroup v1", CGROUPS
    finally:
        for hierarchy in HIERARCHIES:
            for path, _, _ in os.walk(CGROUPS / hierarchy / tree, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
