"""The NodeResourceTopology that the agent writes: read from a described /sys, with the CPUs that pods have, and as the scheduler reads it."""

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agent.node.qos.core.cpu_suppress import CpuPlace
from agent.node.qos.core.node_topology import (
    HostTopology,
    cpus_wanted,
    topology_object,
)
from agent.node.qos.node_object import LOOK_S, REPEAT_S, RETRY
from agent.node.qos.node_topology import NodeTopologyWriter, read_host
from hosting import logs
from hosting.kubernetes.api import UnreachableError
from hosting.kubernetes.koordinator import (
    BE_CPU_SHARED_POOLS,
    CPU_SHARED_POOLS,
    NODE_RESOURCE_TOPOLOGIES,
    POD_CPU_ALLOCS,
    QOS,
    RESOURCE_STATUS,
    PodCpus,
    cpus_told,
)
from hosting.kubernetes.resources import NODES, Manifest
from protocol.cpu_lists import cpus_of
from scheduler.placing.plugins.node_numa_resource.topology import read_topology
from tests.support.kube_api import FakeApiServer
from tests.support.virtual_time import now_s, virtually
from tests.unit.agent_qos.described_hosts import EIGHT, describe
from tests.unit.agent_qos.strategy_worlds import SetStates, container, node, pod

CPUS = (container(requests_milli=2000),)
HOST = HostTopology(tuple(CpuPlace(*each) for each in EIGHT), {0: 4 << 30, 1: 4 << 30})
LSR = pod("lsr", "Burstable", CPUS, labels={QOS: "LSR"}, annotations={RESOURCE_STATUS: '{"cpuset": "0-1"}'})
LSE = pod("lse", "Burstable", CPUS, labels={QOS: "LSE"}, annotations={RESOURCE_STATUS: '{"cpuset": "4-5"}'})
NEAR = pod("near", "Burstable", annotations={RESOURCE_STATUS: '{"numaNodeResources": [{"node": 1}]}'})
BE, LS = pod("be"), pod("ls", "Burstable")


def test_a_host_is_read_as_the_kernel_tells_it(tmp_path: Path) -> None:
    describe(tmp_path, EIGHT)
    (tmp_path / "devices/system/cpu/cpu9").mkdir()  # offline
    assert read_host(tmp_path) == HOST
    assert read_host(tmp_path / "none") == HostTopology()


def test_a_pod_that_requests_no_cpu_has_none_of_its_own() -> None:
    forged = pod("forged", "Burstable", annotations={RESOURCE_STATUS: '{"cpuset": "0-7"}'})
    wanted = cpus_wanted(HOST, [LSR, forged])
    assert wanted == {"lsr": cpus_of("0-1"), "forged": cpus_of("2-7")}


def test_what_a_pod_was_told() -> None:
    assert cpus_told(LSR.annotations) == PodCpus(cpus_of("0-1"))
    assert cpus_told(NEAR.annotations) == PodCpus(numa_nodes=frozenset({1}))
    for text in ("", "{", "[]", '{"cpuset": "1-"}', '{"numaNodeResources": [{}]}'):
        assert cpus_told({RESOURCE_STATUS: text}) == PodCpus()


def test_the_cpus_that_pods_run_on() -> None:
    pods = (LSR, LSE, NEAR, BE, LS, replace(LSE, uid="over", is_finished=True))
    assert cpus_wanted(HOST, pods) == {
        "lsr": cpus_of("0-1"),
        "lse": cpus_of("4-5"),
        "near": cpus_of("6-7"),
        "be": cpus_of("0-3,6-7"),
        "ls": cpus_of("2-3,6-7"),
    }
    all_taken = replace(LSR, annotations={RESOURCE_STATUS: '{"cpuset": "0-7"}'})
    assert cpus_wanted(HOST, (all_taken, LS)) == {"lsr": cpus_of("0-7")}


def test_the_object_has_the_published_annotations_and_zones() -> None:
    found = topology_object("n1", HOST, (LSR, LSE, BE))
    annotations = found["metadata"]["annotations"]
    assert json.loads(annotations[POD_CPU_ALLOCS]) == [
        {"namespace": "default", "name": "pod-lse", "uid": "lse", "cpuset": "4-5"},
        {"namespace": "default", "name": "pod-lsr", "uid": "lsr", "cpuset": "0-1"},
    ]
    assert json.loads(annotations[CPU_SHARED_POOLS]) == [
        {"socket": 0, "node": 0, "cpuset": "2-3"},
        {"socket": 1, "node": 1, "cpuset": "6-7"},
    ]
    assert json.loads(annotations[BE_CPU_SHARED_POOLS]) == [
        {"socket": 0, "node": 0, "cpuset": "0-3"},
        {"socket": 1, "node": 1, "cpuset": "6-7"},
    ]
    assert found["zones"][1] == {
        "name": "node-1",
        "type": "Node",
        "resources": [
            {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
            {"name": "memory", "capacity": "4Gi", "allocatable": "4Gi", "available": "4Gi"},
        ],
    }


def test_the_scheduler_reads_what_the_agent_writes() -> None:
    found = read_topology(topology_object("n1", HOST, (LSR,)))
    assert found.fault == ""
    assert found.cpus is not None
    assert {cpu: (each.socket, each.numa_node) for cpu, each in found.cpus.cpus.items()} == {
        cpu: (socket, numa_node) for cpu, _, socket, numa_node in EIGHT
    }
    assert found.cpus.threads_per_core == 2
    assert found.numa == {each: {"cpu": 4000, "memory": 4 << 30} for each in (0, 1)}
    assert found.taken == frozenset()


@dataclass
class World:
    """An API server with the node, and a writer."""

    sys: Path
    server: FakeApiServer = field(default_factory=FakeApiServer)
    states: SetStates = field(default_factory=lambda: SetStates(node()))
    time_s: float = 1000.0

    def __post_init__(self) -> None:
        describe(self.sys, EIGHT)
        self.node: Manifest | None = self.server.put(NODES, {"metadata": {"name": "n1"}})
        self.writer = NodeTopologyWriter(
            self.server.api(),
            lambda: self.node,
            self.states,
            logs.logger("test"),
            random.Random(1),
            lambda: self.time_s,
            self.sys,
        )

    def written(self) -> Manifest:
        return self.server.get(NODE_RESOURCE_TOPOLOGIES, "", "n1")

    @property
    def calls(self) -> list[str]:
        found = [f"{call.method} {call.path.rpartition('/v1alpha1/')[2]}" for call in self.server.calls]
        self.server.calls.clear()
        return found


def really(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """In a loop with threads: the writer reads /sys in one."""

    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


PATCH, CREATE = "PATCH noderesourcetopologies/n1", "POST noderesourcetopologies"


@really
async def test_the_object_is_made_and_changed_only_when_it_must(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert await world.writer.write()
    assert world.calls == [PATCH, CREATE, PATCH]
    assert world.written()["metadata"]["ownerReferences"][0]["name"] == "n1"
    assert not await world.writer.write()
    world.states.pods = (LSR,)
    assert await world.writer.write()
    assert world.calls == [PATCH]
    assert "0-1" in world.written()["metadata"]["annotations"][POD_CPU_ALLOCS]
    world.time_s += REPEAT_S
    assert await world.writer.write()
    assert world.calls == [PATCH]


@really
async def test_the_policies_that_somebody_else_has_written_stay(tmp_path: Path) -> None:
    world = World(tmp_path)
    policies = ["SingleNUMANodePodLevel"]
    world.server.put(
        NODE_RESOURCE_TOPOLOGIES,
        {"metadata": {"name": "n1"}, "topologyPolicies": policies, "zones": []},
    )
    assert await world.writer.write()
    assert world.written()["topologyPolicies"] == policies
    assert len(world.written()["zones"]) == 2


@virtually
async def test_nothing_is_written_before_the_node_is_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.states.node = None
    assert not await world.writer.write()
    world.states.node, world.node = node(), None
    assert not await world.writer.write()
    assert world.calls == []


@virtually
async def test_what_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_s: list[float] = []
    world = World(tmp_path)

    async def write() -> bool:
        at_s.append(now_s())
        if len(at_s) == 1:
            raise UnreachableError("no answer within 5 s")
        return True

    monkeypatch.setattr(world.writer, "write", write)
    task = asyncio.create_task(world.writer.run())
    await asyncio.sleep(10 * LOOK_S)
    task.cancel()
    first, second, third, *_ = at_s
    assert 0 < second - first <= RETRY.base_s
    assert third - second == pytest.approx(LOOK_S)
