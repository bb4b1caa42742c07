"""The policy `utilisation`, its zones, and the means that it rests on."""

import dataclasses
import math
from fractions import Fraction

import pytest
from msgspec.structs import replace

from agent.core.policies.peaks import NO_SURGES, NO_TAIL
from agent.core.policies.remembered import (
    MIN_SAMPLES,
    Remembered,
    Smoothed,
    Track,
    Zones,
    follow,
    headroom,
    remember,
    smooth,
)
from agent.core.policies.utilisation import MIB, Utilisation
from agent.core.policies.values import Load, ResourceGoal, Sizing, micro
from protocol.values import Bounds, ComputeUnit, Resources, Units
from tests.support.amounts import GIB, UNIT, cu

SIZING = Sizing(cu(2), ComputeUnit(UNIT, is_apart=True), Bounds(UNIT, UNIT * 8))
PLAIN = Utilisation(750_000, 750_000, memory_margin=0)


def cpu(load: Load, policy: Utilisation = PLAIN, sizing: Sizing = SIZING) -> ResourceGoal:
    return policy.goal(load, sizing).cpu


def memory(load: Load, policy: Utilisation = PLAIN, sizing: Sizing = SIZING) -> ResourceGoal:
    return policy.goal(load, sizing).memory


def _busy(cpus: float, mean: float | None = None) -> Load:
    return Load(busy_micro=micro(cpus), busy_mean_micro=micro(mean))


def _memory(used: int, total: int = 64 * GIB) -> Load:
    return Load(memory_total=total, memory_available=total - used)


@pytest.mark.parametrize(
    ("busy", "units"), [(0.0, 0), (0.01, 1), (0.75, 1), (0.76, 2), (1.5, 2), (1.51, 3), (6.0, 8), (60.0, 80)]
)
def test_busy_cpus_are_three_quarters_of_the_size(busy: float, units: int) -> None:
    assert cpu(_busy(busy)).units == units


@pytest.mark.parametrize(
    ("used", "margin", "units"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (3 * GIB, 0, 4),
        (3 * GIB + 1, 0, 5),
        (48 * GIB, 0, 64),
        (0, 100 * MIB, 1),
        (3 * GIB - 100 * MIB, 100 * MIB, 4),
        (3 * GIB - 100 * MIB + 1, 100 * MIB, 5),
    ],
)
def test_memory_in_use_and_a_margin_are_three_quarters_of_the_size(
    used: int, margin: int, units: int
) -> None:
    found = dataclasses.replace(PLAIN, memory_margin=margin).goal(_memory(used), SIZING)
    assert (found.memory.units, found.cpu.units) == (units, None)
    assert found.cpu.reason == "neither CPU time nor load averages are known"


def test_each_resource_counts_its_own_steps() -> None:
    sizing = replace(SIZING, unit=ComputeUnit(Resources(500, GIB), is_apart=True))
    policy = dataclasses.replace(PLAIN, cpu_target=500_000)
    found = policy.goal(replace(_memory(3 * GIB), busy_micro=micro(1.0)), sizing)
    assert found.units() == Units(4, 4)
    assert policy.goal(replace(_memory(3 * GIB), busy_micro=micro(0.1)), sizing).units() == Units(1, 4)


def test_each_resource_has_its_own_reason() -> None:
    found = PLAIN.goal(replace(_memory(3 * GIB), busy_micro=1_000_000), SIZING)
    assert found.memory.reason == "3072 MiB of memory needed, 75% is the target"
    assert found.cpu.reason == "1.00 CPUs busy, 75% is the target"


@pytest.mark.parametrize(
    ("load1", "load5", "units"),
    [(1.8, 1.8, 2), (1.81, 1.81, 3), (1.89, 1.8, 2), (4.0, 1.0, 5), (0.1, 9.0, 1), (0.0, 0.0, 0)],
)
def test_it_goes_by_the_load_averages_only_where_cpu_time_was_never_known(
    load1: float, load5: float, units: int
) -> None:
    averages = Load(load1=load1, load5=load5)
    assert cpu(averages).units == units
    assert cpu(replace(averages, busy_micro=1_000_000)).units == 2
    assert cpu(replace(averages, busy_mean_micro=1_000_000)).units == 2


def test_load_averages_have_zones_and_a_mean_of_their_own() -> None:
    assert cpu(Load(load1=1.79, load5=9.0, load_mean_micro=1_750_000)).units == 2
    # Their target is higher, so less is left above it, and their zones are narrower.
    assert cpu(Load(load1=1.95, load5=9.0, load_mean_micro=1_750_000)).units == 3
    track = Smoothed()
    for at_s, load1 in enumerate((1.75, 1.95)):
        track = smooth(track, Load(load1=load1), float(at_s), PLAIN.remembering.smoothing)
    assert track.load is not None
    assert track.load.mean == 1_950_000


@pytest.mark.parametrize("cpus", [math.nan, math.inf, -math.inf, -1.0])
def test_what_is_no_measurement_is_not_known(cpus: float) -> None:
    assert micro(cpus) is None
    for load in (Load(load1=cpus, load5=cpus), Load()):
        assert (cpu(load).units, memory(load).units) == (None, None)


@pytest.mark.parametrize(
    ("total", "available"), [(-1, -2), (GIB, 2 * GIB), (GIB, -1), (2**70, 0), (None, 0), (GIB, None)]
)
def test_a_guest_that_contradicts_itself_about_memory_is_not_believed(
    total: int | None, available: int | None
) -> None:
    load = Load(busy_micro=1_000_000, memory_total=total, memory_available=available)
    assert (cpu(load).units, memory(load).units) == (2, None)
    assert cpu(replace(load, busy_micro=-5)).units is None


# ------------------------------------------------------------ zones


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (100, 100),
        (110, 100),
        (90, 100),
        (115, 100 + Fraction(5)),  # a third of the way through the mixed zone: a third of 15
        (120, 100 + Fraction(40, 3)),
        (125, 125),
        (85, 100 - Fraction(5)),
        (75, 75),
        (0, 0),
        (10**9, 10**9),
    ],
)
def test_between_mean_and_value(value: int, result: Fraction) -> None:
    assert Zones(100_000, 150_000).blend(value, 100) == result


def test_without_zones_every_value_counts() -> None:
    assert [Zones().blend(value, 100) for value in (99, 100, 101)] == [99, 100, 101]
    assert Zones(100_000, 0).blend(111, 100) == 111
    assert Zones(100_000, 100_000).blend(5, 0) == 5


@pytest.mark.parametrize(
    ("target", "zones"),
    [
        (750_000, Zones(100_000, 150_000)),
        (900_000, Zones(55_555, 55_556)),
        (1_000_000, Zones()),
        (2_000_000, Zones()),
    ],
)
def test_zones_end_where_a_vm_is_full(target: int, zones: Zones) -> None:
    assert Zones(100_000, 150_000).within(headroom(target)) == zones


# ------------------------------------------------------------ the held mean

TEN = Zones(100_000, 150_000)


def _track(*values: int, start: Track | None = None, at_s: float = 0.0, step_s: float = 5.0) -> Track:
    track = start
    for index, value in enumerate(values):
        track = follow(track, value, at_s + index * step_s, TEN, 60.0)
    assert track is not None
    return track


def test_the_first_sample_and_one_beyond_the_zones_is_the_mean() -> None:
    assert _track(100).mean == 100
    assert _track(100, 125).mean == 125
    assert _track(100, 75).mean == 75
    assert _track(100, 124).mean == 100
    assert _track(0, 1).mean == 1


def test_a_window_on_one_side_moves_the_mean_to_its_own() -> None:
    assert _track(100, *[104, 106] * 5).mean == 100
    # The window that the old sample began is no witness; the next one is whole.
    assert _track(100, *[104, 106] * 12).mean == 105
    assert _track(100, *[95] * 24).mean == 95
    for before in (101, 107, 115, 124, 126, 999, 0):
        assert _track(before, *[107] * 25).mean == 107, "that of a constant load is that load"
    assert _track(100, *[95, 109] * 500).mean == 100, "samples on both sides never move it"


def test_a_window_with_few_samples_goes_on() -> None:
    assert _track(100, *[105] * (MIN_SAMPLES - 2), step_s=60.0).count == MIN_SAMPLES - 1
    assert _track(100, *[105] * (MIN_SAMPLES - 1), step_s=60.0).count == 0


def test_after_a_gap_the_mean_begins_anew() -> None:
    assert _track(105, start=_track(100), at_s=60.0).mean == 100
    assert _track(105, start=_track(100), at_s=60.1).mean == 105
    assert _track(105, start=_track(100, 100), at_s=1.0).mean == 105


def test_a_missing_figure_is_remembered_for_one_window() -> None:
    track = _track(100)
    assert follow(track, None, 60.0, TEN, 60.0) == track
    assert follow(track, None, 60.1, TEN, 60.0) is None
    assert follow(None, None, 0.0, TEN, 60.0) is None


# ------------------------------------------------------------ what is remembered, and the parts that rest on it

DEFAULT = Utilisation()


def remembered(*samples: Load, policy: Utilisation = DEFAULT, step_s: float = 5.0) -> Load:
    """The last sample, with what is remembered of all."""
    known, load, at_s = Remembered(), Load(), 0.0
    for number, sample in enumerate(samples):
        load, at_s = sample, 1000.0 + number * step_s
        known = remember(known, load, at_s, policy.remembering)
    return known.fill(load, at_s, policy.remembering)


def test_every_figure_has_its_own_mean_and_its_own_tail() -> None:
    load = replace(_memory(GIB), busy_micro=1_500_000, load1=2.5, load5=1.0)
    filled = remembered(load)
    assert (filled.busy_mean_micro, filled.load_mean_micro, filled.memory_mean) == (1_500_000, 2_500_000, GIB)
    assert (filled.busy_tail_micro, filled.memory_tail, filled.memory_surge) == (1_500_000, GIB, GIB)
    assert filled.memory_rise == 0


def test_nonsense_is_not_remembered() -> None:
    load = Load(busy_micro=-1, load1=math.nan, load5=math.inf, memory_total=1, memory_available=2)
    assert remember(Remembered(), load, 0.0, DEFAULT.remembering) == Remembered()
    assert remembered(load) == load


def test_the_busiest_minutes_are_a_floor() -> None:
    load = remembered(*[_busy(1.8)] * 24, *[_busy(0.4)] * 100)
    found = DEFAULT.goal(load, SIZING).cpu
    assert (found.units, found.reason) == (
        2,
        "the busiest minutes of the last quarter of an hour need 1.89 CPUs",
    )
    assert [(part.policy, part.units) for part in found.parts] == [("cpu tail", 2), ("cpu target", 1)]
    assert cpu(remembered(*[_busy(1.8)] * 3, *[_busy(0.4)] * 117), DEFAULT).units == 1, "one of ten minutes"
    later = remembered(*[_busy(1.8)] * 24, *[_busy(0.4)] * 200)
    assert DEFAULT.goal(later, SIZING).cpu.units == 1, "they are a quarter of an hour ago"
    assert (
        cpu(
            remembered(*[_busy(1.8)] * 24, _busy(0.4), policy=dataclasses.replace(DEFAULT, tail=NO_TAIL))
        ).units
        == 1
    )


def test_the_fullest_minutes_are_a_floor() -> None:
    policy = dataclasses.replace(DEFAULT, surges=NO_SURGES)
    found = memory(remembered(_memory(4 * GIB), *[_memory(GIB)] * 30, policy=policy), policy)
    assert (found.units, found.parts[0].policy) == (5, "memory tail")
    assert found.reason == "the fullest minutes of the last quarter of an hour need 4312 MiB of memory"


def test_memory_that_rises_is_judged_ahead() -> None:
    policy = dataclasses.replace(DEFAULT, surges=NO_SURGES, tail=NO_TAIL)
    rising = remembered(_memory(2 * GIB), _memory(3 * GIB), policy=policy)
    found = memory(rising, policy)
    assert rising.memory_rise == round(GIB / 5)
    assert (found.units, found.parts[0].policy) == (4, "memory target")
    soon = memory(rising, dataclasses.replace(policy, ahead_s=4.0))
    assert (soon.units, soon.reason) == (5, "3923 MiB of memory needed in 4 s, as it rises now")
    assert memory(remembered(_memory(3 * GIB), _memory(2 * GIB), policy=policy), policy).units == 3


def test_room_is_kept_to_rise_as_fast_as_before_up_to_the_highest_use() -> None:
    policy = dataclasses.replace(DEFAULT, tail=NO_TAIL)
    calm = [_memory(2 * GIB)] * 720  # an hour
    surge = [_memory(2 * GIB), _memory(4 * GIB), _memory(6 * GIB), _memory(8 * GIB)]
    found = memory(remembered(*surge, *calm), policy)
    assert (found.units, found.parts[0].policy) == (5, "memory surge")
    assert found.reason == "4506 MiB of memory needed to rise as fast as in the last 6 hours"
    full = memory(remembered(*surge, *calm, *[_memory(7 * GIB)] * 2), policy).parts
    assert [part.units for part in full if part.policy == "memory surge"] == [8], "not above what there was"
    off = dataclasses.replace(policy, surges=NO_SURGES)
    assert memory(remembered(*surge, *calm, policy=off), off).units == 3
