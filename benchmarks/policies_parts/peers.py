"""Sizes by others: fixed at the needs of the past, and the Vertical Pod Autoscaler's recommender.

The recommender as its documentation and flags describe it (Kubernetes autoscaler, vertical-pod-autoscaler): histograms with
exponential buckets whose samples lose half of their weight in 24 h; of CPU a sample a minute, weighted by the request; of
memory the peak of each day; the 90th percentile and a margin of 15 % are the target, the 50th and the 95th, widened if
there is little history, the bounds. Its updater looks once a minute. A request outside the bounds is changed at once, one
inside only when the pod is 12 h old and the change is 10 % or more. It resizes in place: nothing is restarted.
"""

from typing import Final

import numpy as np

from benchmarks.policies_parts.families import MIB, MOST_BYTES, MOST_CPUS, Demand
from benchmarks.policies_parts.guest import SILENT
from benchmarks.policies_parts.replay import Rule, Seen
from benchmarks.policies_parts.shapes import DAY_S, HOUR_S
from protocol.values import Resources

MARGIN: Final = 1.15
HALF_LIFE_S: Final = 24.0 * HOUR_S
UPDATE_S: Final = 60.0
SETTLED_S: Final = 12.0 * HOUR_S
LEAST_CHANGE: Final = 0.1
LEAST_CPUS, LEAST_BYTES = 0.025, 250 * MIB


def amount(cpus: float, memory_bytes: float) -> Resources:
    """An amount in whole thousandths and bytes, within the VM's maximum."""
    milli = int(np.ceil(1000 * min(max(cpus, LEAST_CPUS), MOST_CPUS)))
    return Resources(milli, int(np.ceil(min(memory_bytes, MOST_BYTES))))


def fixed(size: Resources) -> Rule:
    """A size that never changes."""
    return Rule(size, SILENT, float(HOUR_S))


def at_percentile(demand: Demand, before_s: float, percent: float, factor: float) -> Resources:
    """`factor` times a percentile of what was used before `before_s`, as means of CPU and readings of memory every 5 s."""
    past = slice(0, int(before_s))
    cpu = demand.cpu[past].reshape(-1, 5).mean(axis=1)
    memory = demand.memory[past].reshape(-1, 5)[:, -1]
    return amount(factor * float(np.percentile(cpu, percent)), factor * float(np.percentile(memory, percent)))


class Histogram:
    """Weights in exponential buckets; a bucket's end stands for its samples. Old weights fade since new ones grow."""

    def __init__(self, first: float, most: float, ratio: float = 1.05) -> None:
        count = int(np.ceil(np.log(most * (ratio - 1) / first + 1) / np.log(ratio))) + 1
        starts = first * (ratio ** np.arange(count + 1) - 1) / (ratio - 1)
        self._starts = starts[:-1]
        self._ends = starts[1:]
        self._weights = np.zeros(count)

    def add(self, value: float, weight: float, at_s: float) -> None:
        """One more sample; a negative weight takes one back."""
        bucket = min(int(np.searchsorted(self._starts, value, side="right")) - 1, len(self._weights) - 1)
        self._weights[bucket] = max(0.0, self._weights[bucket] + weight * 2.0 ** (at_s / HALF_LIFE_S))

    def percentiles(self, shares: tuple[float, ...]) -> list[float]:
        """The values below which these shares of all weights lie; zero before the first sample."""
        sums = np.cumsum(self._weights)
        if sums[-1] <= 0:
            return [0.0] * len(shares)
        buckets = np.searchsorted(sums, [share * sums[-1] for share in shares])
        return [float(self._ends[min(int(bucket), len(self._ends) - 1)]) for bucket in buckets]


class VerticalPodAutoscaler(Rule):
    """Recommender and updater for one VM; its past is all of it."""

    _shares: Final = (0.5, 0.9, 0.95)

    def __init__(self, size: Resources) -> None:
        super().__init__(size, SILENT, float("inf"))
        self._cpu, self._memory = Histogram(0.001, 1000.0), Histogram(1e7, 1e12)
        self._minute_s = 0.0
        self._busy_s = 0.0
        self._samples = 0
        self._peak, self._peak_s = 0.0, 0.0

    def read(self, seen: Seen, now_s: float) -> None:
        """Once a minute: a sample, a recommendation, and the updater's look."""
        sample = seen.sample
        assert sample.memory_total is not None
        assert sample.memory_available is not None
        used = float(sample.memory_total - sample.memory_available)
        if seen.ran_out:
            used = max(used, self.size.memory_bytes + 100 * MIB, 1.2 * self.size.memory_bytes)
        elif now_s < self._minute_s + UPDATE_S:
            return
        self._note_peak(used, now_s)
        assert sample.cpu_busy_s is not None
        if now_s >= self._minute_s + UPDATE_S:
            cpus = (sample.cpu_busy_s - self._busy_s) / (now_s - self._minute_s)
            self._cpu.add(cpus, max(0.1, self.size.vcpu_milli / 1000), now_s)
            self._minute_s, self._busy_s = now_s, sample.cpu_busy_s
            self._samples += 1
        self._update(now_s)

    def _note_peak(self, used: float, now_s: float) -> None:
        """A day has one sample of memory: its peak."""
        if now_s >= self._peak_s + DAY_S:
            self._peak, self._peak_s = 0.0, self._peak_s + DAY_S
        if used > self._peak:
            if self._peak:
                self._memory.add(self._peak, -1.0, self._peak_s)
            self._memory.add(used, 1.0, self._peak_s)
            self._peak = used

    def _update(self, now_s: float) -> None:
        days = max(1e-9, min(now_s / DAY_S, self._samples / (24 * 60)))
        cpu = [MARGIN * each for each in self._cpu.percentiles(self._shares)]
        memory = [MARGIN * each for each in self._memory.percentiles(self._shares)]
        target = amount(cpu[1], max(memory[1], LEAST_BYTES))
        wider, narrower = 1 + 1 / days, (1 + 0.001 / days) ** -2
        low = amount(cpu[0] * narrower, memory[0] * narrower)
        high = amount(cpu[2] * wider, memory[2] * wider)
        is_outside = low.exceeds(self.size) or self.size.exceeds(high)
        change = sum(
            abs(new - old) / old for (_, new), (_, old) in zip(target.named(), self.size.named(), strict=True)
        )
        if is_outside or (now_s >= SETTLED_S and change >= LEAST_CHANGE):
            self.size = target
