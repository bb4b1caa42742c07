"""Curves that workloads are made of, as arrays with a value for each second."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Series: TypeAlias = npt.NDArray[np.float64]
DAY_S: Final = 86_400
HOUR_S: Final = 3_600


def noise(rng: np.random.Generator, seconds: int, deviation: float, over_s: int) -> Series:
    """Factors around 1 (log-normal, mean 1) whose logarithm has the standard deviation `deviation` and keeps in mind `over_s`."""
    white = rng.standard_normal(seconds + over_s)
    sums = np.concatenate(([0.0], np.cumsum(white)))
    moving = (sums[over_s:] - sums[:-over_s])[:seconds] / np.sqrt(over_s)
    return np.asarray(np.exp(deviation * moving - deviation**2 / 2))


def limited(target: Series, rise: float, fall: float) -> Series:
    """`target`, followed by at most `rise` up and `fall` down in a second."""
    at = np.arange(len(target))
    risen = np.minimum.accumulate(target - rise * at) + rise * at
    return np.asarray(np.maximum.accumulate(risen + fall * at) - fall * at)


def smoothed(series: Series, over_s: int) -> Series:
    """The mean of the last `over_s` seconds; before that of as many as there are."""
    sums = np.concatenate(([0.0], np.cumsum(series)))
    ends = np.arange(1, len(series) + 1)
    begins = np.maximum(0, ends - over_s)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def waves(seconds: int, period_s: float, phase: float) -> Series:
    """Waves between 0 and 1, lowest at `phase` (a share of the period)."""
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(seconds) / period_s - phase)))


def add_pulse(
    series: Series, at_s: float, rise_s: float, hold_s: float, fall_s: float, height: float
) -> None:
    """Add a pulse: up in a line, level, then down exponentially (`fall_s` to 37 %; 0: at once)."""
    begin, tail = int(at_s), int(6 * fall_s)
    risen, held = int(rise_s), int(hold_s)
    parts = [np.arange(1, risen + 1) / max(1, risen), np.ones(held)]
    if tail:
        parts.append(np.exp(-np.arange(1, tail + 1) / fall_s))
    pulse = np.concatenate(parts)[: max(0, len(series) - begin)]
    series[begin : begin + len(pulse)] += height * pulse


def arrivals(rng: np.random.Generator, seconds: int, every_s: float) -> list[float]:
    """Random moments, so far apart on average (a Poisson process)."""
    count = rng.poisson(seconds / every_s)
    return sorted(rng.uniform(0, seconds, count).tolist())


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between two, each order of magnitude as likely as another."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
