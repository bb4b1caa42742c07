"""The policy `pressure`, several policies as one, and time windows once they are read."""

import math
from dataclasses import dataclass, replace

import pytest

from agent.core.policies.combined import Combined
from agent.core.policies.load_average import LoadAverage
from agent.core.policies.pressure import Pressure
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import Goal, GoalPart, Load, PolicyResult, Psi, Sizing, Unknown
from agent.core.policies.windows import Edges, Window, WindowLimits, limits
from protocol.values import Bounds
from tests.support.amounts import UNIT, cu

SIZING = Sizing(cu(4), UNIT, Bounds(UNIT, UNIT * 8))
CALM = Psi(0.0, 0.0, 0.0, 0.0)


def _cpu(some10: float, some60: float = 0.0, full10: float = 0.0) -> Load:
    return Load(cpu_psi=Psi(some10, some60, full10, 0.0), memory_psi=CALM)


def _memory(some10: float, full10: float = 0.0, full60: float = 0.0) -> Load:
    return Load(cpu_psi=CALM, memory_psi=Psi(some10, 0.0, full10, full60))


@pytest.mark.parametrize(
    ("load", "units", "binding"),
    [
        (_cpu(40.0), 5, "cpu some"),
        (_cpu(39.9), 4, "cpu some"),
        (_cpu(10.0), 4, "cpu some"),
        (_cpu(9.9), 3, "cpu some"),
        (_cpu(0.0, some60=10.0), 4, "cpu some"),
        (_cpu(0.0, full10=10.0), 5, "cpu full"),
        (_memory(10.0), 5, "memory some"),
        (_memory(0.0, full10=5.0), 5, "memory full"),
        (_memory(0.0, full60=1.25), 4, "memory full"),
        (_memory(100.0, full10=100.0), 5, "memory some"),
        (Load(cpu_psi=CALM, memory_psi=CALM), 3, "cpu some"),
        (Load(memory_psi=Psi(some_avg10=50.0)), 5, "memory some"),
        (Load(memory_psi=Psi(some_avg10=0.0)), 3, "memory some"),
    ],
)
def test_pressure_grows_holds_and_falls(load: Load, units: int, binding: str) -> None:
    result = Pressure().goal(load, SIZING)
    assert isinstance(result, Goal)
    assert (result.units, result.parts[0].policy) == (units, binding)
    assert len(result.parts) == 4


@pytest.mark.parametrize(
    ("size", "policy", "up", "down"),
    [
        (0, Pressure(), 1, 0),
        (1, Pressure(), 2, 0),
        (3, Pressure(), 4, 2),
        (5, Pressure(), 7, 3),
        (8, Pressure(), 10, 6),
        (64, Pressure(), 80, 48),
        (64, Pressure(step=0), 65, 63),
    ],
)
def test_a_step_is_a_quarter_of_the_size_and_at_least_a_unit(
    size: int, policy: Pressure, up: int, down: int
) -> None:
    sizing = replace(SIZING, use=UNIT * size)
    found = [policy.goal(load, sizing) for load in (_cpu(90.0), _cpu(0.0))]
    assert [result.units for result in found if isinstance(result, Goal)] == [up, down]


@pytest.mark.parametrize("figure", [None, math.nan, math.inf, -1.0])
def test_without_figures_pressure_cannot_tell(figure: float | None) -> None:
    psi = Psi(figure, figure, figure, figure)
    assert isinstance(Pressure().goal(Load(cpu_psi=psi, memory_psi=psi), SIZING), Unknown)
    assert isinstance(Pressure().goal(Load(), SIZING), Unknown)


def test_the_reason_names_figure_and_threshold() -> None:
    results = [Pressure().goal(load, SIZING).reason for load in (_cpu(62.5), _cpu(20.0), _cpu(0.0))]
    assert results == [
        "cpu some pressure 62.5% is at or above 40%",
        "cpu some pressure 20.0% is below 40%, but not gone for a minute",
        "cpu some pressure 0.0%: gone for a minute",
    ]


# ------------------------------------------------------------ several as one


@dataclass(frozen=True)
class Fixed:
    """Always the same result."""

    result: PolicyResult

    def goal(self, load: Load, sizing: Sizing) -> PolicyResult:  # noqa: ARG002 - it looks at nothing
        """That result."""
        return self.result


A, B, NONE = Fixed(Goal(2, "a")), Fixed(Goal(5, "b")), Fixed(Unknown("c"))


def test_the_highest_result_counts_and_every_reason_is_kept_the_binding_one_first() -> None:
    combined = Combined((("x", A), ("y", NONE), ("z", B), ("tie", Fixed(Goal(5, "later")))))
    assert combined.goal(Load(), SIZING) == Goal(
        5,
        "b",
        (GoalPart("z", 5, "b"), GoalPart("x", 2, "a"), GoalPart("y", None, "c"), GoalPart("tie", 5, "later")),
    )
    kept = Combined((("x", A),)).goal(Load(), replace(SIZING, can_decrease=False))
    assert (kept.units, kept.reason) == (4, "it may not shrink now; else a")
    assert kept.parts[1] == GoalPart("x", 2, "a")


def test_the_parts_of_a_policy_carry_its_name() -> None:
    load = Load(busy_micro=1_000_000, load1=3.9)
    found = Combined((("utilisation", Utilisation()), ("load-average", LoadAverage()))).goal(load, SIZING)
    assert [(part.policy, part.units) for part in found.parts] == [
        ("load-average", 8),
        ("utilisation/cpu", 2),
        ("utilisation/memory", None),
    ]


@pytest.mark.parametrize("policies", [(), (("y", NONE),), (("y", NONE), ("z", NONE))])
def test_where_none_can_tell_the_size_stays(policies: tuple[tuple[str, Fixed], ...]) -> None:
    found = Combined(policies).goal(Load(), SIZING)
    assert found.units == 4
    assert found.reason.startswith("the size stays: ")
    assert len(found.parts) == len(policies)


def test_alone_it_is_utilisation() -> None:
    load = Load(busy_micro=1_000_000)
    assert Combined().goal(load, SIZING).units == 2
    assert Combined().smoothing == Utilisation().smoothing == Combined((("x", A),)).smoothing
    own = Utilisation(window_s=7.0)
    assert Combined((("x", A), ("u", own))).smoothing == own.smoothing


# ------------------------------------------------------------ windows


@pytest.mark.parametrize(
    ("opened_s", "closed_s", "is_open"),
    [
        (None, None, False),
        (1.0, None, True),
        (None, 1.0, False),
        (2.0, 1.0, True),
        (1.0, 2.0, False),
        (1.0, 1.0, False),
    ],
)
def test_the_later_edge_counts(opened_s: float | None, closed_s: float | None, is_open: bool) -> None:
    assert Edges(opened_s, closed_s).is_open() is is_open


OPEN, CLOSED = Edges(2.0, 1.0), Edges(1.0, 2.0)
DAY, PEAK, SAVE, TIGHT = (
    Window("day", floor=3),
    Window("peak", floor=6, ceiling=7),
    Window("save", ceiling=5),
    Window("tight", ceiling=2),
)


def test_of_the_open_windows_the_highest_floor_and_the_lowest_ceiling_hold() -> None:
    assert limits(()) == WindowLimits()
    assert limits([(DAY, OPEN), (PEAK, CLOSED), (SAVE, CLOSED)]) == WindowLimits(DAY, None)
    assert limits([(DAY, OPEN), (PEAK, OPEN), (SAVE, OPEN), (TIGHT, CLOSED)]) == WindowLimits(PEAK, SAVE)


HIGH_MINIMUM = replace(SIZING, bounds=Bounds(UNIT * 3, UNIT * 8))
KEPT = replace(SIZING, can_decrease=False)


@pytest.mark.parametrize(
    ("found", "units", "result", "sort", "sizing"),
    [
        (WindowLimits(), 4, 4, "x", SIZING),
        (WindowLimits(DAY), 2, 3, "floor", SIZING),
        (WindowLimits(DAY), 4, 4, "x", SIZING),
        (WindowLimits(None, SAVE), 6, 5, "ceiling", SIZING),
        (WindowLimits(None, SAVE), 5, 5, "x", SIZING),
        (WindowLimits(PEAK, SAVE), 2, 6, "floor", SIZING),
        (WindowLimits(PEAK, SAVE), 8, 6, "floor", SIZING),  # a floor wins over a ceiling
        (WindowLimits(Window("w", floor=99)), 2, 8, "floor", SIZING),  # the maximum wins over a floor
        (WindowLimits(Window("w", floor=0)), 2, 2, "x", SIZING),
        (WindowLimits(None, TIGHT), 6, 3, "ceiling", HIGH_MINIMUM),  # the minimum wins over a ceiling
        (WindowLimits(None, TIGHT), 6, 4, "ceiling", KEPT),
    ],
)
def test_floors_and_ceilings_move_the_goal(
    found: WindowLimits, units: int, result: int, sort: str, sizing: Sizing
) -> None:
    goal = found.apply(Goal(units, "why", (GoalPart("x", units, "why"),)), sizing)
    assert goal.units == result
    assert goal.parts[0].policy == sort
    assert goal.parts[-1] == GoalPart("x", units, "why")
    assert goal.reason == goal.parts[0].reason


def test_the_limits_in_force_can_be_shown() -> None:
    assert WindowLimits(DAY, SAVE).parts() == (
        GoalPart("floor", 3, "window day"),
        GoalPart("ceiling", 5, "window save"),
    )
    assert WindowLimits().parts() == ()
