"""The tree of tenants, the split, and the rule by which tenants borrow: worked examples."""

import pytest

from scheduler.pools.core import tenant_accounts, tenants
from scheduler.pools.core.tenant_accounts import Accounts, Allowance, BoundBy
from scheduler.pools.core.tenants import Demand, Tenant, Tree, fair_split

ORG = (
    Tenant("org", limit_units=20),
    Tenant("ci", "org", 6, weight=2),
    Tenant("dev", "org", 4),
    Tenant("batch", "org"),
)


def using(tenants: tuple[Tenant, ...], used: dict[str, int], *, reserves_shares: bool = True) -> Accounts:
    tree = Tree(tenants)
    made = Accounts({"units": tree}, reserves_shares=reserves_shares)
    for name, units in used.items():
        made.add(tree.places[name], [units], [0])
    return made


def accounts(tenants: tuple[Tenant, ...] = ORG, **used: int) -> Accounts:
    return using(tenants, used)


def claims(made: Accounts, **units: int) -> Accounts:
    """The accounts when these tenants claim so many units beyond what they use."""
    for name, claimed in units.items():
        made.add(made._trees["units"].places[name], [0], [claimed])
    return made


def most(made: Accounts, name: str) -> int | None:
    return made.allowances(made._trees["units"].places[name])[0].units


# ------------------------------------------------------------ the split


@pytest.mark.parametrize(
    ("total", "claims", "shares"),
    [
        (10, (), {}),
        (0, (Demand("a", 1, (None,)), Demand("b", 1, (None,))), {"a": 0, "b": 0}),
        (10, (Demand("a", 2, (None,)), Demand("b", 1, (None,))), {"a": 7, "b": 3}),
        (10, (Demand("a", 1, (2,)), Demand("b", 1, (None,))), {"a": 2, "b": 8}),
        (10, (Demand("a", 1, (2,)), Demand("b", 1, (3,))), {"a": 2, "b": 3}),
        # What `a` cannot take goes to the others by their weights, and lifts nobody above what he may have.
        (
            20,
            (Demand("a", 5, (1,)), Demand("b", 2, (9,)), Demand("c", 1, (None,))),
            {"a": 1, "b": 9, "c": 10},
        ),
        (7, (Demand("a", 1, (0,)), Demand("b", 1, (None,))), {"a": 0, "b": 7}),
        # The exact share of `a`, 1⅓, is just above what it may have: it must not be rounded up.
        (2, (Demand("a", 2, (1,)), Demand("b", 1, (None,))), {"a": 1, "b": 1}),
        (2**70 + 1, (Demand("a", 1, (None,)), Demand("b", 1, (None,))), {"a": 2**69 + 1, "b": 2**69}),
    ],
)
def test_splits(total: int, claims: tuple[Demand, ...], shares: dict[str, int]) -> None:
    assert {name: share for name, (share,) in fair_split([total], claims).items()} == shares


def test_of_equal_remainders_the_name_that_sorts_first_gets_the_unit() -> None:
    claims = [Demand("c", 1, (None,)), Demand("a", 1, (None,)), Demand("b", 1, (None,))]
    assert fair_split([4], claims) == {"a": (2,), "b": (1,), "c": (1,)}
    assert fair_split([5], claims) == {"a": (2,), "b": (2,), "c": (1,)}


# ------------------------------------------------------------ the tree


@pytest.mark.parametrize(
    ("rows", "faults"),
    [
        (ORG, []),
        ((Tenant("a"), Tenant("a")), ["1.name: 'a' is the name of tenants[0]"]),
        ((Tenant("a", "b"),), ["0.parent: there is no tenant 'b'"]),
        ((Tenant("a", "a"),), ["0.parent: 'a' does not lead to a tenant without parent"]),
        (
            (Tenant("a", "b"), Tenant("b", "a"), Tenant("c", "a")),
            [
                "0.parent: 'b' does not lead to a tenant without parent",
                "1.parent: 'a' does not lead to a tenant without parent",
                "2.parent: 'a' does not lead to a tenant without parent",
            ],
        ),
        ((Tenant("a", guaranteed_units=3, limit_units=2),), ["0.guaranteed: 3 exceeds its limit of 2"]),
        (
            (Tenant("a", guaranteed_units=5), Tenant("b", "a", 4), Tenant("c", "a", 2)),
            [
                "0.guaranteed: 5 is less than the 6 that tenants below it are guaranteed; leave it out to have the sum"
            ],
        ),
        (
            (Tenant("a", limit_units=5), Tenant("b", "a"), Tenant("c", "b", 6)),
            ["0.limit: 5 is less than the 6 that tenants below it are guaranteed"],
        ),
        # An empty name stands for one that could not be read: nothing is said of it here.
        ((Tenant("", "a"), Tenant(""), Tenant("a")), []),
    ],
)
def test_what_is_no_tree(rows: tuple[Tenant, ...], faults: list[str]) -> None:
    assert [f"{each.index}.{each.field}: {each.text}" for each in tenants.tree_faults(rows)] == faults


def test_a_tree_with_faults_is_refused_with_all_of_them() -> None:
    with pytest.raises(ValueError, match=r"tenants\[1\]\.name: .*; tenants\[1\]\.parent: "):
        Tree((Tenant("a"), Tenant("a", "b")))


def test_the_guarantee_of_a_parent_is_that_of_its_children_unless_it_has_one() -> None:
    tree = Tree(
        (Tenant("a"), Tenant("b", "a", 9), Tenant("c", "b", 2), Tenant("d", "b", 3), Tenant("e", "a", 1))
    )
    assert [node.guaranteed_units for node in tree.nodes] == [10, 9, 2, 3, 1]
    assert [node.is_leaf for node in tree.nodes] == [False, False, True, True, True]


# ------------------------------------------------------------ who may use how much


def test_the_example_of_the_module() -> None:
    made = accounts(ci=15)
    assert most(accounts(), "ci") == 16
    assert most(made, "dev") == 5, "its guarantee, and of its share of 3 what nobody has borrowed"
    made.add(2, [5], [2])
    assert most(made, "ci") == 13, "below what it has: it does not grow"
    made.add(1, [-2], [5])
    assert most(made, "dev") == 7
    made.add(2, [2], [0])
    assert most(made, "batch") == 0, "its share is 3, but 7 and 3 are borrowed"
    made.add(1, [-2], [0])
    made.add(2, [-1], [0])
    assert most(made, "batch") == 3, "it takes part and wins the tie"
    made.add(3, [3], [0])
    assert (most(made, "ci"), most(made, "dev")) == (11, 6)


TWO = (Tenant("p", limit_units=10), Tenant("a", "p"), Tenant("b", "p", 10))
LIMITED = (Tenant("p", limit_units=10), Tenant("a", "p", limit_units=3), Tenant("b", "p"))
DEEP = (
    Tenant("top", limit_units=10),
    Tenant("p", "top"),
    Tenant("a", "p", 3),
    Tenant("b", "p"),
    Tenant("q", "top"),
    Tenant("r", "top", 2),
)
GUARANTEED = (
    Tenant("top", limit_units=10),
    Tenant("a", "top", 6),
    Tenant("a1", "a", 1),
    Tenant("a2", "a"),
    Tenant("b", "top"),
)
NARROW = (
    Tenant("top", limit_units=20),
    Tenant("a", "top"),
    Tenant("a1", "a", limit_units=2),
    Tenant("a2", "a", 1, limit_units=3),
    Tenant("b", "top"),
)
NONE: dict[str, int] = {}


@pytest.mark.parametrize(
    ("tenants", "used", "claimed", "name", "units"),
    [
        # `ci` borrows 2: of the 10 `dev` may borrow 8, though half as heavy, and less the more `ci` claims.
        (ORG, {"ci": 8, "dev": 7}, NONE, "dev", 12),
        (ORG, {"ci": 8, "dev": 7}, {"ci": 1}, "dev", 11),
        (ORG, {"ci": 8, "dev": 7}, {"ci": 11}, "dev", 7),
        # Against a claim nobody grows beyond its own share.
        (ORG, {"ci": 14, "dev": 4}, {"dev": 3}, "ci", 13),
        (ORG, {"ci": 14, "dev": 4}, {"dev": 3}, "dev", 6),
        (ORG, {"ci": 14, "dev": 4}, {"dev": 3}, "batch", 2),
        (ORG, {"ci": 14, "dev": 4}, NONE, "ci", 16),
        # A claim within the guarantee takes nothing of what is lent, nor does what limits keep from a tenant anyway.
        (ORG, {"dev": 1}, {"dev": 3}, "ci", 16),
        (LIMITED, {"a": 2}, {"a": 50}, "b", 7),
        # Guarantees that are not used are not lent. They stand when others keep more than there is.
        (TWO, NONE, NONE, "a", 0),
        (ORG, {"ci": 25}, NONE, "dev", 0),
        (ORG, {"ci": 16}, NONE, "dev", 4),
        # `q` has taken more than it may; the limit is not reached yet.
        (DEEP, {"b": 2, "q": 5}, NONE, "a", 3),
        # The guarantee of a parent is shared by its children alone.
        (GUARANTEED, NONE, NONE, "b", 4),
        (GUARANTEED, {"b": 4}, NONE, "a1", 6),
        (GUARANTEED, {"b": 2, "a1": 2}, {"b": 9, "a1": 9}, "a2", 3),
        (GUARANTEED, {"b": 2, "a2": 3}, {"b": 9, "a2": 9}, "a1", 5),
        (GUARANTEED, {"b": 4, "a2": 3}, NONE, "a1", 3),
        # A parent takes no larger share than those below it could use: of 19, `a` could borrow 4.
        (NARROW, {"a1": 1}, {"a1": 9, "a2": 9}, "b", 15),
    ],
)
def test_how_much_a_tenant_may_use(
    tenants: tuple[Tenant, ...], used: dict[str, int], claimed: dict[str, int], name: str, units: int
) -> None:
    assert most(claims(using(tenants, used), **claimed), name) == units


def test_the_example_of_the_module_without_reserved_shares() -> None:
    made = claims(using(ORG, {"ci": 13, "dev": 5}, reserves_shares=False), dev=9)
    assert (most(made, "ci"), most(made, "dev"), most(made, "batch")) == (15, 7, 2)


BELOW = (
    Tenant("top", limit_units=12),
    Tenant("a", "top"),
    Tenant("b", "top"),
    Tenant("a1", "a"),
    Tenant("a2", "a"),
)
LIMIT, RESERVED, FAIR_SHARE = BoundBy.LIMIT, BoundBy.RESERVED, BoundBy.FAIR_SHARE


@pytest.mark.parametrize(
    ("tenants", "used", "claimed", "place", "expected"),
    [
        ((Tenant("a", limit_units=5),), {"a": 9}, NONE, 0, Allowance(5, LIMIT, 0, 5)),
        (ORG, {"ci": 18}, NONE, 2, Allowance(2, LIMIT, 0, 20)),
        (ORG, {"batch": 16}, NONE, 1, Allowance(4, LIMIT, 0, 20)),
        (BELOW, NONE, NONE, 3, Allowance(12, FAIR_SHARE, 3, 12)),
        (BELOW, {"b": 1}, {"b": 9}, 3, Allowance(6, FAIR_SHARE, 3, 6)),
        (BELOW, {"b": 1, "a2": 1}, {"b": 9, "a2": 9}, 3, Allowance(3, FAIR_SHARE, 3, 3)),
        (BELOW, {"b": 1, "a2": 5}, {"b": 9}, 3, Allowance(1, FAIR_SHARE, 1, 6)),
        (BELOW, {"b": 10}, NONE, 3, Allowance(2, RESERVED, 0, 12)),
    ],
)
def test_the_allowance_names_what_binds(
    tenants: tuple[Tenant, ...],
    used: dict[str, int],
    claimed: dict[str, int],
    place: int,
    expected: Allowance,
) -> None:
    assert claims(using(tenants, used), **claimed).allowances(place) == (expected,)


def test_without_limits_anybody_may_have_anything() -> None:
    made = accounts((Tenant("p"), Tenant("a", "p", 3), Tenant("b", "p")), a=1000)
    assert made.allowances(2) == (Allowance(None, BoundBy.NOTHING, 2, 0),)


def test_many_splits_are_forgotten_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_accounts, "MAX_SPLITS", 1)
    made = claims(accounts(ci=7), ci=9)
    assert [most(made, name) for name in ("ci", "dev", "batch", "dev")] == [16, 7, 3, 7]


# ------------------------------------------------------------ what can be seen


def test_the_status_shows_who_borrows_and_who_lends() -> None:
    org, ci, dev, batch = claims(accounts(ci=9, dev=1, batch=2), ci=4, batch=1).status()
    assert (org.name, org.parent, org.limit_units, org.guaranteed_units) == ("org", "", 20, 10)
    assert (org.used_units, org.guaranteed_used_units, org.lent_units, org.borrowed_units) == (12, 10, 5, 5)
    assert (org.fair_share_units, org.left_units) == (10, 8)
    assert (ci.guaranteed_used_units, ci.borrowed_units, ci.fair_share_units, ci.left_units) == (6, 3, 7, 4)
    assert (dev.guaranteed_used_units, dev.borrowed_units, dev.fair_share_units, dev.left_units) == (
        1,
        0,
        2,
        5,
    )
    assert (org.claimed_units, ci.claimed_units, dev.claimed_units, batch.claimed_units) == (5, 4, 0, 1)
    assert (batch.borrowed_units, batch.lent_units, batch.fair_share_units, batch.left_units) == (2, 0, 3, 1)


def test_without_limits_the_status_has_no_share() -> None:
    (status,) = accounts((Tenant("a", guaranteed_units=3),), a=5).status()
    assert (status.fair_share_units, status.left_units, status.borrowed_units) == (None, None, 2)


def test_an_audit_finds_what_does_not_add_up() -> None:
    made = claims(accounts(ci=3, batch=1), batch=2)
    made.audit([[0], [3], [0], [1]], {3: [2]})
    with pytest.raises(AssertionError, match="wanted"):
        made.audit([[0], [3], [0], [1]])
    with pytest.raises(AssertionError, match="used"):
        made.audit([[0], [3], [0], [2]])
