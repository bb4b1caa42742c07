"""The highest sample of each of the last periods, such as minutes. A mean shows the need of a workload on the whole; its peaks show the need
that comes again and again for a moment, and a high percentile of them is a floor for the goal, as long as they are recent.

CPU that is short makes work wait; memory that is short ends it. So memory that rises is judged a little ahead (`Slope`), by about as long as
it takes to get more. And a job that has taken memory faster than more can be had will do so again: room for the largest surge of the last
hours is kept, up to the highest use of those hours (`Surge`).
"""

import functools
from dataclasses import dataclass
from typing import Final

from agent.core.policies.values import MILLION
from protocol.values import Value

MAX_PEAKS: Final = 60
"""No more are kept, so that the memory of a VM's load stays small."""


@dataclass(frozen=True, slots=True)
class Span:
    """The last `count` periods of `period_s` seconds, that under way included."""

    period_s: int
    count: int

    def number(self, at_s: float) -> int:
        """The number of the period that `at_s` lies in."""
        return int(at_s // self.period_s)


@functools.lru_cache(256)
def span_of(window_s: float, period_s: int) -> Span:
    """The periods that `window_s` takes up, at most `MAX_PEAKS`."""
    return Span(period_s, min(-int(-window_s // period_s), MAX_PEAKS))


class Peaks(Value, frozen=True):
    """The highest sample of each period, oldest first. `last` is the number of the last period, which is under way; None
    stands for a period without a sample."""

    last: int = 0
    values: tuple[int | None, ...] = ()

    def add(self, value: int | None, at_s: float, span: Span) -> "Peaks":
        """The peaks with one more sample, at most those of `span`. If the clock was set back, they begin anew."""
        number = span.number(at_s)
        gone = number - self.last
        if span.count == 0 or gone < 0 or gone >= span.count:
            return Peaks() if value is None or span.count == 0 else Peaks(number, (value,))
        if value is None:
            return self
        if gone == 0 and self.values:
            highest = self.values[-1]
            if highest is not None and value <= highest:
                return self
            return Peaks(number, (*self.values[:-1], value))
        return Peaks(number, (*self.values, *(None,) * (gone - 1), value)[-span.count :])

    def highest(self, at_s: float, span: Span) -> int | None:
        """The highest peak of the span that ends at `at_s`; None without any."""
        return max(self._known(at_s, span), default=None)

    def percentile(self, share: int, at_s: float, span: Span) -> int | None:
        """The peak of that span that so many of them (parts per million) do not exceed; None without any."""
        known = sorted(self._known(at_s, span))
        return known[-(-len(known) * share // MILLION) - 1] if known else None

    def _known(self, at_s: float, span: Span) -> list[int]:
        first = max(0, span.number(at_s) - span.count - self.last + len(self.values))
        return [value for value in self.values[first:] if value is not None]


NO_PEAKS: Final = Peaks()


MINUTE_S: Final = 60


@dataclass(frozen=True, slots=True)
class LoadTail:
    """Which tail counts: the percentile `share` of the peaks of the last `window_s` seconds, of which the VM may be full to
    `target`. Shares in parts per million. A window of 0 s: the tail does not count."""

    window_s: float = 900.0
    share: int = 900_000
    target: int = 950_000

    @property
    def span(self) -> Span:
        """The minutes whose peaks count."""
        return span_of(self.window_s, MINUTE_S)

    @property
    def lately(self) -> str:
        """The window in words."""
        minutes = self.span.count
        return {15: "quarter of an hour", 60: "hour"}.get(minutes, f"{minutes} minutes")


TAIL: Final = LoadTail()
NO_TAIL: Final = LoadTail(0.0)
"""Peaks do not count."""


MAX_GAP_S: Final = 60.0
"""Samples further apart say nothing about the present slope."""


class Slope(Value, frozen=True):
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


class Surge(Value, frozen=True):
    """The memory of surges: for each hour the fastest rise between two samples (bytes for each second) and the highest use (bytes)."""

    rises: Peaks = NO_PEAKS
    highest: Peaks = NO_PEAKS

    def add(self, slope: Slope, how: Surges) -> "Surge":
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
