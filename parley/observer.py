"""The observer stands outside agent and scheduler and folds the change log of a node line by line.

At every line, the sum over all VMs of max(held by a living agent, size, target) must fit what the node may give. The
log's lines and their order are described in docs/reference/protocol.md ("The change log").
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from protocol.values import ZERO, ComputeUnit, Resources


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


@dataclass(frozen=True, slots=True)
class GrownApart:
    """A VM got more of one resource while the node had less than one unit of the other left for that VM."""

    at_s: float
    vm: str
    amount: Resources


class Comparison:
    """Compares the amounts of a node's VMs with those of tied units. `steps` names the VMs that count, and their steps.

    `largest` is the most that all VMs of the node could use so far, `largest_tied` the same with tied units. `grown` has the
    growth of each resource (`cpu`, `memory`) to the largest amount that happened while the other one was used up.
    """

    def __init__(self, reservable: Resources, steps: Mapping[str, Resources]) -> None:
        self._reservable = reservable
        self._units = {name: ComputeUnit(step) for name, step in steps.items()}
        self._before: Mapping[str, Resources] = {}
        self.largest = ZERO
        self.largest_tied = ZERO
        self.grown: dict[str, GrownApart] = {}

    def note(self, at_s: float, uses: Mapping[str, Resources]) -> None:
        """Take the amounts of all VMs after a line of the change log."""
        use = tied = ZERO
        for name, amount in uses.items():
            use += amount
            tied += self._tied(name, amount)
        self.largest, self.largest_tied = self.largest.max(use), self.largest_tied.max(tied)
        for name, amount in uses.items():
            before = self._before.get(name)
            if before is not None and before != amount:
                self._compare(at_s, name, before, amount, self._reservable - use)
        self._before = dict(uses)

    def _tied(self, name: str, amount: Resources) -> Resources:
        unit = self._units.get(name)
        return amount if unit is None else unit.amount(unit.covering(amount))

    def _compare(self, at_s: float, name: str, before: Resources, amount: Resources, free: Resources) -> None:
        unit = self._units.get(name)
        if unit is None:
            return
        found, known = GrownApart(at_s, name, amount), self.grown
        more_cpu = amount.vcpu_milli > before.vcpu_milli
        more_memory = amount.memory_bytes > before.memory_bytes
        if more_memory and not more_cpu and free.vcpu_milli < unit.step.vcpu_milli:
            known["memory"] = max(
                known.get("memory", found), found, key=lambda each: each.amount.memory_bytes
            )
        if more_cpu and not more_memory and free.memory_bytes < unit.step.memory_bytes:
            known["cpu"] = max(known.get("cpu", found), found, key=lambda each: each.amount.vcpu_milli)

    def figures(self) -> dict[str, Any]:
        """The part `apart` of the demo's result; None for a growth that did not happen."""
        return {
            "reserved": _figures(self.largest),
            "tied": _figures(self.largest_tied),
            "grown": {
                resource: None
                if (found := self.grown.get(resource)) is None
                else {"vm": found.vm, **_figures(found.amount)}
                for resource in ("cpu", "memory")
            },
        }


def _figures(amount: Resources) -> dict[str, float]:
    return {"cpu": amount.vcpu_milli / 1000, "memory_gib": amount.memory_bytes / 2**30}


Moves: TypeAlias = dict[str, float]
"""Of one resource of a VM its `least`, `most` and `last` amount, and how often it rose and fell: `up`, `down`."""


def moves(changes: Iterable[SizeChange]) -> dict[str, dict[str, Any]]:
    """The `Moves` of each VM: `cpu` in CPUs, `memory_gib`. None for a VM that never had anything.

    A VM that is gone has a size of nothing, which is none of its moves.
    """
    sizes: dict[str, list[Resources]] = {}
    for change in changes:
        sizes.setdefault(change.vm, []).append(change.size)
    return {
        name: {
            "cpu": _moved([size.vcpu_milli for size in found], 1000),
            "memory_gib": _moved([size.memory_bytes for size in found], 2**30),
        }
        for name, found in sizes.items()
    }


def _moved(amounts: Sequence[int], unit: int) -> Moves | None:
    had = [amount / unit for amount in amounts if amount > 0]
    if not had:
        return None
    steps = [after - before for before, after in itertools.pairwise(amounts) if before > 0 and after > 0]
    return {
        "least": min(had),
        "most": max(had),
        "last": had[-1],
        "up": sum(step > 0 for step in steps),
        "down": sum(step < 0 for step in steps),
    }
