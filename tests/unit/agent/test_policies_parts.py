"""The default policy keeps peaks, slopes, surges and the goals of the down window in mind; they are tested part by part."""

import pytest
from msgspec.structs import replace

from agent.core.policies.peaks import (
    MAX_PEAKS,
    NO_PEAKS,
    LoadTail,
    Peaks,
    Slope,
    Span,
    Surge,
    Surges,
    span_of,
)
from agent.core.policies.remembered import MAX_GOALS, DownWindow
from agent.core.policies.values import Goal, GoalPart, ResourceGoal
from protocol.values import ComputeUnit, Resources, Units
from tests.support.amounts import GIB, UNIT

FIVE = Span(60, 5)


def _peaks(*samples: tuple[float, int | None], span: Span = FIVE) -> Peaks:
    found = NO_PEAKS
    for at_s, value in samples:
        found = found.add(value, at_s, span)
    return found


@pytest.mark.parametrize(
    ("samples", "values"),
    [
        ([(0, 1), (5, 3), (10, 2)], (3,)),
        ([(0, 1), (59, 3), (60, 2), (119, 2)], (3, 2)),
        ([(0, 1), (180, 2)], (1, None, None, 2)),
        ([(0, 1), (60, None), (120, 2)], (1, None, 2)),
        ([(60 * minute, minute) for minute in range(9)], (4, 5, 6, 7, 8)),
        ([(0, 1), (299, 2)], (1, None, None, None, 2)),
        ([(0, 1), (300, 2)], (2,)),
        ([(0, 1), (10**9, 2)], (2,)),
        ([(120, 1), (60, 2)], (2,)),  # the clock was set back
        ([(0, None), (60, None)], ()),
    ],
)
def test_each_period_has_its_peak(samples: list[tuple[float, int | None]], values: tuple[int, ...]) -> None:
    assert _peaks(*samples).values == values


def test_peaks_are_forgotten_with_time_alone() -> None:
    peaks = _peaks((0, 9), (60, 1))
    assert [peaks.highest(at_s, FIVE) for at_s in (60.0, 299.0, 300.0, 359.0, 360.0)] == [9, 9, 1, 1, None]


@pytest.mark.parametrize(
    ("share", "found"), [(10_000, 1), (200_000, 1), (500_000, 3), (950_000, 5), (1_000_000, 5)]
)
def test_a_percentile_of_peaks_is_one_of_them(share: int, found: int) -> None:
    peaks = _peaks(*[(60 * minute, value) for minute, value in enumerate((4, 1, 5, 2, 3))])
    assert peaks.percentile(share, 240.0, FIVE) == found
    assert NO_PEAKS.percentile(share, 0.0, FIVE) is None


def test_no_more_is_kept_than_fits() -> None:
    assert span_of(1e9, 60) == Span(60, MAX_PEAKS)
    assert span_of(61.0, 60).count == 2
    assert _peaks((0, 1), span=span_of(0.0, 60)) == NO_PEAKS
    assert [LoadTail(seconds).lately for seconds in (900.0, 3600.0, 120.0)] == [
        "quarter of an hour",
        "hour",
        "2 minutes",
    ]


@pytest.mark.parametrize(
    ("samples", "rise"),
    [
        ([(0, 100)], 0),
        ([(0, 100), (5, 150)], 10),
        ([(0, 100), (5, 50)], 0),
        ([(0, 100), (5, None), (10, 150)], 5),
        ([(0, 100), (61, 1000)], 0),
        ([(0, 100), (61, None), (62, 1000)], 0),
        ([(5, 100), (5, 150)], 0),
        ([(5, 100), (0, 150)], 0),
    ],
)
def test_a_slope_is_that_between_two_samples(samples: list[tuple[float, int | None]], rise: int) -> None:
    slope = Slope()
    for at_s, value in samples:
        slope = slope.add(value, at_s)
    assert slope.rise == rise


HOW = Surges(window_s=7200.0, ahead_s=6.0)


@pytest.mark.parametrize(
    ("samples", "need"),
    [
        ([(0, 100)], 100),
        ([(0, 100), (5, 200), (10, 300), (15, 100)], 220),
        ([(0, 100), (5, 200), (10, 100)], 200),  # no more than there was
        ([(0, 100), (100, 300), (105, 100)], 100),  # too far apart to say how fast
        ([(0, 100), (5, 200), (10, 300), (15, 100), (3599, 100)], 220),
        ([(0, 100), (5, 200), (10, 300), (15, 100), (7200, 100)], 100),
        ([(0, 100), (5, 200), (10, 300), (15, 100), (20, None)], 220),
        ([(0, None)], None),
    ],
)
def test_a_surge_may_come_as_fast_as_before(
    samples: list[tuple[float, int | None]], need: int | None
) -> None:
    surge, slope = Surge(), Slope()
    for at_s, value in samples:
        slope = slope.add(value, at_s)
        surge = surge if value is None else surge.add(slope, HOW)
    assert surge.need(slope, samples[-1][0], HOW) == need


# ------------------------------------------------------------ the down window

APART = ComputeUnit(UNIT, is_apart=True)


def _goal(cpu: int, memory: int) -> Goal:
    return Goal(
        ResourceGoal(cpu, f"cpu {cpu}", (GoalPart("x", cpu, f"cpu {cpu}"),)),
        ResourceGoal(memory, f"memory {memory}"),
    )


def _window(*goals: tuple[float, int, int], window_s: float = 300.0) -> DownWindow:
    found = DownWindow()
    for at_s, cpu, memory in goals:
        found = found.add(_goal(cpu, memory), APART, at_s, window_s)
    return found


@pytest.mark.parametrize(
    ("goals", "units"),
    [
        ([(0, 4, 1)], Units(4, 1)),
        ([(0, 4, 1), (5, 2, 3)], Units(4, 3)),
        ([(0, 4, 1), (299, 2, 3)], Units(4, 3)),
        ([(0, 4, 9), (300, 2, 3)], Units(2, 3)),
        ([(0, 9, 9), (100, 5, 5), (200, 7, 1), (300, 2, 2)], Units(7, 5)),
        ([(0, 4, 4), (200, 4, 4), (400, 2, 2)], Units(4, 4)),
        ([(100, 9, 9), (50, 2, 2)], Units(2, 2)),  # the clock was set back
    ],
)
def test_the_highest_goal_of_the_window_counts_for_each_resource(
    goals: list[tuple[float, int, int]], units: Units
) -> None:
    highest = _window(*goals).highest(APART)
    assert highest is not None
    assert highest.units() == units


def test_a_goal_of_the_past_keeps_its_reason_beside_the_parts_of_the_last() -> None:
    highest = _window((0, 4, 1), (5, 2, 3)).highest(APART)
    assert highest is not None
    assert highest.cpu == ResourceGoal(
        4, "cpu 4", (GoalPart("down window", 4, "cpu 4"), GoalPart("x", 2, "cpu 2"))
    )
    assert highest.memory == ResourceGoal(3, "memory 3")
    assert DownWindow().highest(APART) is None


def test_goals_mean_the_same_in_other_steps() -> None:
    highest = _window((0, 4, 3)).highest(ComputeUnit(Resources(1500, GIB // 2)))
    assert highest is not None
    assert highest.units() == Units(3, 6)


def test_a_long_fall_is_kept_in_few_goals_and_never_followed_too_early() -> None:
    falling = [(float(at_s), 1000 - at_s, 1) for at_s in range(900)]
    window = DownWindow()
    for at_s, cpu, memory in falling:
        window = window.add(_goal(cpu, memory), APART, at_s, 300.0)
        highest = window.highest(APART)
        assert highest is not None
        assert highest.units().cpu >= min(1000, 1000 - at_s + 299)
    assert len(window.cpu) <= MAX_GOALS
    assert len(window.memory) == 1
    assert replace(window, latest=None).highest(APART) is None
