"""A pod as a guest: the figures of its cgroup, read as those of a machine are."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from informant.core.containers import POD, ContainerReading, Containers
from informant.core.load import DampedLoad
from informant.core.report import PodReading, Reading
from informant.guest.kubelet import PodGroup
from informant.guest.pod_files import GroupFiles, open_files
from protocol.values import Resources
from protocol.wire import MoreResources

MEMINFO: Final = Path("/proc/meminfo")


def node_bytes(meminfo: Path = MEMINFO) -> int:
    """The node's memory: what a pod without any limit and of unknown size may use. Raises `OSError` or `ValueError`."""
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.removesuffix("kB")) * 1024
    raise ValueError("meminfo shows no MemTotal")


class PodSource:
    """Reads a pod's cgroup and those of its containers; files stay open until `close`.

    Without a memory limit the pod's memory is the size that its agent announced, and the node's before that.
    """

    def __init__(
        self, group: PodGroup, node_memory_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._group = group
        self._files = open_files(group)
        self._inside: dict[str, GroupFiles] = {}
        self._limited: tuple[GroupFiles, ...] = ()
        self._size_bytes = node_memory_bytes
        self._clock = clock
        self._containers = Containers(self._files.tells_kills)
        self._load = DampedLoad(clock(), self._files.busy_s())
        self._counters: tuple[list[bytes], list[bytes]] | None = None

    def is_there(self) -> bool:
        """Whether the pod still exists."""
        return self._group.is_there()

    def resized(self, size: Resources) -> None:
        """The pod has, or is about to have, this size."""
        self._size_bytes = size.memory_bytes

    def read(self) -> Reading:
        """The pod now. Raises `OSError` where its group is gone."""
        use, busy_s = self._files.memory(), self._files.busy_s()
        pod = replace(self._files.limits(), used_bytes=use.needed_bytes)
        self._containers = self._containers.seen(pod, self._read_containers(pod))
        totals = self._containers.totals()
        self._load = self._load.after(self._clock(), busy_s + totals.throttled_s)
        total = pod.max_bytes or max(self._size_bytes, use.needed_bytes)
        groups = {name: each for name, each in self._containers.last.items() if _is_limited(each)}
        return Reading(
            *self._load.averages,
            busy_s,
            pod.quota_cpus or os.cpu_count() or 1,
            total,
            max(0, total - use.needed_bytes),
            self._files.pressure_s(),
            totals.kills,
            pod=PodReading(
                pod.max_bytes, use.current_bytes, totals.hits, totals.throttled_s, {POD: pod, **groups}
            ),
        )

    def _read_containers(self, pod: ContainerReading) -> dict[str, ContainerReading]:
        """A reading of each container that is there. Where its memory limit is the pod's, so is what it uses."""
        names = self._group.containers()
        for gone in self._inside.keys() - set(names):
            self._inside.pop(gone).close()
        found = {}
        for name in names:
            files = self._inside.get(name) or open_files(self._group.below(name))
            self._inside[name] = files
            with contextlib.suppress(OSError):  # it ends at this moment
                each = files.limits()
                is_own = each.max_bytes is not None and each.max_bytes != pod.max_bytes
                used = files.memory().needed_bytes if is_own else pod.used_bytes
                found[name] = replace(each, used_bytes=used)
        limited = (self._inside[name] for name, each in found.items() if _is_limited(each))
        self._limited = (self._files, *limited)
        return found

    def changed(self) -> MoreResources:
        """The resources whose limits have held something back since this was called last. Costs few system calls.

        Raises `OSError` where the pod is gone.
        """
        cpu, memory = [], []
        for files in self._limited:
            with contextlib.suppress(OSError):
                throttled, hits = files.counters()
                cpu.append(throttled)
                memory.append(hits)
        before, self._counters = self._counters, (cpu, memory)
        if before is None:
            return MoreResources(cpu=False, memory=False)
        return MoreResources(cpu=cpu != before[0], memory=memory != before[1])

    def close(self) -> None:
        """Let go of all files."""
        for files in (self._files, *self._inside.values()):
            files.close()
        self._inside.clear()
        self._limited = ()


def _is_limited(group: ContainerReading) -> bool:
    return group.quota_cpus is not None or group.max_bytes is not None
