"""The ledger of a cluster of Kubernetes: what faults of objects and of the API server do to the accounts."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

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
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes.reading import is_served_by_published
from scheduler.permits.core import events
from scheduler.permits.core.model import Kind
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


BY_LABEL, BY_OWNER = (
    {"labels": _IN_VM},
    {"ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "vm"}]},
)


@pytest.mark.parametrize("belongs", [BY_LABEL, BY_OWNER], ids=["by label", "by owner"])
@virtually
async def test_a_pod_that_a_virtual_machine_moves_to_is_looked_at_as_where_it_arrives(
    belongs: dict[str, Any],
) -> None:
    world = World()
    world.put(NODES, node("n2"))

    def put(name: str, on: str) -> None:
        manifest = pod(name, nodeName=on)
        manifest["metadata"] |= belongs
        world.put(PODS, manifest)

    def arrival(name: str) -> tuple[bool, events.Arrival | None]:
        look = world.cluster.look(PodName(name, "default"))
        return look.found, look.arrival

    async with opened(world):
        put("a", "n1")
        put("b", "n2")
        world.put(PODS, pod("other"))
        world.put(VIRTUAL_MACHINES, machine(use=3))
        await world.refresh()
        assert arrival("a") == (True, None)
        assert arrival("b") == (True, events.Arrival(PodName("a", "default"), "n2"))
        assert arrival("other") == arrival("nobody") == (False, None)

        world.put(VIRTUAL_MACHINES, machine(pod_name="b", use=3))
        await world.refresh()
        assert arrival("b") == (True, None)
        assert arrival("a") == (False, None), "the VM has left it"


@in_world
async def test_a_look_is_watched_until_the_watch_shows_something_that_was_not_told(world: World) -> None:
    """So that requests need no calls of their own: a watch that works has shown nothing since."""

    def is_watched() -> bool:
        return world.cluster.look(PodName("a", "default")).is_watched

    world.put(PODS, pod("a", labels=_IN_VM))
    world.put(VIRTUAL_MACHINES, machine(use=2))
    await world.refresh()
    calls = len(world.server.calls)
    assert (is_watched(), len(world.server.calls)) == (True, calls)
    for type_, changed in ((PODS, pod("a", labels=_IN_VM | {"x": "y"})), (VIRTUAL_MACHINES, machine(use=3))):
        world.put(type_, changed)
        await asyncio.sleep(0.1)
        assert not is_watched()
        await world.refresh()
        assert is_watched()

    world.server.is_down = True
    world.server.send(None)
    await asyncio.sleep(1)
    assert not is_watched(), "the watch does not work"


@in_world
async def test_a_look_at_a_pod_whose_name_may_be_taken_again_is_never_watched(world: World) -> None:
    """A caller that names no UID may be in a new pod of that name."""
    world.put(PODS, pod("a", scaled=True))
    await world.refresh()
    look = world.cluster.look(PodName("a", "default"))
    assert (look.found, look.reading is not None, look.is_watched) == (True, True, False)


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


TYPO = {names.BOUNDS: '{"max": {"cpu": 2, "memory": "lots"}}'}


@in_world
async def test_a_typo_in_an_annotation_keeps_the_vms_bounds(world: World) -> None:
    world.put(PODS, pod("a", scaled=True, annotations=BOUNDS))
    await world.refresh()
    world.put(PODS, pod("a", scaled=True, annotations=TYPO))
    await world.refresh()

    assert world.vm("a").spec.bounds.max == cu(2)
    assert world.cluster.faults["pod default/a"][0].startswith("parley.dev/bounds: max.memory")

    world.put(PODS, pod("b", scaled=True, annotations=TYPO))
    await world.refresh()
    assert world.vm("b").spec.unknown_settings == (names.BOUNDS,), "nothing is known of a pod that comes so"

    world.put(PODS, pod("b", scaled=True, annotations=BOUNDS))
    await world.refresh()
    assert (world.vm("b").spec.unknown_settings, world.vm("b").spec.bounds.max) == ((), cu(2))


@in_world
async def test_a_typo_in_a_policy_or_a_policy_that_cannot_be_read_keeps_the_vms_bounds(world: World) -> None:
    world.put(PODS, pod("a"))
    world.put(SCALING_POLICIES, policy(bounds={"max": {"cpu": 3, "memory": "3Gi"}}))
    await world.refresh()
    for broken in (policy(bounds={"max": {"cpu": "three"}}), policy() | {"spec": ["bounds"]}):
        world.put(SCALING_POLICIES, broken)
        await world.refresh()
        assert world.vm("a").spec.bounds.max == cu(3)


@in_world
async def test_a_typo_at_a_virtual_machine_keeps_its_bounds(world: World) -> None:
    def annotated(text: str) -> dict[str, object]:
        made = machine()
        made["metadata"]["annotations"] = {names.BOUNDS: text}
        return made

    world.put(PODS, pod("a", labels=_IN_VM))
    world.put(VIRTUAL_MACHINES, annotated('{"max": {"cpu": 2, "memory": "2Gi"}}'))
    await world.refresh()
    world.put(VIRTUAL_MACHINES, annotated('{"max": {"cpu": 2, "memory": "lots"}}'))
    await world.refresh()
    assert world.vm("a").spec.bounds.max == cu(2)
    assert world.vm("a").spec.unknown_settings == ()


@virtually
async def test_a_virtual_machine_without_the_label_is_a_vm_where_a_published_agent_may_serve_it() -> None:
    world = World(is_served=partial(is_served_by_published, ("n*",), "autoscale-scheduler"))
    world.put(NODES, node())
    for name, scheduler in (("a", "autoscale-scheduler"), ("b", "another")):
        world.put(PODS, pod(name, labels={names.NEON_VM_NAME: f"vm-{name}"}))
        made = machine(f"vm-{name}", name, is_enabled=False)
        world.put(VIRTUAL_MACHINES, {**made, "spec": made["spec"] | {"schedulerName": scheduler}})
    async with opened(world):
        await world.refresh()
        assert world.vm("a").spec.bounds.max == cu(4)
        assert (world.row("b", Kind.VM), world.row("b", Kind.POD)) == (None, cu(2))


@pytest.mark.parametrize(
    ("guest", "status", "holds"),
    [
        ({"cpus": {"min": 1, "max": 4}, "memorySlots": {"min": 1, "max": 4}}, {}, cu(1)),
        ({"cpus": {"min": 1, "use": 3}, "memorySlots": {"min": 1, "use": 2}}, {}, cu(3, 2)),
        ({"cpus": {"min": 1, "use": "1Q"}, "memorySlots": {"min": 1, "use": 2}}, {}, cu(4, 16)),
        ({"cpus": {"min": 1}, "memorySlots": {"min": 1}}, {"cpus": None}, cu(4, 16)),
    ],
    ids=["no use", "no max", "a use that is wrong", "no size"],
)
def test_a_virtual_machine_that_cannot_be_scaled_counts_as_what_it_shows(
    guest: dict[str, object], status: dict[str, object], holds: Resources
) -> None:
    @in_world
    async def story(world: World) -> None:
        made = machine()
        world.put(PODS, pod("a", labels=_IN_VM))
        world.put(
            VIRTUAL_MACHINES, {**made, "spec": {"guest": guest}, "status": {**made["status"], **status}}
        )
        await world.refresh()
        assert world.row("a", Kind.POD) == holds
        assert "spec.guest.cpus" in world.cluster.faults["pod default/a"][0], "the fault is told all the same"

    story()
