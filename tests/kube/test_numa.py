"""`NodeNUMAResource` with a real API server, on described nodes: the agent's object is taken by the published type, and no CPU is given twice, also
over a restart of the scheduler."""

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from agent.node.qos.node_topology import NodeTopologyWriter, read_host
from hosting import logs
from hosting.kubernetes import objects as fields
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.koordinator import CPU_TOPOLOGY, POD_CPU_ALLOCS, RESOURCE_STATUS
from hosting.kubernetes.names import ENABLED
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from protocol.cpu_lists import cpus_of
from tests.support.kube.growing import GrowingPod, RoomWatch
from tests.support.kube.objects import pod
from tests.support.kube.placing import PlacingScene, ours, started_kubeless_plane
from tests.support.waiting import shown_blocking
from tests.tidy.repository import ROOT
from tests.unit.agent_qos.described_hosts import EIGHT, describe
from tests.unit.agent_qos.strategy_worlds import SetStates, node

TYPES: Final = ROOT / "deploy/koordinator/noderesourcetopologies.yaml"
TOPOLOGIES: Final = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
CONFIG: Final = """
scheduling:
  profiles:
    - plugins: {multiPoint: {enabled: [{name: NodeNUMAResource}]}}
      pluginConfig:
        - name: NodeNUMAResource
          args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeNUMAResourceArgs, defaultCPUBindPolicy: FullPCPUs}
"""
PAIR: Final = 2000


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        plane.kubectl("apply", "--server-side", f"--filename={TYPES}")
        plane.kubectl("wait", "--for=condition=Established", f"--filename={TYPES}", "--timeout=60s")
        yield plane


def pinned(name: str, milli: int = PAIR) -> Manifest:
    manifest = pod(
        name,
        requests={"cpu": f"{milli}m", "memory": "64Mi"},
        labels={"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"},
    )
    manifest["spec"] |= {"schedulerName": "parley-scheduler", "terminationGracePeriodSeconds": 0}
    return manifest


async def tell(plane: ControlPlane, name: str, sys: Path) -> None:
    """As the agent of that node does."""
    node_object = json.loads(plane.call("GET", f"/api/v1/nodes/{name}"))
    async with KubernetesApi(ApiCredentials(plane.kubeconfig, None), user_agent="test") as api:
        log, rng = logs.logger("test"), random.Random(0)
        writer = NodeTopologyWriter(
            api, lambda: node_object, SetStates(node()), log, rng, time.monotonic, sys
        )
        assert await writer.write()


def given(scene: PlacingScene) -> dict[str, frozenset[int]]:
    """The CPUs that pods with a node were told, by their names."""
    return {
        fields.name(each): cpus_of(json.loads(fields.annotations(each)[RESOURCE_STATUS])["cpuset"])
        for each in scene.objects.list("pods")
        if each["spec"].get("nodeName")
    }


def assert_whole_cores_of_one(found: Sequence[frozenset[int]]) -> None:
    """Each is a core, and no CPU is in two of them."""
    assert all(cpus in ({0, 1}, {2, 3}, {4, 5}, {6, 7}) for cpus in found), found
    assert len(frozenset().union(*found)) == sum(map(len, found))


def test_pods_get_cores_of_their_own_also_over_a_restart(scene: PlacingScene, tmp_path: Path) -> None:
    describe(tmp_path / "sys", EIGHT)
    (name,) = scene.add_nodes(1, 16_000)  # more than there are CPUs: the topology counts
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG)
    scene.start_parley("--mode", "full", "--config", str(config))
    scene.create(pinned("first"))
    assert "CPU Topology not found" in scene.refused("first", "CPU Topology not found")

    asyncio.run(tell(scene.plane, name, tmp_path / "sys"))
    shown: dict[str, Any] = json.loads(scene.plane.call("GET", f"{TOPOLOGIES}/{name}"))
    assert len(json.loads(shown["metadata"]["annotations"][CPU_TOPOLOGY])["detail"]) == len(EIGHT)
    assert scene.placed("first") == name, "it is tried again when the agent has told"
    scene.create(*(pinned(f"p{number}") for number in range(2)))
    for number in range(2):
        scene.placed(f"p{number}")
    assert_whole_cores_of_one(list(given(scene).values()))

    scene.parley.running.pop("a").end(signal.SIGKILL)
    scene.parley.again("a")
    scene.await_parley()
    scene.create(pinned("later"))
    assert scene.placed("later") == name
    assert_whole_cores_of_one(list(given(scene).values()))
    assert len(given(scene)) == 4
    scene.create(pinned("over"))
    assert "not enough cpus" in scene.refused("over", "not enough cpus available to satisfy request")
    freed = given(scene)["first"]
    scene.objects.delete("pods", "first")
    assert scene.placed("over") == name
    shown_blocking("the freed core is used again", lambda: given(scene).get("over") == freed)
    scene.await_right_ledger()


def test_a_pinned_pod_grows_by_free_cores_of_its_numa_node_or_is_told_why_not(
    scene: PlacingScene, tmp_path: Path
) -> None:
    """Also over a restart in the middle; and what it does not need any more goes to others."""
    describe(tmp_path / "sys", EIGHT)
    (name,) = scene.add_nodes(1, 16_000)
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG)
    scene.start_parley("--mode", "full", "--config", str(config))
    asyncio.run(tell(scene.plane, name, tmp_path / "sys"))
    room, pods = RoomWatch(scene.plane, scene.objects.namespace, 16_000), dict[str, GrowingPod]()
    for each in "ab":
        manifest = pinned(each)
        manifest["metadata"]["labels"][ENABLED] = "true"
        scene.create(manifest)
        scene.placed(each)
        pods[each] = GrowingPod(scene.objects, scene.objects.get("pods", each), room, [scene.port])
    before = given(scene)

    def asks(each: str, milli: int) -> str:
        """The first reason for which the pod gets no more."""
        pods[each].become(milli)
        answer = pods[each].agent.ask(milli) or {}
        assert pods[each].milli <= 1000 * len(given(scene)[each])
        return next((f"{why['code']}: {why['message']}" for why in answer.get("reasons", ())), "")

    halves = frozenset(range(4)), frozenset(range(4, 8))
    assert sorted(next(n for n in range(2) if cpus <= halves[n]) for cpus in before.values()) == [0, 1]
    shown_blocking("it grows", lambda: asks("a", 4000) == "" and pods["a"].milli == 4000)
    assert before["a"] < given(scene)["a"] in halves
    missing = "own-cpus: the VM has 4 CPUs of its own: NUMA node {} of the pod has 0 CPUs of free cores, and 2 more are needed"
    why = missing.format(halves.index(given(scene)["a"]))
    shown_blocking("its NUMA node is full", lambda: asks("a", 6000) == why)

    scene.parley.running.pop("a").end(signal.SIGKILL)
    scene.parley.again("a")
    scene.await_parley()
    scene.create(pinned("p"))
    scene.placed("p")
    scene.create(pinned("over"))
    scene.refused("over", "not enough cpus available to satisfy request")

    def are_apart() -> bool:
        told = list(given(scene).values())
        return sum(map(len, told)) == len(frozenset().union(*told)) == 8

    assert are_apart()
    shown_blocking("it shrinks", lambda: asks("a", 2000) == "" and pods["a"].milli == 2000)
    assert scene.placed("over") == name, "cores that are not needed are given back after a while"
    assert are_apart()
    assert room.faults == []
    assert scene.audit() == []


def test_beside_kube_scheduler_the_bind_call_gives_out_cpus(scene: PlacingScene, tmp_path: Path) -> None:
    describe(tmp_path / "sys", EIGHT)
    (name,) = scene.add_nodes(1, 16_000)
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG.replace("- plugins:", "- schedulerName: default-scheduler\n      plugins:"))
    port = scene.start_parley("--config", str(config))
    asyncio.run(tell(scene.plane, name, tmp_path / "sys"))
    scene.start_kube_scheduler(port)
    labels = pinned("any")["metadata"]["labels"]
    scene.create(*(ours(f"p{number}", PAIR, labels=labels) for number in range(3)))
    for number in range(3):
        assert scene.placed(f"p{number}") == name
    assert_whole_cores_of_one(list(given(scene).values()))


def test_the_agent_tells_of_the_cpus_of_its_machine(scene: PlacingScene, tmp_path: Path) -> None:
    """The programs themselves: an agent whose settings say so, and a scheduler that waits for it."""
    cpus = read_host().all_cpus
    (name,) = scene.add_nodes(1, 1000 * len(cpus))
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG)
    scene.start_parley("--mode", "full", "--config", str(config))
    scene.create(pinned("own", 1000))
    assert "CPU Topology not found" in scene.refused("own", "CPU Topology not found")
    scene.parley.agent(name, [scene.port], qos={"nodeTopology": True})
    assert scene.placed("own") == name
    (told,) = given(scene).values()
    assert len(told) == 1
    assert told <= cpus

    def is_told() -> bool:
        shown: dict[str, Any] = json.loads(scene.plane.call("GET", f"{TOPOLOGIES}/{name}"))
        allocs = json.loads(shown["metadata"]["annotations"][POD_CPU_ALLOCS])
        return [(each["name"], cpus_of(each["cpuset"])) for each in allocs] == [("own", told)]

    shown_blocking("the pod's CPUs are in the object", is_told)
