"""The highest sample of each of the last periods, such as minutes: high percentiles of a figure rest on them."""

import functools
from dataclasses import dataclass
from typing import Final

from agent.core.policies.values import MILLION

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


@dataclass(frozen=True, slots=True)
class Peaks:
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
