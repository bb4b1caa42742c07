"""The policy `load-average`: the published rule, row by row."""

import math

import pytest

from agent.core.policies.stepwise import LoadAverage
from agent.core.policies.values import Load, Sizing
from protocol.values import Bounds, ComputeUnit, Resources
from tests.support.amounts import GIB, UNIT, cu

EIGHT = Bounds(cu(1), cu(8))
TIED = ComputeUnit(UNIT)


def _units(sizing: Sizing, load1: float) -> int:
    result = LoadAverage().goal(Load(load1=load1), sizing)
    assert result.cpu == result.memory, "one number for both"
    return result.units().cpu


@pytest.mark.parametrize(
    ("use", "unit", "bounds", "load1", "result"),
    [  # reference/neon.md 3.4; what the guest results on top is the plan's affair
        (cu(2), UNIT, EIGHT, 1.9, cu(4)),
        (cu(2), UNIT, EIGHT, 1.8, cu(2)),
        (cu(2), UNIT, EIGHT, 0.8, cu(2)),
        (cu(2), UNIT, EIGHT, 0.79, cu(1)),
        (cu(4), UNIT, Bounds(cu(1), cu(4)), 4.0, cu(4)),
        (cu(3, 5), UNIT, EIGHT, 2.0, cu(4)),
        (cu(2, 8), cu(1, 4), Bounds(cu(1, 4), cu(4, 16)), 0.1, cu(1, 4)),
        (cu(4), UNIT, Bounds(cu(1), cu(4)), 0.1, cu(2)),
        (cu(1), UNIT, EIGHT, 0.1, cu(1)),
        (cu(5, 3), UNIT, EIGHT, 2.0 + 1e-6, cu(4)),
        (cu(2, 5), UNIT, EIGHT, 1.0, cu(4)),  # lo + floor((hi - lo + 1) / 2)
        (cu(2), UNIT, Bounds(cu(1.5), cu(3.5)), 1.9, cu(3.5)),  # the bounds are no multiple of the unit
        (cu(2), UNIT, Bounds(cu(1.5), cu(3.5)), 0.1, cu(1.5)),
    ],
)
def test_the_published_table(
    use: Resources, unit: Resources, bounds: Bounds, load1: float, result: Resources
) -> None:
    assert bounds.clamp(unit * _units(Sizing(use, ComputeUnit(unit), bounds), load1)) == result


def test_halving_may_end_at_nothing() -> None:
    assert _units(Sizing(UNIT, TIED, EIGHT), 0.0) == 0


def test_thresholds_count_cpus_whatever_the_unit() -> None:
    quarter = Resources(250, GIB)  # the load was once compared with units, four times too low
    sizing = Sizing(quarter * 8, ComputeUnit(quarter), EIGHT)
    assert [_units(sizing, load1) for load1 in (0.79, 0.81, 1.79, 1.81)] == [4, 8, 8, 16]


@pytest.mark.parametrize(
    ("cpus", "load1", "result"),
    [
        (7, 2.8, 7),  # in double precision 2.8 is below 0.4 of 7
        (3, 2.7, 6),  # in decimals 2.7 is not above 0.9 of 3
        (9, 3.6, 4),  # in decimals 3.6 is not below 0.4 of 9
    ],
)
def test_it_reckons_in_single_precision(cpus: int, load1: float, result: int) -> None:
    assert _units(Sizing(cu(cpus), TIED, EIGHT), load1) == result


@pytest.mark.parametrize("load1", [None, math.nan, math.inf, -math.inf, -0.1])
def test_what_is_no_load_average_is_not_known(load1: float | None) -> None:
    found = LoadAverage().goal(Load(load1=load1), Sizing(cu(2), TIED, EIGHT))
    assert (found.cpu.units, found.memory.units) == (None, None)


@pytest.mark.parametrize("load1", [1e39, 1e300, 1.7e308])
def test_a_load_beyond_single_precision_is_a_high_load(load1: float) -> None:
    assert _units(Sizing(cu(2), TIED, EIGHT), load1) == 4


def test_the_reason_names_load_threshold_and_cpus() -> None:
    result = LoadAverage().goal(Load(load1=1.9), Sizing(cu(2), TIED, EIGHT))
    assert result.reason == "load 1.90 is above 0.9 of 2 CPUs"
