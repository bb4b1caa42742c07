"""The decisions of `LoadAwareScheduling`: figures of reference/koordinator.md 2.1, and laws."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.placing.plugins.load_aware.core import (
    Amounts,
    Freshness,
    NodeReport,
    PodLoad,
    PodReport,
    UsageLimits,
    UsageWindow,
    aggregated,
    estimate,
    excesses,
    freshness,
    node_load,
    rounded,
    score,
)

MI = 1024 * 1024
GI = 1024 * MI
FACTORS = {"cpu": 85, "memory": 70}
DEFAULTS = {"cpu": 250, "memory": 200 * MI}
BOTH = ("cpu", "memory")
T0 = 1_800_000_000.0
"""The moment of the reports."""
OLD = T0 - 3600


def load(name: str, cpu: int, **rest: Any) -> PodLoad:
    return PodLoad(("default", name), f"uid-{name}", {"cpu": cpu}, **{"scheduled_at": OLD, **rest})


def report(node: int | None = None, /, **pods: PodReport) -> NodeReport:
    return NodeReport(
        T0,
        node={"cpu": node} if node is not None else None,
        pods={("default", name): each for name, each in pods.items()},
    )


def uses(cpu: int, **rest: Any) -> PodReport:
    return PodReport({"cpu": cpu}, **rest)


@pytest.mark.parametrize(
    ("asked", "limits", "found"),
    [
        ({"cpu": 4000, "memory": 8 * GI}, {}, {"cpu": 3400, "memory": rounded(8 * GI * 70, 100)}),
        ({"cpu": 4000, "memory": 8 * GI}, {"cpu": 8000}, {"cpu": 6800, "memory": rounded(8 * GI * 70, 100)}),
        ({"cpu": 0, "memory": 0}, {}, DEFAULTS),
        ({"cpu": 0, "memory": 0}, {"cpu": 1000}, {"cpu": 850, "memory": 200 * MI}),
        ({"cpu": 1, "memory": 1}, {}, {"cpu": 1, "memory": 1}),
        ({"cpu": 10, "memory": 5}, {"memory": 3}, {"cpu": 9, "memory": 3}),
    ],
    ids=["requests", "the limit is larger", "nothing", "a limit alone", "half up", "not above the limit"],
)
def test_the_estimate_of_a_pod(asked: Amounts, limits: Amounts, found: Amounts) -> None:
    assert estimate(asked, limits, FACTORS, DEFAULTS) == found


def test_a_resource_without_a_factor_counts_whole() -> None:
    assert estimate({"gpu": 3}, {}, FACTORS, {}) == {"gpu": 3}


@pytest.mark.parametrize(
    ("pod", "found", "unseen"),
    [
        (load("a", 850), None, 850),
        (load("a", 850), uses(300), 0),
        (load("a", 850, scheduled_at=T0 - 60), uses(300), 0),
        (load("a", 850, scheduled_at=T0 - 59), uses(300), 550),
        (load("a", 850, scheduled_at=T0 - 59), uses(900), 0),
        (load("a", 850, scheduled_at=None), uses(300), 550),
        (load("a", 850, deadline_at=T0), uses(300), 0),
        (load("a", 850, deadline_at=T0 + 1), uses(300), 550),
        (load("a", 850, permitted={"cpu": 1000}), uses(300, held={"cpu": 1000}), 0),
        (load("a", 1700, permitted={"cpu": 2000}), uses(300, held={"cpu": 1000}), 1400),
        (load("a", 1700, permitted={"cpu": 2000}), uses(300), 1400),
    ],
    ids=[
        "not reported",
        "reported",
        "bound when the window began",
        "bound inside of the window",
        "uses more already",
        "not seen bound",
        "its time is over",
        "its time is not over",
        "did not grow",
        "has grown since",
        "grows, and the report does not say what it held",
    ],
)
def test_a_report_cannot_show_all(pod: PodLoad, found: PodReport | None, unseen: int) -> None:
    reported = report(1000, **({"a": found} if found is not None else {}))
    judged = node_load(reported, [pod])
    assert judged.unseen.get("cpu", 0) == unseen
    assert judged.existing() == {"cpu": 1000 + unseen}
    assert list(judged.waiting) == ([("default", "a")] if unseen else [])


def test_prod_pods_are_those_of_object_and_report() -> None:
    pods = [load("a", 800), load("b", 800), load("c", 800, is_prod=False), load("d", 800)]
    reported = report(
        5000,
        a=uses(100, is_prod=True),
        b=uses(100, is_prod=False),
        c=uses(100, is_prod=True),
        d=uses(100),
    )
    judged = node_load(reported, pods)
    assert judged.prod == {"cpu": 200}
    assert judged.unseen_prod == {"cpu": 800}
    assert judged.unseen == {}
    assert judged.existing(prod_only=True) == {"cpu": 1000}


def test_the_system_may_count_as_prod() -> None:
    reported = NodeReport(T0, node={"cpu": 5}, system={"cpu": 3})
    assert node_load(reported, [], prod_with_system=True).existing(prod_only=True) == {"cpu": 3}
    assert node_load(reported, []).existing(prod_only=True) == {}


WINDOWS = {"p95": ((300.0, {"cpu": 5}), (600.0, {"cpu": 6}))}


@pytest.mark.parametrize(
    ("type_", "window_s", "found"),
    [
        ("p95", 300, 5),
        ("p95", 600, 6),
        ("p95", 0, 6),
        ("p95", 1800, 6),
        ("p95", 599, 5),
        ("p95", 60, 1),
        ("p50", 0, 1),
        ("p50", 300, 1),
    ],
    ids=[
        "exactly",
        "the longer one",
        "the longest",
        "shorter data instead",
        "the longest that is shorter",
        "none as short",
        "no such figure",
        "no such figure of a window",
    ],
)
def test_a_window_that_is_missing_falls_back(type_: str, window_s: float, found: int) -> None:
    reported = NodeReport(T0, node={"cpu": 1}, aggregated=WINDOWS)
    assert aggregated(reported, UsageWindow(type_, window_s)) == {"cpu": found}


def test_estimates_alone_where_no_use_of_the_node_is_reported() -> None:
    pods = [load("a", 800), load("b", 200)]
    assert node_load(None, pods).existing() == {"cpu": 1000}
    assert node_load(report(None, a=uses(5)), pods).existing() == {"cpu": 1000}
    assert node_load(report(None), pods).existing(wanted=UsageWindow("p95", 300)) == {"cpu": 1000}


@pytest.mark.parametrize(
    ("reported", "found"),
    [
        (None, "missing"),
        (NodeReport(None), "expired"),
        (NodeReport(T0 - 180), "expired"),
        (NodeReport(T0 - 179.9), "fresh"),
        (NodeReport(T0 + 30), "fresh"),
    ],
)
def test_freshness(reported: NodeReport | None, found: Freshness) -> None:
    assert freshness(reported, T0, 180) == found


@pytest.mark.parametrize(
    ("node", "asking", "thresholds", "texts"),
    [
        (60_000, 5_400, {"cpu": 65}, ()),
        (60_000, 5_499, {"cpu": 65}, ()),
        (60_000, 5_500, {"cpu": 65}, ("node(s) cpu usage exceed threshold",)),
        (99_000, 5_500, {"cpu": 0}, ()),
        (99_000, 5_500, {}, ()),
        (99_000, 5_500, {"gpu": 10}, ()),
    ],
    ids=["below", "rounds down", "half rounds up", "threshold 0 is none", "no thresholds", "no capacity"],
)
def test_thresholds(node: int, asking: int, thresholds: Mapping[str, int], texts: tuple[str, ...]) -> None:
    judged = node_load(report(node), [])
    limits = UsageLimits(thresholds)
    assert excesses(judged, {"cpu": asking}, {"cpu": 100_000}, limits) == texts


def test_the_text_tells_of_aggregated_usage() -> None:
    judged = node_load(NodeReport(T0, node={"cpu": 1}, aggregated=WINDOWS), [])
    limits = UsageLimits({"cpu": 50}, wanted=UsageWindow("p95"))
    text = "node(s) cpu aggregated usage exceed threshold"
    assert excesses(judged, {"cpu": 0}, {"cpu": 10}, limits) == (text,)


@pytest.mark.parametrize(
    ("used", "weights", "dominant", "found"),
    [
        ({"cpu": 25, "memory": 50}, {"cpu": 1, "memory": 1}, 0, 62),
        ({"cpu": 25, "memory": 50}, {"cpu": 3, "memory": 1}, 0, 68),
        ({"cpu": 25, "memory": 50}, {}, 1, 50),
        ({"cpu": 25, "memory": 50}, {"cpu": 1}, 1, 62),
        ({"cpu": 25, "memory": 50}, {"cpu": 1, "memory": 1}, 2, 56),
        ({"cpu": 101, "memory": 0}, {"cpu": 1, "memory": 1}, 0, 50),
        ({"cpu": 100, "memory": 0}, {"cpu": 1}, 0, 0),
        ({}, {"cpu": 1, "memory": 1}, 1, 100),
        ({}, {"gpu": 1}, 0, 0),
        ({}, {}, 0, 0),
    ],
)
def test_scores(used: Amounts, weights: Mapping[str, int], dominant: int, found: int) -> None:
    assert (
        score(used, {"cpu": 100, "memory": 100}, weights, dominant, (*BOTH, "gpu")[: 2 + ("gpu" in weights)])
        == found
    )


amount = st.integers(0, 10**12)
pair = st.fixed_dictionaries({"cpu": amount, "memory": amount})
weight = st.integers(0, 100)
moment = st.none() | st.integers(-3600, 3600).map(lambda offset: T0 + offset)


@given(pair, pair, st.fixed_dictionaries({"cpu": weight, "memory": weight}), weight, pair)
def test_law_scores_are_from_0_to_100_and_more_load_never_scores_higher(
    used: dict[str, int],
    capacity: dict[str, int],
    weights: dict[str, int],
    dominant: int,
    more: dict[str, int],
) -> None:
    busier = {name: used[name] + more[name] for name in BOTH}
    low, high = (score(each, capacity, weights, dominant, BOTH) for each in (busier, used))
    assert 0 <= low <= high <= 100


@st.composite
def reported_pods(draw: st.DrawFn) -> tuple[PodLoad, PodReport]:
    pod = PodLoad(
        ("default", "a"),
        "uid-a",
        draw(pair),
        draw(st.booleans()),
        draw(moment),
        draw(moment),
        draw(st.none() | pair),
    )
    return pod, PodReport(draw(pair), draw(st.sampled_from([None, True, False])), draw(st.none() | pair))


@given(reported_pods(), pair)
def test_law_a_reported_pod_counts_with_the_larger_of_report_and_estimate_and_never_with_both(
    both: tuple[PodLoad, PodReport], rest: dict[str, int]
) -> None:
    pod, found = both
    node = {name: rest[name] + found.usage[name] for name in BOTH}
    judged = node_load(NodeReport(T0, node=node, pods={pod.key: found}), [pod])
    existing, prod = judged.existing(), judged.existing(prod_only=True)
    for name in BOTH:
        counted = existing[name] - rest[name] if name in existing else found.usage[name]
        assert counted in {found.usage[name], max(found.usage[name], pod.estimate[name])}
        assert prod.get(name, 0) <= max(found.usage[name], pod.estimate[name])


@given(st.lists(pair, max_size=4), pair, pair, st.fixed_dictionaries({"cpu": weight, "memory": weight}))
def test_law_what_passes_with_a_pod_more_passes_without_it(
    estimates: list[dict[str, int]],
    node: dict[str, int],
    capacity: dict[str, int],
    thresholds: dict[str, int],
) -> None:
    pods = [PodLoad(("default", str(i)), str(i), each) for i, each in enumerate(estimates)]
    asking, limits = {"cpu": 1, "memory": 1}, UsageLimits(thresholds)
    loads = [node_load(NodeReport(T0, node=node), pods[:count]) for count in range(len(pods) + 1)]
    found = [set(excesses(each, asking, capacity, limits)) for each in loads]
    assert all(fewer <= more for fewer, more in pairwise(found))
