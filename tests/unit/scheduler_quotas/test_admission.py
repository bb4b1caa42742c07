"""Whether a quota has room, in the published words, and whose pods go where it has not."""

import pytest

from scheduler.quotas.admission import (
    QuotaAccount,
    QuotaRules,
    overused,
    overused_since,
    to_revoke,
    victims,
)
from scheduler.quotas.tree import QuotaTree, shares_of
from scheduler.quotas.values import Amounts, QuotaDemand, QuotaPod, QuotaSpec

GIB = 2**30
MIN = {"cpu": 4000, "memory": 8 * GIB}
MAX = {"cpu": 10_000, "memory": 20 * GIB}
TREE = QuotaTree(
    [
        QuotaSpec("org", min=MIN, max=MAX, is_parent=True),
        QuotaSpec("ci", "org", min=MIN, max=MAX),
        QuotaSpec("dev", "org", max=MAX),
    ]
)


BY_DEFAULT = QuotaRules()


def account(rules: QuotaRules = BY_DEFAULT, non_preemptible: int = 0, **used_cpu: int) -> QuotaAccount:
    own = {name: {"cpu": cpu} for name, cpu in used_cpu.items()}
    demands = {name: QuotaDemand({"cpu": 100_000, "memory": 100 * GIB}, used) for name, used in own.items()}
    shares = shares_of(TREE, demands, {"cpu": 100_000, "memory": 100 * GIB})
    kept = TREE.summed({"ci": {"cpu": non_preemptible}})
    return QuotaAccount(TREE, shares, TREE.summed(own), kept, rules)


def test_a_pod_has_room() -> None:
    assert account(ci=5000).refusal("ci", {"cpu": 5000, "memory": GIB}) is None


def test_the_reason_names_the_quota() -> None:
    assert account(ci=9000).refusal("ci", {"cpu": 2000, "memory": GIB, "gpu": 1}) == (
        "Insufficient quotas, quotaName: ci, runtime: cpu:10,memory:20Gi, used: cpu:9,memory:0, "
        "pod's request: cpu:2,memory:1Gi, exceedDimensions: [cpu]"
    )


def test_max_is_the_limit_where_runtime_is_not_used() -> None:
    rules = QuotaRules(uses_runtime=False)
    found = account(rules, ci=9500).refusal("ci", {"cpu": 1000})
    assert found is not None
    assert "max: cpu:10," in found


def test_a_resource_that_is_not_asked_for_is_not_checked() -> None:
    assert account(ci=11_000).refusal("ci", {"memory": GIB}) is None


def test_a_pod_that_is_not_preemptible_stays_within_min() -> None:
    books = account(ci=3500, non_preemptible=3500)
    assert books.refusal("ci", {"cpu": 1000}) is None
    assert books.refusal("ci", {"cpu": 500}, is_preemptible=False) is None
    assert books.refusal("ci", {"cpu": 1000}, is_preemptible=False) == (
        "Insufficient non-preemptible quotas, quotaName: ci, min: cpu:4,memory:8Gi, nonPreemptibleUsed: cpu:3500m,memory:0, "
        "pod's request: cpu:1,memory:0, exceedDimensions: [cpu]"
    )


def test_parents_are_checked_where_settings_say_so() -> None:
    assert account(ci=1000, dev=9000).refusal("ci", {"cpu": 1000}) is None
    found = account(QuotaRules(checks_parents=True), ci=1000, dev=9000).refusal("ci", {"cpu": 1000})
    assert found is not None
    assert found.startswith(
        "Insufficient quotas, quotaNameTopo: [org ci], runtime: cpu:10,memory:20Gi, used: cpu:10,"
    )


def test_min_binds_in_the_resources_that_it_names() -> None:
    assert account(dev=1000).refusal("dev", {"cpu": 1000}, is_preemptible=False) is None


def test_nothing_is_missing_of_what_is_not_asked_for() -> None:
    assert account(ci=11_000).missing("ci", {"memory": GIB}) == {}


def test_the_amount_that_is_missing() -> None:
    assert account(ci=9000).missing("ci", {"cpu": 2000, "memory": GIB}) == {"cpu": 1000}


def pod(name: str, cpu: int, priority: int = 0, since: str = "", *, preemptible: bool = True) -> QuotaPod:
    return QuotaPod(name, name, {"cpu": cpu}, priority, since, preemptible)


@pytest.mark.parametrize(
    ("pods", "missing", "names"),
    [
        ([pod("a", 2, 1), pod("b", 2, 2), pod("c", 2, 9)], {"cpu": 2}, "a"),
        ([pod("a", 2, 1), pod("b", 2, 2), pod("c", 2, 9)], {"cpu": 3}, "ab"),
        ([pod("a", 1, 1), pod("b", 3, 2)], {"cpu": 3}, "b"),
        ([pod("a", 2, 5), pod("b", 2, 9)], {"cpu": 1}, ""),
        ([pod("a", 2, 1, preemptible=False), pod("b", 2, 2)], {"cpu": 2}, "b"),
        ([pod("a", 2, 1)], {"cpu": 3}, ""),
        ([pod("a", 2, 1)], {}, ""),
        ([pod("old", 2, 1, "2026-01-01"), pod("new", 2, 1, "2026-02-01")], {"cpu": 1}, "new"),
    ],
    ids=[
        "least important",
        "two",
        "spares what does not help",
        "not of its own priority",
        "not those that may not be",
        "not in vain",
        "nothing is missing",
        "the younger one",
    ],
)
def test_victims_of_preemption(pods: list[QuotaPod], missing: Amounts, names: str) -> None:
    assert "".join(each.name for each in victims(pods, missing, 5)) == names


@pytest.mark.parametrize(
    ("pods", "limit", "names"),
    [
        ([pod("a", 4, 1), pod("b", 4, 2)], 8, ""),
        ([pod("a", 4, 1), pod("b", 4, 2)], 7, "a"),
        ([pod("a", 1, 1), pod("b", 4, 2), pod("c", 4, 3)], 5, "b"),
        ([pod("a", 4, 1, preemptible=False), pod("b", 4, 2)], 4, "b"),
        ([pod("a", 4, 1, preemptible=False), pod("b", 4, 2)], 3, "b"),
        ([pod("a", 1, 1), pod("b", 2, 1, "x"), pod("c", 5, 3)], 5, "ba"),
    ],
    ids=["within", "the least important", "one that fits comes back", "kept", "not enough", "all but one"],
)
def test_pods_that_go_from_a_quota_that_uses_too_much(pods: list[QuotaPod], limit: int, names: str) -> None:
    used = {"cpu": sum(each.amount["cpu"] for each in pods)}
    found = to_revoke(pods, used, {"cpu": limit})
    assert sorted(each.name for each in found) == sorted(names)


def test_use_beyond_the_limit_is_timed() -> None:
    books = account(ci=12_000, dev=100)
    over = overused(books, ["ci", "dev"])
    assert over == {"ci"}
    since = overused_since({}, over, 10.0)
    since = overused_since(since, over, 20.0)
    assert since == {"ci": 10.0}
    assert overused_since(since, frozenset(), 30.0) == {}
