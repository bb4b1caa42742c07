"""Plugins see a cluster of Kubernetes as values: pods, and snapshots that are brought up to date node by node."""

from collections.abc import Awaitable, Callable

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import NODES, PODS, VIRTUAL_MACHINES, Manifest
from protocol.values import Bounds, Resources
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.permits.core import events
from scheduler.permits.core.model import Holder, Kind
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_clusters.kube_manifests import bounds, machine, node, pod
from tests.unit.scheduler_clusters.kube_worlds import World, opened

GIB = 2**30
BOUNDS = bounds({"cpu": "250m", "memory": "256Mi"}, {"cpu": 2, "memory": "2Gi"})


class PlacingWorld(World):
    """A world with a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.view = PlacingView(self.cluster, self.core)

    async def snapshot(self) -> NodeSnapshot:
        await self.refresh()
        return self.view.snapshot()

    def assume(self, pod: PodInfo, node_name: str) -> None:
        placed = events.PlacementAssumed(
            1, pod.holder, pod.name, node_name, pod.amount, until_s=now_s() + 30.0, now_s=now_s()
        )
        assert self.core.apply(placed) == (events.Placed(1),)
        self.view.assume_pod(pod, node_name)


def in_world(story: Callable[[PlacingWorld], Awaitable[None]]) -> Callable[[], None]:
    @virtually
    async def test() -> None:
        world = PlacingWorld()
        for name in ("n1", "n2"):
            world.put(NODES, node(name))
        async with opened(world):
            await world.refresh()
            await story(world)

    test.__name__ = story.__name__
    return test


def _waiting(manifest: Manifest) -> Manifest:
    del manifest["spec"]["nodeName"]
    return {**manifest, "status": {"phase": "Pending"}}


def _pods(found: NodeInfo) -> dict[str, Resources]:
    return {each.pod.name: each.amount for each in found.pods}


_INIT = [{"name": "init", "resources": {"requests": {"cpu": "2"}}}]


@pytest.mark.parametrize(
    ("manifest", "amount", "limits", "pool", "priority"),
    [
        (pod(), Resources(500, GIB), None, None, 0),
        (pod(initContainers=_INIT), Resources(2000, GIB), None, None, 0),
        (pod(labels={names.POOL: "web"}), Resources(500, GIB), None, "web", 0),
        (pod(priority=7, overhead={"cpu": "100m"}), Resources(600, GIB), None, None, 7),
        (
            pod(scaled=True, annotations=BOUNDS, labels={names.POOL: "web"}),
            Resources(500, GIB),
            Bounds(Resources(250, GIB // 4), Resources(2000, 2 * GIB)),
            "web",
            0,
        ),
        # Without bounds it may grow to the largest node.
        (pod(scaled=True), Resources(500, GIB), Bounds(Resources(100, GIB // 8), Resources(4000, 16 * GIB)), None, 0),
        # A pod that a VM is made in needs room for the VM.
        (
            pod("a", labels={names.NEON_VM_NAME: "vm"}),
            Resources(2000, 2 * GIB),
            Bounds(Resources(1000, GIB), Resources(4000, 4 * GIB)),
            None,
            0,
        ),
        # The VM has left for another pod, or is on its way to this one.
        (pod("b", labels={names.NEON_VM_NAME: "vm"}), Resources(2000, 2 * GIB), None, None, 0),
    ],
    ids=["plain", "init container", "not scaled, of a pool", "priority and overhead", "scaled", "scaled without bounds", "VM", "VM elsewhere"],
)  # fmt: skip
def test_a_pod_without_a_node_is_told_as_it_will_count(
    manifest: Manifest, amount: Resources, limits: Bounds | None, pool: str | None, priority: int
) -> None:
    @in_world
    async def story(world: PlacingWorld) -> None:
        world.put(VIRTUAL_MACHINES, machine(pod_name="a"))
        await world.refresh()
        found = world.view.pod_info(_waiting(manifest))
        assert (found.amount, found.bounds, found.pool, found.priority) == (amount, limits, pool, priority)
        assert found.holder.kind is (Kind.VM if limits is not None else Kind.POD)

    story()


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (pod(cpu="much"), "the pod cannot be read: .*much"),
        (pod(labels={names.NEON_VM_NAME: "lost"}), "there is no VirtualMachine lost"),
    ],
)
def test_a_pod_whose_need_nobody_knows_is_refused(manifest: Manifest, text: str) -> None:
    @in_world
    async def story(world: PlacingWorld) -> None:
        with pytest.raises(ValueError, match=text):
            world.view.pod_info(_waiting(manifest))

    story()


@in_world
async def test_a_snapshot_joins_accounts_nodes_and_pods(world: PlacingWorld) -> None:
    world.put(PODS, pod("a", scaled=True, annotations=BOUNDS))
    world.put(PODS, pod("done", phase="Succeeded"))
    found = (await world.snapshot())["n1"]
    assert (found.reservable, found.reserved) == (Resources(4000, 16 * GIB), world.reserved())
    row = world.row("a")
    assert _pods(found) == {"a": row}, "the pod as the ledger keeps it, and none that has ended"
    (info,) = found.rows.values()
    assert (info.reserved, info.bounds) == (row, found.pods[0].bounds)
    assert found.manifest["metadata"]["name"] == "n1"


@in_world
async def test_only_what_has_changed_is_built_anew(world: PlacingWorld) -> None:
    first = await world.snapshot()
    assert await world.snapshot() is first
    world.put(PODS, pod("a"))
    second = await world.snapshot()
    assert (second["n2"], second["n1"].generation) == (first["n2"], second.generation)
    assert second["n2"] is first["n2"]
    assert _pods(first["n1"]) == {}, "a snapshot never changes"
    world.put(NODES, node("n2", metadata={"name": "n2", "uid": "n2", "labels": {"zone": "z"}}))
    third = await world.snapshot()
    assert third["n2"].manifest["metadata"]["labels"] == {"zone": "z"}
    assert third["n1"] is second["n1"]
    world.server.delete(NODES, "", "n2")
    assert set(await world.snapshot()) == {"n1"}


@in_world
async def test_a_pod_that_moves_to_another_node_under_its_name_is_shown_there(world: PlacingWorld) -> None:
    world.put(PODS, pod("a"))
    assert _pods((await world.snapshot())["n1"]) == {"a": Resources(500, GIB)}
    world.server.delete(PODS, "default", "a")
    world.put(PODS, {**pod("a"), "spec": {**pod("a")["spec"], "nodeName": "n2"}})
    snapshot = await world.snapshot()
    assert [[*_pods(snapshot[name])] for name in ("n1", "n2")] == [[], ["a"]]


@in_world
async def test_an_assumed_pod_is_shown_for_as_long_as_room_is_kept_for_it(world: PlacingWorld) -> None:
    waiting = world.view.pod_info({**_waiting(pod("a")), "metadata": {**pod("a")["metadata"], "uid": "u"}})
    world.assume(waiting, "n1")
    assert _pods(world.view.snapshot()["n1"]) == {"a": Resources(500, GIB)}
    world.core.apply(events.PlacementForgotten(Holder(Kind.POD, "u")))
    assert _pods(world.view.snapshot()["n1"]) == {}
    world.assume(waiting, "n2")
    snapshot = world.view.snapshot()
    assert [[*_pods(snapshot[name])] for name in ("n1", "n2")] == [[], ["a"]]


@in_world
async def test_an_assumed_pod_that_the_cluster_shows_is_shown_once(world: PlacingWorld) -> None:
    world.put(PODS, _waiting(pod("a")))
    world.assume(world.view.pod_info(world.server.get(PODS, "default", "a")), "n1")
    world.put(PODS, pod("a"))
    found = (await world.snapshot())["n1"]
    assert [each.manifest["spec"].get("nodeName") for each in found.pods] == ["n1"]
