"""Laws of the split by dominant share, whatever is wanted of however many amounts."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from scheduler.pools.core import tenants
from scheduler.pools.core.tenant_accounts import Accounts
from scheduler.pools.core.tenants import Demand, fair_split
from tests.property.fair_split_models import NAMES, Use, leaves, trees

_numbers = st.integers(0, 12) | st.integers(0, 10**12)


@st.composite
def splits(draw: st.DrawFn, least: int = 1, most: int = 3) -> tuple[list[int], list[Demand]]:
    """Totals, and what up to 6 want of each."""
    count = draw(st.integers(least, most))
    totals = draw(st.lists(_numbers, min_size=count, max_size=count))
    wants = st.tuples(*[st.none() | _numbers] * count)
    rows = draw(st.lists(st.tuples(st.integers(1, 5), wants), max_size=6))
    return totals, [Demand(NAMES[place], *row) for place, row in enumerate(rows)]


def exact_split(totals: list[int], demands: list[Demand]) -> dict[str, list[Fraction]]:
    shares, one = tenants.exact_split(totals, demands)
    return {name: [Fraction(share, one) for share in own] for name, own in shares.items()}


def wanted(each: Demand, at: int, totals: list[int]) -> int:
    most = each.most[at]
    return totals[at] if most is None else most


@given(splits())
def test_nobody_gets_more_than_he_wants_and_nothing_is_left_that_anybody_wants(
    drawn: tuple[list[int], list[Demand]],
) -> None:
    totals, demands = drawn
    shares = fair_split(totals, demands)
    assert shares.keys() == {each.name for each in demands}
    for at, total in enumerate(totals):
        wants = [wanted(each, at, totals) for each in demands]
        assert all(0 <= shares[each.name][at] <= want for each, want in zip(demands, wants, strict=True))
        assert sum(shares[each.name][at] for each in demands) == min(total, sum(wants))


@given(splits())
def test_everybody_has_his_part_of_what_he_is_heaviest_on(drawn: tuple[list[int], list[Demand]]) -> None:
    """Whatever others want: as much as a split of everything by weight would give him, in the proportion in which he wants it."""
    totals, demands = drawn
    shares, weights = exact_split(totals, demands), sum(each.weight for each in demands)
    for each in demands:
        wants = [wanted(each, at, totals) for at in range(len(totals))]
        heaviest = max(
            (Fraction(want, total) for want, total in zip(wants, totals, strict=True) if total), default=0
        )
        for at, want in enumerate(wants):
            if heaviest and totals[at]:
                assert (
                    shares[each.name][at]
                    >= min(Fraction(1), Fraction(each.weight, weights) / heaviest) * want
                )


@given(splits(), st.data())
def test_who_gets_all_gets_all_of_less_too(
    drawn: tuple[list[int], list[Demand]], data: st.DataObject
) -> None:
    """A demand that is admitted at one size is admitted at each smaller one: a search relies on that."""
    totals, demands = drawn
    shares = exact_split(totals, demands)
    for place, each in enumerate(demands):
        wants = tuple(wanted(each, at, totals) for at in range(len(totals)))
        if tuple(shares[each.name]) == wants:
            less = tuple(data.draw(st.integers(0, want)) for want in wants)
            smaller = [*demands[:place], each._replace(most=less), *demands[place + 1 :]]
            assert tuple(exact_split(totals, smaller)[each.name]) == less


@given(splits(), st.data())
def test_the_order_does_not_matter(drawn: tuple[list[int], list[Demand]], data: st.DataObject) -> None:
    totals, demands = drawn
    assert fair_split(totals, demands) == fair_split(totals, data.draw(st.permutations(demands)))


@given(splits(most=1))
def test_amounts_in_proportion_to_another_one_change_nothing(drawn: tuple[list[int], list[Demand]]) -> None:
    (total,), demands = drawn
    doubled = [
        each._replace(most=tuple(factor * wanted(each, 0, [total]) for factor in (1, 7))) for each in demands
    ]
    exact = exact_split([total], demands)
    for name, (first, second) in exact_split([total, 7 * total], doubled).items():
        assert (first, second) == (exact[name][0], 7 * exact[name][0])


# ------------------------------------------------------------ in a tree


@st.composite
def states(draw: st.DrawFn) -> tuple[Accounts, list[Use]]:
    """A tree that counts for two measures, with use and claims of each."""
    tree = draw(trees())
    amounts = st.fixed_dictionaries(dict.fromkeys(leaves(tree), st.integers(0, 12)))
    found = [Use(tree, draw(amounts), draw(amounts)) for _ in range(2)]
    accounts = Accounts({"units": tree, "cpu": tree})
    units, cpu = found
    for place in units.used:
        accounts.add(place, (units.used[place], cpu.used[place]), (units.claimed[place], cpu.claimed[place]))
    return accounts, found


@given(states(), st.data())
def test_whatever_is_split_together_limits_hold_and_guarantees_are_kept_free(
    drawn: tuple[Accounts, list[Use]], data: st.DataObject
) -> None:
    accounts, states_of = drawn
    place = data.draw(st.sampled_from(sorted(states_of[0].used)))
    wanted_now = [data.draw(st.integers(0, 30)) for _ in states_of]
    allowed = accounts.allowances(place, data.draw(st.sampled_from([None, wanted_now])))
    for use, allowance in zip(states_of, allowed, strict=True):
        most = 40 if allowance.units is None else allowance.units
        assert most >= use.tree.nodes[place].guaranteed_units or not use.allows(
            place, use.tree.nodes[place].guaranteed_units, reserves_shares=False
        )
        if most > use.used[place]:
            assert use.allows(place, most, reserves_shares=False)
