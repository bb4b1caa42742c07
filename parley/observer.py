"""The observer stands outside agent and scheduler and folds the change log of a node line by line.

At every line, the sum over all VMs of max(held by a living agent, size, target) must fit what the node may give. The
log's lines and their order are described in docs/reference/protocol.md ("The change log").
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.values import ZERO, Resources


@dataclass(slots=True)
class _ObservedVm:
    size: Resources = ZERO
    target: Resources = ZERO
    held: dict[str, Resources] = field(default_factory=dict)
    runs: bool = True

    def use(self) -> Resources:
        if not self.runs:
            return ZERO
        amount = self.size.max(self.target)
        for held in self.held.values():
            amount = amount.max(held)
        return amount


@dataclass(frozen=True, slots=True)
class Overcommit:
    """A line after which more may be in use than the node can give."""

    at_s: float
    node: str
    use: Resources
    reservable: Resources


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A VM has a new size."""

    at_s: float
    vm: str
    size: Resources


class Observer:
    """Folds lines. `largest` is the largest use of each node so far, `overcommits` every line after which it exceeded `reservable`."""

    def __init__(self, reservable: Mapping[str, Resources]) -> None:
        self._reservable = dict(reservable)
        self._vms: dict[str, dict[str, _ObservedVm]] = {node: {} for node in reservable}
        self.largest: dict[str, Resources] = dict.fromkeys(reservable, ZERO)
        self.overcommits: list[Overcommit] = []
        self.sizes: list[SizeChange] = []
        self.lines = 0

    def fold(self, line: Mapping[str, Any]) -> None:
        """Take one line. Raises `KeyError` or `ValueError` for a line that is not of a change log."""
        self.lines += 1
        node, kind, at_s = line["node"], line["kind"], float(line["at_s"])
        vms = self._vms[node]
        if kind == "daemon":
            for vm in vms.values():
                vm.held.clear()
            return
        vm = vms.setdefault(line["vm"], _ObservedVm())
        if kind == "gone":
            vms[line["vm"]] = _ObservedVm(held=vm.held, runs=False)
            return
        amount = Resources(line["cpu"], line["memory"])
        match kind:
            case "held":
                vm.held[line["life"]] = amount
            case "size":
                vm.size, vm.runs = amount, True
                self.sizes.append(SizeChange(at_s, line["vm"], amount))
            case "target":
                vm.target = amount
            case _:
                raise ValueError(f"a line of unknown kind {kind!r}")
        self._judge(node, at_s)

    def uses(self, node: str) -> dict[str, Resources]:
        """The most that each VM of `node` could use after the last line."""
        return {name: vm.use() for name, vm in self._vms[node].items()}

    def _judge(self, node: str, at_s: float) -> None:
        use = ZERO
        for vm in self._vms[node].values():
            use += vm.use()
        self.largest[node] = self.largest[node].max(use)
        if use.exceeds(self._reservable[node]):
            self.overcommits.append(Overcommit(at_s, node, use, self._reservable[node]))


class Tail:
    """Reads the lines that were appended to a change log since the last call. `is_broken`: the log was removed, replaced or
    cut, so that some lines are not known.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self._inode: int | None = None
        self.is_broken = False

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """The new whole lines; none while the file does not exist, and none of another file in its place."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                known, self._inode = self._inode, status.st_ino
                if status.st_size < self._offset or known not in (None, status.st_ino):
                    self.is_broken = True
                if self.is_broken:
                    return
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            self.is_broken = self.is_broken or self._inode is not None
            return
        self._offset += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        for line in whole:
            yield json.loads(line)
