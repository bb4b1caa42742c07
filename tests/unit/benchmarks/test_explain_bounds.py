"""What the benchmark of explanations holds against the programs."""

import pytest

from benchmarks.explain import MOST_SLOWDOWN_IN_SHORT_PERCENT, MOST_SLOWDOWN_PERCENT, are_bounds_kept

CASES = [
    (6.0, 9.9, True, True),
    (6.0, 10.0, False, True),
    (6.0, 29.9, False, True),
    (6.0, 30.0, False, False),
    (6.0, -3.0, True, True),
    (49.9, 0.0, True, True),
    (50.0, 0.0, False, False),
    (None, 0.0, False, False),
]


@pytest.mark.parametrize(("p99_ms", "slowdown_percent", "in_full", "in_short"), CASES)
def test_a_short_run_judges_both_bounds_and_the_slowdown_more_mildly(
    p99_ms: float | None, slowdown_percent: float, in_full: bool, in_short: bool
) -> None:
    assert are_bounds_kept(p99_ms, slowdown_percent, MOST_SLOWDOWN_PERCENT) is in_full
    assert are_bounds_kept(p99_ms, slowdown_percent, MOST_SLOWDOWN_IN_SHORT_PERCENT) is in_short
