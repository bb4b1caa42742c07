"""One clock for host and guest: moments of the guest's clocks as moments of the host's, with a bound of the error.

A question travels to the guest and back. The guest reads its clocks in between, so the host's clock showed then some moment between
question and answer: their middle, with an error of half the way at most. The shortest of several ways counts. Clocks also run at
different rates, so there is such a pair before and after each measurement, and the moments between are interpolated.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClockPair:
    """The guest's clocks showed `guest_s` (monotonic) and `wall_s` when the host's monotonic clock showed `host_s`, give or take `error_s`."""

    host_s: float
    guest_s: float
    wall_s: float
    error_s: float


def pair_of(sent_s: float, received_s: float, guest_s: float, wall_s: float) -> ClockPair:
    return ClockPair((sent_s + received_s) / 2, guest_s, wall_s, (received_s - sent_s) / 2)


def best(pairs: Iterable[ClockPair]) -> ClockPair:
    return min(pairs, key=lambda each: each.error_s)


@dataclass(frozen=True, slots=True)
class GuestClock:
    """The guest's clocks between two pairs, the earlier one first."""

    first: ClockPair
    last: ClockPair

    @property
    def error_s(self) -> float:
        """The most by which a moment between the pairs may be wrong."""
        return max(self.first.error_s, self.last.error_s)

    @property
    def drift(self) -> float:
        """How much faster the guest's clock runs than the host's, as a share."""
        host_s = self.last.host_s - self.first.host_s
        return (self.last.guest_s - self.first.guest_s) / host_s - 1 if host_s > 0 else 0.0

    def host_s(self, guest_s: float) -> float:
        """When the host's clock showed what the guest's monotonic clock shows at `guest_s`."""
        return self.first.host_s + (guest_s - self.first.guest_s) / (1 + self.drift)

    def host_of_wall_s(self, wall_s: float) -> float:
        """The same for the guest's wall clock, which is not set in between."""
        return self.host_s(self.first.guest_s + wall_s - self.first.wall_s)
