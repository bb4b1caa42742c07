"""The plugin `Coscheduling` in whole cycles of the scheduler, over a ledger that adds up: all of a gang, or none of it."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hosting.kubernetes.koordinator import POD_GROUPS
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import FaultsError, check
from parley.testing import FakeCluster, amount, assert_rejected, node, pod, with_permit
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.queue import QueuePool
from scheduler.placing.core.values import ActionType, Code, EventResource, RejectionClass, SchedulingEvent
from scheduler.placing.cycle.attempt import CycleFailure, Frameworks
from scheduler.placing.cycle.scheduler import PodScheduler
from scheduler.placing.plugins.coscheduling.args import CoschedulingArgs
from scheduler.placing.plugins.coscheduling.core import POD_GROUP
from scheduler.placing.plugins.coscheduling.plugin import NEEDS_FULL, NEEDS_TURNS, Coscheduling
from tests.support.virtual_time import now_s, virtually

GANG = "gang.scheduling.koordinator.sh/"


class GangWorld(FakeCluster):
    """Two nodes for two pods each, and our own scheduler over them; it is told of pods as the API server would."""

    def __init__(self, cpu: str = "2", args: Any = None, nodes: int = 2, **before: Any) -> None:
        super().__init__(*(node(f"n{number}", cpu, "64Gi") for number in range(1, nodes + 1)))
        self.pods: dict[str, PodInfo] = {}
        self.told: dict[str, str] = {}
        self.extender = self.framework({**before, "Coscheduling": None}, {"Coscheduling": args})
        frameworks = Frameworks({"test": self.extender}, self.extender.shared)
        self.scheduler = PodScheduler(frameworks, self, self, clock=now_s, rng=random.Random(1))

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        return self.pods[manifest["metadata"]["name"]]

    def scheduled(self, pod: PodInfo, node_name: str) -> None:
        self.told.pop(pod.pod.name, None)
        shown = self.manifests[pod.name]
        self.informers.put(PODS, {**shown, "spec": {**shown["spec"], "nodeName": node_name}})
        self.scheduler.pod_gone(pod.uid)

    def failed(self, pod: PodInfo, failure: CycleFailure) -> None:
        self.told[pod.pod.name] = failure.text

    def come(self, *pods: PodInfo) -> None:
        for each in pods:
            self.pods[each.pod.name] = each
            self.informers.put(PODS, dict(each.manifest))
            self.scheduler.pod_seen(each)

    def go(self, each: PodInfo) -> None:
        self.informers.delete(PODS, dict(each.manifest))
        self.scheduler.pod_gone(each.uid)

    def names(self) -> set[str]:
        """The pods that were bound."""
        return {name.partition("/")[2] for name in self.bound}

    def waiting(self) -> set[str]:
        found = set[str]()
        self.extender.iterate_over_waiting_pods(lambda each: found.add(each.get_pod().pod.name))
        return found

    def shown(self, gang: str) -> Any:
        plugin = self.extender.plugins["Coscheduling"]
        assert isinstance(plugin, Coscheduling)
        _, one = plugin.endpoints()
        return one.read({"namespace": "default", "name": gang})


@asynccontextmanager
async def running(world: GangWorld, *pods: PodInfo) -> AsyncIterator[GangWorld]:
    world.come(*pods)
    task = asyncio.create_task(world.scheduler.run(), name="scheduler")
    await asyncio.sleep(0.5)
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.wait([task])


def member(gang: str, number: int, minimum: int = 3, cpu: str = "1", **rest: Any) -> PodInfo:
    annotations = {f"{GANG}name": gang, f"{GANG}min-available": str(minimum), **rest.pop("annotations", {})}
    return pod(
        f"{gang}{number}", cpu, "1Gi", annotations=annotations, priority=-number, schedulerName="test", **rest
    )


def of_group(gang: str, number: int, **rest: Any) -> PodInfo:
    return pod(f"{gang}{number}", "1", "1Gi", labels={POD_GROUP: gang}, schedulerName="test", **rest)


def pod_group(gang: str, minimum: int, **status: Any) -> Manifest:
    metadata = {"name": gang, "namespace": "default", "uid": gang}
    return {
        "metadata": metadata,
        "spec": {"minMember": minimum, "scheduleTimeoutSeconds": 30},
        "status": status,
    }


def three(gang: str, **rest: Any) -> list[PodInfo]:
    return [member(gang, number, **rest) for number in (1, 2, 3)]


@virtually
async def test_of_two_gangs_for_whom_there_is_no_room_together_one_is_placed_and_one_is_not() -> None:
    a, b = three("a"), three("b")
    mixed = [each for pair in zip(a, b, strict=True) for each in pair]
    async with running(GangWorld(), *mixed) as world:
        for _ in range(60):
            assert len(world.names() & {"a1", "a2", "a3"}) in {0, 3}
            assert len(world.names() & {"b1", "b2", "b3"}) in {0, 3}
            await asyncio.sleep(1.0)
        assert world.names() in ({"a1", "a2", "a3"}, {"b1", "b2", "b3"})
        others = {"a1", "a2", "a3", "b1", "b2", "b3"} - world.names()
        assert set(world.told) == others, "each of them is told"
        assert sum("Insufficient cpu" in text for text in world.told.values()) == 3
        assert world.waiting() == set()
        for each in (a if "a1" in world.names() else b)[:2]:
            world.removed(each)
            world.go(each)
        world.scheduler.happened([SchedulingEvent(EventResource.LEDGER, ActionType.UPDATE)])
        await asyncio.sleep(20.0)
        assert others <= world.names()


@virtually
async def test_two_gangs_of_20_over_10_nodes_one_after_the_other() -> None:
    a, b = ([member(gang, number, 20) for number in range(20)] for gang in "ab")
    world = GangWorld(nodes=10)
    async with running(world, *[each for pair in zip(a, b, strict=True) for each in pair]):
        await asyncio.sleep(20.0)
        assert len(world.names()) == 20
        assert len({name[0] for name in world.names()}) == 1
        first, second = (a, b) if "a0" in world.names() else (b, a)
        for each in first:
            world.removed(each)
            world.go(each)
        world.scheduler.happened([SchedulingEvent(EventResource.LEDGER, ActionType.UPDATE)])
        await asyncio.sleep(20.0)
        assert world.names() == {each.pod.name for each in second}


@virtually
async def test_a_pod_that_leaves_its_gang_is_placed_by_itself() -> None:
    world = GangWorld()
    async with running(world, member("a", 1)):
        assert world.names() == set()
        world.come(pod("a1", "1", "1Gi", schedulerName="test"))
        await asyncio.sleep(0.5)
        assert (world.names(), world.shown("a")) == ({"a1"}, None)


@virtually
async def test_room_that_is_kept_for_a_gang_stays_its_own_while_a_vm_grows_beside_it() -> None:
    vm = pod("vm", "1", "1Gi", grows_to=amount("4", "4Gi"))
    world = GangWorld("4", nodes=1)
    world.nodes["n1"] = node("n1", "4", "64Gi", vm)
    group = pod_group("a", 3)
    world.informers.put(POD_GROUPS, group)
    gates = [{"name": "later"}]
    members = [of_group("a", 1, grows_to=amount("2", "2Gi")), of_group("a", 2), of_group("a", 3)]
    async with running(world, *members[:2], of_group("a", 3, schedulingGates=gates)):
        assert world.names() == set()
        world.come(members[2])
        await asyncio.sleep(0.5)
        assert world.names() == {"a1", "a2", "a3"}
    world = GangWorld("4", nodes=1)
    world.nodes["n1"] = node("n1", "4", "64Gi", vm)
    lax = {f"{GANG}mode": "NonStrict"}
    waiting = [member("a", number, 4, annotations=lax) for number in (1, 2, 3, 4)]
    async with running(world, *waiting):
        assert world.waiting() == {"a1", "a2", "a4"}, "the last one to come goes first"
        assert world.headroom("n1", vm.holder) == amount("1", "61Gi"), "the VM has its own size, and no more"
        assert "Insufficient cpu" in world.told["a3"]
        world.nodes["n1"] = with_permit(node("n1", "5", "64Gi", vm), vm, amount("1", "8Gi"))
        world.scheduler.happened([SchedulingEvent(EventResource.NODE, ActionType.UPDATE)])
        await asyncio.sleep(5.0)
        assert world.names() == {"a1", "a2", "a3", "a4"}


@virtually
async def test_pods_that_go_together_are_told_how_many_they_are() -> None:
    world = GangWorld()
    async with running(world, *three("a")):
        shown = world.manifests["default/a1"]["metadata"]["annotations"]
        assert shown["internal.scheduling.koordinator.sh/bind-gang-group-id"] == "default/a"
        assert shown["scheduling.koordinator.sh/bind-gang-member-count"] == "3"
        assert world.shown("a") == {
            "gang": "default/a",
            "pods": {"a1": "bound", "a2": "bound", "a3": "bound"},
            "group": ["default/a"],
            "minMember": 3,
            "mode": "Strict",
            "matchPolicy": "once-satisfied",
            "waitSeconds": 600.0,
            "onceSatisfied": True,
            "isPlacedNow": False,
        }
        assert world.shown("nobody") is None


@virtually
async def test_a_gang_waits_for_its_pods_and_its_pod_group() -> None:
    world = GangWorld()
    members = [of_group("g", number) for number in (1, 2)]
    async with running(world, members[0]):
        assert world.scheduler.queue.pool_of(members[0].uid) is QueuePool.GATED
        world.come(members[1])
        await asyncio.sleep(1.0)
        assert world.names() == set()
        world.informers.put(POD_GROUPS, pod_group("g", 2))
        await asyncio.sleep(0.5)
        assert world.names() == {"g1", "g2"}


@virtually
async def test_every_wait_ends_by_its_time_at_last() -> None:
    """A NonStrict gang keeps the room of those that found some, until their time is over."""
    lax = {f"{GANG}mode": "NonStrict", f"{GANG}waiting-time": "30s"}
    world = GangWorld(nodes=1)
    async with running(world, *three("a", annotations=lax)):
        assert world.waiting() == {"a1", "a3"}
        await asyncio.sleep(31.0)
        assert world.told["a1"] == "rejected due to timeout after waiting 30s at plugin Coscheduling"
        world.scheduler.pod_gone("uid-a2")
        for each in three("a"):
            world.go(each)
        await asyncio.sleep(100.0)
        assert (world.waiting(), world.names()) == (set(), set())
        assert world.shown("a") is None, "nothing is kept of a gang that is gone"


@virtually
async def test_a_member_that_goes_while_the_others_wait_ends_their_wait() -> None:
    lax = {f"{GANG}mode": "Strict", f"{GANG}waiting-time": "30s", f"{GANG}match-policy": "only-waiting"}
    world = GangWorld()
    a = three("a", annotations=lax)
    async with running(world, *a):
        assert world.names() == {"a1", "a2", "a3"}
        later = [member("a", number, annotations=lax) for number in (4,)]
        world.come(*later)
        await asyncio.sleep(5.0)
        assert world.names() == {"a1", "a2", "a3"}, "of only-waiting, so many must wait"
        assert world.waiting() == set()
        assert "not all pods that the gang needs found a node" in world.told["a4"]


class Turns:
    """Decides whose turn it is, and has no opinion."""

    def __init__(self, args: object, handle: object) -> None:
        del args, handle

    def name(self) -> str:
        return "Turns"

    def next_pod(self) -> PodInfo | None:
        return None

    def pre_filter(self, *_: object) -> tuple[None, None]:
        return None, None


@virtually
async def test_gangs_are_refused_where_another_plugin_decides_whose_turn_it_is() -> None:
    async with running(GangWorld(Turns=Turns), *three("a"), pod("x", "1", schedulerName="test")) as world:
        assert world.names() == {"x"}
        assert any(NEEDS_TURNS in text for text in world.told.values())


def test_beside_kube_scheduler_pods_of_gangs_are_refused_and_others_are_not() -> None:
    async def story() -> None:
        cluster = FakeCluster(node("n1", "4", "8Gi"))
        framework = cluster.framework({"Coscheduling": None})
        failure = await cluster.schedule(framework, member("a", 1))
        assert failure is not None
        assert_rejected(failure.status, NEEDS_FULL, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, RejectionClass.PEERS)
        assert await cluster.schedule(framework, pod("x", "1", "1Gi")) is None

    asyncio.run(story())


PUBLISHED = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "CoschedulingArgs",
    "defaultTimeout": "5m",
    "controllerWorkers": 2,
    "enablePreemption": False,
    "defaultMatchPolicy": "only-waiting",
}


def test_published_args_are_taken_as_they_are_and_all_faults_are_told() -> None:
    found = check(PUBLISHED, CoschedulingArgs).defaults()
    assert (found.wait_s, found.match_policy) == (300.0, "only-waiting")
    assert check(None, CoschedulingArgs).defaults().wait_s == 600.0
    wrong = {
        "defaultTimeout": "-1s",
        "controllerWorkers": 0,
        "enablePreemption": True,
        "awareNetworkTopology": True,
        "defaultMatchPolicy": "never",
        "kind": "OtherArgs",
        "unknown": 1,
    }
    with pytest.raises(FaultsError) as told:
        check(wrong, CoschedulingArgs)
    assert all(name in str(told.value) for name in wrong)
