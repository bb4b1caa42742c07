"""`SchedulingHint`: the hint narrows where a pod may go, and never widens it."""

import asyncio
import json
from typing import Any

import pytest

from parley.testing import FakeCluster, assert_rejected, node, pod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Code
from scheduler.placing.plugins.scheduling_hint import DEPRECATED_HINT, HINT, hint_of


def hinted(name: str, hint: Any, *, key: str = HINT) -> PodInfo:
    written = hint if isinstance(hint, str) else json.dumps(hint)
    return pod(name, "1", annotations={key: written})


def placed(cluster: FakeCluster, wanted: PodInfo, **args: Any) -> str:
    """Its node, or why it has none."""
    framework = cluster.framework({"SchedulingHint": None}, {"SchedulingHint": args})
    failure = asyncio.run(cluster.schedule(framework, wanted))
    return cluster.bound[wanted.name] if failure is None else failure.text


def nodes() -> FakeCluster:
    return FakeCluster(*(node(name, "1", "1Gi") for name in "abcd"))


@pytest.mark.parametrize("key", [HINT, DEPRECATED_HINT])
def test_only_the_nodes_of_the_hint_are_looked_at(key: str) -> None:
    cluster = nodes()
    assert placed(cluster, hinted("p", {"nodeNames": ["c"]}, key=key)) == "c"
    assert "Insufficient cpu" in placed(cluster, hinted("q", {"nodeNames": ["c"]}, key=key))


def test_preferred_nodes_are_tried_in_their_order_and_then_all() -> None:
    cluster = nodes()
    hint = {"preferredNodeNames": ["ghost", "d", "b"]}
    assert [placed(cluster, hinted(name, hint)) for name in "pq"] == ["d", "b"]
    assert placed(cluster, hinted("r", hint)) in {"a", "c"}


def test_preferred_nodes_beyond_the_bound_and_beside_the_hint_are_not_tried() -> None:
    cluster = nodes()
    assert placed(cluster, hinted("p", {"preferredNodeNames": ["ghost", "d"]}), maxHintNodes=1) != ""
    both = {"nodeNames": ["a", "b", "c"], "preferredNodeNames": ["d", "b"]}
    cluster = nodes()
    assert placed(cluster, hinted("q", both)) == "b"


def test_a_pod_without_a_hint_goes_anywhere() -> None:
    assert placed(nodes(), pod("p", "1")) in set("abcd")
    assert hint_of(pod("p").manifest) is None


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("{", "is not JSON"),
        ('{"nodeNames": "a"}', f"annotation {HINT}.nodeNames"),
        ('{"nodes": [], "preferredNodeNames": [1]}', f"annotation {HINT}.preferredNodeNames[0]"),
        ('{"nodes": [], "preferredNodeNames": [1]}', f"annotation {HINT}.nodes"),
    ],
)
def test_a_hint_that_cannot_be_read_is_told_with_every_fault(written: str, fault: str) -> None:
    assert fault in placed(nodes(), hinted("p", written))


def test_the_rejection_is_final_until_the_pod_is_changed() -> None:
    cluster = nodes()
    framework = cluster.framework({"SchedulingHint": None})
    failure = asyncio.run(cluster.schedule(framework, hinted("p", "{")))
    assert failure is not None
    assert_rejected(failure.status, "is not JSON", Code.UNSCHEDULABLE_AND_UNRESOLVABLE)
