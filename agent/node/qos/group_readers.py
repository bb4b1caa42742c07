"""The readings of a pod's control group and of its containers', from one round of the collectors to the next."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.node.qos.core.cgroup_values import CgroupValueError, cpus_of
from agent.node.qos.core.readings import Counter, Throttling, container_id
from hosting.cgroups.group_files import open_files
from hosting.cgroups.tree import CgroupTree, PodGroup


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What a group uses: CPUs, memory without reclaimable page cache, and the share of throttled periods. None is not known."""

    cpus: float | None
    memory_bytes: int
    throttled: float | None


class GroupReader:
    """The files of one group, which stay open until `close`, and what they said last."""

    def __init__(self, group: PodGroup, clock: Callable[[], float]) -> None:
        self._files = open_files(group)
        self._clock = clock
        self._busy = Counter()
        self._throttling = Throttling()

    def read(self) -> GroupUse:
        """What the group uses now. Raises `OSError` where the group is gone."""
        busy_s = self._files.busy_s()
        return GroupUse(
            self._busy.rate(self._clock(), busy_s),
            self._files.memory().needed_bytes,
            self._throttling.share(*self._files.throttling()),
        )

    def close(self) -> None:
        """Let go of the files."""
        self._files.close()


class PodReader:
    """A pod's group and those of its containers. `ended` is called with the ID of each container that was there before and has gone."""

    def __init__(self, group: PodGroup, clock: Callable[[], float], ended: Callable[[str], None]) -> None:
        self._group = group
        self._clock = clock
        self._ended = ended
        self._own = GroupReader(group, clock)
        self._inside: dict[str, GroupReader] = {}
        self._listing: tuple[int, int] | None = None

    def is_of(self, group: PodGroup) -> bool:
        """Whether this is the reader of that group."""
        return group == self._group

    def read(self) -> GroupUse:
        """What the pod uses now; its containers are listed anew. Raises `OSError` where the pod is gone."""
        found = self._own.read()
        listing = self._group.listing()
        if listing != self._listing:
            self._list()
            self._listing = listing
        return found

    def containers(self) -> Iterator[tuple[str, GroupUse]]:
        """The ID and use of each container that is there."""
        for found, reader in list(self._inside.items()):
            try:
                yield found, reader.read()
            except OSError:  # the container ends at this moment; another one may take the group's place
                self._end(found)
                self._listing = None

    def _list(self) -> None:
        listed = ((container_id(name), name) for name in self._group.containers())
        groups = {found: name for found, name in listed if found is not None}
        for gone in self._inside.keys() - groups.keys():
            self._end(gone)
        for found in groups.keys() - self._inside.keys():
            self._inside[found] = GroupReader(self._group.below(groups[found]), self._clock)

    def _end(self, container: str) -> None:
        self._inside.pop(container).close()
        self._ended(container)

    def close(self) -> None:
        """Let go of all files; every container counts as ended."""
        self._own.close()
        for each in list(self._inside):
            self._end(each)


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """What a group may use at most; None where it has no limit of its own."""

    cpus: float | None
    memory_bytes: int | None


def best_effort_limit(tree: CgroupTree, path: str) -> GroupLimit:
    """The limits of a kubelet's best-effort group: the smaller of its CPU quota and its CPU set, and its memory limit.

    Raises `OSError` where the group is gone.
    """
    files = open_files(tree.group(Path(path)))
    try:
        found = files.limits()
    finally:
        files.close()
    cpus = [
        each for each in (found.quota_cpus, _set_size(tree.hierarchy("cpuset") / path)) if each is not None
    ]
    return GroupLimit(min(cpus, default=None), found.max_bytes)


def _set_size(directory: Path) -> float | None:
    """How many CPUs the group may run on; None where the kernel does not say so for this group."""
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        with contextlib.suppress(OSError, CgroupValueError):
            found = cpus_of((directory / name).read_text())
            if found:
                return float(len(found))
    return None
