"""The part of the whole machine that a node takes: a number, from which the names of its cgroups, bridge, subnet and directory follow.

Nodes of several runs on one machine have different numbers. The next run removes the leftovers of a run that was killed.
"""

import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from labs.clusters.programs import POLL_S, ClusterError, Programs

CGROUPS: Final = Path("/sys/fs/cgroup")
CONTROLLERS: Final = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd")
"""Hierarchies of cgroup v1 in which the kubelet wants its root to exist."""
V2_CONTROLLERS: Final = ("cpu", "cpuset", "memory", "pids")
LARGEST: Final = 255
CLEAN_S: Final = 15.0
"""How long what is killed has to leave its cgroups."""


def is_v2() -> bool:
    """cgroup v2 alone, as against v1 with or without a hierarchy of v2 beside it."""
    return (CGROUPS / "cgroup.controllers").exists()


class NodeClaim:
    """The number of a node, claimed until `release` or the end of this process, however that comes."""

    def __init__(self, number: int, claim: socket.socket) -> None:
        self.number = number
        self._claim = claim
        self.name = f"parley-node-{number}"
        self.bridge = f"parley{number}"
        self.subnet = f"10.231.{number}.0/24"
        self.directory = Path(tempfile.gettempdir()) / self.name

    @classmethod
    def take(cls) -> Self:
        """A free number, after what dead runs have left is removed. Raises `ClusterError`."""
        for left in list(cls._left_behind()):
            left.release()
        numbers = list(range(LARGEST + 1))
        random.shuffle(numbers)
        for number in numbers:
            found = cls._of(number)
            if found is not None:
                return found
        raise ClusterError(f"{LARGEST + 1} nodes are running on this machine")

    @classmethod
    def _of(cls, number: int) -> Self | None:
        # A name without a file: the kernel frees it when this process ends.
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0parley-node-{number}")
        except OSError:
            claim.close()
            return None
        return cls(number, claim)

    @classmethod
    def _left_behind(cls) -> Iterator[Self]:
        names = [each.name for each in Path(tempfile.gettempdir()).glob("parley-node-*")]
        names += [each.name for parent in _hierarchies() for each in parent.glob("parley-node-*")]
        names += [each.name for each in Path("/sys/class/net").glob("parley*")]
        matches = (re.fullmatch(r"parley(?:-node-)?(\d+)", name) for name in names)
        for number in {int(match[1]) for match in matches if match is not None}:
            found = cls._of(number)
            if found is not None:
                yield found

    def make(self) -> None:
        """Make the directory and the cgroups. Raises `ClusterError`."""
        try:
            self.directory.mkdir(mode=0o755)
            if is_v2():
                (CGROUPS / "cgroup.subtree_control").write_text(
                    " ".join(f"+{each}" for each in V2_CONTROLLERS)
                )
                (CGROUPS / self.name).mkdir()
            else:
                for each in CONTROLLERS:
                    (CGROUPS / each / self.name).mkdir()
        except OSError as error:
            raise ClusterError(f"the node's directories cannot be made: {error}") from None

    def release(self) -> None:
        """Remove everything that has this number. Processes of the node must have been killed before."""
        limit_s = time.monotonic() + CLEAN_S
        left = self._remove_cgroups()
        while left and time.monotonic() < limit_s:  # the last processes are still dying
            time.sleep(POLL_S)
            left = self._remove_cgroups()
        if Path("/sys/class/net", self.bridge).exists():
            command = [Programs().path("ip"), "link", "delete", self.bridge]
            subprocess.run(command, check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        self._claim.close()

    def _remove_cgroups(self) -> list[Path]:
        """Remove the cgroups; those that are still in use."""
        left = []
        for root in (parent / self.name for parent in _hierarchies()):
            for folder in (*sorted(root.rglob("*/"), key=lambda each: -len(each.parts)), root):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    pass  # it was never made, or has gone with its last process
                except OSError:
                    left.append(folder)
        return left


def _hierarchies() -> list[Path]:
    """The roots of all hierarchies of cgroups; runc makes groups in v2's, too, if that is beside v1's."""
    return [CGROUPS] if is_v2() else [CGROUPS / each for each in (*CONTROLLERS, "unified")]
