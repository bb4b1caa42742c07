"""What a pod gets of a node: annotations, even split, hints, amplification, growth."""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.kubernetes.koordinator import CPU_TOPOLOGY, POD_CPU_ALLOCS, RESOURCE_STATUS
from protocol.cpu_lists import cpus_of
from scheduler.placing.plugins.node_numa_resource.accumulator import (
    CPUBindPolicy,
    CPUExclusivePolicy,
    CpuRequest,
)
from scheduler.placing.plugins.node_numa_resource.core import (
    INVALID_TOPOLOGY,
    NO_CPUS,
    NO_TOPOLOGY,
    HintScore,
    allocate,
    decide,
    distribute_evenly,
    hints_of,
    resized,
)
from scheduler.placing.plugins.node_numa_resource.pod_notes import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    NumaWish,
    PodAllocation,
    bind_of,
    read_allocation,
    read_wish,
    written_status,
)
from scheduler.placing.plugins.node_numa_resource.topology import (
    AMPLIFICATION,
    CPU_BIND_POLICY,
    KUBELET_POLICY,
    NODE_RESERVATION,
    NUMA_ALLOCATE_STRATEGY,
    NUMA_TOPOLOGY_POLICY,
    SYSTEM_QOS,
    NodeCPUBindPolicy,
    NodeOptions,
    NodeTopology,
    NUMAAllocateStrategy,
    read_options,
    read_topology,
)
from scheduler.placing.plugins.node_numa_resource.view import NumaRequest, NumaView, amplified, as_permitted
from scheduler.placing.plugins.topology_manager import NumaHint, NumaTopologyPolicy
from tests.unit.scheduler_plugins.numa_worlds import GIB, detail, machine, topology_manifest

FULL, SPREAD, NONE = CPUBindPolicy.FULL_PCPUS, CPUBindPolicy.SPREAD_BY_PCPUS, CPUBindPolicy.NONE
FULL_ONLY = NodeCPUBindPolicy.FULL_PCPUS_ONLY
ZONE = {"cpu": 8000, "memory": 16 * GIB}
SCORE = HintScore({"cpu": 1, "memory": 1}, is_most=False)


def view(
    allocations: Mapping[str, PodAllocation] | None = None, ratio: str = "1", taken: str = ""
) -> NumaView:
    topology = NodeTopology(machine(), {0: ZONE, 1: ZONE}, cpus_of(taken))
    return NumaView(topology, NodeOptions(ratio=Fraction(ratio)), allocations or {})


def pinned(
    count: int, memory: int = 0, bind: CPUBindPolicy = FULL, *, is_required: bool = True
) -> NumaRequest:
    return NumaRequest({"cpu": count * 1000, "memory": memory}, CpuRequest(count, bind, is_required))


# ------------------------------------------------------------ what objects say


def test_a_topology_as_it_is_published() -> None:
    found = read_topology(
        topology_manifest(
            "n1",
            detail(),
            {0: {"cpu": "8", "memory": "16Gi"}, 1: {"cpu": "7500m", "memory": "16Gi"}},
            {
                KUBELET_POLICY: '{"policy": "static", "options": {"full-pcpus-only": "true"}, "reservedCPUs": "0-1"}',
                POD_CPU_ALLOCS: '[{"cpuset": "4", "managedByKubelet": true}, {"cpuset": "6"}]',
                SYSTEM_QOS: '{"cpuset": "8"}',
            },
            ["SingleNUMANodePodLevel"],
        )
    )
    assert found.cpus is not None
    assert (found.cpus.threads_per_core, found.cpus.cpus_per_numa_node, found.cpus.cpus_per_socket) == (
        2,
        8,
        8,
    )
    assert found.cpus.cpus[9].core == 1 << 16
    assert found.numa == {0: ZONE, 1: {"cpu": 7500, "memory": 16 * GIB}}
    assert found.taken == cpus_of("0-1,4,8")
    assert (found.policy, found.is_full_pcpus_only) == (NumaTopologyPolicy.SINGLE_NUMA_NODE, True)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({KUBELET_POLICY: "["}, "cpu-manager-policy: must be JSON"),
        ({KUBELET_POLICY: "[]"}, "must be a JSON object"),
        ({SYSTEM_QOS: '{"cpuset": "8-"}'}, "no list of CPUs"),
        ({KUBELET_POLICY: '{"options": [1]}'}, "AttributeError"),
        ({POD_CPU_ALLOCS: '{"a": 1}'}, "AttributeError"),
        ({POD_CPU_ALLOCS: "[" * 100_000}, "RecursionError"),
        ({CPU_TOPOLOGY: '{"detail": [{"id": Infinity}]}'}, "OverflowError"),
    ],
)
def test_a_topology_that_cannot_be_read_has_a_fault(annotations: dict[str, str], said: str) -> None:
    assert said in read_topology(topology_manifest("n1", detail(), annotations=annotations)).fault


def test_a_numa_node_has_a_number_of_a_kernel() -> None:
    found = read_topology(topology_manifest("n1", detail(), {10**12: {"cpu": "2"}}))
    assert found.fault == "ValueError: a NUMA node's number must be below 1024, found 1000000000000"


def test_no_object_is_no_topology() -> None:
    assert read_topology({}) == NodeTopology()


def node_manifest(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"labels": labels, "annotations": annotations}}


def test_the_options_of_a_node() -> None:
    labels = {
        CPU_BIND_POLICY: "FullPCPUsOnly",
        NUMA_ALLOCATE_STRATEGY: "LeastAllocated",
        NUMA_TOPOLOGY_POLICY: "Restricted",
    }
    annotations = {AMPLIFICATION: '{"cpu": 1.5}', NODE_RESERVATION: '{"reservedCPUs": "0-1"}'}
    assert read_options(node_manifest(labels, annotations)) == NodeOptions(
        FULL_ONLY,
        NUMAAllocateStrategy.LEAST_ALLOCATED,
        NumaTopologyPolicy.RESTRICTED,
        Fraction(3, 2),
        cpus_of("0-1"),
    )
    assert read_options({}) == NodeOptions()


@pytest.mark.parametrize(
    ("labels", "annotations", "said"),
    [
        ({CPU_BIND_POLICY: "Full"}, {}, "'Full' is not a valid"),
        ({}, {AMPLIFICATION: '{"cpu": 0.5}'}, "must be at least 1 and finite, found 0.5"),
        ({}, {AMPLIFICATION: '{"cpu": "1e5000000"}'}, "must be at least 1 and finite, found inf"),
        ({}, {AMPLIFICATION: '{"cpu": "nan"}'}, "must be at least 1 and finite, found nan"),
        ({}, {AMPLIFICATION: '{"cpu": "much"}'}, "much"),
    ],
)
def test_a_node_that_cannot_be_read_has_a_fault(
    labels: dict[str, str], annotations: dict[str, str], said: str
) -> None:
    assert said in read_options(node_manifest(labels, annotations)).fault


def pod_manifest(annotations: dict[str, str], qos: str = "LSR", priority: int = 9500) -> dict[str, Any]:
    labels = {"koordinator.sh/qosClass": qos}
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"priority": priority}}


@pytest.mark.parametrize(
    ("qos", "priority", "may_be_pinned"),
    [
        ("LSE", 9500, True),
        ("LSR", 9000, True),
        ("LS", 9500, False),
        ("LSR", 7500, False),
        ("BE", 5500, False),
    ],
)
def test_who_may_be_pinned(qos: str, priority: int, *, may_be_pinned: bool) -> None:
    assert read_wish(pod_manifest({}, qos, priority)).may_be_pinned is may_be_pinned


def test_the_wishes_of_a_pod() -> None:
    spec = {
        "requiredCPUBindPolicy": "SpreadByPCPUs",
        "preferredCPUBindPolicy": "FullPCPUs",
        "preferredCPUExclusivePolicy": "PCPULevel",
    }
    numa = {"numaTopologyPolicy": "SingleNUMANode", "singleNUMANodeExclusive": "Required"}
    manifest = pod_manifest({RESOURCE_SPEC: json.dumps(spec), NUMA_TOPOLOGY_SPEC: json.dumps(numa)})
    assert read_wish(manifest) == NumaWish(
        SPREAD, FULL, CPUExclusivePolicy.PCPU_LEVEL, NumaTopologyPolicy.SINGLE_NUMA_NODE, True, True
    )
    with pytest.raises(ValueError, match="'Half' is not a valid CPUBindPolicy"):
        read_wish(pod_manifest({RESOURCE_SPEC: '{"requiredCPUBindPolicy": "Half"}'}))


LSR = NumaWish(may_be_pinned=True)


@pytest.mark.parametrize(
    ("wish", "node", "default", "milli", "found"),
    [
        (LSR, NodeCPUBindPolicy.NONE, FULL, 4000, (FULL, False)),
        (LSR, NodeCPUBindPolicy.NONE, NONE, 4000, (NONE, False)),
        (LSR, FULL_ONLY, NONE, 4000, (FULL, True)),
        (NumaWish(required=SPREAD, may_be_pinned=True), NodeCPUBindPolicy.NONE, FULL, 4000, (SPREAD, True)),
        (
            NumaWish(required=CPUBindPolicy.DEFAULT, may_be_pinned=True),
            FULL_ONLY,
            SPREAD,
            4000,
            (SPREAD, True),
        ),
        (NumaWish(preferred=SPREAD, may_be_pinned=True), FULL_ONLY, FULL, 4000, (FULL, True)),
        (NumaWish(preferred=SPREAD, may_be_pinned=True), NodeCPUBindPolicy.NONE, FULL, 4000, (SPREAD, False)),
        (
            NumaWish(preferred=CPUBindPolicy.CONSTRAINED_BURST, may_be_pinned=True),
            NodeCPUBindPolicy.NONE,
            FULL,
            4000,
            (NONE, False),
        ),
        (NumaWish(required=FULL), NodeCPUBindPolicy.NONE, FULL, 4000, (NONE, False)),
        (NumaWish(), NodeCPUBindPolicy.SPREAD_BY_PCPUS, FULL, 2000, (SPREAD, True)),
        (NumaWish(), FULL_ONLY, FULL, 1500, (NONE, False)),
        (NumaWish(), FULL_ONLY, FULL, 0, (NONE, False)),
    ],
)
def test_the_bind_policy_of_a_pod_on_a_node(
    wish: NumaWish, node: NodeCPUBindPolicy, default: CPUBindPolicy, milli: int, found: tuple[str, bool]
) -> None:
    assert bind_of(wish, node, default, milli) == found


def test_what_a_pod_is_told_is_what_is_read_after_a_restart() -> None:
    numa = {1: {"cpu": 2000, "memory": 3 * GIB, "example.com/x": 5}}
    allocation = PodAllocation(cpus_of("8-9"), CPUExclusivePolicy.PCPU_LEVEL, numa)
    text = written_status(allocation)
    assert json.loads(text) == {
        "cpuset": "8-9",
        "numaNodeResources": [{"node": 1, "resources": {"cpu": "2", "memory": "3Gi", "example.com/x": "5"}}],
    }
    spec = '{"preferredCPUExclusivePolicy": "PCPULevel"}'
    assert read_allocation(pod_manifest({RESOURCE_STATUS: text, RESOURCE_SPEC: spec})) == allocation
    assert read_allocation(pod_manifest({})) is None
    assert read_allocation(pod_manifest({RESOURCE_STATUS: "{"})) is None
    endless = '{"numaNodeResources": [{"node": Infinity}]}'
    assert read_allocation(pod_manifest({RESOURCE_STATUS: endless})) is None


def test_no_pod_adds_to_a_numa_node_by_what_its_annotation_says() -> None:
    text = '{"numaNodeResources": [{"node": 0, "resources": {"cpu": "-2", "memory": "1"}}]}'
    found = read_allocation(pod_manifest({RESOURCE_STATUS: text}))
    assert found is not None
    assert found.numa == {0: {"cpu": 0, "memory": 1}}


# ------------------------------------------------------------ the split


@pytest.mark.parametrize(
    ("available", "wanted", "unit", "split", "lacking"),
    [
        ({0: 8000, 1: 8000}, 8000, 1, {0: 4000, 1: 4000}, ()),
        ({0: 1000, 1: 8000}, 8000, 1, {0: 1000, 1: 7000}, ()),
        ({3: 8000, 5: 1000}, 8000, 1, {5: 1000, 3: 7000}, ()),
        ({0: 3000, 1: 8000}, 6000, 2000, {0: 2000, 1: 4000}, ()),
        ({0: 3000, 1: 3000}, 6000, 2000, {0: 2000, 1: 2000}, ("cpu",)),
        ({0: -5, 1: 10}, 10, 1, {1: 10}, ()),
        ({}, 1, 1, {}, ("cpu",)),
    ],
)
def test_the_even_split(
    available: dict[int, int], wanted: int, unit: int, split: dict[int, int], lacking: tuple[str, ...]
) -> None:
    of = {numa_node: {"cpu": amount} for numa_node, amount in available.items()}
    found = distribute_evenly(of, {"cpu": wanted}, {"cpu": unit})
    assert found == ({numa_node: {"cpu": amount} for numa_node, amount in split.items()}, lacking)


@given(
    st.dictionaries(st.integers(0, 63), st.integers(0, 40), max_size=5),
    st.integers(0, 120),
    st.integers(1, 4),
)
def test_the_split_uses_what_there_is_and_no_more(available: dict[int, int], units: int, unit: int) -> None:
    of = {numa_node: {"x": amount} for numa_node, amount in available.items()}
    split, lacking = distribute_evenly(of, {"x": units * unit}, {"x": unit})
    parts = {numa_node: amounts["x"] for numa_node, amounts in split.items()}
    room = sum(amount // unit for amount in available.values())
    assert all(part <= available[numa_node] and part % unit == 0 for numa_node, part in parts.items())
    assert sum(parts.values()) == min(units, room) * unit or lacking
    assert bool(lacking) is (units > room)


# ------------------------------------------------------------ allocation and hints


@pytest.mark.parametrize(
    ("wanted", "numa_nodes", "found"),
    [
        (pinned(4), None, PodAllocation(cpus_of("0-3"))),
        (
            pinned(4, 4 * GIB),
            (1,),
            PodAllocation(cpus_of("8-11"), numa={1: {"cpu": 4000, "memory": 4 * GIB}}),
        ),
        (
            pinned(4, 4 * GIB),
            (0, 1),
            PodAllocation(
                cpus_of("0-1,8-9"),
                numa={0: {"cpu": 2000, "memory": 2 * GIB}, 1: {"cpu": 2000, "memory": 2 * GIB}},
            ),
        ),
        (pinned(10), (0,), ("Insufficient NUMA cpu",)),
        (pinned(17), None, (NO_CPUS,)),
        (
            NumaRequest({"cpu": 1500, "memory": 40 * GIB, "example.com/x": 1}),
            (0, 1),
            ("Insufficient NUMA memory",),
        ),
        (NumaRequest({"cpu": 1500}), (0, 1), PodAllocation(numa={0: {"cpu": 750}, 1: {"cpu": 750}})),
        (NumaRequest({"cpu": 1500}), None, PodAllocation()),
    ],
)
def test_allocations(
    wanted: NumaRequest, numa_nodes: tuple[int, ...] | None, found: PodAllocation | tuple[str, ...]
) -> None:
    assert allocate(view(), wanted, numa_nodes) == found


def test_pinned_and_shared_pods_of_one_numa_node_leave_each_other_room() -> None:
    shared = PodAllocation(numa={0: {"cpu": 5000}})
    assert allocate(view({"s": shared}), pinned(4), (0,)) == ("Insufficient NUMA cpu",)
    own = PodAllocation(cpus_of("0-5"))
    assert allocate(view({"p": own}), NumaRequest({"cpu": 2500}), (0,)) == ("Insufficient NUMA cpu",)
    assert isinstance(allocate(view({"p": own}), NumaRequest({"cpu": 2000}), (0,)), PodAllocation)


def test_no_cpus_without_a_topology() -> None:
    assert allocate(NumaView(NodeTopology(), NodeOptions(), {}), pinned(2)) == (NO_TOPOLOGY,)


def test_cpus_that_are_not_the_schedulers_are_not_given() -> None:
    assert allocate(view(taken="0-1"), pinned(2)) == PodAllocation(cpus_of("2-3"))
    reserved = NumaView(view().topology, NodeOptions(reserved=cpus_of("0-3")), {})
    assert allocate(reserved, pinned(2)) == PodAllocation(cpus_of("4-5"))


def test_hints_promise_only_what_an_allocation_gives() -> None:
    held = {"a": PodAllocation(cpus_of("0-5"))}
    found = hints_of(view(held), pinned(4, GIB), SCORE)
    assert not isinstance(found, tuple)
    hints = found["cpu"]
    assert hints is not None
    assert [(hint.mask, hint.is_preferred) for hint in hints] == [(0b10, True), (0b11, False)]
    assert found["memory"] == hints
    # Six of the eight CPUs of node 0 are gone, so is three quarters of the CPU: 100 * (8 - 4) / 8 and 100 * 15 / 16, in the mean.
    assert hints[0] == NumaHint(0b10, True, (50 + 93) // 2)


def test_every_feasible_set_is_preferred_under_restricted() -> None:
    wanted = NumaRequest({"cpu": 1000, "example.com/x": 1}, policy=NumaTopologyPolicy.RESTRICTED)
    found = hints_of(view(), wanted, SCORE)
    assert not isinstance(found, tuple)
    assert [hint.is_preferred for hint in found["cpu"] or ()] == [True] * 3
    assert found["example.com/x"] is None


def test_without_a_feasible_set_the_reason_is_that_of_all_numa_nodes() -> None:
    assert hints_of(view(), NumaRequest({"cpu": 17_000}), SCORE) == ("Insufficient NUMA cpu",)


def test_a_numa_node_that_has_nothing_left_of_a_resource_is_in_no_set() -> None:
    full = {"m": PodAllocation(numa={0: {"memory": 16 * GIB}})}
    found = hints_of(view(full), NumaRequest({"cpu": 1000, "memory": GIB}), SCORE)
    assert not isinstance(found, tuple)
    assert [hint.mask for hint in found["memory"] or ()] == [0b10]


@pytest.mark.parametrize(
    ("milli", "ratio", "found"), [(2000, "1.5", 3000), (1000, "1.3333", 1334), (7, "1", 7)]
)
def test_amplification_rounds_up(milli: int, ratio: str, found: int) -> None:
    assert amplified(milli, Fraction(ratio)) == found


def test_pinned_cpus_of_an_amplified_node_count_amplified() -> None:
    shown = view({"a": PodAllocation(cpus_of("0-3"), numa={0: {"cpu": 4000, "memory": GIB}})}, "1.5")
    assert shown.numa_allocatable[0]["cpu"] == 12_000
    assert shown.numa_requested[0] == {"cpu": 6000, "memory": GIB}
    assert shown.amplification_milli == amplified(4000, shown.options.ratio) - 4000
    assert isinstance(allocate(shown, pinned(4), (0,)), PodAllocation)
    assert allocate(shown, NumaRequest({"cpu": 6001}), (0,)) == ("Insufficient NUMA cpu",)


@pytest.mark.parametrize(
    ("numa", "permitted", "found"),
    [
        ({0: {"cpu": 1000, "memory": 4}}, {"cpu": 3000, "memory": 8}, {0: {"cpu": 3000, "memory": 8}}),
        ({0: {"cpu": 1000}, 1: {"cpu": 3000}}, {"cpu": 6000}, {0: {"cpu": 1500}, 1: {"cpu": 4500}}),
        ({0: {"cpu": 1000}, 1: {"cpu": 2000}}, {"cpu": 1000}, {0: {"cpu": 334}, 1: {"cpu": 666}}),
        ({0: {"x": 1}}, {"cpu": 1000}, {0: {"x": 1}}),
        ({}, {"cpu": 1000}, {}),
    ],
)
def test_a_pod_that_has_grown_has_more_of_its_numa_nodes(
    numa: dict[int, dict[str, int]], permitted: dict[str, int], found: dict[int, dict[str, int]]
) -> None:
    assert as_permitted(PodAllocation(numa=numa), permitted) == PodAllocation(numa=found)
    own = PodAllocation(cpus_of("0"), numa={0: {"cpu": 1000, "memory": 1}})
    assert as_permitted(own, {"cpu": 2000, "memory": 3}).numa == {0: {"cpu": 1000, "memory": 3}}


@pytest.mark.parametrize(
    ("is_most", "requested", "score"),
    [
        (False, {"cpu": 2, "memory": 1}, (80 + 90) // 2),
        (True, {"cpu": 2, "memory": 1}, 15),
        (True, {"cpu": 11}, 0),
    ],
)
def test_scores(requested: dict[str, int], score: int, *, is_most: bool) -> None:
    strategy = HintScore({"cpu": 1, "memory": 1}, is_most=is_most)
    assert strategy.of(requested, {"cpu": 10, "memory": 10}) == score


@st.composite
def wishes(draw: st.DrawFn) -> NumaRequest:
    count, policy = draw(st.integers(1, 9)), draw(st.sampled_from([*NumaTopologyPolicy][1:]))
    amounts = {"cpu": count * 1000, "memory": draw(st.integers(0, 12)) * GIB}
    bind, is_required = draw(st.sampled_from([None, FULL, SPREAD])), draw(st.booleans())
    if bind is None:
        return NumaRequest(amounts, None, policy)
    strategy = draw(st.sampled_from(NUMAAllocateStrategy))
    return NumaRequest(amounts, CpuRequest(count, bind, is_required, strategy=strategy), policy)


@given(st.lists(wishes(), max_size=8), st.sampled_from(["1", "1.5"]))
def test_whatever_pods_come_no_cpu_is_given_twice_and_no_numa_node_is_over_full(
    requests: list[NumaRequest], ratio: str
) -> None:
    shown = view(ratio=ratio)
    for number, wanted in enumerate(requests):
        found = decide(shown, wanted, SCORE)
        if isinstance(found, tuple):
            assert found
            continue
        assert found.cpus <= shown.free_cpus
        assert len(found.cpus) == (wanted.cpus.count if wanted.cpus is not None else 0)
        split = {name: sum(part.get(name, 0) for part in found.numa.values()) for name in wanted.amounts}
        assert split == wanted.amounts
        if wanted.policy is NumaTopologyPolicy.SINGLE_NUMA_NODE:
            assert len(found.numa) == 1
        shown = view({**shown.allocations, str(number): found}, ratio)
    for numa_node, most in shown.numa_allocatable.items():
        for name, used in shown.numa_requested[numa_node].items():
            assert used <= most[name]


# ------------------------------------------------------------ growth


@pytest.mark.parametrize(
    ("held", "milli", "found"),
    [
        ("0-3", 6000, "0-5"),
        ("0-3", 4500, "0-5"),
        ("0-3", 4000, "0-3"),
        ("0-3", 3000, "0-3"),
        ("0-3", 2000, "0-1"),
        ("0-3", 100, "0-1"),
        ("8-9", 6000, "8-13"),
        ("0,2", 2500, "0,2,4-5"),
    ],
)
def test_a_pinned_pod_gets_and_gives_whole_cores_of_its_numa_nodes(held: str, milli: int, found: str) -> None:
    assert resized(view({"a": PodAllocation(cpus_of(held))}), "a", milli) == (
        PodAllocation(cpus_of(found)),
        "",
    )


def test_a_pod_on_two_numa_nodes_grows_on_both() -> None:
    found, why = resized(view({"a": PodAllocation(cpus_of("2-3,10-11"))}), "a", 8000)
    assert (len(found.cpus), why) == (8, "")
    assert found.cpus >= cpus_of("2-3,10-11")


def test_a_pod_gets_what_there_is_and_is_told_what_is_missing() -> None:
    held = {"a": PodAllocation(cpus_of("0-3")), "b": PodAllocation(cpus_of("6"))}
    missing = "NUMA node 0 of the pod has {} CPUs of free cores, and {} more are needed"
    found, why = resized(view(held), "a", 8000)
    assert (found.cpus, why) == (cpus_of("0-5"), missing.format(2, 4))
    found, why = resized(view({**held, "a": found}), "a", 8000)
    assert (found.cpus, why) == (cpus_of("0-5"), missing.format(0, 2))


def test_cores_that_are_promised_to_pods_that_share_them_are_not_given() -> None:
    held = {"a": PodAllocation(cpus_of("0-1")), "shares": PodAllocation(numa={0: {"cpu": 3500}})}
    found, why = resized(view(held), "a", 8000)
    assert (found.cpus, why) == (
        cpus_of("0-3"),
        "NUMA node 0 of the pod has 2 CPUs of free cores (4 are promised to pods that share them), and 6 more are needed",
    )


def test_parts_of_numa_nodes_tell_the_cpus_and_the_rest_stays() -> None:
    held = PodAllocation(cpus_of("0-1"), numa={0: {"cpu": 2000, "memory": 64}})
    found, _ = resized(view({"a": held}), "a", 4000)
    assert found.numa == {0: {"cpu": 4000, "memory": 64}}


@pytest.mark.parametrize(
    ("topology", "reason"),
    [(NodeTopology(), NO_TOPOLOGY), (view({}).topology, INVALID_TOPOLOGY)],
)
def test_without_its_cpus_in_the_topology_a_pod_keeps_what_it_has(
    topology: NodeTopology, reason: str
) -> None:
    held = PodAllocation(cpus_of("0,99"))
    assert resized(NumaView(topology, NodeOptions(), {"a": held}), "a", 4000) == (held, reason)
