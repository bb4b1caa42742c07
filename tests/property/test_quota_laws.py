"""Laws of elastic quotas, whatever the tree, the requests and what there is."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.quotas.admission import to_revoke, victims
from scheduler.quotas.sharing import Claimant, runtimes, scaled_mins, split
from scheduler.quotas.tree import QuotaTree, shares_of
from scheduler.quotas.values import ROOT, QuotaDemand, QuotaPod, QuotaSpec, exceeding, subtracted

NAMES = "abcdefgh"
_few = st.integers(0, 12)
_amounts = _few | st.integers(0, 10**12)


@st.composite
def claimants(draw: st.DrawFn, numbers: st.SearchStrategy[int] = _amounts) -> list[Claimant]:
    count = draw(st.integers(0, len(NAMES)))
    return [
        Claimant(name, draw(numbers), draw(numbers), draw(numbers), draw(st.booleans()))
        for name in NAMES[:count]
    ]


@st.composite
def trees(draw: st.DrawFn) -> tuple[QuotaTree, dict[str, QuotaDemand]]:
    """Up to 8 quotas on any levels, of one resource, and what their pods ask for."""
    count = draw(st.integers(1, len(NAMES)))
    specs = []
    for at, name in enumerate(NAMES[:count]):
        parent = draw(st.sampled_from([ROOT, *NAMES[:at]]))
        most = draw(_few)
        least = draw(st.integers(0, most))
        lends = draw(st.booleans())
        specs.append(QuotaSpec(name, parent, {"gpu": least}, {"gpu": most}, lends=lends))
    parents = {spec.parent for spec in specs}
    demands = {spec.name: QuotaDemand({"gpu": draw(_few)}) for spec in specs if spec.name not in parents}
    return QuotaTree(specs), demands


@given(_amounts, st.dictionaries(st.sampled_from(NAMES), _amounts))
def test_a_split_loses_nothing(amount: int, weights: dict[str, int]) -> None:
    found = split(amount, weights)
    assert sum(found.values()) == (amount if any(weights.values()) else 0)
    total = sum(weights.values())
    for name, part in found.items():
        assert total == 0 or abs(part * total - amount * weights[name]) < total


@given(_amounts, st.dictionaries(st.sampled_from(NAMES), _amounts), st.sets(st.sampled_from(NAMES)))
def test_scaled_minimums_are_never_more_than_minimums_nor_lose_anything(
    total: int, mins: dict[str, int], scaling: set[str]
) -> None:
    found = scaled_mins(total, mins, frozenset(scaling))
    assert all(0 <= found[name] <= mins[name] for name in mins)
    fixed = sum(least for name, least in mins.items() if name not in scaling)
    assert sum(found.values()) == min(sum(mins.values()), max(total, fixed))


@given(_amounts, claimants())
def test_runtimes_are_within_request_and_total_and_nobody_starves(
    total: int, children: list[Claimant]
) -> None:
    found = runtimes(total, children)
    least = {
        child.name: min(child.limit_request, child.kept) if child.lends else child.kept for child in children
    }
    for child in children:
        assert least[child.name] <= found[child.name] <= max(child.limit_request, least[child.name])
    assert sum(found.values()) <= max(total, sum(least.values()))
    short = [child for child in children if child.weight and found[child.name] < child.limit_request]
    assert not short or sum(found.values()) >= total


@given(_few, claimants(_few), st.data())
def test_more_request_never_makes_the_own_runtime_smaller(
    total: int, children: list[Claimant], data: st.DataObject
) -> None:
    if not children:
        return
    at = data.draw(st.integers(0, len(children) - 1))
    one = children[at]
    more = [*children]
    more[at] = replace(one, limit_request=one.limit_request + data.draw(_few))
    assert runtimes(total, more)[one.name] >= runtimes(total, children)[one.name]


@given(st.integers(0, 40), trees())
def test_in_a_tree_sums_minimums_and_limits_hold_on_every_level(
    total: int, drawn: tuple[QuotaTree, dict[str, QuotaDemand]]
) -> None:
    tree, demands = drawn
    shares = shares_of(tree, demands, {"gpu": total})
    for name in tree.from_above:
        children = [shares[child] for child in tree.children(name)]
        has = shares[name].runtime.get("gpu", 0)
        assert sum(child.runtime["gpu"] for child in children) <= has
        for child in children:
            asked, runtime = child.limit_request["gpu"], child.runtime["gpu"]
            assert min(child.scaled_min["gpu"], asked) <= runtime
            assert runtime <= max(asked, child.scaled_min["gpu"] if not child.spec.lends else 0)
            assert runtime <= child.spec.max["gpu"]
        if children and any(child.runtime["gpu"] < child.limit_request["gpu"] for child in children):
            assert sum(child.runtime["gpu"] for child in children) == has


_pods = st.lists(st.tuples(_few, st.integers(0, 3), st.booleans()), max_size=8).map(
    lambda rows: [
        QuotaPod(str(at), str(at), {"gpu": amount}, priority, is_preemptible=is_preemptible)
        for at, (amount, priority, is_preemptible) in enumerate(rows)
    ]
)


@given(_pods, st.integers(1, 30), st.integers(0, 4))
def test_victims_are_enough_and_none_of_them_is_in_vain(
    pods: list[QuotaPod], missing: int, priority: int
) -> None:
    chosen = victims(pods, {"gpu": missing}, priority)
    assert all(pod.is_preemptible and pod.priority < priority for pod in chosen)
    freed = sum(pod.amount["gpu"] for pod in chosen)
    if chosen:
        assert freed >= missing
        assert all(freed - pod.amount["gpu"] < missing for pod in chosen)
    else:
        able = [pod.amount["gpu"] for pod in pods if pod.is_preemptible and pod.priority < priority]
        assert sum(able) < missing


@given(_pods, _few)
def test_what_is_revoked_brings_the_quota_within_its_limit_if_that_can_be(
    pods: list[QuotaPod], limit: int
) -> None:
    used, most = {"gpu": sum(pod.amount["gpu"] for pod in pods)}, {"gpu": limit}
    gone = to_revoke(pods, used, most)
    assert all(pod.is_preemptible for pod in gone)
    left = subtracted(used, {"gpu": sum(pod.amount["gpu"] for pod in gone)})
    kept = sum(pod.amount["gpu"] for pod in pods if not pod.is_preemptible)
    assert not exceeding(left, most) or kept > limit
    assert not gone or exceeding(used, most)
