"""The policy `pressure`, several policies as one, and time windows once they are read."""

import math
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from agent.core.policies.combined import Combined
from agent.core.policies.stepwise import LoadAverage, Pressure
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import Goal, GoalPart, Load, Psi, ResourceGoal, Sizing
from agent.core.policies.windows import Bar, Edges, ResourceLimits, UnitLimit, Window, WindowLimits, limits
from protocol.values import ZERO, Bounds, ComputeUnit, Units
from tests.support.amounts import UNIT, cu

SIZING = Sizing(cu(4), ComputeUnit(UNIT, is_apart=True), Bounds(UNIT, UNIT * 8))
TIED = replace(SIZING, unit=SIZING.unit.tied())
CALM = Psi(0.0, 0.0, 0.0, 0.0)


def _cpu(some10: float, some60: float = 0.0, full10: float = 0.0) -> Load:
    return Load(cpu_psi=Psi(some10, some60, full10, 0.0), memory_psi=CALM)


def _memory(some10: float, full10: float = 0.0, full60: float = 0.0) -> Load:
    return Load(cpu_psi=CALM, memory_psi=Psi(some10, 0.0, full10, full60))


@pytest.mark.parametrize(
    ("load", "units", "cpu", "memory"),
    [
        (_cpu(40.0), (5, 3), "cpu some", "memory some"),
        (_cpu(39.9), (4, 3), "cpu some", "memory some"),
        (_cpu(10.0), (4, 3), "cpu some", "memory some"),
        (_cpu(9.9), (3, 3), "cpu some", "memory some"),
        (_cpu(0.0, some60=10.0), (4, 3), "cpu some", "memory some"),
        (_cpu(0.0, full10=10.0), (5, 3), "cpu full", "memory some"),
        (_memory(10.0), (3, 5), "cpu some", "memory some"),
        (_memory(0.0, full10=5.0), (3, 5), "cpu some", "memory full"),
        (_memory(0.0, full60=1.25), (3, 4), "cpu some", "memory full"),
        (_memory(100.0, full10=100.0), (3, 5), "cpu some", "memory some"),
        (Load(cpu_psi=CALM, memory_psi=CALM), (3, 3), "cpu some", "memory some"),
        (Load(memory_psi=Psi(some_avg10=50.0)), (None, 5), "cpu some", "memory some"),
        (Load(memory_psi=Psi(some_avg10=0.0)), (None, 3), "cpu some", "memory some"),
    ],
)
def test_pressure_grows_holds_and_falls_by_the_figures_of_each_resource(
    load: Load, units: tuple[int | None, int | None], cpu: str, memory: str
) -> None:
    found = Pressure().goal(load, SIZING)
    assert (found.cpu.units, found.memory.units) == units
    assert (found.cpu.parts[0].policy, found.memory.parts[0].policy) == (cpu, memory)
    assert len(found.cpu.parts) == len(found.memory.parts) == 2


@pytest.mark.parametrize(("size", "up", "down"), [(1, 2, 0), (3, 4, 2), (5, 7, 3), (8, 10, 6), (64, 80, 48)])
def test_a_step_is_a_quarter_of_the_size_and_at_least_a_unit(size: int, up: int, down: int) -> None:
    sizing = replace(SIZING, use=cu(size, 2))
    found = [Pressure().goal(load, sizing).units() for load in (_cpu(90.0), _cpu(0.0))]
    assert found == [Units(up, 1), Units(down, 1)]


def test_nothing_is_the_least() -> None:
    assert Pressure().goal(_cpu(0.0), replace(SIZING, use=ZERO)).units() == Units(0, 0)


def test_a_step_can_always_be_one_unit() -> None:
    assert Pressure(step=0).goal(_cpu(90.0), replace(SIZING, use=UNIT * 64)).cpu.units == 65


@pytest.mark.parametrize("figure", [None, math.nan, math.inf, -1.0])
def test_without_figures_pressure_cannot_tell(figure: float | None) -> None:
    psi = Psi(figure, figure, figure, figure)
    for load in (Load(cpu_psi=psi, memory_psi=psi), Load()):
        found = Pressure().goal(load, SIZING)
        assert (found.cpu.units, found.memory.units) == (None, None)


def test_the_reason_names_figure_and_threshold() -> None:
    results = [Pressure().goal(load, SIZING).cpu.reason for load in (_cpu(62.5), _cpu(20.0), _cpu(0.0))]
    assert results == [
        "cpu some pressure 62.5% is at or above 40%",
        "cpu some pressure 20.0% is below 40%, but not gone for a minute",
        "cpu some pressure 0.0%: gone for a minute",
    ]


# ------------------------------------------------------------ several as one


@dataclass(frozen=True)
class Fixed:
    """Always the same result."""

    result: Goal

    def goal(self, load: Load, sizing: Sizing) -> Goal:
        return self.result


def fixed(cpu: int | None, memory: int | None, word: str) -> Fixed:
    return Fixed(Goal(ResourceGoal(cpu, f"{word} cpu"), ResourceGoal(memory, f"{word} memory")))


A, B, NONE = fixed(2, 9, "a"), fixed(5, 1, "b"), fixed(None, None, "c")


def test_the_highest_result_of_each_resource_counts_and_every_reason_is_kept_the_binding_one_first() -> None:
    found = Combined((("x", A), ("y", NONE), ("z", B))).goal(Load(), SIZING)
    assert found.cpu == ResourceGoal(
        5,
        "b cpu",
        (GoalPart("z", 5, "b cpu"), GoalPart("x", 2, "a cpu"), GoalPart("y", None, "c cpu")),
    )
    assert found.memory.reason == "a memory"
    assert [(part.policy, part.units) for part in found.memory.parts] == [("x", 9), ("y", None), ("z", 1)]
    assert found.reason == "CPU: b cpu; memory: a memory"


def test_a_tied_vm_has_the_larger_number_of_both_with_its_reason() -> None:
    found = Combined((("x", A), ("z", B))).goal(Load(), TIED)
    assert found.cpu == found.memory
    assert (found.units(), found.reason) == (Units(9, 9), "a memory")
    assert [(part.policy, part.units) for part in found.cpu.parts] == [("x", 9), ("z", 1), ("z", 5), ("x", 2)]


def test_of_a_tied_vm_a_resource_that_nobody_can_tell_about_does_not_count() -> None:
    combined = Combined((("x", fixed(2, None, "x")),))
    assert combined.goal(Load(), TIED).units() == Units(2, 2)
    assert combined.goal(Load(), SIZING).units() == Units(2, 4), "apart, its size stays"


def test_ties_go_to_the_earlier() -> None:
    found = Combined((("x", fixed(5, 1, "first")), ("y", B))).goal(Load(), SIZING)
    assert (found.cpu.reason, found.memory.reason) == ("first cpu", "first memory")


def test_the_parts_of_a_policy_carry_its_name() -> None:
    load = Load(busy_micro=1_000_000, load1=3.9)
    found = Combined((("utilisation", Utilisation()), ("load-average", LoadAverage()))).goal(load, TIED)
    assert [(part.policy, part.units) for part in found.cpu.parts] == [
        ("load-average", 8),
        ("utilisation/cpu target", 2),
        ("utilisation/memory target", None),
    ]


@pytest.mark.parametrize("policies", [(), (("y", NONE),), (("y", NONE), ("z", NONE))])
def test_where_none_can_tell_the_size_stays(policies: tuple[tuple[str, Fixed], ...]) -> None:
    sizing = replace(SIZING, use=cu(4, 2))
    found = Combined(policies).goal(Load(), sizing)
    assert found.units() == Units(4, 2)
    assert found.cpu.reason.startswith("the size stays: ")
    assert len(found.cpu.parts) == len(policies)
    assert Combined(policies).goal(Load(), replace(sizing, unit=sizing.unit.tied())).units() == Units(4, 4)


def test_alone_it_is_utilisation() -> None:
    load = Load(busy_micro=1_000_000)
    assert Combined().goal(load, SIZING).cpu.units == 2
    assert Combined().remembering == Utilisation().remembering == Combined((("x", A),)).remembering
    own = Utilisation(window_s=7.0)
    assert Combined((("x", A), ("u", own))).remembering == own.remembering


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
DAY, PEAK, SAVE, TIGHT, ROOM = (
    Window("day", UnitLimit(3, 3)),
    Window("peak", UnitLimit(6, 6), UnitLimit(7, 7)),
    Window("save", ceiling=UnitLimit(5, 5)),
    Window("tight", ceiling=UnitLimit(2, 2)),
    Window("room", UnitLimit(memory=7), UnitLimit(cpu=3)),
)


def of(*windows: Window) -> WindowLimits:
    return limits((window, OPEN) for window in windows)


def test_of_the_open_windows_the_highest_floor_and_the_lowest_ceiling_hold_for_each_resource() -> None:
    assert limits(()) == of() == WindowLimits()
    day = ResourceLimits(Bar(3, "day"))
    assert limits([(DAY, OPEN), (PEAK, CLOSED), (SAVE, CLOSED)]) == WindowLimits(day, day)
    both = ResourceLimits(Bar(6, "peak"), Bar(5, "save"))
    assert limits([(DAY, OPEN), (PEAK, OPEN), (SAVE, OPEN), (TIGHT, CLOSED)]) == WindowLimits(both, both)
    assert of(DAY, SAVE, ROOM) == WindowLimits(
        ResourceLimits(Bar(3, "day"), Bar(3, "room")), ResourceLimits(Bar(7, "room"), Bar(5, "save"))
    )


@pytest.mark.parametrize("sizing", [SIZING, TIED], ids=["apart", "tied"])
@pytest.mark.parametrize(
    ("found", "units", "result", "sort"),
    [
        (of(), 4, 4, "x"),
        (of(DAY), 2, 3, "floor"),
        (of(DAY), 4, 4, "x"),
        (of(SAVE), 6, 5, "ceiling"),
        (of(SAVE), 5, 5, "x"),
        (of(PEAK, SAVE), 2, 6, "floor"),
        (of(PEAK, SAVE), 8, 6, "floor"),  # a floor wins over a ceiling
        (of(Window("w", UnitLimit(99, 99))), 2, 8, "floor"),  # the maximum wins over a floor
        (of(Window("w", UnitLimit(0, 0))), 2, 2, "x"),
    ],
)
def test_floors_and_ceilings_move_the_goal(
    found: WindowLimits, units: int, result: int, sort: str, sizing: Sizing
) -> None:
    goal = found.apply(_wanted(units), sizing)
    assert goal.units() == Units(result, result)
    for each in (goal.cpu, goal.memory):
        assert each.parts[0].policy == sort
        assert each.parts[-1] == GoalPart("x", units, "why")
        assert each.reason == each.parts[0].reason


def _wanted(units: int) -> Goal:
    both = ResourceGoal(units, "why", (GoalPart("x", units, "why"),))
    return Goal(both, both)


def test_a_window_may_limit_one_resource_alone() -> None:
    goal = of(ROOM).apply(_wanted(5), SIZING)
    assert goal.units() == Units(3, 7)
    assert goal.cpu.reason == "window room: the ceiling is 3 units of CPU"
    assert goal.memory.reason == "window room: the floor is 7 units of memory"
    assert of(ROOM).apply(_wanted(5), TIED).units() == Units(7, 7), "tied, the limits of both count"
    assert of(Window("w", ceiling=UnitLimit(cpu=3))).apply(_wanted(5), TIED).units() == Units(3, 3)


def test_the_minimum_wins_over_a_ceiling() -> None:
    for sizing in (SIZING, TIED):
        found = of(TIGHT).apply(_wanted(6), replace(sizing, bounds=Bounds(UNIT * 3, UNIT * 8)))
        assert found.units() == Units(3, 3)
        assert "asks for 2" in found.cpu.reason


@pytest.mark.parametrize("unit", [SIZING.unit, TIED.unit], ids=["apart", "tied"])
def test_a_ceiling_below_a_part_of_the_minimum_leaves_that_part_alone(unit: ComputeUnit) -> None:
    sizing = replace(SIZING, unit=unit, bounds=Bounds(cu(1.5, 4), cu(8)))
    goal = of(Window("w", ceiling=UnitLimit(1, 1))).apply(_wanted(6), sizing)
    assert sizing.bounds.clamp(unit.amount(goal.units())) == cu(1.5, 4)


@pytest.mark.parametrize("unit", [SIZING.unit, TIED.unit], ids=["apart", "tied"])
def test_bounds_that_are_no_multiple_of_the_unit_stay_within_reach(unit: ComputeUnit) -> None:
    sizing = replace(SIZING, unit=unit, bounds=Bounds(cu(1.5), cu(4.5)))
    goal = of(Window("w", UnitLimit(99, 99))).apply(_wanted(1), sizing)
    assert sizing.bounds.clamp(unit.amount(goal.units())) == cu(4.5)
