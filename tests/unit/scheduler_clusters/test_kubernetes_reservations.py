"""Reservation objects: what the core is told of them, and what their status says."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hosting.kubernetes.resources import RESERVATIONS, Manifest, ResourceType
from protocol.values import Resources
from scheduler.clusters.kubernetes.reservations import KubernetesReservations, reservation_of
from scheduler.clusters.kubernetes.status import INTERVAL_S
from scheduler.permits.core.model import ReservationOwner
from tests.support.amounts import cu
from tests.support.kube_api import FakeApiServer
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_core import core_worlds

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
"""When the fake API server says that objects were created."""
FOUR: dict[str, Any] = {"cpu": 4, "memory": "4Gi"}
OWNERS: list[dict[str, Any]] = [{"namespace": "team", "labelSelector": {"matchLabels": {"app": "db"}}}]


def reservation(**spec: Any) -> Manifest:
    """An object with the node `n1` and four units, unless `spec` says otherwise."""
    return {
        "apiVersion": RESERVATIONS.api_version,
        "kind": RESERVATIONS.kind,
        "metadata": {
            "name": "r",
            "uid": "uid-r",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "n1", "resources": FOUR, "owners": OWNERS, **spec},
    }


def test_a_reservation_is_read_as_its_spec_says() -> None:
    found = reservation_of(reservation(allocateOnce=False, order=3), BEGIN)
    assert (found.uid, found.name, found.node, found.allocatable) == ("uid-r", "r", "n1", cu(4))
    assert found.owners == (ReservationOwner("team", (("app", "db"),)),)
    assert (found.allocate_once, found.order, found.has_ended) == (False, 3, False)
    anybody = reservation_of(reservation(owners=[{}]), BEGIN)
    assert (anybody.owners, anybody.allocate_once, anybody.order) == ((ReservationOwner(),), True, 0)
    assert reservation_of(reservation(owners=[]), BEGIN).owners == ()


@pytest.mark.parametrize(
    ("ttl", "phase", "later_s", "has_ended"),
    [
        (None, "Available", 10**9, False),
        (60, "Available", 59, False),
        (60, "Available", 60, True),
        (None, "Succeeded", 0, True),
        (None, "Failed", 0, True),
    ],
)
def test_a_reservation_ends_when_its_time_is_over_and_stays_ended(
    ttl: int | None, phase: str, later_s: int, has_ended: bool
) -> None:
    """The phase that was written to its status is known after a restart."""
    manifest = reservation(**({"ttlSeconds": ttl} if ttl is not None else {})) | {"status": {"phase": phase}}
    assert reservation_of(manifest, BEGIN + timedelta(seconds=later_s)).has_ended is has_ended


class World:
    """A fake API server with a reservation, and a core with one node of eight units."""

    def __init__(self, **spec: Any) -> None:
        self.server, self.core = FakeApiServer(), core_worlds.World(cu(8))
        self.wall = BEGIN
        self.faults: list[str] = []
        self.reservations = KubernetesReservations(
            self.server.api(), now_s, random.Random(1), QUIET, lambda: self.wall, self._tell_fault
        )
        self.server.put(RESERVATIONS, reservation(**spec))

    def _tell_fault(self, _: ResourceType, __: Manifest, text: str) -> None:
        self.faults.append(text)

    async def turn(self) -> tuple[str, str]:
        """See what there is, tell the core and write; the phase then, and why."""
        await asyncio.sleep(INTERVAL_S)
        await self.reservations.load()
        self.reservations.tell(self.core.apply)
        await self.reservations.write(self.core.core.state)
        status = self.server.get(RESERVATIONS, "", "r")["status"]
        (ready,) = status["conditions"]
        assert ready["status"] == str(status["phase"] == "Available")
        return status["phase"], ready["reason"]

    def put(self, **spec: Any) -> None:
        manifest = self.server.get(RESERVATIONS, "", "r")
        metadata = {"name": "r"}
        self.server.put(RESERVATIONS, manifest | {"metadata": metadata, "spec": {**manifest["spec"], **spec}})

    @property
    def uid(self) -> str:
        uid: str = self.server.get(RESERVATIONS, "", "r")["metadata"]["uid"]
        return uid

    def kept(self) -> Resources:
        account = self.core.core.ledger.node("n1")
        assert account is not None
        return account.reserved


@virtually
async def test_the_room_of_a_reservation_is_kept_until_it_goes() -> None:
    world = World()
    assert await world.turn() == ("Available", "Available")
    assert world.kept() == cu(4)
    status = world.server.get(RESERVATIONS, "", "r")["status"]
    assert (status["nodeName"], status["allocated"], status["observedGeneration"]) == (
        "n1",
        cu(0).written(),
        1,
    )
    world.server.delete(RESERVATIONS, "", "r")
    await asyncio.sleep(INTERVAL_S)
    await world.reservations.load()
    world.reservations.tell(world.core.apply)
    assert world.kept() == cu(0)


@virtually
async def test_one_without_a_node_waits_for_somebody_to_name_it() -> None:
    world = World(nodeName="")
    assert await world.turn() == ("Pending", "NoNode")
    world.put(nodeName="n1")
    assert await world.turn() == ("Available", "Available")


@virtually
async def test_one_that_does_not_fit_says_so_and_keeps_nothing() -> None:
    world = World()
    world.core.other_pod("other", cu(5))
    assert await world.turn() == ("Pending", "NoRoom")
    assert world.kept() == cu(5)


@virtually
async def test_the_phase_follows_what_becomes_of_it() -> None:
    """Used by the pod that it was for; or its time is over before."""
    world = World()
    await world.turn()
    world.core.other_pod("db", cu(3), reservation=world.uid)
    assert await world.turn() == ("Succeeded", "Succeeded")
    assert world.kept() == cu(3)
    late = World(ttlSeconds=60)
    await late.turn()
    late.wall += timedelta(seconds=61)
    assert await late.turn() == ("Failed", "Expired")
    assert late.kept() == cu(0)
    late.wall = BEGIN
    assert await late.turn() == ("Failed", "Expired"), "it stays so"


@virtually
async def test_an_object_with_faults_counts_on_as_it_was() -> None:
    world = World()
    await world.turn()
    world.put(resources={"cpu": 0, "memory": "1Gi"})
    assert await world.turn() == ("Pending", "Faults")
    assert world.kept() == cu(4)
    await world.turn()
    assert [fault.split(":")[0] for fault in world.faults] == ["resources"]
    other = World(resources={"cpu": "x", "memory": 1})
    assert await other.turn() == ("Pending", "Faults")
    assert other.kept() == cu(0)
