"""The tail of a figure: how high it goes in the busiest of the last minutes.

A mean shows the need of a workload on the whole; its peaks show the need that comes again and again for a moment. For each minute
the highest sample is kept, and a high percentile of these peaks is a floor for the goal, as long as they are recent.
"""

from dataclasses import dataclass
from typing import Final

from agent.core.policies.peaks import Span, span_of

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
