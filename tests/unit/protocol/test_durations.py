"""Durations are written and read as Go does."""

import pytest

from protocol.durations import DurationError, go_duration, parse_go_duration


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


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("300s", 300.0),
        ("5m", 300.0),
        ("5m0s", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("-1m30s", -90.0),
        ("+2s", 2.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("250ms", 0.25),
        ("1s1s", 2.0),
        ("7ns", 7e-9),
    ],
)
def test_a_duration_is_read(text: str, duration_s: float) -> None:
    assert parse_go_duration(text) == duration_s


@pytest.mark.parametrize("text", ["", "5", "m", "-", "5 m", "5M", "1d", "1,5s", ".s", "5m0", "1" * 70 + "s"])
def test_other_texts_are_no_duration(text: str) -> None:
    with pytest.raises(DurationError, match="is not a duration"):
        parse_go_duration(text)
