"""Laws of the split, of the allowances and of admissions, whatever the tenants and whatever they use."""

from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Resources
from scheduler.pools.chain.plugin import ProviderSet
from scheduler.pools.core import tenants
from scheduler.pools.core.tenant_accounts import Accounts
from scheduler.pools.core.tenants import Demand, Tenant, Tree
from scheduler.pools.core.values import Context, Pool, Purpose
from scheduler.pools.shipped import quota, quota_args
from tests.property.fair_split_models import NAMES, Use, leaves, trees, uses
from tests.unit.scheduler_pools.quota_hosts import QuotaHost


def fair_split(total: int, demands: list[Demand]) -> dict[str, int]:
    """The split of a single measure."""
    return {name: share for name, (share,) in tenants.fair_split([total], demands).items()}


def most_of(demand: Demand) -> int | None:
    (most,) = demand.most
    return most


def _claims(numbers: st.SearchStrategy[int], at_most: int) -> st.SearchStrategy[list[Demand]]:
    one = st.tuples(numbers.map(lambda number: number + 1), st.tuples(st.none() | numbers))
    return st.lists(one, max_size=at_most).flatmap(
        lambda rows: st.permutations([Demand(NAMES[i], *row) for i, row in enumerate(rows)])
    )


_numbers = st.integers(0, 12) | st.integers(0, 10**9)
_many = _claims(_numbers, 8)
_few = _claims(st.integers(0, 5), 4)


# ------------------------------------------------------------ the split


def reached(total: int, claims: list[Demand]) -> int:
    most = [units for claim in claims if (units := most_of(claim)) is not None]
    return min(total, sum(most)) if len(most) == len(claims) else total


def exact(total: int, claims: list[Demand]) -> dict[str, Fraction]:
    """The shares of units that can be divided: for one set of full claims, the others are in proportion and not full."""
    for full in product((True, False), repeat=len(claims)):
        filled = [claim for claim, is_full in zip(claims, full, strict=True) if is_full]
        others = [claim for claim, is_full in zip(claims, full, strict=True) if not is_full]
        if any(most_of(claim) is None for claim in filled):
            continue
        left = total - sum(most_of(claim) or 0 for claim in filled)
        level = Fraction(left, sum(claim.weight for claim in others)) if others else Fraction(0)
        fits = level >= 0 and all(
            (most := most_of(claim)) is None or claim.weight * level <= most for claim in others
        )
        is_earned = not others or all((most_of(claim) or 0) <= claim.weight * level for claim in filled)
        if fits and is_earned and (others or left >= 0):
            return {
                claim.name: Fraction(most_of(claim) or 0) if is_full else claim.weight * level
                for claim, is_full in zip(claims, full, strict=True)
            }
    raise AssertionError("there is always a split")


@given(_numbers, _many)
def test_the_shares_are_all_that_can_be_had(total: int, claims: list[Demand]) -> None:
    assert sum(fair_split(total, claims).values()) == reached(total, claims)


@given(_numbers, _many)
def test_nobody_gets_more_than_he_may_have(total: int, claims: list[Demand]) -> None:
    shares = fair_split(total, claims)
    assert shares.keys() == {claim.name for claim in claims}
    for claim in claims:
        assert 0 <= shares[claim.name] <= (total if (most := most_of(claim)) is None else most)


@given(_numbers, _many, st.data())
def test_the_order_of_the_claims_does_not_matter(
    total: int, claims: list[Demand], data: st.DataObject
) -> None:
    assert fair_split(total, claims) == fair_split(total, data.draw(st.permutations(claims)))


@given(st.integers(0, 60) | _numbers, _many.filter(bool), st.integers(1, 20), st.data())
def test_more_weight_never_means_less(
    total: int, claims: list[Demand], extra: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(claims) - 1))
    heavier = list(claims)
    heavier[place] = claims[place]._replace(weight=claims[place].weight + extra)
    name = claims[place].name
    assert fair_split(total, heavier)[name] >= fair_split(total, claims)[name]


@given(_numbers, _many)
def test_of_equal_claims_the_first_name_has_at_most_one_more(total: int, claims: list[Demand]) -> None:
    shares = fair_split(total, claims)
    for one in claims:
        for other in claims:
            if one.name < other.name and one[1:] == other[1:]:
                assert 0 <= shares[one.name] - shares[other.name] <= 1


@given(st.integers(0, 14), _few)
def test_no_other_split_is_nearer_to_the_exact_shares(total: int, claims: list[Demand]) -> None:
    """Of all splits into whole units the least squares win, and of several those that favour the first names."""
    claims = sorted(claims, key=lambda claim: claim.name)
    aim = exact(total, claims)
    best = min(
        (
            (
                sum((units - aim[claim.name]) ** 2 for claim, units in zip(claims, row, strict=True)),
                [-u for u in row],
            )
            for row in product(*(range(reached(total, [claim]) + 1) for claim in claims))
            if sum(row) == reached(total, claims)
        ),
    )
    shares = fair_split(total, claims)
    assert [-shares[claim.name] for claim in claims] == best[1]


# ------------------------------------------------------------ trees and their use


@given(uses(), st.booleans())
def test_the_allowance_is_the_rule(world: tuple[Use, int], reserves_shares: bool) -> None:
    use, place = world
    most = use.accounts(reserves_shares).allowances(place)[0].units
    for units in range(40):
        assert use.allows(place, units, reserves_shares) == (most is None or units <= most)


@given(uses(), st.booleans(), st.integers(0, 20), st.integers(0, 20))
def test_the_allowance_depends_neither_on_the_own_use_nor_on_the_own_claim(
    world: tuple[Use, int], reserves_shares: bool, units: int, claimed: int
) -> None:
    use, place = world
    made = use.accounts(reserves_shares)
    before = made.allowances(place)
    made.add(place, [units - use.used[place]], [claimed - use.claimed[place]])
    assert made.allowances(place) == before


@given(uses(), st.booleans())
def test_nobody_is_kept_below_his_guarantee_while_the_limits_above_hold(
    world: tuple[Use, int], reserves_shares: bool
) -> None:
    use, place = world
    most = use.accounts(reserves_shares).allowances(place)[0].units
    rooms = [
        node.limit_units - use.of(at) + use.used[place]
        for at in use.tree.nodes[place].path
        if (node := use.tree.nodes[at]).limit_units is not None
    ]
    assert most is None or most >= max(0, min([use.tree.nodes[place].guaranteed_units, *rooms]))


@given(uses())
def test_reserved_shares_never_allow_more(world: tuple[Use, int]) -> None:
    use, place = world
    first_come = use.accounts(reserves_shares=False).allowances(place)[0].units
    fair = use.accounts().allowances(place)[0].units
    assert first_come is None or (fair is not None and fair <= first_come)


@given(uses(), st.integers(1, 9), st.data())
def test_a_larger_claim_never_gives_others_more_than_rounding_moves(
    world: tuple[Use, int], more: int, data: st.DataObject
) -> None:
    """By largest remainder a unit may move; a claim never opens more than that to anybody else."""
    use, place = world
    claimant = data.draw(st.sampled_from(leaves(use.tree)))
    claimed = {**use.claimed, claimant: use.claimed[claimant] + more}
    before = use.accounts().allowances(place)[0].units
    after = Use(use.tree, use.used, claimed).accounts().allowances(place)[0].units
    levels = len(use.tree.nodes[place].path)
    assert before is None or (after is not None and after <= before + levels - 1)


@given(uses(), st.booleans())
def test_the_status_adds_up(world: tuple[Use, int], reserves_shares: bool) -> None:
    use, _ = world
    made = use.accounts(reserves_shares)
    status = made.status()
    unmet = {place: [units] for place, units in use.claimed.items()}
    made.audit([[use.used.get(place, 0)] for place in range(len(use.tree.nodes))], unmet)
    for place, (node, each) in enumerate(zip(use.tree.nodes, status, strict=True)):
        assert each.used_units == use.of(place)
        assert each.borrowed_units == use.kept(place) - each.guaranteed_units
        assert each.lent_units == sum(status[child].borrowed_units for child in node.children)
        assert each.guaranteed_used_units == min(each.used_units, each.guaranteed_units)
        assert each.left_units is None or each.left_units >= 0


# ------------------------------------------------------------ admissions, one after the other

_steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20)), max_size=30)


@given(trees(), st.booleans(), _steps)
def test_admissions_in_any_order_keep_limits_and_guarantees(
    tree: Tree, reserves_shares: bool, steps: list[tuple[int, int]]
) -> None:
    made, use = (
        Accounts({"units": tree}, reserves_shares=reserves_shares),
        Use(tree, dict.fromkeys(leaves(tree), 0)),
    )
    for which, wanted in steps:
        place = leaves(tree)[which % len(use.used)]
        most = made.allowances(place)[0].units
        units = wanted if most is None else min(wanted, max(most, use.used[place]))
        made.add(place, [units - use.used[place]], [0])
        use.used[place] = units
        for at, node in enumerate(tree.nodes):
            assert node.limit_units is None or use.of(at) <= node.limit_units
            assert node.limit_units is None or use.kept(at) <= node.limit_units
        for leaf in use.used:
            most = made.allowances(leaf)[0].units
            assert most is None or most >= tree.nodes[leaf].guaranteed_units
        assert made.status() == use.accounts(reserves_shares).status(), (
            "what is remembered would be found anew"
        )
    made.audit([[use.used.get(place, 0)] for place in range(len(tree.nodes))])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=6), st.integers(0, 30))
def test_who_is_not_crowded_out_gets_all_of_his_share(rows: list[tuple[int, int]], spare: int) -> None:
    """Everybody finds room for what is his, whoever took it before, if nobody is above his guarantee and share.

    A unit less where his share was rounded up: with fewer who take part, the remainders may favour another.
    """
    limit = sum(guaranteed for guaranteed, _ in rows) + spare
    children = [
        Tenant(NAMES[i], "org", guaranteed, None, weight) for i, (guaranteed, weight) in enumerate(rows)
    ]
    tree = Tree([Tenant("org", limit_units=limit), *children])
    shares = fair_split(spare, [Demand(child.name, child.weight, (None,)) for child in children])
    weights = sum(weight for _, weight in rows)
    made = Accounts({"units": tree})
    for i, (guaranteed, weight) in enumerate(rows):
        most = made.allowances(i + 1)[0].units
        assert most is not None
        assert most >= guaranteed + spare * weight // weights
        made.add(i + 1, [guaranteed + shares[NAMES[i]]], [0])
    assert made.used(0) == (limit,)


@given(trees(), _steps, st.lists(st.integers(0, 20), min_size=8, max_size=8))
def test_nothing_is_idle_beside_refused_demand_once_all_have_asked(
    tree: Tree, steps: list[tuple[int, int]], wants: list[int]
) -> None:
    """A tenant that is refused claims. When all want what they want and nobody gets more, nothing that could be given is left."""
    places = leaves(tree)
    made, used = Accounts({"units": tree}), dict.fromkeys(places, 0)
    claimed = dict(used)

    def ask(place: int, wanted: int) -> bool:
        most = made.allowances(place)[0].units
        units = wanted if most is None else min(wanted, max(most, used[place]))
        change = units - used[place], wanted - units - claimed[place]
        made.add(place, change[:1], change[1:])
        used[place], claimed[place] = units, wanted - units
        return change != (0, 0)

    for which, wanted in steps:
        ask(places[which % len(places)], wanted)
    wanted_by = {place: max(wants[at], used[place]) for at, place in enumerate(places)}
    while True:
        changed = [ask(place, wanted_by[place]) for place in places]
        if not any(changed):
            break
    for place in places:
        first_come = Use(tree, used).accounts(reserves_shares=False).allowances(place)[0].units
        if used[place] < wanted_by[place]:
            assert first_come is not None
            assert first_come <= used[place]


# ------------------------------------------------------------ the plugin


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
    pools = (
        Pool(str(place), own, labels={quota_args.TENANT_LABEL: tenant})
        for place, (own, tenant) in enumerate(rows)
    )
    host = QuotaHost(*pools)
    plugin = quota.factory(host, ProviderSet(), args)

    def cap(pool: Pool, replicas: int) -> int | None:
        return plugin.pre_update_pool(Context(Purpose.PROBE), pool.with_replicas(replicas), ()).admitted

    for which, wanted, is_birth in moves:
        pool = host.held[which % len(rows)]
        admitted = cap(pool, wanted)
        if admitted is not None:
            assert pool.replicas <= admitted < wanted
            assert [cap(pool, n) for n in range(admitted + 1)] == [None] * (admitted + 1)
            assert cap(pool, admitted + 1) == admitted
        lifted = wanted if admitted is None or is_birth else admitted
        host.put(pool.with_replicas(lifted))
        again = quota.factory(host, ProviderSet(), args)
        assert plugin.status() == again.status()
