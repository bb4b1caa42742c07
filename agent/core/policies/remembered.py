"""The memory of one VM's load, from sample to sample and over restarts: a few hundred numbers at most.

`remember` takes up one sample, `Remembered.fill` gives policies the results.
"""

from dataclasses import dataclass, field
from typing import Final

from agent.core.policies.down_window import DownWindow
from agent.core.policies.peaks import NO_PEAKS, Peaks
from agent.core.policies.slope import Slope
from agent.core.policies.smoothing import Smoothed, Smoothing, smooth
from agent.core.policies.surge import SURGES, Surge, Surges
from agent.core.policies.tail import TAIL, LoadTail
from agent.core.policies.values import Goal, Load
from protocol.values import ComputeUnit


@dataclass(frozen=True, slots=True)
class Remembering:
    """A policy's demands on the memory of the load: how means are held, and how far back peaks are kept."""

    smoothing: Smoothing = field(default_factory=Smoothing)
    tail: LoadTail = TAIL
    surges: Surges = SURGES


@dataclass(frozen=True, slots=True)
class Remembered:
    """The memory of one VM's load. The empty value is the beginning."""

    means: Smoothed = field(default_factory=Smoothed)
    cpu_peaks: Peaks = NO_PEAKS
    memory_peaks: Peaks = NO_PEAKS
    memory_slope: Slope = field(default_factory=Slope)
    memory_surge: Surge = field(default_factory=Surge)
    goals: DownWindow = field(default_factory=DownWindow)

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
        """The same with one more goal in the down window."""
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
