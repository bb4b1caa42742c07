"""Laws of the policies, whatever the load, the size and the way there."""

import dataclasses
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from agent.core.policies.combined import Combined
from agent.core.policies.peaks import NO_SURGES, NO_TAIL
from agent.core.policies.remembered import Remembered, Track, Zones, follow, headroom, remember
from agent.core.policies.stepwise import LoadAverage, Pressure
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import (
    MAX_UNITS,
    MILLION,
    Goal,
    Load,
    Policy,
    Psi,
    ResourceGoal,
    Sizing,
)
from agent.core.policies.windows import Bar, ResourceLimits, WindowLimits
from protocol.values import Bounds, ComputeUnit, Resources, Units

PERIOD_S = 5.0
ALL: tuple[Policy, ...] = (Utilisation(), LoadAverage(), Pressure())

_shares = st.integers(0, 300_000)
_zones = st.builds(Zones, _shares, _shares)
_targets = st.integers(100_000, 1_000_000)
_micros = st.integers(0, 200 * MILLION)
_units = st.builds(Resources, st.integers(50, 4000), st.integers(2**20, 2**33))
_policies = st.builds(
    Utilisation,
    _targets,
    _targets,
    _targets,
    st.integers(0, 2**30),
    _zones,
    _zones,
    st.just(60.0),
    st.just(NO_TAIL),
    st.just(NO_SURGES),
)


@st.composite
def _sizings(draw: st.DrawFn) -> Sizing:
    unit = ComputeUnit(draw(_units), is_apart=draw(st.booleans()))
    least = draw(st.builds(Resources, st.integers(1, 10_000), st.integers(1, 2**36)))
    most = least + draw(st.builds(Resources, st.integers(0, 90_000), st.integers(0, 2**38)))
    use = draw(st.builds(Resources, st.integers(1, 200_000), st.integers(1, 2**40)))
    return Sizing(use, unit, Bounds(least, most))


_figures = st.none() | st.floats() | st.floats(0, 100)
_psi = st.none() | st.builds(Psi, _figures, _figures, _figures, _figures)
_counts = st.none() | st.integers(-(2**70), 2**70) | st.integers(0, 2**40)
_loads = st.builds(
    Load,
    *(_counts, _counts, _figures, _figures, _counts, _counts, _counts, _counts, _counts, _counts),
    st.integers(-(2**70), 2**70),
    *(_counts, _psi, _psi),
)


def both(goal: Goal) -> tuple[ResourceGoal, ResourceGoal]:
    return goal.cpu, goal.memory


def least_of(level: int, target: int, unit: int) -> int:
    """The least number of units of which `level` is at most the target share."""
    return -(-level * MILLION // (target * unit))


# ------------------------------------------------------------ of every policy


@given(_loads, _sizings())
def test_a_goal_is_never_negative_and_never_without_end_whatever_the_guest_says(
    load: Load, sizing: Sizing
) -> None:
    for policy in ALL:
        for goal in both(policy.goal(load, sizing)):
            assert goal.reason
            assert goal.units is None or (type(goal.units) is int and 0 <= goal.units <= MAX_UNITS)


@given(_loads, _sizings(), st.lists(st.sampled_from(ALL), max_size=3))
def test_the_combined_goal_is_the_highest_and_tells_all(
    load: Load, sizing: Sizing, policies: list[Policy]
) -> None:
    combined = Combined(tuple((str(index), policy) for index, policy in enumerate(policies)))
    goal = combined.goal(load, sizing)
    results = [policy.goal(load, sizing) for policy in policies]
    cpu = [result.cpu.units for result in results if result.cpu.units is not None]
    memory = [result.memory.units for result in results if result.memory.units is not None]
    if not sizing.unit.is_apart:
        cpu = memory = cpu + memory
    size = sizing.units()
    for found, known, stays in ((goal.cpu, cpu, size.cpu), (goal.memory, memory, size.memory)):
        assert found.units == max(known, default=stays)
        if known:
            assert (found.parts[0].units, found.parts[0].reason) == (found.units, found.reason)
        assert {part.policy.split("/")[0] for part in found.parts} >= {name for name, _ in combined.policies}
    assert sizing.unit.is_apart or goal.cpu == goal.memory


@st.composite
def _known(draw: st.DrawFn) -> Load:
    total = draw(st.integers(0, 2**40))
    percent = st.floats(0, 100)
    return Load(
        draw(_micros),
        draw(st.none() | _micros),
        draw(st.floats(0, 200)),
        draw(st.floats(0, 200)),
        draw(st.none() | _micros),
        total,
        draw(st.integers(0, total)),
        draw(st.none() | st.integers(0, 2**40)),
        draw(st.none() | _micros),
        draw(st.none() | st.integers(0, 2**40)),
        draw(st.integers(0, 2**30)),
        draw(st.none() | st.integers(0, 2**40)),
        draw(st.builds(Psi, percent, percent, percent, percent)),
        draw(st.builds(Psi, percent, percent, percent, percent)),
    )


def _higher(psi: Psi | None, by: float) -> Psi | None:
    if psi is None:
        return None
    return replace(psi, **{each.name: (getattr(psi, each.name) or 0.0) + by for each in fields(Psi)})


@given(_known(), _sizings(), st.integers(0, 100 * MILLION), st.floats(0, 100), st.booleans(), _policies)
def test_more_load_never_means_a_lower_goal(
    load: Load, sizing: Sizing, more: int, percent: float, has_cpu_time: bool, utilisation: Utilisation
) -> None:
    if not has_cpu_time:
        load = replace(load, busy_micro=None, busy_mean_micro=None)
    higher = replace(
        load,
        busy_micro=None if load.busy_micro is None else load.busy_micro + more,
        load1=(load.load1 or 0.0) + more / MILLION,
        memory_available=max(0, (load.memory_available or 0) - more * 1000),
        cpu_psi=_higher(load.cpu_psi, percent),
        memory_psi=_higher(load.memory_psi, percent),
    )
    for policy in (*ALL, utilisation):
        low, high = policy.goal(load, sizing).units(), policy.goal(higher, sizing).units()
        assert low.cpu <= high.cpu
        assert low.memory <= high.memory


# ------------------------------------------------------------ of `utilisation`


@given(_known(), _policies, _sizings(), _sizings())
def test_the_goal_does_not_depend_on_the_size(
    load: Load, policy: Utilisation, one: Sizing, two: Sizing
) -> None:
    assert policy.goal(load, one) == policy.goal(load, replace(two, unit=one.unit))


@given(_known(), _policies, _sizings(), st.integers(1, 1000))
def test_a_larger_unit_under_a_larger_load_is_the_same_goal(
    load: Load, policy: Utilisation, sizing: Sizing, factor: int
) -> None:
    assert load.memory_total is not None
    assert load.memory_available is not None
    assert load.busy_micro is not None
    assume(load.memory_total * factor < 2**63 and load.busy_micro * factor < 2**53)

    def scaled(value: int | None) -> int | None:
        return None if value is None else value * factor

    larger = replace(
        load,
        busy_micro=scaled(load.busy_micro),
        busy_mean_micro=scaled(load.busy_mean_micro),
        memory_total=scaled(load.memory_total),
        memory_available=scaled(load.memory_available),
        memory_mean=scaled(load.memory_mean),
        busy_tail_micro=scaled(load.busy_tail_micro),
        memory_tail=scaled(load.memory_tail),
        memory_rise=load.memory_rise * factor,
        memory_surge=scaled(load.memory_surge),
    )
    assume((larger.memory_mean or 0) < 2**63)
    wide = dataclasses.replace(policy, memory_margin=policy.memory_margin * factor)
    found = wide.goal(larger, replace(sizing, unit=ComputeUnit(sizing.unit.step * factor)))
    assert found.units() == policy.goal(load, sizing).units()


@dataclass
class Guest:
    """A VM under a policy, sample by sample: its size follows each goal at once."""

    policy: Utilisation
    sizing: Sizing
    at_s: float = 0.0
    known: Remembered = field(default_factory=Remembered)

    def sample(self, load: Load) -> Units:
        self.at_s += PERIOD_S
        how = self.policy.remembering
        self.known = remember(self.known, load, self.at_s, how)
        goal = self.policy.goal(self.known.fill(load, self.at_s, how), self.sizing).units()
        self.sizing = replace(self.sizing, use=self.sizing.unit.step.max(self.sizing.unit.amount(goal)))
        return goal


def _sample(busy: int, used: int = 0, *, has_cpu_time: bool = True) -> Load:
    total = 2**41
    if has_cpu_time:
        return Load(busy_micro=busy, memory_total=total, memory_available=total - used)
    return Load(load1=busy / MILLION, load5=0.0, memory_total=total, memory_available=total - used)


WINDOW = int(60 / PERIOD_S)


@given(
    _policies,
    _sizings(),
    st.lists(st.tuples(_micros, st.integers(0, 2**38)), max_size=40),
    _micros,
    st.integers(0, 2**38),
    st.booleans(),
)
def test_a_constant_load_ends_at_the_same_size_from_everywhere_and_stays(
    policy: Utilisation,
    sizing: Sizing,
    before: list[tuple[int, int]],
    busy: int,
    used: int,
    has_cpu_time: bool,
) -> None:
    guest = Guest(policy, sizing)
    for value, memory in before:
        guest.sample(_sample(value, memory, has_cpu_time=has_cpu_time))
    constant = _sample(busy, used, has_cpu_time=has_cpu_time)
    goals = [guest.sample(constant) for _ in range(4 * WINDOW)]
    target = policy.cpu_target if has_cpu_time else policy.load_target
    by_cpu = least_of(busy, target, sizing.unit.step.vcpu_milli * 1000)
    by_memory = least_of(
        used + policy.memory_margin, policy.memory_target or MILLION, sizing.unit.step.memory_bytes
    )
    found = {(each.cpu, each.memory) for each in goals[2 * WINDOW + 1 :]}
    assert found == {(min(by_cpu, MAX_UNITS), min(by_memory, MAX_UNITS))}


@given(_policies, _sizings(), st.integers(1000, 200 * MILLION), st.data())
def test_noise_within_the_stable_zone_never_moves_the_goal(
    policy: Utilisation, sizing: Sizing, level: int, data: st.DataObject
) -> None:
    reach = level * policy.remembering.smoothing.busy.stable // MILLION
    guest = Guest(dataclasses.replace(policy, memory_margin=0), sizing)
    settled = guest.sample(_sample(level))
    below, above = st.integers(-reach, 0), st.integers(0, reach)
    for noise in data.draw(st.lists(st.tuples(below, above), max_size=60)):
        for offset in noise:
            assert guest.sample(_sample(level + offset)) == settled


@given(_zones, st.integers(1, 10**9), st.lists(st.integers(-MILLION, MILLION), max_size=200))
def test_within_its_zones_a_mean_moves_at_most_once_a_window(
    zones: Zones, level: int, noise: list[int]
) -> None:
    track: Track | None = follow(None, level, 0.0, zones, 60.0)
    moved_at = 0
    for index, share in enumerate(noise, 1):
        assert track is not None
        value = track.mean + track.mean * (zones.stable + zones.mixed) * share // MILLION**2
        assume(not zones.is_left(value, track.mean))
        before = track.mean
        track = follow(track, value, index * PERIOD_S, zones, 60.0)
        assert track is not None
        if track.mean != before:
            assert index - moved_at >= WINDOW
            moved_at = index


@given(_zones, st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_blend_lies_between_mean_and_value(zones: Zones, value: int, mean: int) -> None:
    found = zones.blend(value, mean)
    assert min(value, mean) <= found <= max(value, mean)
    if zones.is_left(value, mean):
        assert found == value


@given(_zones, st.integers(100_000, 1_000_000), st.integers(1, 10**9), _units)
def test_a_full_vm_is_beyond_the_zones(zones: Zones, target: int, level: int, unit: Resources) -> None:
    narrow = zones.within(headroom(target))
    full = least_of(level, target, unit.vcpu_milli * 1000) * unit.vcpu_milli * 1000
    assert full == level or narrow.is_left(full, level)
    assert narrow.stable <= zones.stable
    assert narrow.mixed <= zones.mixed
    assert narrow.blend(full, level) == Fraction(full)


# ------------------------------------------------------------ of windows

_bars = st.none() | st.builds(Bar, st.integers(0, MAX_UNITS), st.just("w"))
_limits = st.builds(ResourceLimits, _bars, _bars)
_counts_of_units = st.integers(0, MAX_UNITS)


@given(_counts_of_units, _counts_of_units, st.builds(WindowLimits, _limits, _limits), _sizings())
def test_windows_move_a_goal_no_further_than_they_say_and_bounds_win(
    cpu: int, memory: int, limits: WindowLimits, sizing: Sizing
) -> None:
    if not sizing.unit.is_apart:
        memory = cpu
        limits = WindowLimits(limits.cpu.merged(limits.memory), limits.cpu.merged(limits.memory))

    def sized(units: Units) -> Resources:
        return sizing.bounds.clamp(sizing.unit.amount(units))

    def applied(units: Units) -> Units:
        goal = Goal(ResourceGoal(units.cpu, "wanted"), ResourceGoal(units.memory, "wanted"))
        return limits.apply(goal, sizing).units()

    def ends(of: ResourceLimits) -> tuple[int, int]:
        return of.floor.units if of.floor else 0, of.ceiling.units if of.ceiling else MAX_UNITS

    found = applied(Units(cpu, memory))
    base, top = zip(ends(limits.cpu), ends(limits.memory), strict=True)
    assert sized(Units(*base)).fits_in(sized(found))
    assert sized(found).fits_in(sized(Units(max(base[0], top[0]), max(base[1], top[1]))))
    if base[0] <= cpu <= top[0]:
        assert found.cpu == cpu
    if base[1] <= memory <= top[1]:
        assert found.memory == memory
    assert sized(applied(found)) == sized(found)
