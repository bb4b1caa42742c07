"""A number agrees with its noun."""

import pytest

from protocol.texts import counted


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 CPUs"),
        (1, "1 CPU"),
        (1.0, "1 CPU"),
        (0.5, "0.5 CPUs"),
        (2, "2 CPUs"),
        (1_234_567, "1234567 CPUs"),
    ],
)
def test_one_is_one_and_all_others_are_many(count: float, text: str) -> None:
    assert counted(count, "CPU") == text


def test_a_noun_may_have_a_plural_of_its_own() -> None:
    assert (counted(1, "GiB", "GiB"), counted(3, "GiB", "GiB")) == ("1 GiB", "3 GiB")
