"""The split of one resource among the quotas of one parent: figures of the published plugin, and of what its users complained about."""

import pytest

from scheduler.quotas.sharing import Claimant, runtimes, scaled_mins, split


@pytest.mark.parametrize(
    ("amount", "weights", "found"),
    [
        (10, {"a": 1, "b": 1}, {"a": 5, "b": 5}),
        (7, {"a": 1, "b": 1}, {"a": 4, "b": 3}),
        (81, {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 17, "b": 16, "c": 16, "d": 16, "e": 16}),
        (10, {"a": 2, "b": 1}, {"a": 7, "b": 3}),
        (1, {"b": 1, "a": 1}, {"b": 0, "a": 1}),
        (2**100, {"a": 2**63, "b": 2**63}, {"a": 2**99, "b": 2**99}),
        (5, {"a": 0, "b": 0}, {"a": 0, "b": 0}),
        (5, {}, {}),
    ],
    ids=["even", "7 of 8", "81", "by weight", "tie by name", "128 bits", "no weights", "nobody"],
)
def test_a_split_gives_all(amount: int, weights: dict[str, int], found: dict[str, int]) -> None:
    assert split(amount, weights) == found


def child(name: str, weight: int, request: int, least: int, *, lends: bool = True) -> Claimant:
    return Claimant(name, request, least, weight, lends)


@pytest.mark.parametrize(
    ("total", "children", "found"),
    [
        (
            100,
            [
                child("1", 40, 5, 10),
                child("2", 60, 20, 15),
                child("3", 50, 40, 20),
                child("4", 80, 70, 15),
            ],
            [5, 20, 35, 40],
        ),
        (
            100,
            [
                child("1", 40, 5, 10, lends=False),
                child("2", 60, 20, 15),
                child("3", 50, 40, 20),
                child("4", 80, 70, 15),
            ],
            [10, 20, 33, 37],
        ),
        (8, [child("a", 8, 8, 4), child("b", 8, 0, 4)], [8, 0]),
        (8, [child("a", 8, 8, 4), child("b", 8, 0, 4, lends=False)], [4, 4]),
        (81, [child(name, 81, 81, 0) for name in "abcdef"], [14, 14, 14, 13, 13, 13]),
        (10, [child("a", 0, 9, 1), child("b", 1, 3, 1)], [1, 3]),
        (5, [child("a", 1, 9, 4), child("b", 1, 9, 4)], [4, 4]),
        (0, [child("a", 1, 9, 0)], [0]),
    ],
    ids=[
        "goes round until nobody is short",
        "one that does not lend keeps its min",
        "what is not asked for is lent",
        "unless it is not lent",
        "81 GPUs: none is stranded",
        "no weight, no more than min",
        "unscaled minimums exceed the total",
        "an empty cluster",
    ],
)
def test_runtimes(total: int, children: list[Claimant], found: list[int]) -> None:
    assert list(runtimes(total, children).values()) == found


@pytest.mark.parametrize(
    ("total", "mins", "scaling", "found"),
    [
        (100, {"a": 40, "b": 60}, "ab", {"a": 40, "b": 60}),
        (50, {"a": 40, "b": 60}, "ab", {"a": 20, "b": 30}),
        (50, {"a": 40, "b": 60}, "b", {"a": 40, "b": 10}),
        (30, {"a": 40, "b": 60}, "b", {"a": 40, "b": 0}),
        (7, {"a": 4, "b": 4}, "ab", {"a": 4, "b": 3}),
        (0, {"a": 4, "b": 4}, "ab", {"a": 0, "b": 0}),
        (50, {"a": 40, "b": 60}, "", {"a": 40, "b": 60}),
    ],
    ids=["enough", "all shrink", "one does not", "and takes all", "7 of 8 GPUs", "nothing", "none does"],
)
def test_minimums_shrink_where_there_is_not_enough(
    total: int, mins: dict[str, int], scaling: str, found: dict[str, int]
) -> None:
    assert scaled_mins(total, mins, frozenset(scaling)) == found
