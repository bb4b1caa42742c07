"""Devices and CPUs of the same NUMA nodes: the hints of `DeviceShare`, and both plugins in the real framework."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hosting.kubernetes.devices import ALLOCATED, CORE, MEMORY, RATIO, RDMA, read_grants, written_grants
from hosting.kubernetes.koordinator import DEVICES, NODE_RESOURCE_TOPOLOGIES, RESOURCE_STATUS
from parley.testing import FakeCluster, node, pod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.plugins.device_share.allocation import (
    DeviceRoom,
    can_be_aligned,
    numa_hints,
    read_devices,
    scorer,
)
from scheduler.placing.plugins.device_share.core import pod_devices
from scheduler.placing.plugins.node_numa_resource.pod_notes import NUMA_TOPOLOGY_SPEC
from scheduler.placing.plugins.topology_manager import HintProvider, NumaHint, NumaTopologyPolicy, admit
from tests.support.virtual_time import virtually
from tests.unit.scheduler_plugins.numa_worlds import detail, topology_manifest
from tests.unit.scheduler_plugins.test_device_share import device, manifest, taken

NVIDIA = "nvidia.com/gpu"
ZONES = {0: {"cpu": "8", "memory": "16Gi"}, 1: {"cpu": "8", "memory": "16Gi"}}
FOUR = [*(device("gpu", minor, minor // 2, minor) for minor in range(4)), device("rdma", 0, 1, 3)]
SCORE = scorer({RATIO: 1, MEMORY: 1, RDMA: 1}, prefers_used=False)
ONLY_0, ONLY_1, BOTH = 0b01, 0b10, 0b11


@pytest.mark.parametrize(
    ("wanted", "used", "policy", "hints"),
    [
        ({NVIDIA: 1}, (), "SingleNUMANode", [(ONLY_0, True), (ONLY_1, True), (BOTH, False)]),
        ({NVIDIA: 1}, (0, 1), "SingleNUMANode", [(ONLY_1, True), (BOTH, False)]),
        ({NVIDIA: 2}, (0,), "BestEffort", [(ONLY_1, True), (BOTH, False)]),
        ({NVIDIA: 3}, (), "SingleNUMANode", [(BOTH, True)]),
        ({NVIDIA: 1}, (), "Restricted", [(ONLY_0, True), (ONLY_1, True), (BOTH, True)]),
        ({CORE: 50, RATIO: 50}, (0, 1, 2), "SingleNUMANode", [(ONLY_1, True), (BOTH, False)]),
        ({NVIDIA: 1, RDMA: 100}, (), "SingleNUMANode", [(ONLY_1, True), (BOTH, False)]),
        ({NVIDIA: 4}, (0,), "BestEffort", "Insufficient gpu devices"),
        ({"koordinator.sh/fpga": 100}, (), "BestEffort", "node(s) had no fpga devices"),
    ],
)
def test_hints_are_the_numa_nodes_whose_devices_would_do(
    wanted: Mapping[str, int], used: Sequence[int], policy: str, hints: str | list[tuple[int, bool]]
) -> None:
    asked = pod_devices(wanted, {})
    assert asked is not None
    room = DeviceRoom(read_devices(manifest(*FOUR)), taken(*used))
    found = numa_hints(room, asked, SCORE, (0, 1), policy)
    if isinstance(hints, str):
        assert found == (hints,)
    else:
        expected = [NumaHint(mask, is_preferred) for mask, is_preferred in hints]
        assert found == {request.type: expected for request in asked.requests}


def test_devices_of_unknown_places_and_all_devices_that_match_are_not_aligned() -> None:
    everywhere = {
        "scheduling.koordinator.sh/device-allocate-hint": '{"rdma": {"allocateStrategy": "ApplyForAll"}}'
    }
    unknown = read_devices(manifest(device("gpu", 0, -1, 0), *FOUR[4:]))
    for wanted, annotations, is_aligned in (
        ({NVIDIA: 1}, {}, False),
        ({RDMA: 100}, {}, True),
        ({RDMA: 100}, everywhere, False),
    ):
        asked = pod_devices(wanted, annotations)
        assert asked is not None
        assert can_be_aligned(unknown, asked, (0, 1)) is is_aligned
        assert not can_be_aligned(unknown, asked, ()), "the topology does not tell of their NUMA node"


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        (NumaTopologyPolicy.BEST_EFFORT, ()),
        (NumaTopologyPolicy.RESTRICTED, ("no",)),
    ],
)
def test_best_effort_lets_each_take_its_own_where_the_winner_serves_not_all(
    policy: NumaTopologyPolicy, reasons: tuple[str, ...]
) -> None:
    told = []

    def take(hint: NumaHint) -> tuple[str, ...]:
        told.append(hint.mask)
        return () if hint.mask is None else ("no",)

    found = admit(policy, (0, 1), [HintProvider(lambda: {"cpu": [NumaHint(ONLY_0, True)]}, take)])
    assert found.reasons == reasons
    assert told == ([ONLY_0] if reasons else [ONLY_0, None])


def world(
    *names: str, args: Mapping[str, Any] | None = None, used: Sequence[int] = ()
) -> tuple[FakeCluster, SchedulingFramework]:
    grants = {ALLOCATED: written_grants(taken(*used))}
    others = [pod("other", "0", "0", more={NVIDIA: str(len(used))}, annotations=grants, node="n1")]
    cluster = FakeCluster(node("n1", "16", "32Gi", *(others if used else ())))
    framework = cluster.framework(dict.fromkeys(names), {"DeviceShare": args or {}})
    cluster.informers.put(NODE_RESOURCE_TOPOLOGIES, topology_manifest("n1", detail(), ZONES))
    cluster.informers.put(DEVICES, manifest(*FOUR))
    return cluster, framework


def asking(name: str, cpu: str, gpus: int, policy: str = "SingleNUMANode", **labels: Any) -> PodInfo:
    spec = {NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": policy})}
    return pod(name, cpu, "1Gi", more={NVIDIA: str(gpus)}, annotations=spec, **labels)


def given(cluster: FakeCluster, wanted: PodInfo) -> tuple[list[int], list[int]]:
    """The NUMA nodes of the CPUs, and the GPUs."""
    notes = cluster.manifests[wanted.name]["metadata"]["annotations"]
    parts = json.loads(notes.get(RESOURCE_STATUS, "{}")).get("numaNodeResources", ())
    return [each["node"] for each in parts], [each.minor for each in read_grants(notes[ALLOCATED])]


@pytest.mark.parametrize("names", [("DeviceShare", "NodeNUMAResource"), ("NodeNUMAResource", "DeviceShare")])
@virtually
async def test_a_pods_cpus_follow_its_devices_and_its_devices_follow_its_cpus(names: Sequence[str]) -> None:
    cluster, framework = world(*names, used=(0, 1))
    follows = asking("follows", "2", 1)
    assert await cluster.schedule(framework, follows) is None
    assert given(cluster, follows) == ([1], [2])

    cluster, framework = world(*names)
    assert await cluster.schedule(framework, asking("full", "8", 1)) is None
    leads = asking("leads", "8", 2)
    assert await cluster.schedule(framework, leads) is None
    assert given(cluster, leads) == ([1], [2, 3])


@pytest.mark.parametrize("names", [("DeviceShare", "NodeNUMAResource"), ("NodeNUMAResource", "DeviceShare")])
@virtually
async def test_what_cannot_be_aligned_is_refused_and_best_effort_is_not(names: Sequence[str]) -> None:
    cluster, framework = world(*names, used=(0,))
    failure = await cluster.schedule(framework, asking("three", "2", 3))
    assert failure is not None
    assert "gpu prefer [0+1] among [0+1]" in failure.text
    effort = asking("effort", "12", 1, "BestEffort")
    assert await cluster.schedule(framework, effort) is None
    assert given(cluster, effort)[0] == [0, 1]


@virtually
async def test_alignment_can_be_switched_off() -> None:
    cluster, framework = world(
        "DeviceShare", "NodeNUMAResource", args={"disableDeviceNUMATopologyAlignment": True}, used=(0, 1)
    )
    apart = asking("apart", "2", 1)
    assert await cluster.schedule(framework, apart) is None
    assert given(cluster, apart) == ([0], [2])
