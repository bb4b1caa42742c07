"""The points from which on a resource is short, and the memory that should be left."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Spare:
    """How much memory should be left, for a shortage and for a downscale alike.

    Less than `left_bytes`, or than `left_share` of the memory if that is more, is a shortage; a downscale must leave
    `margin_bytes` on top.
    """

    margin_bytes: int = 100 * MIB
    left_bytes: int = 32 * MIB
    left_share: float = 0.05

    def least_bytes(self, of_bytes: int) -> int:
        """How much of `of_bytes` must stay free after a downscale, so that there is no shortage at once."""
        return max(self.left_bytes, int(self.left_share * of_bytes))

    def free_bytes(self, of_bytes: int) -> int:
        """How much of so much memory must stay free if some is given away, so that it is no shortage at once."""
        return self.margin_bytes + self.least_bytes(of_bytes)


SPARE: Final = Spare()


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits beyond which a resource is short. Shares are of the time, or of the memory; a share above 1 is never reached.

    `*_over_s` is the time over which waiting is measured. Throttled periods are a share of all periods, busy or idle, because a moment of
    activity that meets its limit once is no shortage. A hit of the group's limit is a shortage if less than
    `spare.free_bytes` is left: otherwise the limit is full of page cache, which the kernel drops. Memory that was announced
    counts as present for `arrival_s`.
    """

    cpu_waiting_share: float = 0.5
    cpu_busy_share: float = 0.98
    cpu_over_s: float = 2.0
    throttled_share: float = 0.4
    throttled_over_s: float = 0.5
    memory_waiting_share: float = 0.1
    memory_over_s: float = 1.0
    arrival_s: float = 10.0
    spare: Spare = SPARE
