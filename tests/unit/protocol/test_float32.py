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


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (16777216.0, "16777216"),
        (LARGEST, "3.4028235e+38"),
    ],
)
def test_the_text_is_the_shortest(number: float, text: str) -> None:
    assert float(float32.shortest(float32.round32(number))) == float(text)
    assert len(float32.shortest(float32.round32(number))) <= len(text)


def test_subnormal_numbers_keep_their_value() -> None:
    smallest = 2.0**-149
    assert float32.round32(smallest) == smallest
    assert float32.round32(float(float32.shortest(smallest))) == smallest
    assert float32.round32(2.0**-151) == 0.0


def test_the_sign_of_zero_is_kept_whichever_was_written_first() -> None:
    assert [float32.shortest(zero) for zero in (-0.0, 0.0, -0.0)] == ["-0", "0", "-0"]
