"""`utilisation`, the default: for each resource as many units as the load needs, seen in several ways; the highest counts.

- *target*: CPU and memory in use are a target share of the size. The goal does not depend on the size, so the same load
  leads to the same size from both sides, and it rests on held means (`remembered`), so it does not flip at every sample.
- *tail* (`peaks`): the busiest minutes of the last quarter of an hour fit as well.
- *slope* (`peaks`): memory that rises is judged a little ahead.
- *surge* (`peaks`): memory finds room to rise as fast as it did in the last hours.

Without CPU time the target goes by the load averages. The policy also has a rule for an urgent wish (`wished`), and for the moment at which a
goal may fall (`DownWindow`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from msgspec.structs import replace

from agent.core.policies.peaks import SURGES, TAIL, LoadTail, Surges
from agent.core.policies.remembered import Remembering, Smoothing, Zones, headroom
from agent.core.policies.values import (
    MAX_MICRO,
    MILLION,
    Goal,
    GoalPart,
    Load,
    Sizing,
    highest,
    micro,
    units_for,
)
from protocol.values import MAX_MEMORY_BYTES, Resources

MIB: Final = 2**20
HALF: Final = 500_000
CPU_ZONES: Final = Zones(80_000, 80_000)
MEMORY_ZONES: Final = Zones(20_000, 20_000)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Targets and zones in parts per million; `memory_margin` in bytes is added to the guest's use.

    `load_target` is the load average for each CPU if CPU time is unknown: waiting tasks count there, so it is
    higher. That target is the published one (reference/neon.md 6.2).
    """

    cpu_target: int = 900_000
    memory_target: int | None = 940_000
    """None: memory does not count."""
    load_target: int = 900_000
    memory_margin: int = 32 * MIB
    cpu_zones: Zones = CPU_ZONES
    memory_zones: Zones = MEMORY_ZONES
    window_s: float = 60.0
    """Seconds after which a mean has followed a load that stays above or below."""
    tail: LoadTail = TAIL
    surges: Surges = SURGES
    ahead_s: float = 2.0
    """How far ahead memory that rises is judged."""
    wish_share: int = HALF
    """How much of the size more an urgent wish of the guest asks for."""

    remembering: Remembering = field(init=False, compare=False, repr=False)
    """The memory of the load that the goal rests on: means and tails."""

    def __post_init__(self) -> None:
        smoothing = Smoothing(
            self.cpu_zones.within(headroom(self.cpu_target)),
            self.cpu_zones.within(headroom(self.load_target)),
            self.memory_zones.within(headroom(self.memory_target or MILLION)),
            self.window_s,
        )
        object.__setattr__(
            self,
            "remembering",
            Remembering(smoothing, self.tail, self.surges),
        )

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        cpu, memory = sizing.unit.step.vcpu_milli * 1000, sizing.unit.step.memory_bytes
        return Goal(highest(self._cpu(load, cpu)), highest(self._memory(load, memory)))

    def need(self, load: Load, sizing: Sizing) -> Goal:
        """The goal without comfort: no tail, slope or surge, and half of the room that the target leaves. A resource that is nearly full shows
        no more load than it has: there the target itself counts.
        """
        step, use = sizing.unit.step, sizing.use
        cpu, memory = (
            next(self._cpu(load, step.vcpu_milli * 1000)),
            next(self._memory(load, step.memory_bytes)),
        )
        busy, mean = load.busy(), _mean(load.busy_mean_micro, MAX_MICRO)
        level = _level(busy, mean, self.remembering.smoothing.busy)
        if level is not None:
            most = max(level[0], (busy or 0) * level[1]), level[1]
            cpu = _needed(cpu, most, self.cpu_target, use.vcpu_milli * 1000, step.vcpu_milli * 1000)
        used, mean = load.memory_used(), _mean(load.memory_mean, MAX_MEMORY_BYTES)
        level = _level(used, mean, self.remembering.smoothing.memory)
        if level is not None and self.memory_target is not None:
            most = max(level[0], (used or 0) * level[1]) + self.memory_margin * level[1], level[1]
            memory = _needed(memory, most, self.memory_target, use.memory_bytes, step.memory_bytes)
        return Goal(highest((cpu,)), highest((memory,)))

    def _cpu(self, load: Load, step: int) -> Iterator[GoalPart]:
        """The parts of CPU. `step` in millionths of a CPU."""
        busy, mean = load.busy(), _mean(load.busy_mean_micro, MAX_MICRO)
        zones, target, word = self.remembering.smoothing.busy, self.cpu_target, "CPUs busy"
        if busy is None and mean is None:
            busy = micro(load.load1)
            held = _mean(load.load_mean_micro, MAX_MICRO)
            mean = held if held is not None else micro(load.load5)
            zones, target, word = self.remembering.smoothing.load, self.load_target, "load"
        level = _level(busy, mean, zones)
        if level is None:
            yield GoalPart("cpu target", None, "neither CPU time nor load averages are known")
            return
        text = f"{level[0] / (level[1] * MILLION):.2f} {word}, {target / MILLION:.0%} is the target"
        yield GoalPart("cpu target", _units(level, target, step), text)
        peak, tail = _mean(load.busy_tail_micro, MAX_MICRO), self.tail
        if peak is not None:
            text = f"the busiest minutes of the last {tail.lately} need {peak / tail.target:.2f} CPUs"
            yield GoalPart("cpu tail", _units((peak, 1), tail.target, step), text)

    def _memory(self, load: Load, step: int) -> Iterator[GoalPart]:
        """The parts of memory. `step` in bytes."""
        target = self.memory_target
        if target is None:
            yield GoalPart("memory target", None, "memory does not count")
            return
        used, mean = load.memory_used(), _mean(load.memory_mean, MAX_MEMORY_BYTES)
        level = _level(used, mean, self.remembering.smoothing.memory)
        if level is None:
            yield GoalPart("memory target", None, "memory in use is not known")
            return
        need = (level[0] + self.memory_margin * level[1], level[1])
        text = f"{_mib(*need)} MiB of memory needed, {target / MILLION:.0%} is the target"
        yield GoalPart("memory target", _units(need, target, step), text)
        peak, tail = _mean(load.memory_tail, MAX_MEMORY_BYTES), self.tail
        if peak is not None:
            most = _mib(peak * MILLION, tail.target)
            text = f"the fullest minutes of the last {tail.lately} need {most} MiB of memory"
            yield GoalPart("memory tail", _units((peak, 1), tail.target, step), text)
        surge = _mean(load.memory_surge, MAX_MEMORY_BYTES)
        if surge is not None:
            text = f"{_mib(surge)} MiB of memory needed to rise as fast as in the last {self.surges.lately}"
            yield GoalPart("memory surge", units_for(surge, step), text)
        rise = round(load.memory_rise * self.ahead_s)
        if used is not None and rise > 0:
            soon = used + rise + self.memory_margin
            text = f"{_mib(soon)} MiB of memory needed in {self.ahead_s:g} s, as it rises now"
            yield GoalPart("memory slope", _units((soon, 1), target, step), text)


Ratio: TypeAlias = tuple[int, int]
"""An exact amount: numerator and denominator. In place of `Fraction`, whose arithmetic took half of the time of a goal."""


def _units(need: Ratio, target: int, step: int) -> int:
    """The least number of steps of which `need` is at most the target share."""
    return units_for(need[0] * MILLION, need[1] * target * step)


def _needed(part: GoalPart, level: Ratio, target: int, size: int, step: int) -> GoalPart:
    """The part of one resource without comfort, if `level` of a size of `size` is in use."""
    tight = (target + MILLION) // 2
    is_full = level[0] * 2 * MILLION >= level[1] * size * (tight + MILLION)
    return part if is_full else replace(part, units=_units(level, tight, step))


def _mib(amount: int, divisor: int = 1) -> int:
    return round(amount / (divisor * MIB))


def _mean(value: int | None, most: int) -> int | None:
    return None if value is None or value < 0 else min(value, most)


def _level(value: int | None, mean: int | None, zones: Zones) -> Ratio | None:
    """The value that counts, of a figure and its mean; either alone if the other is not known."""
    if value is not None and mean is not None:
        blend = zones.blend(value, mean)
        return blend.numerator, blend.denominator
    known = value if value is not None else mean
    return None if known is None else (known, 1)


def wished(
    size: Resources, step: Resources, share: int = HALF, *, cpu: bool, memory: bool, earlier: Resources
) -> Resources:
    """The amount that an urgent wish asks for, at least `size` and a unit of each resource that it names; 0 of the other resource. The guest
    calls when it cannot wait for the next metrics, so nobody knows how much it needs; a share of the size reaches any need within a few calls.

    `size` is the amount in use, and `share` (parts per million) of it is wished for. `earlier` is the result for the wish before, as long
    as its growth is kept (zero: there is none). A wish that comes again before that growth has happened asks for no more; a wish that comes
    after it asks for twice the share. The growth is in whole units.
    """
    return Resources(
        _wished(size.vcpu_milli, step.vcpu_milli, share, earlier.vcpu_milli) if cpu else 0,
        _wished(size.memory_bytes, step.memory_bytes, share, earlier.memory_bytes) if memory else 0,
    )


def _wished(size: int, step: int, share: int, earlier: int) -> int:
    if earlier > size:
        return earlier
    more = size * share * (2 if earlier else 1)
    return size + step * max(1, -(-more // (MILLION * step)))
