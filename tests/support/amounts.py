"""Amounts as tests write them: `cu(2)` is 2 CPUs and 2 GiB, `UNIT` is one of that."""

from typing import Final

from protocol.values import Resources

MIB: Final = 2**20
GIB: Final = 2**30


def cu(cpus: float, gib: float | None = None) -> Resources:
    """`cpus` CPUs and as many GiB, or `gib` GiB."""
    return Resources(round(cpus * 1000), round((cpus if gib is None else gib) * GIB))


UNIT: Final = cu(1)
