"""How the VMs of a demo grew and shrank: the sizes of the change log in a few figures. Pure."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from parley.observer import SizeChange
from protocol.values import Resources

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
