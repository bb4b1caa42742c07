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


@dataclass(frozen=True, slots=True)
class Busy:
    """How large a workload is when it is busy, and how fast it allocates (bytes for each second)."""

    cpus: float
    memory_bytes: float
    rise: float
    fall: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What a workload would use, for each second. After running out of memory a workload begins at `base_bytes` again, and
    grows by `regrowth` bytes in a second until it is where it would be."""

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
    """Reports, imports and backups that a clock starts: a step of CPU at each full hour, and the memory of the job."""
    idle_cpu, idle_memory = rng.uniform(0.06, 0.15), rng.uniform(0.3, 0.55)
    minutes = between(rng, 8, 25)
    job = np.zeros(seconds)
    for hour in range(seconds // HOUR_S + 1):
        length_s = minutes * 60 * np.exp(0.2 * rng.standard_normal())
        height = np.exp(0.12 * rng.standard_normal())
        add_pulse(job, hour * HOUR_S + rng.uniform(1, 20), 0, length_s, 0, height)
    cpu = vm.cpus * (idle_cpu + (1 - idle_cpu) * job) * noise(rng, seconds, 0.10, 4)
    memory = vm.memory_bytes * (idle_memory + (1 - idle_memory) * job) * noise(rng, seconds, 0.01, 600)
    return Curves(cpu, memory)


def flash_crowd(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """A shop or a news site: a calm load, and now and then, unannounced, several times as many users within a minute."""
    calm = rng.uniform(0.25, 0.45)
    load = calm * (0.7 + 0.6 * waves(seconds, DAY_S, rng.uniform(0, 1)))
    for day in range(seconds // DAY_S):
        for at_s in rng.uniform(day * DAY_S, (day + 1) * DAY_S, int(rng.integers(1, 4))):
            height = (1 - calm) * min(2.5, float(np.exp(0.7 * rng.standard_normal())))
            add_pulse(load, at_s, between(rng, 5, 60), between(rng, 180, 900), between(rng, 120, 600), height)
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
    """Analytical queries or functions on demand: bursts whose height and length have heavy tails (Pareto)."""
    idle_cpu, idle_memory = rng.uniform(0.15, 0.3), rng.uniform(0.35, 0.55)
    bursts = np.zeros(seconds)
    for at_s in arrivals(rng, seconds, between(rng, 300, 1500)):
        height = min(1.5, 0.2 * (1 + rng.pareto(1.5)))
        add_pulse(bursts, at_s, 0, min(300, 10 * (1 + rng.pareto(1.2))), 0, height)
    cpu = vm.cpus * (idle_cpu + bursts) * noise(rng, seconds, 0.10, 4)
    memory = vm.memory_bytes * (idle_memory + (1 - idle_memory) * np.minimum(bursts, 0.5) / 0.5)
    return Curves(cpu, memory * noise(rng, seconds, 0.01, 300))


def sawtooth(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Periodic work, such as compaction or garbage collection, around a whole number of compute units of both resources."""
    period_s = between(rng, 240, 1500)
    saw = ((np.arange(seconds) / period_s + rng.uniform(0, 1)) % 1.0) - 0.5
    curves = []
    for busy, step in ((vm.cpus, UNIT_CPUS), (vm.memory_bytes, UNIT_BYTES)):
        middle = max(1, round(0.8 * busy / step)) * step
        curves.append(middle + rng.uniform(0.6, 1.5) * step * saw)
    cpu, memory = curves
    return Curves(cpu * noise(rng, seconds, 0.06, 4), memory * noise(rng, seconds, 0.005, 300))


def noisy(rng: np.random.Generator, vm: Busy, seconds: int) -> Curves:
    """Few and heavy requests: demand that goes to and fro from second to second and from minute to minute."""
    level = rng.uniform(0.35, 0.55)
    cpu = vm.cpus * level * noise(rng, seconds, 0.14, 3) * noise(rng, seconds, 0.25, 150)
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
    busy = Busy(cpus, memory_bytes, between(rng, 25, 200) * MIB, between(rng, 100, 600) * MIB)
    curves = FAMILIES[family](rng, busy, days * DAY_S)
    memory = limited(np.minimum(curves.memory, 0.95 * MOST_BYTES), busy.rise, busy.fall)
    return Demand(
        family,
        np.clip(curves.cpu, 0.01, 0.95 * MOST_CPUS),
        memory,
        base_bytes=0.5 * float(memory.min()),
        regrowth=busy.rise if curves.regrowth is None else curves.regrowth,
    )
