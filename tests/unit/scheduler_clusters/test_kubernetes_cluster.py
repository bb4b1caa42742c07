"""The ledger of a cluster of Kubernetes: what faults of objects and of the API server do to the accounts."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.connection import ApiCall
from hosting.kubernetes.reflector import LOOK_S
from hosting.kubernetes.resources import (
    NODES,
    PODS,
    SCALING_POLICIES,
    VIRTUAL_MACHINES,
    ResourceType,
)
from protocol.wire import PodName
from scheduler.core.model import Kind
from scheduler.ports import ClusterUnreachableError
from tests.support.amounts import cu
from tests.support.kube_api import lists
from tests.support.kube_store import RefusalError
from tests.support.virtual_time import virtually
from tests.unit.scheduler_clusters.kube_manifests import bounds, machine, node, pod, policy
from tests.unit.scheduler_clusters.kube_worlds import World, opened

_IN_VM = {names.NEON_VM_NAME: "vm"}
BOUNDS = bounds({"cpu": "250m", "memory": "256Mi"}, {"cpu": 2, "memory": "2Gi"})


def in_world(story: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """A test whose story begins with the node and an adapter that runs."""

    @virtually
    async def test() -> None:
        world = World()
        world.put(NODES, node())
        async with opened(world):
            await story(world)

    test.__name__ = story.__name__
    return test


@in_world
async def test_every_pod_with_a_node_counts(world: World) -> None:
    world.put(PODS, pod("a"))
    world.put(PODS, pod("b", phase="Pending", nodeName=""))
    world.put(PODS, pod("c", phase="Succeeded"))
    world.put(PODS, pod("d", scaled=True, annotations=BOUNDS))
    await world.refresh()

    assert world.reserved() == cu(0.5, 1) + cu(2), "a VM that is not settled counts at its maximum"

    world.put(PODS, pod("b"))
    world.server.delete(PODS, "default", "a")
    await world.refresh()

    assert world.reserved() == cu(0.5, 1) + cu(2)
    assert world.row("a", Kind.POD) is None


@in_world
async def test_a_pod_that_cannot_be_read_holds_its_node_until_it_can(world: World) -> None:
    world.put(PODS, pod("a", cpu="many"))
    world.put(PODS, pod("b"))
    await world.refresh()

    assert world.row("a", Kind.POD) == cu(4, 16)
    assert world.row("b", Kind.POD) == cu(0.5, 1)
    assert "many" in str(world.cluster.faults["pod default/a"])
    assert world.told == [("Pod", "a")]

    world.put(PODS, pod("a"))
    await world.refresh()

    assert world.reserved() == cu(1, 2)
    assert world.cluster.faults == {}


@in_world
async def test_a_vm_that_cannot_be_read_any_more_keeps_its_row_and_its_moment(world: World) -> None:
    world.put(PODS, pod("a", scaled=True, annotations=BOUNDS))
    await world.refresh()
    before = world.cluster.look(PodName("a", "default"))

    world.put(PODS, pod("a", cpu="many", scaled=True, annotations=BOUNDS))
    await asyncio.sleep(5)
    await world.refresh()
    await world.read("a")

    assert world.cluster.look(PodName("a", "default")) == before, "what was read last is no reading of now"
    assert world.row("a") == cu(2)


@in_world
async def test_a_node_that_cannot_be_read_counts_as_before(world: World) -> None:
    await world.refresh()
    world.put(NODES, node(cpu="many"))
    world.put(NODES, node("n2", cpu="many"))

    assert await world.refresh() == []
    account = world.core.ledger.node("n1")
    assert account is not None
    assert account.capacity.reservable == cu(4, 16)
    assert set(world.cluster.faults) == {"node n1", "node n2"}


@in_world
async def test_a_label_makes_a_pod_a_vm_that_is_not_new(world: World) -> None:
    world.put(PODS, pod("a"))
    await world.refresh()
    world.put(PODS, pod("a", scaled=True, annotations=BOUNDS))

    assert await world.refresh() == ["PodGone", "VmSeen"]
    assert not world.vm("a").settled, "an earlier scheduler may have permitted more"

    world.put(PODS, pod("b", scaled=True, annotations=BOUNDS))
    await world.refresh()
    assert world.vm("b").settled


@in_world
async def test_a_policy_speaks_of_the_pods_of_its_namespace(world: World) -> None:
    world.put(PODS, pod("a"))
    world.put(PODS, pod("b", namespace="other"))
    await world.refresh()
    world.put(SCALING_POLICIES, policy(bounds={"max": {"cpu": 3, "memory": "3Gi"}}))

    assert await world.refresh() == ["PodGone", "VmSeen"]
    assert world.row("a") == cu(3)

    world.server.delete(SCALING_POLICIES, "default", "p")
    assert await world.refresh() == ["VmGone", "PodSeen"]


@in_world
async def test_pods_without_a_maximum_may_have_what_their_node_has(world: World) -> None:
    world.put(PODS, pod("a", scaled=True))
    await world.refresh()
    world.put(NODES, node(cpu="8"))

    assert await world.refresh() == ["NodeSeen", "VmSeen"]
    assert world.row("a") == cu(8, 16)


@in_world
async def test_a_virtual_machine_moves_with_its_pod(world: World) -> None:
    world.put(NODES, node("n2"))
    world.put(PODS, pod("a", labels=_IN_VM))
    world.put(VIRTUAL_MACHINES, machine(use=3))
    await world.refresh()
    assert world.row("a") == cu(4), "its maximum, before its agent was heard"

    world.put(PODS, pod("b", labels=_IN_VM, nodeName="n2"))
    await world.refresh()
    assert world.reserved("n2") == cu(3), "where the VM moves to it holds the same"

    world.put(VIRTUAL_MACHINES, machine(pod_name="b", use=3))
    assert await world.refresh() == ["VmGone", "PodGone", "PodSeen", "VmSeen"]
    assert world.row("a", Kind.POD) == cu(3), "until the pod that it has left is gone"
    assert world.row("b") == cu(4)


@in_world
async def test_a_pod_that_outlives_its_virtual_machine_keeps_its_row(world: World) -> None:
    world.put(PODS, pod("a", labels=_IN_VM))
    world.put(VIRTUAL_MACHINES, machine())
    await world.refresh()
    world.server.delete(VIRTUAL_MACHINES, "default", "vm")

    await world.refresh()
    assert world.row("a") == cu(4)

    world.server.delete(PODS, "default", "a")
    await world.refresh()
    assert world.reserved() == cu(0)


@in_world
async def test_a_refresh_that_fails_leaves_no_call_under_way(world: World) -> None:
    await world.refresh()
    before = len(asyncio.all_tasks())
    world.server.fail("hang", lambda call: lists(call) and call.path == PODS.path())
    world.server.fail("status", lambda call: lists(call) and call.path == NODES.path())

    with pytest.raises(ClusterUnreachableError):
        await world.cluster.refresh()
    assert len(asyncio.all_tasks()) == before


@in_world
async def test_what_was_told_counts_on_while_the_api_server_is_away(world: World) -> None:
    world.put(PODS, pod("a"))
    await world.refresh()
    world.put(PODS, pod("b"))
    world.server.is_down = True
    for _ in range(3):
        with pytest.raises(ClusterUnreachableError):
            await world.refresh()
        with pytest.raises(ClusterUnreachableError):
            await world.read("a")
    assert world.reserved() == cu(0.5, 1)

    world.server.heal()
    await asyncio.sleep(15)
    await world.refresh()
    assert world.reserved() == cu(1, 2)


@pytest.mark.parametrize("missing", [VIRTUAL_MACHINES, SCALING_POLICIES])
@virtually
async def test_types_that_the_server_does_not_know_have_no_objects(missing: ResourceType) -> None:
    world = World()

    def refuse(call: ApiCall) -> None:
        if f"/{missing.plural}" in call.path:
            raise RefusalError(404, "NotFound", "page not found")

    world.server.hooks.append(refuse)
    world.put(NODES, node())
    world.put(PODS, pod("a", scaled=True, annotations=BOUNDS))
    async with opened(world):
        assert await world.refresh() == ["NodeSeen", "VmSeen"]
        assert await world.read("a") == ["VmSeen"]
        world.server.hooks.clear()
        await asyncio.sleep(2 * LOOK_S)
        assert await world.refresh() == []


@in_world
async def test_many_pods_are_read_with_few_calls(world: World) -> None:
    for number in range(100):
        world.put(PODS, pod(f"p{number}", "10m", "1Mi", scaled=True, annotations=BOUNDS))
    await world.refresh()
    world.server.calls.clear()

    assert len(await world.read(*(f"p{number}" for number in range(100)))) == 100
    assert len(world.server.calls) == 1
