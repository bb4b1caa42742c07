"""What a published Reservation says of itself, apart from the cluster: whose room it waits for, what it keeps, what its args may be."""

from dataclasses import replace
from typing import Any

import pytest

from hosting.settings import FaultsError, check
from parley.testing import node, pod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins.published_reservations import (
    ALLOCATED,
    PublishedTerms,
    allocated_text,
    lacking,
)
from scheduler.placing.plugins.reservation_args import ReservationArgs
from tests.support.amounts import cu

DISK = "example.org/disk"
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def terms(**spec: Any) -> PublishedTerms:
    asked = {"cpu": "2", DISK: "3", "pods.example.org/slots": "1"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": asked}}]}}
    owners = [{"labelSelector": {"matchLabels": {"app": "db"}}}]
    manifest = {
        "metadata": {"name": "r", "uid": "uid-r"},
        "spec": {"template": template, "owners": owners, **spec},
    }
    return PublishedTerms.of(manifest, lambda name: name.startswith("pods.example.org/"))


def running(name: str, cpu: int, app: str = "db", status: Any = READY) -> PodInfo:
    found = pod(name, str(cpu), f"{cpu}Gi", labels={"app": app}, node="n1")
    return replace(found, manifest={**found.manifest, "status": status})


@pytest.mark.parametrize(
    ("pre_allocation", "pods", "free"),
    [
        ({}, [running("a", 3)], None),
        ({"preAllocation": True}, [running("a", 1)], None),
        ({"preAllocation": True}, [running("a", 3)], 4),
        ({"preAllocation": True}, [running("a", 1), running("b", 2)], 2),
        ({"preAllocation": True}, [running("a", 3, app="web")], None),
        ({"preAllocation": True}, [running("a", 3, status={"phase": "Running"})], None),
        ({"preAllocation": True}, [running("a", 3, status={**READY, "phase": "Succeeded"})], None),
        ({"preAllocation": True}, [running(name, 1) for name in "abcd"], None),
        (
            {"preAllocation": True, "preAllocationPolicy": {"enableMultiple": True}},
            [running(name, 1) for name in "abcd"],
            4,
        ),
    ],
)
def test_a_pre_allocated_one_waits_for_the_room_of_owners_that_run(
    pre_allocation: dict[str, Any], pods: list[PodInfo], free: int | None
) -> None:
    """On a node of four CPUs, for two. None: nothing is taken over, as there is room or it would not be enough."""
    view = terms(**pre_allocation).taken_over(node("n1", "4", "16Gi", *pods), cu(2))
    assert (view.free.vcpu_milli // 1000 if view is not None else None) == free


def test_what_its_users_have_taken_is_not_kept_any_more() -> None:
    mine = pod("a", annotations={ALLOCATED: allocated_text("r", "uid-r")}, more={DISK: "2"})
    other = pod("b", annotations={ALLOCATED: allocated_text("s", "uid-s")}, more={DISK: "2"})
    kept = terms()
    assert kept.others == {DISK: 3}
    assert kept.left([], "uid-r") == {DISK: 3}
    assert kept.left([mine, other], "uid-r") == {DISK: 1}
    assert kept.left([mine, replace(mine, uid="uid-c")], "uid-r") == {DISK: 0}


@pytest.mark.parametrize(
    ("wanted", "kept", "short"),
    [
        ({DISK: 2}, [], []),
        ({DISK: 2}, [{DISK: 2}], []),
        ({DISK: 3}, [{DISK: 2}], [DISK]),
        ({DISK: 2}, [{DISK: 2}, {DISK: 1}], [DISK]),
        ({DISK: 9}, [{DISK: 0}], []),
        ({"example.org/other": 9}, [{DISK: 2}], []),
        ({"example.org/other": 9}, [{"example.org/other": 2}], []),
    ],
)
def test_a_pod_finds_what_reservations_leave_of_a_node(
    wanted: dict[str, int], kept: list[dict[str, int]], short: list[str]
) -> None:
    """Of four disks. Of a resource that the node lacks, and without reservations, `NodeResources` says what is there."""
    assert lacking(wanted, {DISK: 4}, kept) == short


@pytest.mark.parametrize(("policy", "names"), [("Restricted", {"cpu", "memory", DISK}), ("Aligned", None)])
def test_a_restricted_one_is_about_all_that_it_has(policy: str, names: set[str] | None) -> None:
    assert terms(allocatePolicy=policy).restricted == names
    assert not terms(allocatePolicy=policy).is_default
    assert terms().is_default


def test_native_resources_are_not_ignored() -> None:
    """All faults at once."""
    bad = {
        "ignoredResources": ["cpu", "hugepages-2Mi", "kubernetes.io/x", DISK],
        "ignoredResourceGroups": ["example.org", "kubernetes.io", "a/b"],
    }
    with pytest.raises(FaultsError) as caught:
        check(bad, ReservationArgs)
    assert len(caught.value.faults) == 5
    args = check({"ignoredResources": [DISK], "ignoredResourceGroups": ["example.org"]}, ReservationArgs)
    assert args.ignored_resources == [DISK]
