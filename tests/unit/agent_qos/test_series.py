"""How samples become one number, and how long a series keeps them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node.qos.core.metrics import (
    Aggregate,
    Aggregation,
    MetricError,
    Series,
    aggregate,
    most_bytes,
    rank,
)

A = Aggregation


@pytest.mark.parametrize(
    ("aggregation", "values", "expected"),
    [
        (A.AVG, [1.0, 2.0, 6.0], 3.0),
        (A.AVG, [0.1] * 10, 0.1),
        (A.P50, [5.0], 5.0),
        (A.P50, [1.0, 2.0, 3.0, 4.0], 2.0),
        (A.P90, [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 8.0),
        (A.P90, [float(each) for each in range(1, 11)], 9.0),
        (A.P95, [float(each) for each in range(1, 21)], 19.0),
        (A.P99, [float(each) for each in range(1, 101)], 99.0),
        (A.P99, [3.0], 3.0),
        (A.LAST, [1.0, 9.0, 4.0], 4.0),
        (A.COUNT, [1.0, 9.0, 4.0], 3.0),
    ],
)
def test_samples_become_one_number(aggregation: Aggregation, values: list[float], expected: float) -> None:
    moments = [float(each) for each in range(len(values))]
    assert aggregate(moments, values, aggregation) == Aggregate(expected, len(values), len(values) - 1.0)


def test_the_last_sample_has_the_largest_time_stamp_wherever_it_stands() -> None:
    assert aggregate([1.0, 7.0, 3.0], [10.0, 70.0, 30.0], A.LAST) == Aggregate(70.0, 3, 6.0)
    assert aggregate([7.0, 7.0], [1.0, 2.0], A.LAST).value == 2.0, "of one moment, what came later"


@pytest.mark.parametrize("aggregation", [each for each in A if each is not A.COUNT])
def test_no_sample_is_an_error_and_not_a_zero(aggregation: Aggregation) -> None:
    with pytest.raises(MetricError, match=f"^there is no sample, so no {aggregation}$"):
        aggregate([], [], aggregation)


def test_no_sample_counts_as_none() -> None:
    assert aggregate([], [], A.COUNT) == Aggregate(0.0, 0, 0.0)


def test_an_unknown_aggregation_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(
        MetricError,
        match="'P90' is unknown: it must be one of avg, p50, p90, p95, p99, last, count",
    ):
        aggregate([1.0], [1.0], "P90")  # type: ignore[arg-type] # as a careless strategy calls it


@given(st.integers(1, 10_000), st.sampled_from([50, 90, 95, 99]))
def test_a_rank_is_that_of_the_exact_share(count: int, percent: int) -> None:
    # As Go has it, int(float64(n) * 0.95) depends on how the share is rounded to a binary fraction.
    assert rank(count, percent) == max(0, math.floor(count * Fraction(percent, 100)) - 1)


def test_a_series_is_in_order_of_time_and_forgets_the_oldest() -> None:
    series = Series(max_samples=3, max_age_s=100.0)
    for at_s in (10.0, 30.0, 20.0, 20.0, 40.0):
        series.add(at_s, at_s + len(series))
    moments, values = series.between(-math.inf, math.inf)
    assert list(moments) == [20.0, 30.0, 40.0]
    assert list(values) == [23.0, 31.0, 43.0], "the second sample of a moment replaces the first"
    series.add(10.0, 1.0)
    assert len(series) == 3, "what is older than all that may be kept is not kept"
    series.add(135.0, 1.0)
    assert list(series.between(-math.inf, math.inf)[0]) == [40.0, 135.0], "by age, counted from the newest"
    assert list(series.between(40.0, 40.0)[0]) == [40.0], "both ends are included"


def test_the_promised_memory_grows_with_the_samples() -> None:
    assert most_bytes(301) - most_bytes(300) in {16, 32}
