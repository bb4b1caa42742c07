"""Policies and the load between two samples."""

import pytest

from agent.core.model import Load, Sample, load_between
from agent.core.policy import LoadAverage, Utilisation
from protocol.values import Bounds, Resources
from tests.unit.agent.driver import GI, UNIT, cu


def _loads(load1: float) -> Load:
    return Load(None, load1, 0.0)


@pytest.mark.parametrize(
    ("use", "unit", "bounds", "load1", "result"),
    [  # reference/neon.md 3.4, where no upscale is requested
        (cu(2), UNIT, (cu(1), cu(8)), 1.9, cu(4)),
        (cu(2), UNIT, (cu(1), cu(8)), 1.8, cu(2)),
        (cu(2), UNIT, (cu(1), cu(8)), 0.8, cu(2)),
        (cu(2), UNIT, (cu(1), cu(8)), 0.79, cu(1)),
        (cu(4), UNIT, (cu(1), cu(4)), 4.0, cu(4)),
        (cu(3, 5), UNIT, (cu(1), cu(8)), 2.0, cu(4)),
        (cu(2, 8), cu(1, 4), (cu(1, 4), cu(4, 16)), 0.1, cu(1, 4)),
        (cu(1), UNIT, (cu(1), cu(8)), 0.1, cu(1)),
    ],
)
def test_load_average_follows_the_published_table(
    use: Resources, unit: Resources, bounds: tuple[Resources, Resources], load1: float, result: Resources
) -> None:
    goal = LoadAverage().goal(_loads(load1), use, unit)
    assert Bounds(*bounds).clamp(unit * goal.units) == result


def test_load_average_may_go_down_to_nothing_and_leaves_bounds_to_the_plan() -> None:
    assert LoadAverage().goal(_loads(0.0), UNIT, UNIT).units == 0


def test_load_average_compares_with_cpus_not_with_units() -> None:
    assert LoadAverage().goal(_loads(1.9), cu(4, 16), cu(2, 8)).units == 2
    assert LoadAverage().goal(_loads(3.7), cu(4, 16), cu(2, 8)).units == 4


@pytest.mark.parametrize(
    ("busy", "units"), [(0.0, 0), (0.01, 1), (0.75, 1), (0.76, 2), (1.5, 2), (1.51, 3), (6.0, 8), (60.0, 80)]
)
def test_utilisation_keeps_busy_cpus_at_three_quarters(busy: float, units: int) -> None:
    assert Utilisation().goal(Load(busy, 99.0, 99.0), cu(2), UNIT).units == units


def test_utilisation_counts_units_by_their_cpus() -> None:
    assert Utilisation(target=0.5).goal(Load(1.0, 0, 0), cu(2), Resources(500, GI)).units == 4


def test_utilisation_without_cpu_time_goes_by_the_load_average() -> None:
    assert Utilisation().goal(_loads(1.9), cu(2), UNIT) == LoadAverage().goal(_loads(1.9), cu(2), UNIT)


@pytest.mark.parametrize("busy", [1e300, 1.7e308, float("inf")])
def test_a_guest_that_counts_nonsense_gets_a_goal_not_a_fault_of_ours(busy: float) -> None:
    assert Utilisation().goal(Load(busy, 0.0, 0.0), cu(2), UNIT).units >= 8


def test_busy_cpus_are_cpu_time_over_time() -> None:
    load = load_between(Sample(10.0, 1, 2, 100.0), Sample(15.0, 3, 4, 110.0))
    assert load == Load(2.0, 3, 4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Sample(15.0, 3, 4, 110.0)),
        (Sample(10.0, 1, 2, None), Sample(15.0, 3, 4, 110.0)),
        (Sample(10.0, 1, 2, 100.0), Sample(15.0, 3, 4, None)),
        (Sample(10.0, 1, 2, 100.0), Sample(15.0, 3, 4, 99.9)),
        (Sample(15.0, 1, 2, 100.0), Sample(15.0, 3, 4, 110.0)),
        (Sample(16.0, 1, 2, 100.0), Sample(15.0, 3, 4, 110.0)),
    ],
    ids=["first", "no count before", "no count now", "restarted counter", "same moment", "clock went back"],
)
def test_without_a_usable_pair_only_load_averages_are_known(before: Sample | None, after: Sample) -> None:
    assert load_between(before, after) == Load(None, 3, 4)


def test_an_idle_pair_is_usable() -> None:
    assert load_between(Sample(10.0, 1, 2, 5.0), Sample(15.0, 1, 2, 5.0)).busy_cpus == 0.0
