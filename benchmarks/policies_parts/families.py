"""Nine families of workloads: the demand of CPU and memory of one VM, second by second, from a seed.

A family is one function `(rng, vm, seconds)`. `rng` draws what differs between VMs and between days; `vm` is how large
the workload is when it is busy, drawn before, so that each family has small and large ones with all ratios of CPU to memory
(1 to 8 GiB for each CPU; that of the compute unit, 4, is nothing special). CPU may step at once. Memory follows at a
bounded rate, as allocations do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.policies_parts.shapes import (
    DAY_S,
    HOUR_S,
    Series,
    add_pulse,
    arrivals,
    between,
    limited,
    noise,
    smoothed,
    waves,
)

GIB: Final = 2.0**30
MIB: Final = 2.0**20
UNIT_CPUS, UNIT_BYTES = 0.25, GIB
MOST_CPUS, MOST_BYTES = 16.0, 64 * GIB
"""The VM's maximum: 64 compute units, which no workload needs."""
RISE_SHARES, MOST_RISE = (0.005, 0.022), 300 * MIB
"""A workload allocates from so little to so much of its memory in a second, within limits: large ones have more threads
that allocate."""


@dataclass(frozen=True, slots=True)
class Busy:
    """How large a workload is when it is busy, and how fast it allocates (bytes for each second)."""

    cpus: float
    memory_bytes: float
    rise: float
    fall: float


@dataclass(frozen=True, slots=True)
class Demand:
    """The wanted use of a workload, for each second. After running out of memory a workload begins at `base_bytes` again, and
    grows by `regrowth` bytes in a second until it has its wanted size."""

    family: str
    cpu: Series
    memory: Series
    base_bytes: float
    regrowth: float


@dataclass(frozen=True, slots=True)
class Curves:
    """CPUs, and bytes that are wanted; how fast they come is bounded afterwards. A workload that begins anew wants `regrowth`
    more bytes in each second; None: as fast as it allocates."""

    cpu: Series
    memory: Series
    regrowth: float | None = None


def steady(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A service under constant load: a replica of a database, a worker of a queue that is never empty."""
    level = rng.uniform(0.6, 0.9)
    cpu = vm.cpus * level * noise(rng, seconds, 0.08, 5) * noise(rng, seconds, 0.06, 300)
    memory = vm.memory_bytes * rng.uniform(0.75, 0.95) * noise(rng, seconds, 0.03, 1800)
    return Curves(cpu, memory)


def day_curve(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A web service whose users sleep at night; days differ a little."""
    night, steepness = rng.uniform(0.15, 0.35), rng.uniform(1.0, 2.0)
    days = 1 + 0.06 * rng.standard_normal(seconds // DAY_S + 2)
    of_day = np.interp(np.arange(seconds) / DAY_S, np.arange(len(days)), np.clip(days, 0.7, 1.3))
    load = (night + (1 - night) * waves(seconds, DAY_S, rng.uniform(0, 1)) ** steepness) * of_day
    cpu = vm.cpus * load * noise(rng, seconds, 0.06, 5) * noise(rng, seconds, 0.06, 120)
    resident = rng.uniform(0.35, 0.6)
    memory = (
        vm.memory_bytes * (resident + (1 - resident) * smoothed(load, 900)) * noise(rng, seconds, 0.02, 600)
    )
    return Curves(cpu, memory)


def office_hours(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A company's own application: nearly idle at night, in use from morning to evening, with a pause at noon."""
    opens, closes = rng.uniform(7, 9.5) * HOUR_S, rng.uniform(16.5, 19) * HOUR_S
    night = rng.uniform(0.06, 0.15)
    load = np.zeros(seconds)
    for day in range(-1, seconds // DAY_S + 1):
        height = np.clip(1 + 0.12 * rng.standard_normal(), 0.7, 1.3)
        begin, end = (day * DAY_S + each + rng.normal(0, 300) for each in (opens, closes))
        hours = np.array([begin, begin + rng.uniform(300, 1500), end - 3600, end])
        noon = day * DAY_S + 12.2 * HOUR_S + np.array([0, 600, 2400, 3000])
        at = np.arange(seconds)
        load += height * np.interp(at, hours, [0, 1, 0.9, 0]) * np.interp(at, noon, [1, 0.6, 0.6, 1])
    cpu = (
        vm.cpus * (night + (1 - night) * load) * noise(rng, seconds, 0.08, 4) * noise(rng, seconds, 0.12, 60)
    )
    resident = rng.uniform(0.3, 0.5)
    memory = (
        vm.memory_bytes * (resident + (1 - resident) * smoothed(load, 1800)) * noise(rng, seconds, 0.02, 600)
    )
    return Curves(cpu, memory)


def batch_at_the_hour(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Reports, imports and backups that a clock starts: at each full hour a job, whose stages use all CPUs by turns with few."""
    idle_cpu, idle_memory = rng.uniform(0.06, 0.15), rng.uniform(0.3, 0.55)
    minutes, stage_s, narrow = between(rng, 14, 30), between(rng, 45, 180), rng.uniform(0.3, 0.6)
    work, data = np.zeros(seconds), np.zeros(seconds)
    for hour in range(seconds // HOUR_S):
        at_s = hour * HOUR_S + rng.uniform(1, 20)
        length_s = minutes * 60 * np.exp(0.2 * rng.standard_normal())
        height = np.exp(0.06 * rng.standard_normal())
        add_pulse(work, at_s, 0, length_s, 0, height * narrow)
        for stage in np.arange(0, length_s, 2 * stage_s):
            add_pulse(work, at_s + stage, 0, min(stage_s, length_s - stage), 0, height * (1 - narrow))
        add_pulse(data, at_s, 0, length_s, 0, height)
    cpu = vm.cpus * (idle_cpu + (1 - idle_cpu) * work) * noise(rng, seconds, 0.06, 4)
    memory = vm.memory_bytes * (idle_memory + (1 - idle_memory) * data) * noise(rng, seconds, 0.01, 600)
    return Curves(cpu, memory)


def flash_crowd(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A shop or a news site: a calm load, and now and then, unannounced, several times as many users within a minute."""
    calm = rng.uniform(0.25, 0.45)
    load = calm * (0.7 + 0.6 * waves(seconds, DAY_S, rng.uniform(0, 1)))
    for day in range(seconds // DAY_S):
        for at_s in rng.uniform(day * DAY_S, (day + 1) * DAY_S, int(rng.integers(1, 5))):
            height = (1 - calm) * min(2.5, float(np.exp(0.7 * rng.standard_normal())))
            add_pulse(load, at_s, between(rng, 2, 40), between(rng, 180, 900), between(rng, 60, 400), height)
    cpu = vm.cpus * load * noise(rng, seconds, 0.08, 5) * noise(rng, seconds, 0.06, 60)
    resident = rng.uniform(0.5, 0.75)
    memory = (
        vm.memory_bytes
        * (resident + (1 - resident) * np.minimum(0.6, smoothed(load, 10)) / 0.6)
        * noise(rng, seconds, 0.02, 600)
    )
    return Curves(cpu, memory)


def leak(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A service that loses memory for hours, until the next deployment or the restart at night."""
    every_s, phase_s = rng.uniform(8, 24) * HOUR_S, rng.uniform(0, 24) * HOUR_S
    clean = rng.uniform(0.3, 0.5)
    lost = ((np.arange(seconds) + phase_s) % every_s) / every_s
    load = rng.uniform(0.3, 0.5) + 0.5 * waves(seconds, DAY_S, rng.uniform(0, 1))
    cpu = vm.cpus * load * noise(rng, seconds, 0.06, 5) * noise(rng, seconds, 0.06, 120)
    memory = vm.memory_bytes * (clean + (1 - clean) * lost) * noise(rng, seconds, 0.01, 300)
    return Curves(cpu, memory, regrowth=vm.memory_bytes * (1 - clean) / every_s)


def heavy_tailed_bursts(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Analytical queries or functions on demand: bursts whose height and length have heavy tails (Pareto).
    They give memory back slowly."""
    idle_cpu, idle_memory = rng.uniform(0.2, 0.35), rng.uniform(0.35, 0.55)
    bursts = np.zeros(seconds)
    for at_s in arrivals(rng, seconds, between(rng, 150, 700)):
        height = min(1.5, 0.2 * (1 + rng.pareto(1.5)))
        add_pulse(bursts, at_s, 0, min(300, 8 * (1 + rng.pareto(1.3))), 0, height)
    cpu = vm.cpus * (idle_cpu + bursts) * noise(rng, seconds, 0.10, 4)
    kept = limited(np.minimum(bursts, 0.4) / 0.4, 1.0, 1 / rng.uniform(600, 1800))
    memory = vm.memory_bytes * (idle_memory + (1 - idle_memory) * kept)
    return Curves(cpu, memory * noise(rng, seconds, 0.01, 300))


def sawtooth(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Periodic work around a whole number of compute units: compactions that start at full width and taper off, and a heap
    that fills until the collector has run."""
    cycles = np.arange(seconds) / between(rng, 240, 1200) + rng.uniform(0, 1)
    full, filled = 0.5 - cycles % 1.0, (cycles + rng.uniform(0, 1)) % 1.0 - 0.5
    curves = []
    for busy, step, saw in ((vm.cpus, UNIT_CPUS, full), (vm.memory_bytes, UNIT_BYTES, filled)):
        middle = max(1, round(0.7 * busy / step)) * step
        curves.append(middle + max(0.6 * step, rng.uniform(0.3, 0.7) * middle) * saw)
    cpu, memory = curves
    return Curves(cpu * noise(rng, seconds, 0.05, 4), memory * noise(rng, seconds, 0.005, 300))


def noisy(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Few and heavy requests: demand that goes to and fro from second to second and from minute to minute."""
    level = rng.uniform(0.35, 0.55)
    cpu = vm.cpus * level * noise(rng, seconds, 0.2, 3) * noise(rng, seconds, 0.25, 120)
    memory = (
        vm.memory_bytes
        * rng.uniform(0.6, 0.75)
        * noise(rng, seconds, 0.03, 60)
        * noise(rng, seconds, 0.08, 900)
    )
    return Curves(cpu, memory)


FAMILIES: Final[Mapping[str, Callable[[np.random.Generator, Busy, int], Curves]]] = {
    "steady": steady,
    "day curve": day_curve,
    "office hours": office_hours,
    "batch at the hour": batch_at_the_hour,
    "flash crowd": flash_crowd,
    "leak": leak,
    "heavy-tailed bursts": heavy_tailed_bursts,
    "sawtooth": sawtooth,
    "noisy": noisy,
}


def demand(family: str, seed: int, vm: int, days: int) -> Demand:
    """The demand of one VM of a family; the same for the same arguments."""
    rng = np.random.Generator(np.random.PCG64([seed, list(FAMILIES).index(family), vm]))
    cpus = between(rng, 0.6, 6)
    memory_bytes = min(32 * GIB, max(1.25 * GIB, cpus * between(rng, 1, 8) * GIB))
    rise = min(MOST_RISE, memory_bytes * between(rng, *RISE_SHARES))
    busy = Busy(cpus, memory_bytes, rise, 3 * rise)
    curves = FAMILIES[family](rng, busy, days * DAY_S)
    memory = limited(np.minimum(curves.memory, 0.95 * MOST_BYTES), busy.rise, busy.fall)
    return Demand(
        family,
        np.clip(curves.cpu, 0.01, 0.95 * MOST_CPUS),
        memory,
        base_bytes=0.5 * float(memory.min()),
        regrowth=busy.rise if curves.regrowth is None else curves.regrowth,
    )
