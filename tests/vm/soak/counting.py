"""Counts of what processes hold now, and the memory back ends of QEMU: `leaks` and `truth` judge them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from hosting.qmp import QmpMonitor
from labs.vms.running import RunningGuest
from tests.support.vms import shell_of
from tests.vm.soak.leaks import ProcessCounts, fewest
from tests.vm.soak.truth import MemoryBackends

LOOKS: Final = 20
BETWEEN_S: Final = 0.25
GUEST_LOOKS: Final = 5
OF_INFORMANT: Final = (
    "for p in $(cat /sys/fs/cgroup/informant/cgroup.procs); do"
    " echo $(ls /proc/$p/fd | wc -l) $(ls /proc/$p/task | wc -l) $(grep VmRSS /proc/$p/status); done"
)
BACKEND_TYPE: Final = "child<memory-backend-"
FROM_THE_BEGINNING: Final = frozenset({"pc.ram"})


async def counts_of(pid: int, *names: str) -> ProcessCounts:
    """The least of several looks at a process, by the counts of these names."""
    process, looks = psutil.Process(pid), []
    for _ in range(LOOKS):
        looks.append(_look(process, names))
        await asyncio.sleep(BETWEEN_S)
    return fewest(looks)


def _look(process: psutil.Process, names: tuple[str, ...]) -> ProcessCounts:
    with process.oneshot():
        counts = {
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "sockets": len(process.net_connections("all")),
            "children": len(process.children()),
        }
        resident = process.memory_info().rss
    return ProcessCounts({name: counts[name] for name in names}, resident)


async def qemu_counts(pid: int) -> ProcessCounts:
    """The same of a QEMU. Its memory is the guest's, which grows as the guest touches it: `MemoryBackends` tells what is left over."""
    return replace(await counts_of(pid, "descriptors", "sockets", "children"), resident_bytes=0)


async def informant_counts(guest: RunningGuest) -> ProcessCounts:
    """The same of the informant inside a guest. Raises `GuestShellError`."""
    looks = []
    async with shell_of(guest) as shell:
        for _ in range(GUEST_LOOKS):
            descriptors, threads, _, resident_kib, _ = (await shell.run(OF_INFORMANT)).output.split()
            counts = {"descriptors": int(descriptors), "threads": int(threads)}
            looks.append(ProcessCounts(counts, int(resident_kib) * 1024))
    return fewest(looks)


async def memory_backends(monitor: QmpMonitor) -> MemoryBackends:
    """The back ends of memory that was plugged in. Raises `QmpError`."""
    objects = await monitor.execute("qom-list", {"path": "/objects"})
    devices = await monitor.execute("query-memory-devices")
    return MemoryBackends(
        frozenset(each["name"] for each in objects if each["type"].startswith(BACKEND_TYPE))
        - FROM_THE_BEGINNING,
        frozenset(device["data"]["memdev"].rpartition("/")[2] for device in devices),
    )


def files_of(state: Path) -> int:
    """How many files an agent's state directory has, without those of remembered load: these come with time, one for each VM."""
    return sum(path.is_file() and path.parent.name != "load" for path in state.rglob("*"))
