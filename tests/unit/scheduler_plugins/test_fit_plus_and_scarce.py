"""`NodeResourcesFitPlus` and `ScarceResourceAvoidance`: figures of reference/koordinator.md 2.2 and 2.3, and what grows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.settings import FaultsError
from parley.testing import FakeCluster, amount, node, pod, with_permit
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.values import Code, code_of
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_resources_fit_plus import NodeResourcesFitPlus, allocated_score
from scheduler.placing.plugins.scarce_resource_avoidance import ScarceResourceAvoidance
from tests.unit.scheduler_framework.plugin_worlds import HandleAsTold

HANDLE = HandleAsTold().extended
GPU = "nvidia.com/gpu"


def scored(plugin: Any, asking: PodInfo, where: NodeInfo) -> int | None:
    """The score; None if the plugin has nothing to say."""
    context = CycleState()
    status = plugin.pre_score(context, asking, [where])
    if code_of(status) is Code.SKIP:
        return None
    found, status = plugin.score(context, asking, where)
    assert status is None
    return int(found)


def fit(**resources: tuple[str, int]) -> NodeResourcesFitPlus:
    names = {
        name.replace("gpu", GPU): {"type": type_, "weight": weight}
        for name, (type_, weight) in resources.items()
    }
    args = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourcesFitPlusArgs",
        "resources": names,
    }
    return NodeResourcesFitPlus(args, HANDLE)


MOST, LEAST = "MostAllocated", "LeastAllocated"
TEN = node("a", "10", "10", more={GPU: "8"})
VM = pod("vm", "2", "2", grows_to=amount("8", "8"))


@pytest.mark.parametrize(
    ("plugin", "asking", "where", "found"),
    [
        (fit(cpu=(LEAST, 1)), pod("x", "2"), TEN, 80),
        (fit(cpu=(MOST, 1)), pod("x", "2"), TEN, 20),
        (fit(cpu=(MOST, 1)), pod("x", "20"), TEN, 100),
        (fit(cpu=(LEAST, 1)), pod("x", "20"), TEN, 0),
        (fit(cpu=(LEAST, 1), gpu=(MOST, 3)), pod("x", "2", more={GPU: "4"}), TEN, (80 + 3 * 50) // 4),
        (fit(cpu=(LEAST, 1), gpu=(MOST, 3)), pod("x", "2"), TEN, 80),
        (fit(cpu=(LEAST, 1), gpu=(MOST, 0)), pod("x", "2", more={GPU: "4"}), TEN, 80),
        (fit(gpu=(MOST, 1)), pod("x", "2"), TEN, None),
        (fit(), pod("x", "2"), TEN, None),
        (fit(gpu=(MOST, 1)), pod("x", more={GPU: "4"}), node("b", "10", "10"), 0),
        (fit(cpu=(MOST, 1)), pod("x", "2"), node("a", "10", "10", pod("y", "3")), 50),
        (
            fit(cpu=(MOST, 1)),
            pod("x", "2"),
            with_permit(node("a", "10", "10", VM), VM, amount("8", "8")),
            100,
        ),
        (fit(cpu=(MOST, 1)), pod("x", "2"), node("a", "10", "10", pod("x", "2")), 20),
        (
            fit(gpu=(MOST, 1)),
            pod("x", more={GPU: "2"}),
            node("a", "1", "1", pod("y", more={GPU: "2"}), more={GPU: "8"}),
            50,
        ),
    ],
    ids=[
        "least",
        "most",
        "most of more than there is",
        "least of more than there is",
        "each by itself",
        "only what is requested",
        "weight 0",
        "nothing that counts",
        "nothing configured",
        "a node without the resource",
        "others count",
        "a VM counts with its permit",
        "the pod itself does not count twice",
        "devices of others",
    ],
)
def test_fit_plus(plugin: NodeResourcesFitPlus, asking: PodInfo, where: NodeInfo, found: int | None) -> None:
    assert scored(plugin, asking, where) == found


@given(st.sampled_from([MOST, LEAST]), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_law_scores_are_from_0_to_100_and_follow_the_strategy(
    type_: str, used: int, more: int, most: int
) -> None:
    before, after = (allocated_score(type_, each, most) for each in (used, used + more))
    assert 0 <= before <= 100
    assert before <= after if type_ == MOST else before >= after


def scarce(*resources: str) -> ScarceResourceAvoidance:
    return ScarceResourceAvoidance(
        {"kind": "ScarceResourceAvoidanceArgs", "resources": list(resources)}, HANDLE
    )


PLAIN = pod("x", "1", "1Gi")
DISK = {GPU: "1", "ephemeral-storage": "10Gi"}


@pytest.mark.parametrize(
    ("plugin", "asking", "where", "found"),
    [
        (scarce(GPU), PLAIN, node("a", "8", "8Gi"), 100),
        (scarce(GPU), PLAIN, node("a", "8", "8Gi", more={GPU: "1"}), 0),
        (scarce(GPU), PLAIN, node("a", "8", "8Gi", more={GPU: "0"}), 100),
        (scarce(GPU), PLAIN, node("a", "8", "8Gi", more=DISK), 50),
        (scarce(GPU), pod("x", "1"), node("a", "8", "8Gi", more=DISK), 66),
        (scarce(GPU, "rdma"), PLAIN, node("a", "8", "8Gi", more={**DISK, "rdma": "1"}), 33),
        (scarce(GPU, "rdma"), pod("x", "1", "1Gi", more={GPU: "1"}), node("a", "8", "8Gi", more=DISK), 100),
        (scarce(GPU), PLAIN, node("a", "8", "8Gi", more={GPU: "1", "parley.dev/managed": "110"}), 0),
        (scarce(GPU), pod("x", "1", "1Gi", more={GPU: "1"}), node("a", "8", "8Gi", more=DISK), None),
        (scarce(), PLAIN, node("a", "8", "8Gi", more=DISK), None),
    ],
    ids=[
        "none there",
        "all that is left is scarce",
        "none left of it",
        "half",
        "a pod that asks for less",
        "two of three",
        "one is requested and the other not there",
        "our mark is no resource",
        "all is requested",
        "nothing is scarce",
    ],
)
def test_scarce(plugin: ScarceResourceAvoidance, asking: PodInfo, where: NodeInfo, found: int | None) -> None:
    assert scored(plugin, asking, where) == found


@pytest.mark.parametrize(
    ("plugin", "args", "paths"),
    [
        (
            NodeResourcesFitPlus,
            {"kind": "Args", "resources": {"cpu": {"type": "MostAlocated", "weight": -1}, "memory": {}}},
            [
                "kind",
                "resources.cpu.type",
                "resources.cpu.weight",
                "resources.memory.type",
                "resources.memory.weight",
            ],
        ),
        (
            ScarceResourceAvoidance,
            {"apiVersion": "v1", "resources": [GPU, GPU], "names": []},
            ["apiVersion", "names", "resources"],
        ),
    ],
)
def test_all_faults_are_told_at_once(
    plugin: type[ShippedPlugin], args: dict[str, Any], paths: list[str]
) -> None:
    with pytest.raises(FaultsError) as told:
        plugin(args, HANDLE)
    assert sorted(each.partition(":")[0] for each in told.value.faults) == paths


async def test_devices_are_packed_cpu_is_spread_and_other_pods_stay_away() -> None:
    devices = {GPU: "4"}
    cluster = FakeCluster(
        node("a", "16", "64Gi", more=devices), node("b", "16", "64Gi", more=devices), node("c", "16", "64Gi")
    )
    args = {
        "NodeResourcesFitPlus": {
            "resources": {GPU: {"type": MOST, "weight": 3}, "cpu": {"type": LEAST, "weight": 1}}
        },
        "ScarceResourceAvoidance": {"resources": [GPU]},
    }
    names = ("NodeResources", "ScarceResourceAvoidance", "NodeResourcesFitPlus")
    framework = cluster.framework(dict.fromkeys(names), args)
    for index in range(4):
        assert await cluster.schedule(framework, pod(f"gpu{index}", "1", "1Gi", more={GPU: "1"})) is None
    assert await cluster.schedule(framework, pod("web", "1", "1Gi")) is None
    found = {cluster.bound[f"default/gpu{index}"] for index in range(4)}
    assert len(found) == 1
    assert cluster.bound["default/web"] == "c"
