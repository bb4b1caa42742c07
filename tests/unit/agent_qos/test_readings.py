"""Consecutive readings give rates and shares, also after jumps of counters, while time stands still, or from files of
nonsense."""

import pytest

from agent.node.qos.core.metrics import Counter, Throttling, container_id, pressure, rest, total

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("readings", "rates"),
    [
        ([(0.0, 5.0), (2.0, 8.0), (3.0, 8.0)], [None, 1.5, 0.0]),
        ([(0.0, 5.0), (1.0, 4.0), (2.0, 6.0)], [None, None, 2.0]),
        ([(1.0, 5.0), (1.0, 6.0), (2.0, 7.0)], [None, None, 2.0]),
        ([(3.0, 5.0), (1.0, 6.0), (5.0, 9.0)], [None, None, 2.0]),
        ([(1.0, 5.0), (1.0, 1.0), (2.0, 4.0)], [None, None, 3.0]),
    ],
    ids=[
        "rises",
        "fell, counted from there",
        "time stood still",
        "time jumped back",
        "fell at the same moment",
    ],
)
def test_a_rate_is_known_where_total_and_time_went_on(
    readings: list[tuple[float, float]], rates: list[float | None]
) -> None:
    counter = Counter()
    assert [counter.rate(at_s, found) for at_s, found in readings] == rates


@pytest.mark.parametrize(
    ("readings", "shares"),
    [
        ([(10, 1), (20, 6), (30, 6)], [None, 0.5, 0.0]),
        ([(10, 1), (10, 1)], [None, 0.0]),
        ([(0, 0), (0, 0)], [None, None]),
        ([(0, 0), (4, 1)], [None, 0.25]),
        ([(10, 5), (3, 1), (5, 2)], [None, None, 0.5]),
        ([(10, 5), (12, 9)], [None, None]),
    ],
    ids=["held back", "nothing ran", "no limit", "a first limit", "another group", "more than there were"],
)
def test_the_throttled_share_is_of_the_periods_that_passed(
    readings: list[tuple[int, int]], shares: list[float | None]
) -> None:
    throttling = Throttling()
    assert [throttling.share(*each) for each in readings] == shares


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (ID, ID),
        (f"cri-containerd-{ID}.scope", ID),
        (f"docker-{ID}.scope", ID),
        (f"crio-{ID}.scope", ID),
        (f"crio-conmon-{ID}.scope", None),
        ("app", None),
        (ID[:-1], None),
        (ID + "0", None),
        (f"{ID}.slice", None),
        (f"{ID}\n", None),
    ],
)
def test_a_container_is_known_by_the_name_of_its_group(group: str, expected: str | None) -> None:
    assert container_id(group) == expected


def test_averages_of_pressure_are_read_and_nonsense_is_left_out() -> None:
    text = "some avg10=1.50 avg60=0.25 avg300=x total=7\nfull avg10=nan avg60= avg300=3\nall avg10=1\n\n"
    assert list(pressure(text)) == [
        ("avg10", "some", 1.5),
        ("avg60", "some", 0.25),
        ("avg300", "full", 3.0),
    ]


@pytest.mark.parametrize(
    ("whole", "parts", "left"),
    [
        (3.0, [1.0, 0.5], 1.5),
        (1.0, [2.0], 0.0),
        (None, [1.0], None),
        (3.0, [1.0, None], None),
        (2.0, [], 2.0),
    ],
)
def test_the_rest_is_known_where_everything_is(
    whole: float | None, parts: list[float | None], left: float | None
) -> None:
    assert rest(whole, parts) == left
    assert total(parts) == (None if None in parts else sum(each for each in parts if each is not None))
