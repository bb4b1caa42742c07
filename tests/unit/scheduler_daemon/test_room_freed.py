"""The condition by which kube-scheduler is told of room, written to a fake API server."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import pytest

from hosting.kubernetes import names, objects
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.resources import NODES, PODS
from protocol.wire import PodName
from scheduler.daemon.scheduling import RoomFreed
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.kube_extender.refused import RefusedPods, largest_room
from tests.support.amounts import cu
from tests.support.kube_api import writes
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_clusters.kube_manifests import node, pod
from tests.unit.scheduler_clusters.kube_worlds import World, opened
from tests.unit.scheduler_core.core_worlds import World as CoreWorld

START_S: Final = 1_800_000_000.0


class RefusingWorld(World):
    """A node that a pod fills, and who tells kube-scheduler of room."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = RefusedPods(lambda _: {})
        self.teller = RoomFreed(
            self.server.api(),
            self.cluster,
            self.core,
            self.refused,
            clock=now_s,
            rng=random.Random(1),
            date=lambda: datetime.fromtimestamp(START_S + now_s(), UTC),
        )

    def refuse(self, *waiting: str) -> None:
        """Refuse pods of 1 CPU and 1 GiB that have no node."""
        for name in waiting:
            if self.server.store.find(PODS, ("default", name)) is None:
                self.put(PODS, pod(name, "1", nodeName="", phase="Pending"))
            uid = self.server.get(PODS, "default", name)["metadata"]["uid"]
            info = PodInfo(PodName(name, "default"), uid, cu(1))
            self.refused.refused(info, ["LedgerFit"], self.refused.looks, now_s())

    async def frees(self) -> None:
        """The pod that fills the node is gone, and the ledger knows."""
        self.server.delete(PODS, "default", "fills")
        await self.refresh()

    def when_told(self, name: str = "a") -> str:
        """When kube-scheduler was told of a pod."""
        found = objects.condition(self.server.get(PODS, "default", name), names.ROOM_FREED)
        return str(found["lastTransitionTime"])[-6:] if found is not None else ""


Story = Callable[[RefusingWorld], Awaitable[None]]


def in_world(story: Story) -> Callable[[], None]:
    @virtually
    async def test() -> None:
        world = RefusingWorld()
        world.put(NODES, node())
        world.put(PODS, pod("fills", "3500m", "15Gi"))
        async with opened(world):
            await world.refresh()
            running = asyncio.create_task(world.teller.run())
            await story(world)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    test.__name__ = story.__name__
    return test


def _patches(world: RefusingWorld) -> list[ApiCall]:
    return [call for call in world.server.calls if writes(call)]


@in_world
async def test_a_refused_pod_has_the_condition_once_there_is_room(world: RefusingWorld) -> None:
    world.refuse("a")
    await asyncio.sleep(10)
    assert _patches(world) == []
    await world.frees()
    await asyncio.sleep(1)
    first = world.when_told()
    assert first
    world.refuse("a")
    world.put(PODS, pod("fills", "3500m", "15Gi"))
    await world.refresh()
    await world.frees()
    await asyncio.sleep(2)
    assert world.when_told() not in {"", first}, "the condition changes, or kube-scheduler would not be told"
    assert [call.path for call in _patches(world)] == ["/api/v1/namespaces/default/pods/a/status"] * 2


@in_world
async def test_pods_that_have_a_node_are_gone_or_made_anew_are_left_alone(world: RefusingWorld) -> None:
    world.refuse("bound", "gone", "anew")
    world.server.store.bind(("default", "bound"), {"metadata": {}, "target": {"name": "n1"}})
    for name in ("gone", "anew"):
        world.server.delete(PODS, "default", name)
    world.put(PODS, pod("anew", "1", nodeName="", phase="Pending"))
    await world.frees()
    await asyncio.sleep(3)
    assert (world.when_told("bound"), world.when_told("anew"), len(world.refused)) == ("", "", 0)


@in_world
async def test_no_more_than_20_in_a_second(world: RefusingWorld) -> None:
    world.refuse(*(f"p{number}" for number in range(50)))
    await asyncio.sleep(1)
    await world.frees()
    await asyncio.sleep(1)
    assert 10 <= len(_patches(world)) <= 20
    await asyncio.sleep(2)
    assert len(_patches(world)) == 50


FAULTS: Final = {
    "overloaded": ("status", 429),
    "broken": ("status", 500),
    "no answer": ("hang", 0),
    "cut": ("cut", 0),
}


@pytest.mark.parametrize(("kind", "status"), FAULTS.values(), ids=FAULTS)
def test_an_api_server_that_fails_is_asked_again_after_a_back_off(kind: str, status: int) -> None:
    async def story(world: RefusingWorld) -> None:
        world.server.fail(kind, writes, times=3, status=status)  # type: ignore[arg-type]  # by the table
        world.refuse("a", "b")
        await world.frees()
        await asyncio.sleep(25)
        assert all(map(world.when_told, "ab"))
        assert (len(_patches(world)), len(world.refused), world.refused.told_total) == (5, 0, 2)

    in_world(story)()


@in_world
async def test_what_is_forbidden_is_not_tried_for_ever(world: RefusingWorld) -> None:
    world.server.fail("status", writes, times=9, status=403)
    world.refuse("a")
    await world.frees()
    await asyncio.sleep(60)
    assert (len(_patches(world)), len(world.refused)) == (1, 0)


def _kept(world: CoreWorld) -> None:
    world.reserve(cu(3))


ROOMS: Final[dict[str, tuple[Iterable[Callable[[CoreWorld], object]], float]]] = {
    "an empty node": ((), 8),
    "beside a pod": ((lambda world: world.other_pod("one", cu(1)),), 7),
    "what a reservation keeps is room": ((lambda world: world.other_pod("one", cu(1)), _kept), 7),
}


@pytest.mark.parametrize(("happens", "cpus"), ROOMS.values(), ids=ROOMS)
def test_the_largest_room(happens: Iterable[Callable[[CoreWorld], object]], cpus: float) -> None:
    world = CoreWorld(cu(8))
    for each in happens:
        each(world)
    assert largest_room(world.core) == cu(cpus)
