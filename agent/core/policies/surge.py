"""Memory that surges: how far it rose within seconds, in the last hours, and how high it went.

CPU that is short makes work wait; memory that is short ends it. A job may take memory faster than more can be had, and
nothing in its last minutes says so; but a job that has surged before will surge again. So room for the largest surge of
the last hours is kept, up to the highest use of those hours.
"""

from dataclasses import dataclass
from typing import Final

from agent.core.policies.peaks import NO_PEAKS, Peaks, Span, span_of
from agent.core.policies.slope import Slope

HOUR_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Surges:
    """How far back surges count (`window_s`), and for how long a surge must find room (`ahead_s`): until the next reading of
    metrics is in and a resize has happened. 0 s of either: they do not count."""

    window_s: float = 6.0 * HOUR_S
    ahead_s: float = 6.0

    @property
    def span(self) -> Span:
        return span_of(self.window_s, HOUR_S)

    @property
    def lately(self) -> str:
        """The window in words."""
        hours = self.span.count
        return "hour" if hours == 1 else f"{hours} hours"


SURGES: Final = Surges()
NO_SURGES: Final = Surges(0.0)
"""Surges do not count."""


@dataclass(frozen=True, slots=True)
class Surge:
    """The memory of surges: for each hour the fastest rise between two samples (bytes for each second) and the highest use (bytes)."""

    rises: Peaks = NO_PEAKS
    highest: Peaks = NO_PEAKS

    def add(self, slope: Slope, how: Surges) -> "Surge":
        """The memory with one more sample, which `slope` ends at."""
        assert slope.value is not None, "no sample"
        span = how.span
        return Surge(
            self.rises.add(slope.rise, slope.at_s, span), self.highest.add(slope.value, slope.at_s, span)
        )

    def need(self, slope: Slope, at_s: float, how: Surges) -> int | None:
        """The use that may follow the last sample: as fast as it rose at most, to no more than it was. None means unknown."""
        rise, highest = self.rises.highest(at_s, how.span), self.highest.highest(at_s, how.span)
        if slope.value is None or rise is None or highest is None:
            return None
        return max(slope.value, min(slope.value + round(rise * how.ahead_s), highest))
