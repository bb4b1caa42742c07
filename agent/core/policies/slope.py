"""An estimate of the memory use in a moment: the last sample, and how fast it rose since the one before.

CPU that is short makes work wait; memory that is short ends it. So memory that rises is judged a little ahead, by about as
long as it takes to get more.
"""

from dataclasses import dataclass
from typing import Final

MAX_GAP_S: Final = 60.0
"""Samples further apart say nothing about the present slope."""


@dataclass(frozen=True, slots=True)
class Slope:
    """The last sample, and how fast the figure rose to it: bytes for each second, 0 if it fell or is not known."""

    value: int | None = None
    at_s: float = 0.0
    rise: int = 0

    def add(self, value: int | None, at_s: float) -> "Slope":
        if value is None:
            return self if at_s - self.at_s <= MAX_GAP_S else Slope()
        span_s = at_s - self.at_s
        if self.value is None or not 0 < span_s <= MAX_GAP_S:
            return Slope(value, at_s)
        return Slope(value, at_s, max(0, round((value - self.value) / span_s)))
