"""The tree of quotas: whose a pod is, requests that go up, runtimes that come down, trees of their own."""

from typing import Any

import pytest

from scheduler.quotas.tree import QuotaTree, shares_of
from scheduler.quotas.values import DEFAULT, ROOT, SYSTEM, QuotaDemand, QuotaSpec


def spec(name: str, least: int = 0, most: int = 100, **more: Any) -> QuotaSpec:
    return QuotaSpec(name, min={"gpu": least}, max={"gpu": most}, **more)


def asks(**requests: int) -> dict[str, QuotaDemand]:
    return {name: QuotaDemand({"gpu": amount}) for name, amount in requests.items()}


def runtimes_of(tree: QuotaTree, demands: dict[str, QuotaDemand], total: int) -> dict[str, int]:
    return {
        name: share.runtime.get("gpu", 0)
        for name, share in shares_of(tree, demands, {"gpu": total}).items()
        if name not in (DEFAULT, SYSTEM)
    }


TWO_LEVELS = QuotaTree(
    [
        spec("org", 20, 60, is_parent=True),
        spec("ci", 10, 40, parent="org"),
        spec("dev", 10, 40, parent="org"),
        spec("batch", 0, 80),
    ]
)


@pytest.mark.parametrize(
    ("demands", "total", "found"),
    [
        (asks(ci=5), 100, {"org": 5, "ci": 5, "dev": 0, "batch": 0}),
        (asks(ci=50), 100, {"org": 40, "ci": 40, "dev": 0, "batch": 0}),
        (asks(ci=50, dev=50), 100, {"org": 60, "ci": 30, "dev": 30, "batch": 0}),
        (asks(ci=50, dev=50, batch=100), 100, {"org": 54, "ci": 27, "dev": 27, "batch": 46}),
        (asks(ci=50, dev=50, batch=100), 10, {"org": 10, "ci": 5, "dev": 5, "batch": 0}),
        (asks(ci=50, dev=50), 0, {"org": 0, "ci": 0, "dev": 0, "batch": 0}),
    ],
    ids=["small", "max of a child", "max of the parent", "beside another", "less than all mins", "no nodes"],
)
def test_requests_go_up_and_runtimes_come_down(
    demands: dict[str, QuotaDemand], total: int, found: dict[str, int]
) -> None:
    assert runtimes_of(TWO_LEVELS, demands, total) == found | {ROOT: total}


def test_a_quota_that_does_not_lend_asks_for_its_min() -> None:
    tree = QuotaTree(
        [spec("org", 8, 8, is_parent=True), spec("a", 8, 8, parent="org", lends=False), spec("b")]
    )
    shares = shares_of(tree, asks(b=10), {"gpu": 10})
    assert (shares["org"].child_request, shares["org"].limit_request) == ({"gpu": 8}, {"gpu": 8})
    assert [shares[name].runtime["gpu"] for name in ("org", "a", "b")] == [8, 8, 2]


def test_system_and_default_quota_go_first() -> None:
    demands = asks(batch=100) | {
        SYSTEM: QuotaDemand(used={"gpu": 10}),
        DEFAULT: QuotaDemand(request={"gpu": 90}, used={"gpu": 20}),
    }
    assert runtimes_of(TWO_LEVELS, demands, 100)["batch"] == 70


def test_a_parents_own_pods_take_of_what_its_children_share() -> None:
    demands = asks(ci=50) | {"org": QuotaDemand({"gpu": 25}, {"gpu": 25})}
    found = runtimes_of(TWO_LEVELS, demands, 100)
    assert (found["org"], found["ci"]) == (60, 35)


@pytest.mark.parametrize(("ignores", "batch"), [(False, 70), (True, 80)])
def test_a_tree_of_its_own_has_its_own_total(ignores: bool, batch: int) -> None:
    top = spec(
        "gpu-pool",
        30,
        30,
        tree_id="t",
        is_tree_root=True,
        is_parent=True,
        total={"gpu": 30},
        ignores_default_tree=ignores,
    )
    tree = QuotaTree([top, spec("x", 10, 30, parent="gpu-pool", tree_id="t"), spec("batch", 0, 80)])
    found = runtimes_of(tree, asks(x=100, batch=100), 100)
    assert (found["gpu-pool"], found["x"], found["batch"]) == (30, 30, batch)


def test_a_guarantee_is_kept_whatever_becomes_of_minimums() -> None:
    tree = QuotaTree([spec("a", 10, guarantee={"gpu": 8}), spec("b", 10)])
    found = shares_of(tree, asks(a=20, b=20), {"gpu": 10})
    assert (found["a"].scaled_min, found["a"].runtime) == ({"gpu": 5}, {"gpu": 8})


@pytest.mark.parametrize("where", ["weight", "min", "guarantee", "max"])
def test_a_negative_amount_gives_nobody_more_than_there_is(where: str) -> None:
    below: dict[str, Any] = {"name": "a", "parent": "org", "max": {"gpu": 100}, where: {"gpu": -90}}
    tree = QuotaTree([spec("org", is_parent=True), QuotaSpec(**below), spec("b", parent="org"), spec("c")])
    found = runtimes_of(tree, asks(a=100, b=100, c=100), 100)
    assert found["a"] + found["b"] == found["org"]
    assert found["org"] + found["c"] == 100
    assert min(found.values()) >= 0


def test_quotas_above_themselves_or_nothing_count_below_the_root() -> None:
    tree = QuotaTree([spec("a", parent="b"), spec("b", parent="a"), spec("c", parent="nobody")])
    assert tree.children(ROOT) == ("a", "b", "c")
    assert [tree.path(name) for name in "abc"] == [("a",), ("b",), ("c",)]
    assert tree.children("a") == ()


def test_the_built_in_quotas_are_there_without_objects() -> None:
    tree = QuotaTree()
    assert set(tree.specs) == {ROOT, SYSTEM, DEFAULT}
    shares = shares_of(tree, {}, {"cpu": 4000})
    assert shares[DEFAULT].runtime == {"cpu": (2**63 - 1) // 5 * 1000, "memory": (2**63 - 1) // 5}


@pytest.mark.parametrize(
    ("label", "namespace", "found"),
    [
        ("ci", "dev", "ci"),
        (None, "team", "team"),
        (None, "other", DEFAULT),
        (None, "lent", "ci"),
        ("nobody", "team", "team"),
        (ROOT, "other", DEFAULT),
        (None, "elsewhere", DEFAULT),
    ],
    ids=["label", "like the namespace", "default", "listed", "unknown label", "root", "other namespace"],
)
def test_whose_a_pod_is(label: str | None, namespace: str, found: str) -> None:
    tree = QuotaTree(
        [spec("ci", namespaces=("lent",)), spec("team", namespace="team"), spec("elsewhere", namespace="x")]
    )
    assert tree.quota_of(label, namespace) == found


def test_sums_have_what_is_below() -> None:
    found = TWO_LEVELS.summed({"ci": {"gpu": 2}, "dev": {"gpu": 3, "cpu": 1}, "org": {"cpu": 4}})
    assert (found["org"], found["ci"], found[ROOT]) == ({"gpu": 5, "cpu": 5}, {"gpu": 2}, {})
