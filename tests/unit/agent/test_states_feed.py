"""Strategies see the agent's stores and runners as values, and report Events from their threads."""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from agent.daemon.announcer import ClusterNode, NodeEvents
from agent.daemon.qos import StatesFeed, machine
from agent.node.qos.core.states import ObjectType
from agent.node.qos.states_informer import StateCallbacks, States
from agent.sources.described import Found
from agent.sources.kubernetes import Stores
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Scaling
from protocol.values import ZERO
from tests.support.amounts import cu
from tests.support.manifests import pod_manifest
from tests.support.servers import QUIET
from tests.support.virtual_time import now_s, turns, virtually
from tests.unit.agent.driver import VM
from tests.unit.agent.peers import World, running

NODE: Manifest = {
    "metadata": {"name": "node-1", "uid": "uid-node-1"},
    "status": {
        "capacity": {"cpu": "4", "memory": "8Gi"},
        "allocatable": {"cpu": "3", "memory": "7Gi"},
    },
}


class Kept:
    def __init__(self, *objects: Manifest) -> None:
        self.found = {
            (str(each["metadata"].get("namespace", "")), each["metadata"]["name"]): each for each in objects
        }
        self.fault = ""

    def objects(self) -> dict[tuple[str, str], Manifest]:
        return self.found

    async def synced(self) -> None:
        return


class Noted:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def record(self, regarding: Manifest, type_: str, reason: str, action: str, note: str) -> None:
        assert action
        self.events.append((regarding["metadata"]["name"], type_, reason, note))


def cluster(*pods: Manifest) -> tuple[ClusterNode, Kept, Noted]:
    kept, noted = Kept(*pods), Noted()
    stores = Stores(kept, Kept(NODE), Kept({"metadata": {"namespace": "d", "name": "p"}, "spec": {"min": 1}}))
    return ClusterNode(cast("Any", None), stores, noted, dict), kept, noted


def states() -> States:
    return States(StateCallbacks(QUIET, now_s))


@virtually
async def test_what_the_stores_hold_is_published_and_a_bad_object_hides_no_other() -> None:
    bad = pod_manifest("bad", requests={"cpu": "none"})
    there, kept, _ = cluster(pod_manifest("a"), bad)
    found = states()
    feed = StatesFeed(found, "node-1", there, list, QUIET)
    await feed.publish()
    assert found.has_synced()
    assert [pod.name for pod in found.get_all_pods()] == ["a"]
    node = found.get_node()
    assert node is not None
    assert (node.capacity, node.allocatable) == (cu(4, 8), cu(3, 7))
    assert [(each.name, each.spec) for each in found.get_scaling_policies()] == [("p", {"min": 1})]
    kept.found["default", "b"] = pod_manifest("b")
    await feed.publish()
    assert [pod.name for pod in found.get_all_pods()] == ["a", "b"]


@virtually
async def test_pods_that_vanish_while_the_watch_is_broken_are_not_believed() -> None:
    there, kept, _ = cluster(pod_manifest("a"))
    found = states()
    feed = StatesFeed(found, "node-1", there, list, QUIET)
    await feed.publish()
    kept.found, kept.fault = {}, "no answer"
    await feed.publish()
    assert len(found.get_all_pods()) == 1
    kept.fault = ""
    await feed.publish()
    assert found.get_all_pods() == ()


@virtually
async def test_vms_are_as_their_runners_know_them_and_without_a_cluster_the_machine_is_the_node() -> None:
    world, found = World(), states()
    async with running(world):
        await asyncio.sleep(0.2)
        await StatesFeed(found, "n1", None, lambda: [world.runner], QUIET).publish()
    (vm,) = found.get_all_vms()
    assert (vm.name, vm.pod_uid, vm.size, vm.held, vm.desired) == (VM.name, VM.pod_uid, cu(2), cu(2), cu(2))
    node = found.get_node()
    assert node is not None
    assert (node.name, node.capacity) == ("n1", machine())
    assert found.has_synced()


@virtually
async def test_pods_that_are_to_be_scaled_are_vms_before_they_have_a_runner() -> None:
    """A pod that a ScalingPolicy selects has no label of ours, and strategies begin once all is known."""
    owner = {"kind": "ReplicaSet", "name": "r", "controller": True}
    there, _, _ = cluster(pod_manifest("a"), pod_manifest("stuck"), pod_manifest("other"))
    scaling = Scaling({}, cast("Any", None), ZERO)
    looked: list[Mapping[str, Found] | None] = [None]
    found = states()
    feed = StatesFeed(found, "node-1", replace(there, found=lambda: looked[0]), list, QUIET)
    await feed.publish()
    assert found.missing() == (ObjectType.ALL_VMS,)
    looked[0] = {
        "default/a": Found(pod_manifest("a"), scaling),
        "default/stuck": Found(
            pod_manifest("stuck", ownerReferences=[owner]), replace(scaling, may_evict=True)
        ),
        "default/alone": Found(pod_manifest("alone"), replace(scaling, may_evict=True)),
        "default/never": Found(pod_manifest("never"), scaling, obstacles=("no requests",)),
        "default/machine": Found(pod_manifest("machine")),
    }
    await feed.publish()
    assert [(each.pod_uid, each.is_evicted_when_stuck) for each in found.get_all_vms()] == [
        ("uid-a", False),
        ("uid-alone", False),
        ("uid-stuck", True),
    ]


@virtually
async def test_events_are_told_in_the_loop_whoever_reports_them() -> None:
    there, _, noted = cluster()
    events = NodeEvents(there, QUIET)
    pod = cast("Any", SimpleNamespace(namespace="d", name="a", uid="u", full_name="d/a"))
    for about in (pod, None):
        how = {"is_warning": True}
        thread = threading.Thread(target=events.record, args=(about, "Why", "so"), kwargs=how)
        thread.start()
        thread.join()
    assert noted.events == [], "not in the strategy's thread"
    await turns()
    assert noted.events == [("a", "Warning", "Why", "so"), ("node-1", "Warning", "Why", "so")]
