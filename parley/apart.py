"""What growing apart brings on one node: the amounts that tied units would have needed, and growth beside a resource that was used up.

Pure. Amounts are those of the observer: the most that each VM could use after a line of the change log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.values import ZERO, ComputeUnit, Resources


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
