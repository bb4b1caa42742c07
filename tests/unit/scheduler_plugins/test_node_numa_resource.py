"""The plugin `NodeNUMAResource`: a pod's way from its wishes to the annotation, and what is known after a restart."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hosting.kubernetes.koordinator import CPU_TOPOLOGY, NODE_RESOURCE_TOPOLOGIES, RESOURCE_STATUS
from hosting.settings import FaultsError, check
from parley.testing import FakeCluster, amount, assert_rejected, assert_success, node, pod, with_permit
from protocol.cpu_lists import cpus_of
from scheduler.placing.core.handle import PluginFactory
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    QueueingHint,
    RejectionClass,
    SchedulingEvent,
    Status,
)
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.passes import find_nodes
from scheduler.placing.plugins.base import MAY_BE_BOUND, shared_state
from scheduler.placing.plugins.node_numa_resource.args import NodeNUMAResourceArgs
from scheduler.placing.plugins.node_numa_resource.given import GivenCpus
from scheduler.placing.plugins.node_numa_resource.plugin import SEEN_WITHIN_S
from scheduler.placing.plugins.node_numa_resource.pod_notes import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    PodAllocation,
)
from scheduler.placing.plugins.node_numa_resource.topology import (
    AMPLIFICATION,
    CPU_BIND_POLICY,
    NUMA_TOPOLOGY_POLICY,
)
from tests.support.virtual_time import virtually
from tests.unit.scheduler_plugins.numa_worlds import detail, topology_manifest

LSR = {"koordinator.sh/qosClass": "LSR"}
PROD = 9500
ZONES = {0: {"cpu": "8", "memory": "16Gi"}, 1: {"cpu": "8", "memory": "16Gi"}}
FULL_REQUIRED = {RESOURCE_SPEC: '{"requiredCPUBindPolicy": "FullPCPUs"}'}
SINGLE_NUMA = {NUMA_TOPOLOGY_SPEC: '{"numaTopologyPolicy": "SingleNUMANode"}'}


class Written:
    """Keeps what pre-bind plugins have changed, in place of `DefaultPreBind`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.annotations: dict[str, Mapping[str, str]] = {}

    def name(self) -> str:
        return "Written"

    def pre_bind(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        return None

    def apply_patch(
        self, context: CycleContext, original: Mapping[str, Any], modified: Mapping[str, Any]
    ) -> Status | None:
        self.annotations[modified["metadata"]["name"]] = modified["metadata"].get("annotations", {})
        return None

    def status(self, name: str) -> Any:
        return json.loads(self.annotations[name][RESOURCE_STATUS])


def big(name: str = "n1", *pods: PodInfo, **more: Any) -> NodeInfo:
    return node(name, "16", "32Gi", *pods, **more)


def world(
    *nodes: NodeInfo, args: Mapping[str, Any] | None = None, has_topology: bool = True
) -> tuple[FakeCluster, SchedulingFramework, Written]:
    cluster = FakeCluster(*nodes)
    written = Written(cluster)
    factories: dict[str, PluginFactory | None] = {
        "NodeNUMAResource": None,
        "Written": lambda *_: written,
    }
    framework = cluster.framework(factories, {"NodeNUMAResource": args or {}})
    if has_topology:
        for each in nodes:
            cluster.informers.put(NODE_RESOURCE_TOPOLOGIES, topology_manifest(each.name, detail(), ZONES))
    return cluster, framework, written


def lsr(name: str, cpu: str, memory: str = "1Gi", **more: Any) -> PodInfo:
    return pod(name, cpu, memory, labels=LSR, priority=PROD, **more)


def told(name: str, cpuset: str, cpu: str = "2") -> PodInfo:
    """A pod that has those CPUs, as it is read after a restart."""
    return lsr(name, cpu, annotations={RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}, node="n1")


async def status_of(cluster: FakeCluster, framework: SchedulingFramework, wanted: PodInfo) -> Status | None:
    """The word of the filters on the only node."""
    snapshot = cluster.snapshot()
    framework.set_snapshot(snapshot)
    found = await find_nodes(framework, CycleState(), wanted, tuple(snapshot.values()))
    return next(iter(found.statuses.values()), None)


@virtually
async def test_a_pinned_pod_is_told_its_cpus_and_the_next_one_gets_others() -> None:
    cluster, framework, written = world(big())
    assert await cluster.schedule(framework, lsr("a", "4")) is None
    assert await cluster.schedule(framework, lsr("b", "4")) is None
    assert written.status("a") == {"cpuset": "0-3"}
    assert written.status("b") == {"cpuset": "8-11"}
    assert cluster.bound == {"default/a": "n1", "default/b": "n1"}


@virtually
async def test_a_pod_that_shares_its_cpus_is_told_nothing() -> None:
    cluster, framework, written = world(big(), has_topology=False)
    for each in (pod("ls", "1500m", "1Gi"), pod("whole", "2", "1Gi", priority=PROD)):
        assert await cluster.schedule(framework, each) is None
        assert RESOURCE_STATUS not in written.annotations[each.pod.name]


@virtually
async def test_all_pods_of_a_numa_policy_get_their_part_of_numa_nodes() -> None:
    cluster, framework, written = world(big())
    assert await cluster.schedule(framework, pod("s", "6", "4Gi", annotations=SINGLE_NUMA)) is None
    assert await cluster.schedule(framework, lsr("p", "4", "2Gi", annotations=SINGLE_NUMA)) is None
    part = {"node": 0, "resources": {"cpu": "6", "memory": "4Gi"}}
    assert written.status("s") == {"numaNodeResources": [part]}
    assert written.status("p") == {
        "cpuset": "8-11",
        "numaNodeResources": [{"node": 1, "resources": {"cpu": "4", "memory": "2Gi"}}],
    }


@virtually
async def test_after_a_restart_what_pods_have_is_read_from_their_annotations() -> None:
    cluster, framework, written = world(big("n1", told("a", "0-3", "4"), told("b", "8-9")))
    assert await cluster.schedule(framework, lsr("c", "4")) is None
    assert written.status("c") == {"cpuset": "10-13"}


@virtually
async def test_a_pod_that_has_gone_leaves_its_cpus() -> None:
    cluster, framework, written = world(big())
    gone = lsr("a", "4")
    assert await cluster.schedule(framework, gone) is None
    cluster.removed(gone)
    cluster.clock.advance(SEEN_WITHIN_S + 1)
    assert await cluster.schedule(framework, lsr("b", "4")) is None
    assert written.status("b") == {"cpuset": "0-3"}


@virtually
async def test_profiles_and_their_successors_share_what_was_given() -> None:
    cluster, framework, written = world(big())
    other = cluster.framework({"NodeNUMAResource": None, "Written": lambda *_: written})
    assert await cluster.schedule(framework, lsr("a", "4")) is None
    assert await cluster.schedule(other, lsr("b", "4")) is None
    assert written.status("b") == {"cpuset": "8-11"}


@pytest.mark.parametrize(
    ("wanted", "on", "text", "code", "rejection"),
    [
        (
            lsr("a", "1500m"),
            big(),
            "the requested CPUs must be integer",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            lsr("a", "2", annotations={RESOURCE_SPEC: "{"}),
            big(),
            "the pod's wishes: scheduling.koordinator.sh/resource-spec: must be JSON",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            lsr("a", "3", annotations=FULL_REQUIRED),
            big(),
            "node(s) requested cpus not multiple cpus per core",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            pod("a", "3", "1Gi"),
            big(labels={CPU_BIND_POLICY: "FullPCPUsOnly"}),
            "node(s) requested cpus not multiple cpus per core",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            lsr("a", "2", annotations=FULL_REQUIRED),
            big(labels={CPU_BIND_POLICY: "SpreadByPCPUs"}),
            "node(s) cpu bind policy conflicts with pod's required cpu bind policy",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            pod("a", "2", "1Gi", annotations=SINGLE_NUMA),
            big(labels={NUMA_TOPOLOGY_POLICY: "BestEffort"}),
            "node(s) not match NUMA topology",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            lsr("a", "10"),
            big("n1", *(told(f"t{cpu}", str(cpu), "500m") for cpu in range(0, 16, 2))),
            "not enough cpus available to satisfy request",
            Code.UNSCHEDULABLE,
            RejectionClass.CAPACITY,
        ),
        (
            pod("a", "10", "1Gi", annotations=SINGLE_NUMA),
            big(),
            "Unaligned NUMA Hint cause cpu prefer [0+1] among [0+1] & memory prefer [0+1] among [0+1]",
            Code.UNSCHEDULABLE,
            RejectionClass.CAPACITY,
        ),
        (
            pod("a", "2", "1Gi", annotations=SINGLE_NUMA),
            big(labels={CPU_BIND_POLICY: "Half"}),
            "node(s) invalid CPU Topology: 'Half' is not a valid",
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            RejectionClass.POLICY,
        ),
        (
            lsr("a", "6"),
            big("n1", told("t", "0-3", "4"), annotations={AMPLIFICATION: '{"cpu": 2}'}),
            "Insufficient amplified cpu",
            Code.UNSCHEDULABLE,
            RejectionClass.CAPACITY,
        ),
    ],
)
@virtually
async def test_rejections(
    wanted: PodInfo, on: NodeInfo, text: str, code: Code, rejection: RejectionClass
) -> None:
    cluster, framework, _ = world(on)
    assert_rejected(await status_of(cluster, framework, wanted), text, code, rejection)


@virtually
async def test_a_node_without_a_topology_is_not_fit_for_a_pinned_pod_until_its_agent_has_told() -> None:
    cluster, framework, _ = world(big(), has_topology=False)
    for wanted in (lsr("a", "2"), pod("b", "2", "1Gi", annotations=SINGLE_NUMA)):
        text, code = "node(s) CPU Topology not found", Code.UNSCHEDULABLE_AND_UNRESOLVABLE
        assert_rejected(await status_of(cluster, framework, wanted), text, code, RejectionClass.STALE)
    cluster.informers.put(NODE_RESOURCE_TOPOLOGIES, topology_manifest("n1", detail(), ZONES))
    assert await cluster.schedule(framework, lsr("a", "2")) is None


@virtually
async def test_a_broken_topology_is_told() -> None:
    cluster, framework, _ = world(big(), has_topology=False)
    broken = topology_manifest("n1", annotations={CPU_TOPOLOGY: "["})
    cluster.informers.put(NODE_RESOURCE_TOPOLOGIES, broken)
    text = "node(s) invalid CPU Topology: ValueError: node.koordinator.sh/cpu-topology: must be JSON"
    assert_rejected(
        await status_of(cluster, framework, lsr("a", "2")), text, Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    )


@virtually
async def test_a_numa_policy_needs_few_enough_numa_nodes() -> None:
    cluster, framework, _ = world(big(), has_topology=False)
    zones = {numa: {"cpu": "2", "memory": "1Gi"} for numa in range(32)}
    cluster.informers.put(NODE_RESOURCE_TOPOLOGIES, topology_manifest("n1", detail(), zones))
    text = "node(s) invalid CPU Topology: more than 8 NUMA nodes, of which no policy can choose"
    aligned = pod("a", "2", "1Gi", annotations=SINGLE_NUMA)
    assert_rejected(
        await status_of(cluster, framework, aligned),
        text,
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        RejectionClass.POLICY,
    )
    assert await cluster.schedule(framework, lsr("b", "2")) is None


@virtually
async def test_a_vm_that_has_grown_counts_amplified_with_what_it_is_permitted() -> None:
    vm = pod("vm", "2", "1Gi", grows_to=amount("8", "8Gi"), node="n1")
    grown = with_permit(big("n1", vm, annotations={AMPLIFICATION: '{"cpu": 2}'}), vm, amount("8", "8Gi"))
    cluster, framework, _ = world(grown)
    assert_rejected(await status_of(cluster, framework, lsr("a", "6")), "Insufficient amplified cpu")
    assert await cluster.schedule(framework, lsr("b", "4")) is None


@virtually
async def test_a_vm_that_has_grown_has_more_of_its_numa_node() -> None:
    part = {"numaNodeResources": [{"node": 0, "resources": {"cpu": "2", "memory": "1Gi"}}]}
    told_vm = {RESOURCE_STATUS: json.dumps(part)}
    vm = pod("vm", "2", "1Gi", grows_to=amount("8", "8Gi"), node="n1", annotations=told_vm)
    wanted = pod("a", "6", "1Gi", annotations=SINGLE_NUMA)
    for size, numa_node in ((amount("2", "1Gi"), 0), (amount("4", "2Gi"), 1)):
        args = {"numaScoringStrategy": {"type": "MostAllocated"}}
        cluster, framework, written = world(with_permit(big("n1", vm), vm, size), args=args)
        assert await cluster.schedule(framework, wanted) is None
        assert written.status("a")["numaNodeResources"][0]["node"] == numa_node


@virtually
async def test_a_pod_without_cpu_goes_to_an_amplified_node_that_is_full() -> None:
    cluster, framework, _ = world(
        big("n1", told("t", "0-9", "10"), annotations={AMPLIFICATION: '{"cpu": 2}'})
    )
    assert await cluster.schedule(framework, pod("a")) is None


@pytest.mark.parametrize(("strategy", "chosen"), [("LeastAllocated", "n2"), ("MostAllocated", "n1")])
@virtually
async def test_scores_choose_the_node(strategy: str, chosen: str) -> None:
    args = {"scoringStrategy": {"type": strategy, "resources": [{"name": "cpu", "weight": 1}]}}
    cluster, framework, _ = world(big("n1", told("a", "0-3", "4")), big("n2"), args=args)
    assert await cluster.schedule(framework, lsr("b", "4")) is None
    assert cluster.bound["default/b"] == chosen


@virtually
async def test_a_node_where_the_dry_run_fails_scores_0() -> None:
    cluster, framework, _ = world(big("n1"), has_topology=False)
    plugin: Any = framework.plugins["NodeNUMAResource"]
    context, wanted = CycleState(), lsr("a", "2")
    framework.set_snapshot(cluster.snapshot())
    assert plugin.pre_filter(context, wanted, ()) == (None, None)
    assert plugin.score(context, wanted, cluster.nodes["n1"]) == (0, None)


@virtually
async def test_what_was_reserved_is_given_back_unless_the_pod_may_be_bound() -> None:
    cluster, framework, _ = world(big())
    plugin: Any = framework.plugins["NodeNUMAResource"]
    context, wanted = CycleState(), lsr("a", "2")
    framework.set_snapshot(cluster.snapshot())
    plugin.pre_filter(context, wanted, ())
    assert_success(plugin.reserve(context, wanted, "n1"))
    assert shared_state(cluster, GivenCpus).on("n1")["uid-a"].cpus == cpus_of("0-1")
    assert_success(plugin.reserve(context, wanted, "n1"))
    assert shared_state(cluster, GivenCpus).on("n1")["uid-a"].cpus == cpus_of("0-1")
    context.write(MAY_BE_BOUND, True)
    plugin.unreserve(context, wanted, "n1")
    assert "uid-a" in shared_state(cluster, GivenCpus).on("n1")
    shared_state(cluster, GivenCpus).keep("uid-a", "n1", PodAllocation(cpus_of("8-9")))
    assert_success(plugin.reserve(context, wanted, "n1"))
    assert shared_state(cluster, GivenCpus).on("n1")["uid-a"].cpus == cpus_of("8-9"), "it may be bound there"
    plugin.unreserve(context, wanted, "n1")
    cluster.clock.advance(SEEN_WITHIN_S + 1)
    plugin.pre_filter(context, lsr("b", "2"), ())
    assert not shared_state(cluster, GivenCpus).on("n1")
    assert_success(plugin.reserve(context, wanted, "n1"))
    context.delete(MAY_BE_BOUND)
    plugin.unreserve(context, wanted, "n1")
    plugin.unreserve(context, wanted, "n1")
    assert not shared_state(cluster, GivenCpus).on("n1")


@virtually
async def test_what_an_earlier_try_has_written_goes() -> None:
    cluster, framework, written = world(big())
    stale = pod("a", "1500m", "1Gi", annotations={RESOURCE_STATUS: '{"cpuset": "0-1"}'})
    assert await cluster.schedule(framework, stale) is None
    assert written.annotations["a"] == {}


@virtually
async def test_what_a_pod_was_given_now_counts_and_not_what_an_earlier_try_has_written() -> None:
    cluster, framework, written = world(big())
    stale = lsr("a", "2", annotations={RESOURCE_STATUS: '{"cpuset": "4-5"}'})
    for each in (stale, lsr("b", "2"), lsr("c", "12")):
        assert await cluster.schedule(framework, each) is None
    assert cpus_of(written.status("a")["cpuset"]).isdisjoint({4, 5})
    given = [cpus_of(written.status(name)["cpuset"]) for name in "abc"]
    assert frozenset().union(*given) == cpus_of("0-15")
    assert shared_state(cluster, GivenCpus).on("n1")["uid-a"].cpus == given[0]


@virtually
async def test_a_pod_that_requests_no_cpu_takes_none_whatever_is_written_to_it() -> None:
    forged = pod("x", annotations={RESOURCE_STATUS: '{"cpuset": "0-15"}'}, node="n1")
    cluster, framework, written = world(big("n1", forged))
    assert await cluster.schedule(framework, lsr("a", "4")) is None
    assert written.status("a") == {"cpuset": "0-3"}


def test_a_pod_that_goes_before_it_was_seen_wakes_others_up_by_the_ledger() -> None:
    _, framework, _ = world(big())
    plugin: Any = framework.plugins["NodeNUMAResource"]
    waited_for = {each.resource for each in plugin.events_to_register()}
    assert {EventResource.POD, EventResource.LEDGER, NODE_RESOURCE_TOPOLOGIES} <= waited_for


@virtually
async def test_the_page_of_a_node() -> None:
    cluster, framework, _ = world(big("n1", told("a", "0-3", "4")))
    framework.set_snapshot(cluster.snapshot())
    plugin: Any = framework.plugins["NodeNUMAResource"]
    (endpoint,) = plugin.endpoints()
    assert endpoint.read({"node": "n1"}) == {
        "freeCpus": "4-15",
        "fault": "",
        "pods": {"uid-a": {"cpuset": "0-3", "numaNodes": []}},
    }
    assert endpoint.read({"node": "other"}) is None


def test_published_args_are_taken_as_they_are() -> None:
    args = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeNUMAResourceArgs",
        "defaultCPUBindPolicy": "SpreadByPCPUs",
        "scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 3}]},
        "numaScoringStrategy": {"type": "LeastAllocated", "resources": [{"name": "cpu", "weight": 1}]},
    }
    assert check(args, NodeNUMAResourceArgs).scoring_strategy.weights == {"cpu": 3}


def test_every_fault_of_args_is_told_at_once() -> None:
    with pytest.raises(FaultsError) as raised:
        check(
            {
                "defaultCPUBindPolicy": "Half",
                "scoringStrategy": {"type": "Most", "resources": [{"name": "cpu", "weight": 101}]},
                "numaScoringStrategy": {"resources": [{"name": "cpu"}, {"name": "cpu"}]},
            },
            NodeNUMAResourceArgs,
        )
    assert [fault.partition(":")[0] for fault in raised.value.faults] == [
        "defaultCPUBindPolicy",
        "scoringStrategy.type",
        "scoringStrategy.resources[0].weight",
        "numaScoringStrategy.resources",
    ]


@pytest.mark.parametrize(
    ("before", "after", "hint"),
    [
        ("0-3", "0-1", QueueingHint.QUEUE),
        ("0-1", "0-3", QueueingHint.SKIP),
        ("0-1", "0-1", QueueingHint.SKIP),
        ("0-1", "", QueueingHint.QUEUE),
        ("0-1", "2-3", QueueingHint.QUEUE),
    ],
)
def test_a_pod_that_gives_cpus_back_wakes_others_up(before: str, after: str, hint: QueueingHint) -> None:
    _, framework, _ = world(big())
    plugin: Any = framework.plugins["NodeNUMAResource"]
    event = SchedulingEvent(EventResource.POD, ActionType.UPDATE, told("a", before), told("a", after))
    (waits,) = (
        each
        for each in plugin.events_to_register()
        if (each.resource, each.action) == (EventResource.POD, ActionType.UPDATE)
    )
    assert waits.hint(lsr("b", "2"), event) is hint
