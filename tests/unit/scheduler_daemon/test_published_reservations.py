"""Published Reservations in full mode: they are given a node like pods, the ledger keeps their room, and their owners use it."""

import json
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.resources import NODES, PODS, RESERVATIONS, Manifest
from protocol.values import Resources
from scheduler.clusters.kubernetes.published_reservations import published_reservation_of, reserve_pod
from scheduler.clusters.kubernetes.reservations import KubernetesReservations
from scheduler.placing.plugins.published_reservations import AFFINITY, ALLOCATED, is_garbage
from scheduler.placing.plugins.reservation import POLICY_CONFLICT
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s
from tests.unit.scheduler_clusters.kube_manifests import node, pod
from tests.unit.scheduler_daemon.test_own_pods import FullWorld, in_world

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OWNERS = [{"labelSelector": {"matchLabels": {"app": "db"}}}]
GIB = 2**30


def reservation(**spec: Any) -> Manifest:
    requests = {"cpu": "2", "memory": "2Gi"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}
    return {
        "metadata": {"name": "r", "labels": {}, "annotations": {}},
        "spec": {"template": template, "owners": OWNERS, "ttl": "0", **spec},
    }


class ReservedWorld(FullWorld):
    """With the objects that the core is told of and whose status is written."""

    def __init__(self) -> None:
        super().__init__()
        self.wall = BEGIN
        self.reservations = KubernetesReservations(
            self.server.api(), now_s, random.Random(1), QUIET, lambda: self.wall
        )

    def reserve(self, manifest: Manifest) -> None:
        self.server.put(PUBLISHED_RESERVATIONS, manifest)

    async def goes_on(self, seconds: float = 5.0) -> None:
        for _ in range(int(seconds)):
            await super().goes_on(1.0)
            await self.reservations.load()
            self.reservations.tell(self.core.apply)
            await self.reservations.write(self.core.state)

    def owner(self, name: str, cpu: str = "2", **annotations: str) -> None:
        self.waiting(name, cpu)
        found = self.server.get(PODS, "default", name)
        found["metadata"] |= {"labels": {"app": "db"}, "annotations": annotations}
        self.server.put(PODS, found)

    def status(self, name: str = "r") -> Manifest:
        found: Manifest = self.server.get(PUBLISHED_RESERVATIONS, "", name)["status"]
        return found

    def said(self, type_: str, name: str = "r") -> tuple[str, str, str]:
        (found,) = (each for each in self.status(name)["conditions"] if each["type"] == type_)
        return found["status"], found["reason"], found["message"]

    def annotation(self, name: str) -> Any:
        return json.loads(self.server.get(PODS, "default", name)["metadata"]["annotations"][ALLOCATED])


def reserved(story: Callable[[ReservedWorld], Awaitable[None]]) -> Callable[[], None]:
    return in_world(story, ReservedWorld)


@reserved
async def test_it_is_given_a_node_and_its_owner_uses_its_room(world: ReservedWorld) -> None:
    world.reserve(reservation())
    await world.goes_on(10)
    assert (world.status()["phase"], world.status()["nodeName"]) == ("Available", "n1")
    assert world.said("Scheduled")[:2] == ("True", "Scheduled")
    assert world.reserved() == Resources(2000, 2 * GIB)
    world.waiting("stranger", "3")
    await world.goes_on()
    assert world.node_of("stranger") == "", "the room is kept"
    world.owner("db")
    await world.goes_on(10)
    assert world.node_of("db") == "n1"
    assert world.annotation("db")["name"] == "r"
    assert world.reserved() == Resources(2000, GIB), "nothing is counted twice, and the rest is free"
    assert (world.status()["phase"], world.said("Ready")[1]) == ("Succeeded", "Succeeded")


@reserved
async def test_one_that_finds_no_room_says_so_and_gets_it_later(world: ReservedWorld) -> None:
    world.waiting("a", "3")
    await world.goes_on()
    world.reserve(reservation())
    await world.goes_on(10)
    status, reason, message = world.said("Scheduled")
    assert (status, reason) == ("False", "Unschedulable")
    assert "Insufficient cpu" in message
    assert world.status()["phase"] == "Pending"
    assert world.events_of("r") == ["FailedScheduling"]
    world.server.delete(PODS, "default", "a")
    await world.goes_on(70)
    assert world.status()["phase"] == "Available"


@reserved
async def test_several_pods_share_one_that_is_not_for_one_alone(world: ReservedWorld) -> None:
    world.reserve(reservation(allocateOnce=False))
    await world.goes_on(10)
    world.owner("a", "1")
    world.owner("b", "1")
    await world.goes_on(10)
    assert (world.node_of("a"), world.node_of("b")) == ("n1", "n1")
    assert world.reserved().vcpu_milli == 2000
    assert world.status()["phase"] == "Available"
    assert world.status()["allocated"]["cpu"] == "2"
    assert len(world.status()["currentOwners"]) == 2


@reserved
async def test_a_restricted_one_is_never_stretched_into_the_room_of_the_node(world: ReservedWorld) -> None:
    affinity = json.dumps({"reservationSelector": {"team": "a"}})
    manifest = reservation(allocatePolicy="Restricted", allocateOnce=False)
    manifest["metadata"]["labels"] = {"team": "a"}
    world.reserve(manifest)
    await world.goes_on(10)
    world.owner("large", "3", **{AFFINITY: affinity})
    world.owner("right", "2", **{AFFINITY: affinity})
    await world.goes_on(10)
    assert (world.node_of("large"), world.node_of("right")) == ("", "n1")
    assert "Reservation(s) Insufficient cpu" in world.condition("large")["message"]


def running(name: str, cpu: str, **labels: str) -> Manifest:
    found = pod(name, cpu)
    found["metadata"]["labels"] = labels
    found["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return found


@reserved
async def test_a_pre_allocated_one_waits_on_its_node_for_the_room_of_an_owner(world: ReservedWorld) -> None:
    """It takes what is free at once, and the rest when its owner leaves; nobody uses it before that, and the node is never over-full."""
    world.put(PODS, running("old", "3", app="db"))
    await world.goes_on()
    world.reserve(reservation(preAllocation=True))
    await world.goes_on(10)
    assert (world.status()["phase"], world.status()["nodeName"]) == ("Waiting", "n1")
    assert world.said("Ready")[1] == "NoRoom"
    assert world.reserved().vcpu_milli == 4000
    world.waiting("stranger", "1")
    world.owner("new")
    await world.goes_on()
    assert (world.node_of("stranger"), world.node_of("new")) == ("", "")
    world.server.delete(PODS, "default", "old")
    await world.goes_on(70)
    assert world.node_of("new") == "n1"
    assert world.annotation("new")["name"] == "r"


@reserved
async def test_a_pre_allocated_one_goes_to_no_node_where_strangers_have_the_room(
    world: ReservedWorld,
) -> None:
    world.put(PODS, running("other", "3", app="web"))
    world.put(PODS, {**running("begins", "1", app="db"), "status": {"phase": "Pending"}})
    await world.goes_on()
    world.reserve(reservation(preAllocation=True))
    await world.goes_on(10)
    assert "Insufficient cpu" in world.said("Scheduled")[2]
    assert world.reserved().vcpu_milli == 4000


DISK = "example.org/disk"


def with_disks(manifest: Manifest, disks: str) -> Manifest:
    """The same pod, template or pod of the API server with so many disks."""
    manifest["spec"]["containers"][0]["resources"]["requests"][DISK] = disks
    return manifest


@reserved
async def test_what_the_ledger_does_not_count_is_kept_for_its_owners_too(world: ReservedWorld) -> None:
    status = {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110", DISK: "4"}}
    world.put(NODES, {**node(), "status": status})
    manifest = reservation(allocateOnce=False)
    with_disks(manifest["spec"]["template"], "3")
    world.reserve(manifest)
    await world.goes_on(10)
    world.waiting("stranger", "1")
    world.server.put(PODS, with_disks(world.server.get(PODS, "default", "stranger"), "2"))
    await world.goes_on(70)
    assert f"Insufficient {DISK} by node" in world.condition("stranger")["message"]
    world.owner("db", "2")
    world.server.put(PODS, with_disks(world.server.get(PODS, "default", "db"), "3"))
    await world.goes_on(70)
    assert world.annotation("db")["name"] == "r"
    world.waiting("small", "1")
    world.server.put(PODS, with_disks(world.server.get(PODS, "default", "small"), "1"))
    await world.goes_on(70)
    assert world.node_of("small") == "n1", "what its owner has of it is counted once"


@reserved
async def test_those_of_the_default_policy_are_not_on_one_node_with_others(world: ReservedWorld) -> None:
    world.reserve(reservation())
    await world.goes_on(10)
    aligned = reservation(allocatePolicy="Aligned")
    aligned["metadata"]["name"] = "aligned"
    world.reserve(aligned)
    await world.goes_on(10)
    assert POLICY_CONFLICT in world.said("Scheduled", "aligned")[2]


@reserved
async def test_one_whose_time_is_over_gives_its_room_back(world: ReservedWorld) -> None:
    world.reserve(reservation(expires="2199-01-01T00:00:00Z"))
    await world.goes_on(10)
    assert world.status()["phase"] == "Available"
    world.wall = datetime(2199, 1, 1, tzinfo=UTC)
    await world.goes_on(10)
    assert (world.status()["phase"], world.said("Ready")[1]) == ("Failed", "Expired")
    assert world.reserved() == Resources(0, 0)


@reserved
async def test_the_published_one_counts_if_both_have_one_name(world: ReservedWorld) -> None:
    world.server.put(
        RESERVATIONS,
        {"metadata": {"name": "r"}, "spec": {"nodeName": "n1", "resources": {"cpu": 1, "memory": "1Gi"}}},
    )
    world.reserve(reservation())
    await world.goes_on(10)
    assert world.reserved() == Resources(2000, 2 * GIB)
    ours = world.server.get(RESERVATIONS, "", "r")["status"]
    assert ours["phase"] == "Pending"
    assert "is the one that counts" in ours["conditions"][0]["message"]


@reserved
async def test_faults_are_told_all_at_once_and_nothing_is_kept(world: ReservedWorld) -> None:
    world.reserve(reservation(ttl="soon", preAllocationPolicy={"mode": "Cluster"}, allocatePolicy="Loose"))
    await world.goes_on(10)
    _, reason, message = world.said("Ready")
    assert reason == "Faults"
    assert [part in message for part in ("ttl", "preAllocationPolicy.mode", "allocatePolicy")] == [True] * 3
    assert world.reserved() == Resources(0, 0)


@pytest.mark.parametrize(
    ("spec", "later", "is_over"),
    [
        ({"ttl": None}, timedelta(hours=23), False),
        ({"ttl": None}, timedelta(hours=25), True),
        ({"ttl": "0"}, timedelta(days=9), False),
        ({"ttl": "0", "expires": "2026-01-02T00:00:00Z"}, timedelta(days=1), True),
        ({"ttl": "1h", "expires": "2026-01-02T00:00:00Z"}, timedelta(hours=2), False),
    ],
)
def test_expires_counts_before_the_ttl_and_that_is_a_day_unless_told(
    spec: dict[str, str | None], later: timedelta, is_over: bool
) -> None:
    manifest = reservation(**spec)
    manifest["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert published_reservation_of(manifest, BEGIN + later).has_ended is is_over
    assert (reserve_pod(manifest, "any", BEGIN + later) is None) is is_over


@pytest.mark.parametrize(
    ("phase", "hours", "goes"), [("Failed", 25, True), ("Succeeded", 23, False), ("Available", 99, False)]
)
def test_what_ended_a_day_ago_is_deleted(phase: str, hours: int, goes: bool) -> None:
    condition = {"type": "Ready", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    manifest = {"metadata": {"name": "r"}, "status": {"phase": phase, "conditions": [condition]}}
    assert is_garbage(manifest, BEGIN + timedelta(hours=hours), 86_400) is goes


@pytest.mark.parametrize(
    "spec",
    [
        {"template": {"spec": {"containers": "x"}}},
        {"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "many"}}}]}}},
        {"template": {"spec": []}},
        {"owners": [{"labelSelector": {"matchLabels": ["a"]}}]},
        {"owners": [{"labelSelector": {"matchExpressions": [{"key": "a"}]}}]},
        {"ttl": 5},
    ],
    ids=str,
)
def test_an_object_that_cannot_be_read_holds_up_no_other(spec: dict[str, Any]) -> None:
    @reserved
    async def story(world: ReservedWorld) -> None:
        odd = reservation(**spec)
        odd["metadata"]["name"] = "an-odd-one"
        world.reserve(odd)
        world.reserve(reservation())
        await world.goes_on(10)
        assert world.status()["phase"] == "Available"
        assert world.said("Ready", "an-odd-one")[1] == "Faults"

    story()


DEEP = "[" * 100_000
"""So deep that reading it ends with a `RecursionError`."""


@reserved
async def test_annotations_of_pods_that_cannot_be_read_stop_nobody(world: ReservedWorld) -> None:
    world.owner("deep", "1", **{AFFINITY: DEEP})
    await world.goes_on()
    assert f"annotation {AFFINITY} is not JSON" in world.condition("deep")["message"]
    placed = pod("placed", "1")
    placed["metadata"]["annotations"] = {ALLOCATED: DEEP}
    world.put(PODS, placed)
    await world.goes_on()
    assert world.reserved().vcpu_milli == 1000, "the pod counts"
