"""The mode `full` over a fake API server: pods that name us are placed by the ledger's room, and people are told of the others."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import EVENTS, NODES, PODS, Manifest
from hosting.supervisor import Supervisor
from protocol.values import Resources
from scheduler.clusters.kubernetes.binder import KubernetesBinder
from scheduler.clusters.kubernetes.informers import KubernetesInformers
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.daemon.scheduling import OwnPods
from scheduler.permits.service.inputs import CorePlacements
from scheduler.placing.core.objects import LedgerReservations
from scheduler.placing.core.profile import Profile
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.attempt import Frameworks
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.plugins.registry import FULL_PROFILE, new_registry
from scheduler.ports import SoleScheduler
from tests.support.kube_api import writes
from tests.support.kube_store import Selector
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.scheduler_clusters.kube_manifests import node, pod
from tests.unit.scheduler_clusters.kube_worlds import World, opened
from tests.unit.scheduler_framework.plugin_worlds import PoolsAsTold

NAME = "parley-scheduler"


class FullWorld(World):
    """A world whose scheduler places pods."""

    def __init__(self) -> None:
        super().__init__()
        api, rng = self.server.api(), random.Random(1)
        placements = CorePlacements(self.core, self.core.apply, now_s, lambda *_: None)
        view = PlacingView(self.cluster, self.core, placements)
        self.supervisor = Supervisor(QUIET, rng)
        informers = KubernetesInformers(api, self.supervisor.start, clock=now_s, rng=rng, log=QUIET)
        ports = ExtenderPorts(
            placements,
            PoolsAsTold(),
            now_s,
            LedgerReservations(self.core.state).on,
            binder=KubernetesBinder(api),
            client_set=api,
            informers=informers,
        )
        shared = SharedHooks(ports, QUIET)
        extender = SchedulingFramework(of_profile(Profile(NAME), new_registry(), FULL_PROFILE), shared)
        recorder = EventRecorder(api, "test", clock=now_s, rng=rng, log=QUIET)
        self.supervisor.start("Events", recorder.run)
        self.own = OwnPods(
            api,
            self.cluster,
            self.core,
            view,
            Frameworks({NAME: extender}, shared),
            informers,
            recorder=recorder,
            guard=SoleScheduler(),
            rng=rng,
            supervisor=self.supervisor,
            clock=now_s,
        )
        informers.listen(self.own.happened)
        self.frameworks = Frameworks({NAME: extender}, shared)
        self.own.use(self.frameworks)

    def waiting(self, name: str, cpu: str = "2", **spec: Any) -> None:
        self.put(
            PODS,
            {
                **pod(name, cpu, **{"schedulerName": NAME, "nodeName": "", **spec}),
                "status": {"phase": "Pending"},
            },
        )

    async def goes_on(self, seconds: float = 5.0) -> None:
        """Time passes, and the ledger follows the cluster."""
        for _ in range(int(seconds)):
            await asyncio.sleep(1.0)
            await self.refresh()
            self.own.refreshed()

    def node_of(self, name: str) -> str:
        return str(self.server.get(PODS, "default", name)["spec"].get("nodeName", ""))

    def condition(self, name: str) -> Manifest:
        (found,) = self.server.get(PODS, "default", name)["status"]["conditions"]
        return {key: found.get(key) for key in ("type", "status", "reason", "message")}

    def events_of(self, name: str) -> list[str]:
        found = self.server.store.select(EVENTS, "", Selector())
        return [each["reason"] for each in found if each["regarding"]["name"] == name]


def in_world(
    story: Callable[[Any], Awaitable[None]], made: Callable[[], FullWorld] = FullWorld
) -> Callable[[], None]:
    """A test whose story begins with a node of 4 CPUs."""

    @virtually
    async def test() -> None:
        world = made()
        world.put(NODES, {**node(), "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"}}})
        async with opened(world):
            await world.refresh()
            world.own.start()
            try:
                await story(world)
            finally:
                await world.supervisor.stop()

    test.__name__ = story.__name__
    return test


@in_world
async def test_pods_have_their_node_while_there_is_room(world: FullWorld) -> None:
    for name in ("a", "b", "c"):
        world.waiting(name)
    world.waiting("other", schedulerName="default-scheduler")
    await world.goes_on()
    assert sorted(world.node_of(name) for name in ("a", "b", "c", "other")) == ["", "", "n1", "n1"]
    assert world.reserved() == Resources(4000, 2 * 2**30)
    (left,) = (name for name in ("a", "b", "c") if not world.node_of(name))
    assert world.condition(left)["reason"] == "Unschedulable"
    assert "Insufficient cpu" in world.condition(left)["message"]
    assert world.events_of(left) == ["FailedScheduling"]


@in_world
async def test_a_pod_is_placed_when_another_one_goes(world: FullWorld) -> None:
    world.waiting("a", "4")
    await world.goes_on()
    world.waiting("b", "4")
    await world.goes_on()
    assert (world.node_of("a"), world.node_of("b")) == ("n1", "")
    world.server.delete(PODS, "default", "a")
    await world.goes_on(10)
    assert world.node_of("b") == "n1"


@in_world
async def test_a_pod_that_goes_right_after_its_binding_gives_its_room_back(world: FullWorld) -> None:
    world.waiting("a", "4")
    await turns(200)
    assert world.node_of("a") == "n1"
    world.server.delete(PODS, "default", "a")  # before the ledger was told of it
    world.waiting("b", "4")
    await world.goes_on(10)
    assert world.node_of("b") == "n1"


@in_world
async def test_an_api_server_that_loses_answers_has_no_pod_bound_twice_or_lost(world: FullWorld) -> None:
    def binds(call: ApiCall) -> bool:
        return writes(call) and call.path.endswith("/binding")

    for name in ("a", "b"):
        world.waiting(name)
    world.server.fail("cut", binds, times=2, after=True)
    world.server.fail("hang", binds, times=1)
    world.server.fail("status", binds, times=2, status=500)
    await world.goes_on(30)
    assert [world.node_of(name) for name in ("a", "b")] == ["n1", "n1"]
    assert world.reserved() == Resources(4000, 2 * 2**30)


@in_world
async def test_pods_of_a_profile_that_comes_again_are_placed(world: FullWorld) -> None:
    world.own.use(Frameworks({}, world.frameworks.shared))
    world.waiting("a")
    await world.goes_on()
    assert world.node_of("a") == ""
    world.own.use(world.frameworks)
    await world.goes_on()
    assert world.node_of("a") == "n1"


@in_world
async def test_a_pod_that_cannot_be_read_is_told_so_and_placed_once_it_can(world: FullWorld) -> None:
    world.waiting("a", "much")
    await world.goes_on()
    assert "the pod cannot be read" in world.condition("a")["message"]
    world.server.delete(PODS, "default", "a")
    world.waiting("a")
    await world.goes_on()
    assert world.node_of("a") == "n1"
