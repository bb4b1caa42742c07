"""The cgroup tree as a kubelet lays it out: the group of a pod by its UID, in each hierarchy, and the groups of its containers.

With the driver cgroupfs a pod is `kubepods/[burstable/|besteffort/]pod<uid>`, with systemd
`kubepods.slice/[kubepods-burstable.slice/]kubepods-burstable-pod<uid>.slice`, where the UID's dashes are underscores. Both lie below the
kubelet's own root (`cgroupRoot`), which systemd puts before each name, too. cgroup v1 has the same tree once in each hierarchy.
Nothing here is ever written.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
MAX_CONTAINERS: Final = 64
"""So many groups of containers are looked at in one pod."""
_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A pod's UID; that of a static pod is the hash of its manifest."""
_DEPTH: Final = 4
"""So deep below the root lies a kubelet's tree at most, such as `kubelet.slice/kubelet-kubepods.slice`."""
_NAMES: Final = re.compile(r"kubepods|([^/]+-)?kubepods\.slice")
_QOS: Final = ("", "burstable", "besteffort")
_HIERARCHIES: Final = {
    "cpu": ("cpu", "cpu,cpuacct"),
    "cpuacct": ("cpuacct", "cpu,cpuacct"),
    "cpuset": ("cpuset",),
    "memory": ("memory",),
}


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A cgroup of a pod or of a container: its directory in each hierarchy; the same three times in cgroup v2."""

    cpu: Path
    cpuacct: Path
    memory: Path
    is_v2: bool

    def below(self, name: str) -> "PodGroup":
        return PodGroup(self.cpu / name, self.cpuacct / name, self.memory / name, self.is_v2)

    def is_there(self) -> bool:
        return os.path.isdir(self.memory)  # noqa: PTH112 - half the price, at every request and every look

    def has_tasks(self) -> bool:
        """Whether a process is in the group or below it."""
        try:
            if self.is_v2:
                return "populated 1" in (self.memory / "cgroup.events").read_text()
            return bool((self.memory / "cgroup.procs").read_text()) or bool(_directories(self.memory))
        except OSError:  # it ends at this moment
            return False

    def listing(self) -> tuple[int, int]:
        """A value that changes when a group inside is made or goes, unless another one takes its place. Raises `OSError` if the group is
        gone.

        The kernel counts the groups inside as links. Files elsewhere have the time of the change, too.
        """
        found = os.stat(self.memory)  # noqa: PTH116 - as above
        return found.st_nlink, found.st_mtime_ns

    def containers(self) -> tuple[str, ...]:
        """The names of the groups inside, at most `MAX_CONTAINERS`; none of a group that is gone."""
        return tuple(sorted(_directories(self.memory))[:MAX_CONTAINERS])


class CgroupTree:
    """The host's cgroups below `root`, where they are mounted, with the trees of its kubelets."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.is_v2 = not any((root / name).is_dir() for name in _HIERARCHIES["memory"])
        self._hierarchies = {name: self._hierarchy(names) for name, names in _HIERARCHIES.items()}
        self._kubepods: tuple[Path, ...] = ()

    def _hierarchy(self, names: tuple[str, ...]) -> Path:
        if self.is_v2:
            return self.root
        return next((self.root / name for name in names if (self.root / name).is_dir()), self.root / names[0])

    def hierarchy(self, controller: str) -> Path:
        """The mount point of a controller's groups (`cpu`, `cpuacct`, `cpuset`, `memory`); `root` itself in cgroup v2."""
        return self._hierarchies[controller]

    def find(self, uid: str) -> PodGroup | None:
        """The group of the pod with that UID; None if there is none, and for a text that is no UID."""
        if _UID.fullmatch(uid) is None:
            return None
        found = self._find(uid)
        if found is None:  # a kubelet may have begun to work since
            self._kubepods = tuple(self.kubepods())
            found = self._find(uid)
        return found

    def _find(self, uid: str) -> PodGroup | None:
        for tree in self._kubepods:
            for name in _names(tree.name, uid):
                path = self._hierarchies["memory"] / tree / name
                if path.is_dir() and not (path.is_symlink() or path.parent.is_symlink()):
                    return self.group(tree / name)
        return None

    def group(self, path: Path) -> PodGroup:
        at = self._hierarchies
        return PodGroup(at["cpu"] / path, at["cpuacct"] / path, at["memory"] / path, self.is_v2)

    def kubepods(self) -> Iterator[Path]:
        """The tree of each kubelet, relative to a hierarchy."""
        top = self._hierarchies["memory"]
        level = [Path()]
        for _ in range(_DEPTH):
            inside = [path / name for path in level for name in _directories(top / path)]
            yield from (path for path in inside if _NAMES.fullmatch(path.name))
            level = [path for path in inside if not _NAMES.fullmatch(path.name)]

    def best_effort(self) -> tuple[str, ...]:
        """The best-effort group of each kubelet, as a path below each hierarchy."""
        found = (
            (tree / f"{tree.stem}-besteffort.slice" if tree.suffix == ".slice" else tree / "besteffort")
            for tree in self.kubepods()
        )
        top = self._hierarchies["memory"]
        return tuple(path.as_posix() for path in found if (top / path).is_dir())

    def inside(self, group: str, controller: str) -> tuple[str, ...]:
        """The paths of all groups inside one, outer ones first; none if the group is gone."""
        top, found, level = self._hierarchies[controller], list[str](), [group]
        while level:
            level = [f"{each}/{name}" for each in level for name in sorted(_directories(top / each))]
            found += level
        return tuple(found)

    def name_of(self, group: PodGroup) -> str:
        """The path of a group below each hierarchy."""
        return group.cpu.relative_to(self._hierarchies["cpu"]).as_posix()

    def pods(self) -> Mapping[str, PodGroup]:
        found = {}
        top = self._hierarchies["memory"]
        for tree in self.kubepods():
            for inside in (tree, *(tree / name for name in _directories(top / tree))):
                for name in _directories(top / inside):
                    uid = name.removesuffix(".slice").rpartition("pod")[2].replace("_", "-")
                    if _UID.fullmatch(uid) is not None:
                        found[uid] = self.group(inside / name)
        return found


def _names(tree: str, uid: str) -> Iterator[str]:
    """The groups that a pod may have in a kubelet's tree of that name, by QoS class."""
    if not tree.endswith(".slice"):
        yield from (f"{qos}/pod{uid}" if qos else f"pod{uid}" for qos in _QOS)
        return
    prefix, name = tree.removesuffix(".slice"), f"pod{uid.replace('-', '_')}.slice"
    for qos in _QOS:
        yield f"{prefix}-{qos}.slice/{prefix}-{qos}-{name}" if qos else f"{prefix}-{name}"


def _directories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
