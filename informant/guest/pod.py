"""A pod as a guest: the figures of its cgroup, read as those of a machine are."""

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from hosting.cgroups.group_files import GroupFiles, LimitReading, open_files, value
from hosting.cgroups.tree import PodGroup
from informant.core.containers import POD, Behind, ContainerReading, Containers, DampedLoad, behind
from informant.core.report import PodReading, Reading
from protocol.informant_pages import GroupAllowance, PodCgroups
from protocol.values import ZERO, Resources
from protocol.wire import MoreResources

MEMINFO: Final = Path("/proc/meminfo")


def node_bytes(meminfo: Path = MEMINFO) -> int:
    """The node's memory: the most that a pod without any limit and of unknown size may use. Raises `OSError` or `ValueError`."""
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.removesuffix("kB")) * 1024
    raise ValueError("meminfo shows no MemTotal")


_NOTHING: Final = MoreResources(cpu=False, memory=False)
_THROTTLED: Final = b"nr_throttled "
_ID: Final = re.compile(r"[0-9a-f]{64}")
_COUNTERS_BYTES: Final = 512
"""The counters are within the first so many bytes of their files."""


class CounterWatch:
    """Notices by open files that a limit has held something back. This is done five times a second for each pod of a node."""

    def __init__(self) -> None:
        self._cpu: dict[int, bytes] = {}
        self._memory: dict[int, bytes] = {}

    def follow(self, counters: Iterable[tuple[int, int]]) -> None:
        """From now on watch these files of each group, for CPU and for memory; those below zero are none."""
        pairs = tuple(counters)
        cpu, memory = [pair[0] for pair in pairs if pair[0] >= 0], [pair[1] for pair in pairs if pair[1] >= 0]
        if cpu != list(self._cpu):
            self._cpu = {file: self._cpu.get(file, b"") for file in cpu}
        if memory != list(self._memory):
            self._memory = {file: self._memory.get(file, b"") for file in memory}

    def changed(self) -> MoreResources:
        """The resources whose counters have changed since the last call; a new group counts from its first reading on."""
        is_throttled = is_hit = False
        try:
            for file, before in self._cpu.items():
                now = os.pread(file, _COUNTERS_BYTES, 0)
                if now != before:
                    self._cpu[file] = now
                    is_throttled |= before != b"" and value(now, _THROTTLED) != value(before, _THROTTLED)
            for file, before in self._memory.items():
                now = os.pread(file, _COUNTERS_BYTES, 0)
                if now != before:
                    self._memory[file] = now
                    is_hit |= before != b""
        except OSError:  # a group is gone: the next reading says which, and which counts were lost with it
            return MoreResources(cpu=False, memory=True)
        return MoreResources(cpu=is_throttled, memory=is_hit) if is_throttled or is_hit else _NOTHING


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
        self._listing: tuple[int, int] | None = None
        self._watch = CounterWatch()
        self._size, self._size_bytes = ZERO, node_memory_bytes
        self.behind = Behind()
        """The resources in which the pod's own group was left behind, by the last reading."""
        self._clock = clock
        self._containers = Containers(self._files.tells_kills)
        self._load: DampedLoad | None = None

    def is_there(self) -> bool:
        return self._group.is_there()

    def resized(self, size: Resources) -> None:
        """The pod has, or is about to have, this size."""
        self._size, self._size_bytes = size, size.memory_bytes

    def read(self) -> Reading:
        """The pod now. Raises `OSError` if its group is gone."""
        use, busy_s = self._files.memory(), self._files.busy_s()
        pod = _reading(self._files.limits(), use.needed_bytes)
        self._containers = self._containers.seen(pod, self._read_containers(pod))
        totals = self._containers.totals()
        now_s, wanted_s = self._clock(), busy_s + totals.throttled_s
        self._load = DampedLoad(now_s, wanted_s) if self._load is None else self._load.after(now_s, wanted_s)
        total = pod.max_bytes or max(self._size_bytes, use.needed_bytes)
        groups = {name: each for name, each in self._containers.last.items() if _is_limited(each)}
        size = self._size
        self.behind = behind(pod, groups.values(), size.vcpu_milli / 1000, size.memory_bytes)
        return Reading(
            *self._load.averages,
            busy_s,
            pod.quota_cpus or os.cpu_count() or 1,
            total,
            max(0, total - use.needed_bytes),
            self._files.pressure_s(),
            totals.kills,
            pod=PodReading(
                pod.max_bytes,
                use.current_bytes,
                totals.hits,
                totals.throttled_s,
                {POD: pod, **groups},
                self.behind,
            ),
        )

    def cgroups(self) -> PodCgroups:
        """The groups as they are now, of containers those with processes. Raises `OSError` if the pod's group is gone."""
        reading = self.read().pod
        assert reading is not None, "a reading of a pod"
        found = {
            _identity(name): _allowance(reading.groups.get(name))
            for name in self._inside
            if self._group.below(name).has_tasks()
        }
        return PodCgroups(_allowance(reading.groups[POD]), found, reading.behind.names())

    def _read_containers(self, pod: ContainerReading) -> dict[str, ContainerReading]:
        """A reading of each container that is there. If its memory limit is the pod's, so is its use."""
        listing = self._group.listing()
        if listing != self._listing:
            self._list()
        found = self._read_listed(pod)
        if len(found) < len(self._inside):  # one has ended, and another one may have taken its place
            self._list()
            found = self._read_listed(pod)
        self._listing = listing
        counters = [self._inside[name].counters() for name, each in found.items() if _is_limited(each)]
        if self._files.tells_kills:  # the pod's own memory.events changes with those of its containers
            counters = [(cpu, -1) for cpu, _ in counters]
        self._watch.follow((self._files.counters(), *counters))
        return found

    def _list(self) -> None:
        """Find out which containers there are, and keep their files open."""
        names = self._group.containers()
        for gone in self._inside.keys() - set(names):
            self._inside.pop(gone).close()
        self._inside = {name: self._inside.get(name) or open_files(self._group.below(name)) for name in names}

    def _read_listed(self, pod: ContainerReading) -> dict[str, ContainerReading]:
        found = {}
        for name, files in self._inside.items():
            with contextlib.suppress(OSError):  # it ends at this moment
                each = files.limits()
                is_own = each.max_bytes is not None and each.max_bytes != pod.max_bytes
                used = files.memory().needed_bytes if is_own else pod.used_bytes
                found[name] = _reading(each, used)
        return found

    def changed(self) -> MoreResources:
        """The resources whose limits have held something back since this was called last. Costs few system calls."""
        return self._watch.changed()

    def close(self) -> None:
        """Let go of all files."""
        for files in (self._files, *self._inside.values()):
            files.close()
        self._inside.clear()
        self._watch.follow(())


def _reading(limits: LimitReading, used_bytes: int) -> ContainerReading:
    return ContainerReading(
        limits.quota_cpus,
        limits.period_s,
        limits.periods,
        limits.throttled,
        limits.throttled_s,
        limits.max_bytes,
        used_bytes,
        limits.hits,
        limits.kills,
    )


def _identity(group: str) -> str:
    """The container's ID in the name of its group, such as `cri-containerd-ID.scope`."""
    found = _ID.search(group)
    return group if found is None else found[0]


def _allowance(group: ContainerReading | None) -> GroupAllowance:
    if group is None:
        return GroupAllowance()
    cpus = group.quota_cpus
    return GroupAllowance(None if cpus is None else round(cpus * 1000), group.max_bytes)


def _is_limited(group: ContainerReading) -> bool:
    return group.quota_cpus is not None or group.max_bytes is not None
