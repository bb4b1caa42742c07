"""Synthetic workloads: seeded, bounded, and used up no faster than the guest's size allows."""

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from informant.core.workload import Shape, Workload
from informant.program import main

MOMENTS = st.floats(0, 1e6)
SPANS = st.floats(0.001, 30)
SIZES = st.floats(0.1, 8)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    low = draw(st.floats(0, 4))
    return Workload(
        draw(st.sampled_from(Shape)),
        draw(st.integers()),
        low,
        low + draw(st.floats(0, 4)),
        draw(st.floats(5, 100)),
    )


@given(workloads(), MOMENTS)
def test_demand_lies_between_low_and_high_and_is_the_same_again(workload: Workload, at_s: float) -> None:
    demand = workload.demand(at_s)
    assert workload.low_cpus <= demand <= workload.high_cpus + 1e-9
    again = Workload(workload.shape, workload.seed, workload.low_cpus, workload.high_cpus, workload.period_s)
    assert again.demand(at_s) == demand


@pytest.mark.parametrize("shape", Shape)
def test_demand_reaches_both_ends_within_a_period(shape: Shape) -> None:
    workload = Workload(shape, seed=1)
    seen = [workload.demand(step * 0.05) for step in range(800)]
    assert min(seen) == pytest.approx(workload.low_cpus, abs=1e-3)
    assert max(seen) == pytest.approx(workload.high_cpus, abs=1e-3)


def test_seeds_move_the_curve_whose_beginning_is_not_given() -> None:
    assert len({Workload(Shape.DAY, seed).demand(0) for seed in range(20)}) == 20
    assert len({Workload(Shape.DAY, seed, began_s=3.0).demand(0) for seed in range(20)}) == 1


@pytest.mark.parametrize(
    ("shape", "at_s", "wanted"),
    [
        (Shape.STEP, 7.0, (0.5, 2)),
        (Shape.STEP, 11.9, (0.5, 2)),
        (Shape.STEP, 12.0, (2.5, 6)),
        (Shape.STEP, 17.0, (0.5, 2)),
        (Shape.BURST, 14.9, (0.5, 2)),
        (Shape.BURST, 15.0, (2.5, 6)),
        (Shape.DAY, 12.0, (2.5, 6)),
        (Shape.DAY, 9.5, (1.5, 4)),
    ],
)
def test_memory_moves_with_the_cpus_from_the_beginning_of_a_period(
    shape: Shape, at_s: float, wanted: tuple[float, int]
) -> None:
    workload = Workload(shape, 1, 0.5, 2.5, 10.0, 2, 6, began_s=7.0)
    assert (round(workload.demand(at_s), 9), workload.memory_bytes(at_s)) == wanted


@given(workloads(), MOMENTS, SPANS, SIZES)
def test_no_more_cpu_time_is_used_than_wanted_or_than_the_size_gives(
    workload: Workload, from_s: float, span_s: float, size: float
) -> None:
    to_s = from_s + span_s
    busy = workload.busy_seconds(from_s, to_s, size)
    span_s = to_s - from_s
    assert busy <= min(size, workload.high_cpus) * span_s + 1e-9
    assert busy >= min(size, workload.low_cpus) * span_s - 1e-9


@given(workloads(), MOMENTS, st.floats(-100, 0), SIZES)
def test_no_time_and_a_clock_that_goes_back_use_nothing(
    workload: Workload, from_s: float, span_s: float, size: float
) -> None:
    assert workload.busy_seconds(from_s, from_s + span_s, size) == 0


@given(workloads(), st.floats(0, 1e4), SPANS, SPANS, SIZES)
def test_the_parts_of_a_span_use_what_the_whole_uses(
    workload: Workload, from_s: float, first_s: float, second_s: float, size: float
) -> None:
    middle_s = from_s + first_s
    end_s = middle_s + second_s
    whole = workload.busy_seconds(from_s, end_s, size)
    parts = workload.busy_seconds(from_s, middle_s, size) + workload.busy_seconds(middle_s, end_s, size)
    # Each jump of the curve may be placed wrongly by one step of 0.1 s, in the whole and in each part.
    jumps = 2 * ((end_s - from_s) / workload.period_s + 1)
    assert parts == pytest.approx(whole, abs=0.2 * jumps * (workload.high_cpus - workload.low_cpus) + 1e-3)


@pytest.mark.parametrize("shape", Shape)
def test_a_long_span_is_summed_in_few_steps(shape: Shape) -> None:
    workload = Workload(shape, seed=1)
    span_s = 1e5
    assert workload.low_cpus * span_s <= workload.busy_seconds(0, span_s, 8) <= workload.high_cpus * span_s


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--low", "5", "--high", "1"), "--high 1 must not be below --low 5"),
        (("--high", "0.1"), "is not in the range"),
        (("--memory", "6Gi", "512Mi"), "--memory: the first amount, the least, must not exceed the second"),
        (("--memory", "512Mi", "much"), "'much' is no amount of memory, such as 512Mi or 6Gi"),
        (("--memory", "-1Gi", "1Gi"), "'-1Gi' is no amount of memory"),
    ],
)
def test_a_most_below_the_least_is_refused(arguments: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(main, ["--workload", "day", *arguments])
    assert done.exit_code == 2
    assert told in done.output
