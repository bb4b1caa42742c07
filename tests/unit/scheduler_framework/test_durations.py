"""Durations are written as Go writes them."""

import pytest

from scheduler.placing.core.waiting import go_duration


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.0, "0s"),
        (-0.0, "0s"),
        (4e-10, "0s"),
        (-4e-10, "0s"),
        (1e-9, "1ns"),
        (999e-9, "999ns"),
        (1.5e-6, "1.5µs"),
        (999e-6, "999µs"),
        (0.25, "250ms"),
        (1.000000001, "1.000000001s"),
        (59.999, "59.999s"),
        (60.0, "1m0s"),
        (61.05, "1m1.05s"),
        (899.999999999, "14m59.999999999s"),
        (3600.0, "1h0m0s"),
        (36_000.5, "10h0m0.5s"),
        (-1e-9, "-1ns"),
        (-1.0, "-1s"),
        (-5400.0, "-1h30m0s"),
    ],
)
def test_a_duration_in_gos_notation(duration_s: float, text: str) -> None:
    assert go_duration(duration_s) == text
