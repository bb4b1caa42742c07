"""The memory of the load between samples: for each figure the mean that its goal rests on.

The mean is *held*: it does not follow every sample. It jumps if a sample leaves both zones around it, and it moves
to the mean of a whole window in which all samples were on one side of it. So a load that goes to and fro around its
mean never moves the goal, and a constant load has the same mean, itself, after any other load.
"""

from dataclasses import dataclass, replace
from typing import Final

from agent.core.policies.values import Load, micro
from agent.core.policies.zones import NO_ZONES, Zones

MIN_SAMPLES: Final = 3
"""A window with fewer says nothing and goes on."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """How the means are held: the zones of each figure, and the length of a window."""

    busy: Zones = NO_ZONES
    load: Zones = NO_ZONES
    memory: Zones = NO_ZONES
    window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Track:
    """One figure: its held mean, and lowest, highest, sum and number of the samples of the window under way."""

    mean: int
    began_s: float
    seen_s: float
    low: int
    high: int
    total: int
    count: int

    @classmethod
    def start(cls, value: int, at_s: float) -> "Track":
        """A mean that begins with this sample."""
        return cls(value, at_s, at_s, value, value, value, 1)

    def add(self, value: int, at_s: float) -> "Track":
        """The track with one more sample in its window."""
        low, high = (min(self.low, value), max(self.high, value)) if self.count else (value, value)
        return Track(self.mean, self.began_s, at_s, low, high, self.total + value, self.count + 1)

    def turn(self) -> "Track":
        """The track at the end of its window: the mean moves only if no sample was on its other side."""
        is_held = self.low <= self.mean <= self.high
        mean = self.mean if is_held else -(-self.total // self.count)
        return replace(self, mean=mean, began_s=self.seen_s, low=0, high=0, total=0, count=0)


@dataclass(frozen=True, slots=True)
class Smoothed:
    """The means of one VM's load. The empty value is the beginning."""

    busy: Track | None = None
    load: Track | None = None
    memory: Track | None = None


def smooth(previous: Smoothed, load: Load, at_s: float, how: Smoothing) -> Smoothed:
    """The memory after one more sample, taken at `at_s`. To be called once for each sample, before the goal."""
    return Smoothed(
        follow(previous.busy, load.busy(), at_s, how.busy, how.window_s),
        follow(previous.load, micro(load.load1), at_s, how.load, how.window_s),
        follow(previous.memory, load.memory_used(), at_s, how.memory, how.window_s),
    )


def follow(
    track: Track | None, value: int | None, at_s: float, zones: Zones, window_s: float
) -> Track | None:
    """One figure after a sample; without a value it is remembered for one window more."""
    if track is not None and not 0 <= at_s - track.seen_s <= window_s:
        track = None  # too long ago to say anything, or the clock was set back
    if value is None:
        return track
    if track is None or zones.is_left(value, track.mean):
        return Track.start(value, at_s)
    track = track.add(value, at_s)
    return track.turn() if at_s - track.began_s >= window_s and track.count >= MIN_SAMPLES else track
