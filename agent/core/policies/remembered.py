"""The memory of one VM's load, from sample to sample and over restarts: a few hundred numbers at most.

For each figure there is the mean that its goal rests on. The mean is *held*: it does not follow every sample. It jumps if a sample leaves
both zones around it, and it moves to the mean of a whole window in which all samples were on one side of it. So a load that goes to and fro
around its mean never moves the goal, and a constant load has the same mean, itself, after any other load.

`remember` takes up one sample, `Remembered.fill` gives policies the results.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

from msgspec.structs import replace

from agent.core.policies.peaks import NO_PEAKS, SURGES, TAIL, LoadTail, Peaks, Slope, Surge, Surges
from agent.core.policies.values import MAX_UNITS, MILLION, Goal, Load, ResourceGoal, micro, moved
from protocol.values import ComputeUnit, Value


@dataclass(frozen=True, slots=True)
class Zones:
    """How far a figure may be from its mean until it counts. Widths as shares of the mean, in parts per million; the mixed zone begins at the
    end of the stable one. Source: reference/neon.md 6.2."""

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

    def blend(self, value: int, mean: int) -> Fraction | int:
        """The mean in the stable zone, the value beyond the mixed one, in between a part of each."""
        distance, inner = abs(value - mean) * MILLION, self.stable * mean
        if distance <= inner:
            return mean
        if self.is_left(value, mean):
            return value
        return mean + (value - mean) * Fraction(distance - inner, self.mixed * mean)


NO_ZONES: Final = Zones()
"""Every sample counts by itself."""


def headroom(target: int) -> int:
    """How far the load may rise above `target` (a share, in parts per million) of a size until it fills the size."""
    return max(0, MILLION * MILLION // target - MILLION)


MIN_SAMPLES: Final = 3
"""A window with fewer says nothing and goes on."""


@dataclass(frozen=True, slots=True)
class Smoothing:
    """How the means are held: the zones of each figure, and the length of a window."""

    busy: Zones = NO_ZONES
    load: Zones = NO_ZONES
    memory: Zones = NO_ZONES
    window_s: float = 60.0


class Track(Value, frozen=True):
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
        return cls(value, at_s, at_s, value, value, value, 1)

    def add(self, value: int, at_s: float) -> "Track":
        low, high = (min(self.low, value), max(self.high, value)) if self.count else (value, value)
        return Track(self.mean, self.began_s, at_s, low, high, self.total + value, self.count + 1)

    def turn(self) -> "Track":
        """The track at the end of its window: the mean moves only if no sample was on its other side."""
        is_held = self.low <= self.mean <= self.high
        mean = self.mean if is_held else -(-self.total // self.count)
        return replace(self, mean=mean, began_s=self.seen_s, low=0, high=0, total=0, count=0)


class Smoothed(Value, frozen=True):
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


MAX_GOALS: Final = 8
"""Goals of one resource that are kept; with more of them the oldest is taken for as late as the one after it."""


class PastGoal(Value, frozen=True):
    """The goal of one resource at `at_s`: milli-CPU or bytes, and why."""

    at_s: float
    amount: int
    reason: str


PastGoals: TypeAlias = tuple[PastGoal, ...]
"""Oldest first, each lower than the one before."""


class DownWindow(Value, frozen=True):
    """A goal falls only to the highest goal of the last while, for each resource. These are the goals that count; `latest` is the last goal
    with all its parts, in units of its time.

    Goals are kept as amounts, so that they mean the same after the compute unit has changed. A goal that a later one reaches can never be
    the highest again and is forgotten, so a few are left however long the window is.
    """

    cpu: PastGoals = ()
    memory: PastGoals = ()
    latest: Goal | None = None

    def add(self, goal: Goal, unit: ComputeUnit, at_s: float, window_s: float) -> "DownWindow":
        """The window with one more goal, made at `at_s` in steps of `unit`."""
        amount = unit.amount(goal.units())
        return DownWindow(
            _add(self.cpu, PastGoal(at_s, amount.vcpu_milli, goal.cpu.reason), window_s),
            _add(self.memory, PastGoal(at_s, amount.memory_bytes, goal.memory.reason), window_s),
            goal,
        )

    def highest(self, unit: ComputeUnit) -> Goal | None:
        """The highest goal of the window for each resource, in steps of `unit`; None before the first goal."""
        latest = self.latest
        if latest is None:
            return None
        return Goal(
            _highest(latest.cpu, self.cpu[0], unit.step.vcpu_milli),
            _highest(latest.memory, self.memory[0], unit.step.memory_bytes),
        )


def _add(past: PastGoals, goal: PastGoal, window_s: float) -> PastGoals:
    kept = [
        each for each in past if each.amount > goal.amount and goal.at_s - window_s < each.at_s <= goal.at_s
    ]
    if len(kept) >= MAX_GOALS:
        kept[:2] = [replace(kept[0], at_s=kept[1].at_s)]
    return (*kept, goal)


def _highest(latest: ResourceGoal, past: PastGoal, step: int) -> ResourceGoal:
    units = min(-(-past.amount // step), MAX_UNITS)
    return latest if units == latest.units else moved(latest, units, "down window", past.reason)


@dataclass(frozen=True, slots=True)
class Remembering:
    """A policy's demands on the memory of the load: how means are held, and how far back peaks are kept."""

    smoothing: Smoothing = field(default_factory=Smoothing)
    tail: LoadTail = TAIL
    surges: Surges = SURGES


class Remembered(Value, frozen=True):
    """The memory of one VM's load. The empty value is the beginning."""

    means: Smoothed = Smoothed()
    cpu_peaks: Peaks = NO_PEAKS
    memory_peaks: Peaks = NO_PEAKS
    memory_slope: Slope = Slope()
    memory_surge: Surge = Surge()
    goals: DownWindow = DownWindow()

    def fill(self, load: Load, at_s: float, how: Remembering) -> Load:
        """`load` with the means, the tails and the slope."""
        means = self.means
        # Not `replace`, which takes three times as long; this is done for each sample of each VM.
        return Load(
            busy_micro=load.busy_micro,
            busy_mean_micro=None if means.busy is None else means.busy.mean,
            load1=load.load1,
            load5=load.load5,
            load_mean_micro=None if means.load is None else means.load.mean,
            memory_total=load.memory_total,
            memory_available=load.memory_available,
            memory_mean=None if means.memory is None else means.memory.mean,
            busy_tail_micro=self.cpu_peaks.percentile(how.tail.share, at_s, how.tail.span),
            memory_tail=self.memory_peaks.percentile(how.tail.share, at_s, how.tail.span),
            memory_rise=self.memory_slope.rise,
            memory_surge=self.memory_surge.need(self.memory_slope, at_s, how.surges),
            cpu_psi=load.cpu_psi,
            memory_psi=load.memory_psi,
        )

    def with_goal(self, goal: Goal, unit: ComputeUnit, at_s: float, window_s: float) -> "Remembered":
        goals = self.goals.add(goal, unit, at_s, window_s)
        return Remembered(
            self.means, self.cpu_peaks, self.memory_peaks, self.memory_slope, self.memory_surge, goals
        )


NOTHING: Final = Remembered()


def remember(previous: Remembered, load: Load, at_s: float, how: Remembering) -> Remembered:
    """The memory after one more sample, taken at `at_s`. To be called once for each sample, before the goal."""
    used = load.memory_used()
    slope, surge = previous.memory_slope.add(used, at_s), previous.memory_surge
    return Remembered(
        smooth(previous.means, load, at_s, how.smoothing),
        previous.cpu_peaks.add(load.busy(), at_s, how.tail.span),
        previous.memory_peaks.add(used, at_s, how.tail.span),
        slope,
        surge if used is None else surge.add(slope, how.surges),
        previous.goals,
    )
