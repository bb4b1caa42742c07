"""The split by dominant share, by examples, and the accounts of tenants that use it."""

import pytest

from scheduler.pools.core.tenant_accounts import Accounts, Allowance, BoundBy
from scheduler.pools.core.tenants import Demand, Tenant, Tree, fair_split


@pytest.mark.parametrize(
    ("totals", "demands", "shares"),
    [
        ((), {}, {}),
        ((9, 9), {"a": (1, (4, 9)), "b": (1, (5, 0))}, {"a": (4, 9), "b": (5, 0)}),
        ((100, 100), {"a": (1, (100, 50)), "b": (1, (0, 100))}, {"a": (100, 33), "b": (0, 67)}),
        # The example of the paper, times ten; what the first round leaves of the memory is split in halves.
        ((90, 180), {"a": (1, (90, 360)), "b": (1, (270, 90))}, {"a": (30, 140), "b": (60, 40)}),
        ((12, 12), {"a": (2, (None, None)), "b": (1, (None, None))}, {"a": (8, 8), "b": (4, 4)}),
        ((12, 12), {"a": (2, (None, 0)), "b": (1, (0, None))}, {"a": (12, 0), "b": (0, 12)}),
        ((0, 10), {"a": (1, (5, 10)), "b": (1, (0, 10))}, {"a": (0, 5), "b": (0, 5)}),
        (
            (10, 10),
            {"b": (1, (0, 7)), "a": (1, (0, 7)), "c": (1, (3, 0))},
            {"a": (0, 5), "b": (0, 5), "c": (3, 0)},
        ),
        ((3,), {"b": (1, (None,)), "a": (1, (None,))}, {"a": (2,), "b": (1,)}),
    ],
)
def test_dominant_shares_rise_together_and_what_is_left_is_split_on(
    totals: tuple[int, ...],
    demands: dict[str, tuple[int, tuple[int | None, ...]]],
    shares: dict[str, tuple[int, ...]],
) -> None:
    assert fair_split(totals, [Demand(name, *row) for name, row in demands.items()]) == shares


def tree(*rows: tuple[str, str, int | None, int | None]) -> Tree:
    return Tree([Tenant(name, parent, guaranteed, limit) for name, parent, guaranteed, limit in rows])


UNLIMITED = tree(("org", "", None, None), ("a", "org", None, None), ("b", "org", None, None))
CPU = tree(("org", "", None, 20), ("a", "org", 4, None), ("b", "org", None, None))
MEMORY = tree(("org", "", None, 40), ("a", "org", None, None), ("b", "org", 8, 24))
A, B = 1, 2


def of(**trees: Tree) -> Accounts:
    return Accounts({"units": UNLIMITED, **trees})


def test_one_measure_is_as_that_alone() -> None:
    accounts = Accounts({"units": CPU})
    accounts.add(B, (10,), (4,))
    assert accounts.allowances(A, (9,)) == accounts.allowances(A) == (Allowance(10, BoundBy.RESERVED, 0, 20),)
    assert accounts.used(0) == (10,)
    assert [(each.name, each.measure) for each in accounts.status()] == [
        ("org", "units"),
        ("a", "units"),
        ("b", "units"),
    ]


def test_limits_are_known_by_measure() -> None:
    accounts = of(cpu=CPU)
    assert [accounts.is_limited(A, measure) for measure in ("units", "cpu", "memory")] == [False, True, False]


@pytest.mark.parametrize(
    ("wanted", "cpu", "memory"),
    [
        ((0, 20, 0), 12, 0),
        ((0, 4, 40), 4, 21),
        ((0, 20, 40), 11, 20),
    ],
)
def test_a_share_depends_on_the_proportion_that_is_wanted(
    wanted: tuple[int, int, int], cpu: int, memory: int
) -> None:
    """`b` borrows and claims all 16 CPUs that can be lent, and half of the 32 of memory. Who wants memory alone gets two thirds of
    it; who wants CPUs as well has less of both."""
    accounts = of(cpu=CPU, memory=MEMORY)
    accounts.add(B, (0, 8, 12), (0, 8, 12))
    units, *found = accounts.allowances(A, wanted)
    assert units.units is None
    assert [each.units for each in found] == [cpu, memory]


def test_without_reserved_shares_measures_have_no_say_in_each_other() -> None:
    accounts = Accounts({"units": UNLIMITED, "cpu": CPU, "memory": MEMORY}, reserves_shares=False)
    accounts.add(B, (0, 8, 12), (0, 8, 12))
    assert [each.units for each in accounts.allowances(A, (0, 20, 40))] == [None, 12, 28]


def test_the_status_shows_the_shares_that_are_split_together() -> None:
    accounts = of(cpu=CPU, memory=MEMORY)
    accounts.add(B, (0, 8, 12), (0, 8, 12))
    found = {(each.name, each.measure): each.fair_share_units for each in accounts.status()}
    assert found["a", "units"] is None
    assert (found["a", "cpu"], found["a", "memory"]) == tuple(
        accounts.allowances(A)[at].bound_units - guaranteed for at, guaranteed in ((1, 4), (2, 0))
    )
