"""The counts of one VM under one rule, and their sums over VMs and families."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.policies_parts.shapes import Series

STEP_LIMIT_S: Final = 900.0
"""A step that the size does not follow for so long counts as this."""


@dataclass(slots=True)
class Tally:
    """One VM's counts over `counted_s` seconds. Slack is summed as seconds times (size - use) / size."""

    family: str
    counted_s: float = 0.0
    cpu_slack_s: float = 0.0
    memory_slack_s: float = 0.0
    insufficient_s: float = 0.0
    out_of_memory: int = 0
    resizes: int = 0
    late_cpu_s: float = 0.0
    """CPU-seconds of work that could not be done at once."""
    steps_s: list[float] = field(default_factory=list)
    """For each step of demand the seconds until the size covered it."""
    evaluations: int = 0
    evaluation_s: float = 0.0
    """Processor time of the replay with its rule, and how often the rule was asked."""
    remembered_bytes: int = 0
    """How much the rule remembers of the VM at the end."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of the table. Slack and insufficient time in per cent; None if nothing was measured."""

    cpu_slack: float
    memory_slack: float
    insufficient: float
    out_of_memory: float
    resizes_per_hour: float
    most_resizes_per_hour: float
    late_cpu_s_per_hour: float
    step_p50_s: float | None
    step_p95_s: float | None


def figures_of(tallies: Iterable[Tally]) -> Figures:
    """The figures over VMs of one family: means, and for events their number."""
    found = list(tallies)
    seconds = sum(each.counted_s for each in found)
    steps = [step for each in found for step in each.steps_s]
    resizes = 3600 * sum(each.resizes for each in found) / seconds
    return Figures(
        cpu_slack=100 * sum(each.cpu_slack_s for each in found) / seconds,
        memory_slack=100 * sum(each.memory_slack_s for each in found) / seconds,
        insufficient=100 * sum(each.insufficient_s for each in found) / seconds,
        out_of_memory=sum(each.out_of_memory for each in found),
        resizes_per_hour=resizes,
        most_resizes_per_hour=resizes,
        late_cpu_s_per_hour=3600 * sum(each.late_cpu_s for each in found) / seconds,
        step_p50_s=_percentile(steps, 50),
        step_p95_s=_percentile(steps, 95),
    )


def over_families(tallies: Iterable[Tally]) -> tuple[Figures, dict[str, Figures]]:
    """The figures over all families, and of each. Families have equally many VMs, so means over VMs are means over families;
    steps are ranked all together."""
    found = list(tallies)
    families = {
        name: figures_of(each for each in found if each.family == name)
        for name in dict.fromkeys(each.family for each in found)
    }
    total = figures_of(found)
    most = max(each.resizes_per_hour for each in families.values())
    return (
        Figures(
            **{
                name: most if name == "most_resizes_per_hour" else getattr(total, name)
                for name in Figures.__slots__
            }
        ),
        families,
    )


def _percentile(values: list[float], percent: float) -> float | None:
    return float(np.percentile(values, percent, method="higher")) if values else None


@dataclass(frozen=True, slots=True)
class Step:
    """CPU demand rises to `level` at `at_s` (seconds since the beginning of the demand)."""

    at_s: float
    level: float


BEFORE_S, AFTER_S, LEAST_CPUS, LEAST_SHARE = 120, 30, 0.5, 1.0


def steps_of(cpu: Series) -> list[Step]:
    """The steps of a demand, under any rule: over `AFTER_S` it is on average higher than the mean of the two minutes before
    by a unit and by 40 %, and the first five seconds are already half-way there. After a step the next counts two minutes later."""
    sums = np.concatenate(([0.0], np.cumsum(cpu)))
    at = np.arange(BEFORE_S, len(cpu) - AFTER_S)
    before = (sums[at] - sums[at - BEFORE_S]) / BEFORE_S
    after = (sums[at + AFTER_S] - sums[at]) / AFTER_S
    first = (sums[at + 5] - sums[at]) / 5
    rise = after - before
    is_step = (rise >= LEAST_CPUS) & (rise >= LEAST_SHARE * before) & (first - before >= 0.5 * rise)
    found: list[Step] = []
    for index in np.flatnonzero(is_step).tolist():
        half_way = before[index] + rise[index] / 2
        second = index + BEFORE_S
        second += int(np.argmax(cpu[second : second + 5] >= half_way))
        if not found or second >= found[-1].at_s + BEFORE_S:
            found.append(Step(float(second), float(after[index])))
    return found


def followed(steps: Iterable[Step], sizes: list[tuple[float, float]], from_s: float) -> list[float]:
    """For each step from `from_s` on the seconds until the CPUs of the VM covered the step's level; `sizes` are its changes, oldest first."""
    moments = np.array([at for at, _ in sizes])
    cpus = np.array([size for _, size in sizes])
    found = []
    for step in steps:
        if step.at_s < from_s:
            continue
        now = int(np.searchsorted(moments, step.at_s, side="right")) - 1
        enough = np.flatnonzero(cpus[now:] >= step.level)
        waited = max(0.0, float(moments[now + enough[0]]) - step.at_s) if len(enough) else STEP_LIMIT_S
        found.append(min(waited, STEP_LIMIT_S))
    return found
