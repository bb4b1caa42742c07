"""The strategy that sets the CPUs of containers, over trees of files of both versions of cgroups."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.node.qos.core.cpu_suppress import CpuPlace
from agent.node.qos.core.node_topology import CpusetReason, HostTopology
from agent.node.qos.core.states import PodState
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.strategies.cpuset_allocator import CPUSetAllocator
from hosting.kubernetes.koordinator import QOS, RESOURCE_STATUS
from tests.unit.agent_qos.described_hosts import EIGHT
from tests.unit.agent_qos.group_trees import GroupTree, RefusingExecutor
from tests.unit.agent_qos.strategy_worlds import (
    DirectClient,
    SetMetrics,
    SetStates,
    container,
    node,
    pod,
    ready,
)

HOST = HostTopology(tuple(CpuPlace(*each) for each in EIGHT))
OWN, OTHER, BEST_EFFORT = (f"{digit}" * 8 + "-0000-0000-0000-000000000000" for digit in "123")
PLACES = {
    OWN: f"kubepods/pod{OWN}",
    OTHER: f"kubepods/burstable/pod{OTHER}",
    BEST_EFFORT: f"kubepods/besteffort/pod{BEST_EFFORT}",
}


def own(cpuset: str, qos: str = "LSR") -> PodState:
    annotations = {RESOURCE_STATUS: f'{{"cpuset": "{cpuset}"}}'}
    return pod(
        OWN, "Guaranteed", (container(requests_milli=2000),), labels={QOS: qos}, annotations=annotations
    )


SHARING = (pod(OTHER, "Burstable"), pod(BEST_EFFORT))


class World:
    def __init__(self, root: Path, *, is_v2: bool) -> None:
        self.tree = GroupTree(root, is_v2=is_v2)
        self.tree.make(*(f"{place}/c" for place in PLACES.values()))
        executor = ResourceExecutor(root) if is_v2 else RefusingExecutor(self.tree)
        self.client = DirectClient(executor)
        self.states = SetStates(node())
        self.plugin = CPUSetAllocator(lambda: HOST)
        ready(self.plugin, self.client, SetMetrics(), self.states)

    def round(self, *pods: PodState) -> str:
        self.states.pods = pods
        self.plugin.round()
        return self.client.last.reason

    def cpus(self) -> dict[str, str]:
        """Of each pod's container."""
        return {uid: self.tree.text(f"{place}/c", "cpuset.cpus") for uid, place in PLACES.items()}


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return World(tmp_path, is_v2=request.param)


def test_a_pod_runs_on_its_own_cpus_and_the_others_on_the_rest(world: World) -> None:
    everything = world.cpus()[OWN]
    assert world.round(own("0-1"), *SHARING) == CpusetReason.SET
    assert world.cpus() == {OWN: "0-1", OTHER: "2-7", BEST_EFFORT: everything}
    assert world.round(own("0-1"), *SHARING) == CpusetReason.UNCHANGED
    assert not world.client.last.is_action


def test_best_effort_keeps_off_the_cpus_of_lse_pods_alone(world: World) -> None:
    world.round(own("0-1", "LSE"), *SHARING)
    assert world.cpus() == {OWN: "0-1", OTHER: "2-7", BEST_EFFORT: "2-7"}


def test_a_pod_that_grows_or_moves_on_its_node_gets_the_cpus_that_it_was_told(world: World) -> None:
    world.round(own("0-1"), *SHARING)
    world.round(own("0-3"), *SHARING)
    assert world.cpus()[OWN] == "0-3"
    assert world.cpus()[OTHER] == "4-7"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_others_get_all_cpus_back(world: World, *, is_stopped: bool) -> None:
    everything = world.cpus()[OTHER]
    world.round(own("0-1", "LSE"), *SHARING)
    if is_stopped:
        world.plugin.stop()
        assert world.client.last.reason == CpusetReason.RECOVERED
        assert world.cpus()[OWN] == "0-1"
    else:
        world.round(*SHARING)
        assert world.round(*SHARING) == CpusetReason.UNCHANGED
    assert world.cpus()[OTHER] == world.cpus()[BEST_EFFORT] == everything


def test_nothing_is_written_while_no_pod_has_cpus_of_its_own(world: World) -> None:
    before = world.cpus()
    finished = replace(own("0-1"), is_finished=True)
    assert world.round(finished, *SHARING) == CpusetReason.UNCHANGED
    assert world.cpus() == before


def test_cpus_that_the_group_around_does_not_have_are_not_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path, is_v2=False)
    for group in (PLACES[BEST_EFFORT], f"{PLACES[BEST_EFFORT]}/c"):
        world.tree.set(group, "cpuset.cpus", "0,2")
    world.round(own("0-1", "LSE"), *SHARING)
    assert world.cpus()[BEST_EFFORT] == "2"
    assert world.client.last.reason == CpusetReason.SET


def test_a_write_that_fails_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, is_v2=False)
    world.tree.set(PLACES[OWN], "cpuset.cpus", "4-7")
    world.tree.set(f"{PLACES[OWN]}/c", "cpuset.cpus", "4-7")
    assert world.round(own("0-1")) == CpusetReason.WRITE_FAILED
    assert f"kubepods/pod{OWN}/c" in world.client.last.message


def test_nothing_is_done_before_node_and_pods_were_read(world: World) -> None:
    world.states.node = None
    assert world.round(own("0-1")) == CpusetReason.NOT_SYNCED
