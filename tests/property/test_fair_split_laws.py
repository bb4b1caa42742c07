"""What holds of the split, of the ceilings and of admissions, whatever the tenants and whatever they use."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from hosting import logs
from protocol.values import Resources
from scheduler.pool.plugin import Client
from scheduler.pool.plugins import quota
from scheduler.pool.plugins.fair_split import Accounts, Claim, Node, Tenant, Tree, fair_split
from scheduler.pool.providers import Providers
from scheduler.pool.values import Context, Pods, Pool, Purpose

NAMES = "abcdefgh"


def _claims(numbers: st.SearchStrategy[int], at_most: int) -> st.SearchStrategy[list[Claim]]:
    one = st.tuples(numbers.map(lambda number: number + 1), st.none() | numbers)
    return st.lists(one, max_size=at_most).flatmap(
        lambda rows: st.permutations([Claim(NAMES[i], *row) for i, row in enumerate(rows)])
    )


_numbers = st.integers(0, 12) | st.integers(0, 10**9)
_many = _claims(_numbers, 8)
_few = _claims(st.integers(0, 5), 4)


# ------------------------------------------------------------ the split


def reached(total: int, claims: list[Claim]) -> int:
    """What the claims can have together."""
    most = [claim.most_units for claim in claims if claim.most_units is not None]
    return min(total, sum(most)) if len(most) == len(claims) else total


def exact(total: int, claims: list[Claim]) -> dict[str, Fraction]:
    """The shares of units that can be divided: for one set of full claims, the others are in proportion and not full."""
    for full in product((True, False), repeat=len(claims)):
        filled = [claim for claim, is_full in zip(claims, full, strict=True) if is_full]
        others = [claim for claim, is_full in zip(claims, full, strict=True) if not is_full]
        if any(claim.most_units is None for claim in filled):
            continue
        left = total - sum(claim.most_units or 0 for claim in filled)
        level = Fraction(left, sum(claim.weight for claim in others)) if others else Fraction(0)
        fits = level >= 0 and all(
            claim.most_units is None or claim.weight * level <= claim.most_units for claim in others
        )
        is_earned = not others or all((claim.most_units or 0) <= claim.weight * level for claim in filled)
        if fits and is_earned and (others or left >= 0):
            return {
                claim.name: Fraction(claim.most_units or 0) if is_full else claim.weight * level
                for claim, is_full in zip(claims, full, strict=True)
            }
    raise AssertionError("there is always a split")


@given(_numbers, _many)
def test_the_shares_are_all_that_can_be_had(total: int, claims: list[Claim]) -> None:
    assert sum(fair_split(total, claims).values()) == reached(total, claims)


@given(_numbers, _many)
def test_nobody_gets_more_than_he_may_have(total: int, claims: list[Claim]) -> None:
    shares = fair_split(total, claims)
    assert shares.keys() == {claim.name for claim in claims}
    for claim in claims:
        assert 0 <= shares[claim.name] <= (total if claim.most_units is None else claim.most_units)


@given(_numbers, _many, st.data())
def test_the_order_of_the_claims_does_not_matter(
    total: int, claims: list[Claim], data: st.DataObject
) -> None:
    assert fair_split(total, claims) == fair_split(total, data.draw(st.permutations(claims)))


@given(st.integers(0, 60) | _numbers, _many.filter(bool), st.integers(1, 20), st.data())
def test_more_weight_never_means_less(
    total: int, claims: list[Claim], extra: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(claims) - 1))
    heavier = list(claims)
    heavier[place] = replace(claims[place], weight=claims[place].weight + extra)
    name = claims[place].name
    assert fair_split(total, heavier)[name] >= fair_split(total, claims)[name]


@given(_numbers, _many)
def test_of_equal_claims_the_first_name_has_at_most_one_more(total: int, claims: list[Claim]) -> None:
    shares = fair_split(total, claims)
    for one in claims:
        for other in claims:
            if one.name < other.name and (one.weight, one.most_units) == (other.weight, other.most_units):
                assert 0 <= shares[one.name] - shares[other.name] <= 1


@given(st.integers(0, 14), _few)
def test_no_other_split_is_nearer_to_the_exact_shares(total: int, claims: list[Claim]) -> None:
    """Of all splits into whole units the least squares win, and of several those that favour the first names."""
    claims = sorted(claims, key=lambda claim: claim.name)
    aim = exact(total, claims)
    best = min(
        (
            (
                sum((units - aim[claim.name]) ** 2 for claim, units in zip(claims, row, strict=True)),
                [-u for u in row],
            )
            for row in product(
                *(range(min(total, total if c.most_units is None else c.most_units) + 1) for c in claims)
            )
            if sum(row) == reached(total, claims)
        ),
    )
    shares = fair_split(total, claims)
    assert [-shares[claim.name] for claim in claims] == best[1]


# ------------------------------------------------------------ trees and their use


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Up to 8 tenants in up to 8 levels; guarantees and limits that can be kept."""
    small = st.integers(0, 6)
    parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, len(NAMES))))]
    guaranteed = [0] * len(parents)
    tenants = []
    for index in reversed(range(len(parents))):
        is_stated = draw(st.booleans())
        guaranteed[index] += draw(small) if is_stated else 0
        limit = guaranteed[index] + draw(st.integers(0, 14)) if draw(st.integers(0, 3)) else None
        parent = parents[index]
        if parent >= 0:
            guaranteed[parent] += guaranteed[index]
        tenants.append(
            Tenant(
                NAMES[index],
                NAMES[parent] if parent >= 0 else "",
                guaranteed[index] if is_stated else None,
                limit,
                draw(st.integers(1, 4)),
            )
        )
    return Tree(draw(st.permutations(tenants)))


def leaves(tree: Tree) -> list[int]:
    return [place for place, node in enumerate(tree.nodes) if node.is_leaf]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Tree, dict[int, int], int, bool]:
    """A tree, what its leaves use (whether or not they may), one of them, and whether shares are reserved."""
    tree = draw(trees())
    used = {place: draw(st.integers(0, 12)) for place in leaves(tree)}
    return tree, used, draw(st.sampled_from(leaves(tree))), draw(st.booleans())


def accounts(tree: Tree, used: dict[int, int], reserves_shares: bool = True) -> Accounts:
    made = Accounts(tree, reserves_shares=reserves_shares)
    for place, units in used.items():
        made.add(place, units)
    return made


def use(tree: Tree, used: dict[int, int], place: int) -> int:
    """What a tenant and all below it use."""
    return sum(units for leaf, units in used.items() if place in tree.nodes[leaf].path)


def kept(tree: Tree, used: dict[int, int], place: int) -> int:
    """Use or guarantee, whichever is more, from below."""
    node = tree.nodes[place]
    below = sum(kept(tree, used, child) for child in node.children)
    return max(node.guaranteed_units, used.get(place, 0), below)


def may_keep(tree: Tree, used: dict[int, int], place: int, asking: set[int]) -> int | None:
    """Limit, or guarantee and fair share, of a tenant that asks or above one that does."""
    node = tree.nodes[place]
    above = may_keep(tree, used, node.path[1], asking) if len(node.path) > 1 else None
    if above is None:
        return node.limit_units
    parent = tree.nodes[node.path[1]]
    siblings = [tree.nodes[child] for child in parent.children]
    claims = [
        Claim(each.tenant.name, each.tenant.weight, room(tree, each))
        for each in siblings
        if each.path[0] in asking or kept(tree, used, each.path[0]) > each.guaranteed_units
    ]
    shares = fair_split(above - sum(each.guaranteed_units for each in siblings), claims)
    return node.guaranteed_units + shares[node.tenant.name]


def room(tree: Tree, node: Node) -> int | None:
    """What a tenant could borrow at most, whatever others do."""
    reach = reached_by(tree, node)
    return None if reach is None else reach - node.guaranteed_units


def reached_by(tree: Tree, node: Node) -> int | None:
    below = [reached_by(tree, tree.nodes[child]) for child in node.children]
    bounds = [] if node.limit_units is None else [node.limit_units]
    known = [units for units in below if units is not None]
    if below and len(known) == len(below):
        bounds.append(max(node.guaranteed_units, sum(known)))
    return min(bounds, default=None)


def is_allowed(tree: Tree, used: dict[int, int], place: int, units: int, reserves_shares: bool) -> bool:
    """The rule as it is written down: may the tenant use so many units?"""
    if units == 0:
        return True
    after = used | {place: units}
    path = tree.nodes[place].path
    for at in path:
        limit = tree.nodes[at].limit_units
        if limit is not None and use(tree, after, at) > limit:
            return False
    for at in path:
        node = tree.nodes[at]
        total = may_keep(tree, used, at, set(path)) if reserves_shares else node.limit_units
        keeps = kept(tree, after, at)
        if total is not None and keeps > total:
            return False
        if keeps <= node.guaranteed_units:
            return True  # nothing is borrowed from those above
    return True


@given(worlds())
def test_the_ceiling_is_the_rule(world: tuple[Tree, dict[int, int], int, bool]) -> None:
    tree, used, place, reserves_shares = world
    most = accounts(tree, used, reserves_shares).ceiling(place).units
    for units in range(40):
        assert is_allowed(tree, used, place, units, reserves_shares) == (most is None or units <= most)


@given(worlds(), st.integers(0, 20))
def test_the_ceiling_does_not_depend_on_the_own_use(
    world: tuple[Tree, dict[int, int], int, bool], units: int
) -> None:
    tree, used, place, reserves_shares = world
    made = accounts(tree, used, reserves_shares)
    before = made.ceiling(place)
    made.add(place, units - used[place])
    assert made.ceiling(place) == before


@given(worlds())
def test_nobody_is_kept_below_his_guarantee_while_the_limits_above_hold(
    world: tuple[Tree, dict[int, int], int, bool],
) -> None:
    tree, used, place, reserves_shares = world
    most = accounts(tree, used, reserves_shares).ceiling(place).units
    rooms = [
        node.limit_units - use(tree, used, at) + used[place]
        for at in tree.nodes[place].path
        if (node := tree.nodes[at]).limit_units is not None
    ]
    assert most is None or most >= max(0, min([tree.nodes[place].guaranteed_units, *rooms]))


@given(worlds())
def test_reserved_shares_never_allow_more(world: tuple[Tree, dict[int, int], int, bool]) -> None:
    tree, used, place, _ = world
    first_come = accounts(tree, used, reserves_shares=False).ceiling(place).units
    fair = accounts(tree, used).ceiling(place).units
    assert first_come is None or (fair is not None and fair <= first_come)


@given(worlds())
def test_the_status_adds_up(world: tuple[Tree, dict[int, int], int, bool]) -> None:
    tree, used, _, reserves_shares = world
    made = accounts(tree, used, reserves_shares)
    status = made.status()
    made.audit([used.get(place, 0) for place in range(len(tree.nodes))])
    for place, (node, each) in enumerate(zip(tree.nodes, status, strict=True)):
        assert each.used_units == use(tree, used, place)
        assert each.borrowed_units == kept(tree, used, place) - each.guaranteed_units
        assert each.lent_units == sum(status[child].borrowed_units for child in node.children)
        assert each.guaranteed_used_units == min(each.used_units, each.guaranteed_units)
        assert each.left_units is None or each.left_units >= 0


# ------------------------------------------------------------ admissions, one after the other

_steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20)), max_size=30)


@given(trees(), st.booleans(), _steps)
def test_admissions_in_any_order_keep_limits_and_guarantees(
    tree: Tree, reserves_shares: bool, steps: list[tuple[int, int]]
) -> None:
    made, used = Accounts(tree, reserves_shares=reserves_shares), dict.fromkeys(leaves(tree), 0)
    for which, wanted in steps:
        place = leaves(tree)[which % len(used)]
        most = made.ceiling(place).units
        units = wanted if most is None else min(wanted, max(most, used[place]))
        made.add(place, units - used[place])
        used[place] = units
        for at, node in enumerate(tree.nodes):
            assert node.limit_units is None or use(tree, used, at) <= node.limit_units
            assert node.limit_units is None or kept(tree, used, at) <= node.limit_units
        for leaf in used:
            most = made.ceiling(leaf).units
            assert most is None or most >= tree.nodes[leaf].guaranteed_units
        again = accounts(tree, used, reserves_shares)
        assert made.status() == again.status(), "what is remembered is what would be found anew"
    made.audit([used.get(place, 0) for place in range(len(tree.nodes))])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 30))
def test_who_is_not_crowded_out_gets_all_of_his_share(rows: list[tuple[int, int]], spare: int) -> None:
    """Where nobody is above his guarantee and share, there is for everybody what is his, whoever took his before.

    A unit less where his share was rounded up: with fewer who take part, the remainders may favour another.
    """
    limit = sum(guaranteed for guaranteed, _ in rows) + spare
    children = [
        Tenant(NAMES[i], "org", guaranteed, None, weight) for i, (guaranteed, weight) in enumerate(rows)
    ]
    tree = Tree([Tenant("org", limit_units=limit), *children])
    shares = fair_split(spare, [Claim(child.name, child.weight) for child in children])
    weights = sum(weight for _, weight in rows)
    made = Accounts(tree)
    for i, (guaranteed, weight) in enumerate(rows):
        most = made.ceiling(i + 1).units
        assert most is not None
        assert most >= guaranteed + spare * weight // weights
        made.add(i + 1, guaranteed + shares[NAMES[i]])
    assert made.used(0) == limit


# ------------------------------------------------------------ the plugin


class World:
    """A host with pools."""

    def __init__(self) -> None:
        self.held: dict[str, Pool] = {}
        self.log = logs.logger("test")

    @property
    def cache(self) -> "World":
        return self

    @property
    def client(self) -> Client:
        raise NotImplementedError

    def pool(self, name: str) -> Pool | None:
        return self.held.get(name)

    def pools(self) -> tuple[Pool, ...]:
        return tuple(self.held.values())

    def asked(self) -> dict[str, int]:
        return {}

    def members(self, name: str) -> Pods:
        del name
        return ()


_units = st.builds(Resources, st.integers(1, 5), st.integers(1, 5))
_moves = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 25), st.booleans()), max_size=15)


@given(_units, st.lists(st.tuples(_units, st.sampled_from("abc")), min_size=1, max_size=6), _moves)
def test_the_cap_of_the_plugin_is_exact(
    unit: Resources, rows: list[tuple[Resources, str]], moves: list[tuple[int, int, bool]]
) -> None:
    tenants = [
        {"name": "org", "limit": 15},
        {"name": "a", "parent": "org", "guaranteed": 3},
        {"name": "b", "parent": "org", "guaranteed": 2, "limit": 9},
        {"name": "c", "parent": "org", "weight": 2},
    ]
    args = {"computeUnit": {"cpu": f"{unit.vcpu_milli}m", "memory": unit.memory_bytes}, "tenants": tenants}
    world = World()
    plugin = quota.factory(world, Providers(), args)
    for place, (own, tenant) in enumerate(rows):
        world.held[str(place)] = Pool(str(place), own, labels={quota.TENANT_LABEL: tenant})

    def cap(pool: Pool, replicas: int) -> int | None:
        return plugin.pre_update_pool(Context(Purpose.PROBE), pool.with_replicas(replicas), ()).admitted

    for which, wanted, is_birth in moves:
        pool = world.held[str(which % len(rows))]
        admitted = cap(pool, wanted)
        if admitted is not None:
            assert pool.replicas <= admitted < wanted
            assert [cap(pool, n) for n in range(admitted + 1)] == [None] * (admitted + 1)
            assert cap(pool, admitted + 1) == admitted
        lifted = wanted if admitted is None or is_birth else admitted
        world.held[pool.name] = pool.with_replicas(lifted)
        again = quota.factory(world, Providers(), args)
        assert plugin.status() == again.status()
