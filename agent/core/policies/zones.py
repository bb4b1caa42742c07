"""The stable and the mixed zone: how far a figure may be from its mean until it counts. Source: reference/neon.md 6.2."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from agent.core.policies.values import MILLION


@dataclass(frozen=True, slots=True)
class Zones:
    """Widths as shares of the mean, in parts per million; the mixed zone begins at the end of the stable one."""

    stable: int = 0
    mixed: int = 0

    def within(self, headroom: int) -> "Zones":
        """These zones, together not wider than `headroom`, the stable one at most half of it.

        A VM that is busy to the full shows no more load than it has CPUs. When it has grown to its goal, the load must
        be able to leave both zones; otherwise a full VM would grow only as fast as the mean follows.
        """
        stable = min(self.stable, headroom // 2)
        return Zones(stable, min(self.mixed, headroom - stable))

    def is_left(self, value: int, mean: int) -> bool:
        """Whether `value` is beyond both zones around `mean`."""
        distance = abs(value - mean)
        return distance > 0 and distance * MILLION >= (self.stable + self.mixed) * mean

    def blend(self, value: int, mean: int) -> Fraction:
        """The mean in the stable zone, the value beyond the mixed one, in between a part of each."""
        distance, inner = abs(value - mean) * MILLION, self.stable * mean
        if distance <= inner:
            return Fraction(mean)
        if self.is_left(value, mean):
            return Fraction(value)
        return mean + (value - mean) * Fraction(distance - inner, self.mixed * mean)


NO_ZONES: Final = Zones()
"""Every sample counts by itself."""


def headroom(target: int) -> int:
    """How far the load may rise above `target` (a share, in parts per million) of a size until it fills the size."""
    return max(0, MILLION * MILLION // target - MILLION)
