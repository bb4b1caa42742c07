"""Single-precision numbers by example."""

import math

import pytest

from protocol import float32

LARGEST = 2.0**128 - 2.0**104


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        float32.round32(number)


@pytest.mark.parametrize("number", [3.5e38, -3.5e38, 1e308, 2.0**128 - 2.0**103])
def test_what_is_beyond_the_range_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="beyond the range"):
        float32.round32(number)


def test_the_last_number_that_still_rounds_into_the_range_does() -> None:
    assert float32.round32(math.nextafter(2.0**128 - 2.0**103, 0)) == LARGEST


def test_the_sign_of_zero_is_kept_whichever_was_written_first() -> None:
    assert [float32.shortest(zero) for zero in (-0.0, 0.0, -0.0)] == ["-0", "0", "-0"]
