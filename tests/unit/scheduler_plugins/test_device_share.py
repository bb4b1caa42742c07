"""Devices: what pods may ask for, what is left, which ones are chosen; and the plugin in the real framework."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hosting.kubernetes.devices import (
    CORE,
    FPGA,
    GPU,
    MEMORY,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RATIO,
    RDMA,
    SHARED,
    DeviceType,
    Grants,
    read_grants,
    written_grants,
)
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import FaultsError, check
from parley.testing import FakeCluster, assert_rejected, node, pod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Code, RejectionClass, Status, new_status
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.device_share.allocation import (
    DeviceRoom,
    NodeDevices,
    NoDevicesError,
    allocate,
    node_score,
    read_devices,
    scorer,
)
from scheduler.placing.plugins.device_share.args import DeviceShareArgs
from scheduler.placing.plugins.device_share.core import DeviceError, PodDevices, pod_devices
from scheduler.placing.plugins.device_share.plugin import DeviceShare

GIB = 1024**3
NVIDIA = "nvidia.com/gpu"
PREFIX = "scheduling.koordinator.sh/"
LEAST = scorer({RATIO: 1, MEMORY: 1, RDMA: 1, FPGA: 1}, prefers_used=False)
MOST = scorer({RATIO: 1, MEMORY: 1, RDMA: 1, FPGA: 1}, prefers_used=True)

# ---------------------------------------------------------------- what pods may ask for


@pytest.mark.parametrize(
    ("wanted", "count", "each", "is_shared"),
    [
        ({NVIDIA: 2}, 2, {CORE: 100, RATIO: 100}, False),
        ({"amd.com/gpu": 1}, 1, {CORE: 100, RATIO: 100}, False),
        ({GPU: 50}, 1, {CORE: 50, RATIO: 50}, True),
        ({GPU: 300}, 3, {CORE: 100, RATIO: 100}, False),
        ({RATIO: 100}, 1, {RATIO: 100}, False),
        ({RATIO: 200}, 2, {RATIO: 100}, False),
        ({MEMORY: 8 * GIB}, 1, {MEMORY: 8 * GIB}, True),
        ({CORE: 60, MEMORY: GIB}, 1, {CORE: 60, MEMORY: GIB}, True),
        ({CORE: 200, RATIO: 200}, 2, {CORE: 100, RATIO: 100}, False),
        ({SHARED: 2, RATIO: 100}, 2, {RATIO: 50}, True),
        ({SHARED: 2, MEMORY: 16 * GIB}, 2, {MEMORY: 8 * GIB}, True),
        ({SHARED: 2, CORE: 20, MEMORY: 2 * GIB}, 2, {CORE: 10, MEMORY: GIB}, True),
        ({SHARED: 4, CORE: 400, RATIO: 200}, 4, {CORE: 100, RATIO: 50}, True),
        ({NPU_CORE: 4, RATIO: 40}, 1, {NPU_CORE: 4, RATIO: 40}, True),
        ({RDMA: 30}, 1, {RDMA: 30}, False),
        ({RDMA: 200}, 2, {RDMA: 100}, False),
        ({FPGA: 100}, 1, {FPGA: 100}, False),
    ],
)
def test_amounts_become_devices_and_what_is_needed_of_each(
    wanted: Mapping[str, int], count: int, each: Mapping[str, int], is_shared: bool
) -> None:
    found = pod_devices({"example.org/other": 1, **wanted}, {})
    assert found is not None
    (request,) = found.requests
    assert (request.count, request.each, request.is_shared) == (count, each, is_shared)


@pytest.mark.parametrize(
    ("wanted", "annotations"),
    [
        ({NVIDIA: 1, "amd.com/gpu": 1}, {}),
        ({NVIDIA: 1, RATIO: 100}, {}),
        ({CORE: 100}, {}),
        ({MEMORY: GIB, RATIO: 50}, {}),
        ({SHARED: 2}, {}),
        ({NPU_CPU: 1}, {}),
        ({GPU: 150}, {}),
        ({CORE: 150, RATIO: 100}, {}),
        ({RDMA: 101}, {}),
        ({FPGA: 250}, {}),
        ({SHARED: 3, RATIO: 100}, {}),
        ({SHARED: 2, RATIO: 400}, {}),
        ({SHARED: 2, CORE: 5, MEMORY: GIB}, {}),
        ({SHARED: 2, NPU_CORE: 1, NPU_CPU: 1, MEMORY: GIB}, {}),
        ({SHARED: 1, NPU_CORE: 1, NPU_CPU: 1, NPU_DVPP: 101, MEMORY: GIB}, {}),
        ({NVIDIA: 1}, {"device-allocate-hint": "["}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"requiredTopologyScope":"Rack"}}'}),
        ({RDMA: 1}, {"device-allocate-hint": '{"rdma":{"allocateStrategy":"Some"}}'}),
        ({NVIDIA: 1}, {"device-joint-allocate": '{"deviceTypes":["tpu"]}'}),
        ({NVIDIA: 1}, {"gpu-partition-spec": '{"ringBusBandwidth":"fast"}'}),
        ({NVIDIA: 1}, {"gpu-partition-spec": "[]"}),
        ({NVIDIA: 1}, {"gpu-partition-spec": '{"ringBusBandwidth":["1"]}'}),
        ({NVIDIA: 1}, {"device-allocate-hint": "[" * 100_000}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"requiredTopologyScope":["Node"]}}'}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"exclusivePolicy":{}}}'}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"selector":"x"}}'}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"selector":{"matchLabels":["x"]}}}'}),
        ({NVIDIA: 1}, {"device-allocate-hint": '{"gpu":{"selector":{"matchExpressions":["x"]}}}'}),
        (
            {NVIDIA: 1},
            {
                "device-allocate-hint": '{"gpu":{"vfSelector":{"matchExpressions":[{"key":"x","operator":"Is"}]}}}'
            },
        ),
        ({NVIDIA: 1}, {"device-joint-allocate": '{"deviceTypes":5}'}),
        ({NVIDIA: 1}, {"device-joint-allocate": '{"deviceTypes":[["gpu"]]}'}),
    ],
)
def test_what_nobody_may_ask_for(wanted: Mapping[str, int], annotations: Mapping[str, str]) -> None:
    with pytest.raises(DeviceError):
        pod_devices(wanted, {PREFIX + name: text for name, text in annotations.items()})


def test_every_fault_of_a_hint_is_told() -> None:
    hint = {"gpu": {"requiredTopologyScope": 5, "exclusivePolicy": "Node", "selector": "x"}, "rdma": []}
    with pytest.raises(DeviceError) as told:
        asked({NVIDIA: 1}, device_allocate_hint=hint)
    for name in ("gpu.requiredTopologyScope", "gpu.exclusivePolicy", "gpu.selector", "rdma"):
        assert f"annotation {PREFIX}device-allocate-hint.{name}: " in str(told.value)


def test_a_hint_may_have_what_is_not_known_here_and_leave_out_the_rest() -> None:
    hint = {
        "xpu": {},
        "gpu": {"later": 1, "selector": None, "requiredTopologyScope": "", "exclusivePolicy": ""},
    }
    assert asked({NVIDIA: 1}, device_allocate_hint=hint) == asked({NVIDIA: 1})


def test_a_pod_may_ask_for_no_device() -> None:
    assert pod_devices({"example.org/other": 1}, {}) is None


# ---------------------------------------------------------------- which devices are chosen


def device(type_: str, minor: int, numa: int, pcie: int, **more: Any) -> dict[str, Any]:
    resources = (
        {CORE: 100, MEMORY: "16Gi", RATIO: 100} if type_ == "gpu" else {f"koordinator.sh/{type_}": 100}
    )
    return {
        "type": type_,
        "minor": minor,
        "id": f"{type_}-{minor}",
        "health": True,
        "resources": resources,
        "topology": {"socketID": 0, "nodeID": numa, "pcieID": str(pcie)},
    } | more


def manifest(*devices: dict[str, Any], labels: Any = None, partitions: Any = None) -> Manifest:
    annotations = {f"{PREFIX}gpu-partitions": json.dumps(partitions)} if partitions else {}
    return {
        "metadata": {"name": "n1", "labels": labels or {}, "annotations": annotations},
        "spec": {"devices": list(devices)},
    }


def eight(**more: Any) -> list[dict[str, Any]]:
    """Eight GPUs: two at a switch, four at a NUMA node."""
    return [device("gpu", minor, minor // 4, minor // 2, **more) for minor in range(8)]


def taken(*minors: int, **resources: int) -> Grants:
    return read_grants(
        json.dumps(
            {"gpu": [{"minor": each, "resources": resources or {CORE: 100, RATIO: 100}} for each in minors]}
        )
    )


def asked(wanted: Mapping[str, int], **annotations: Any) -> PodDevices:
    notes = {PREFIX + name.replace("_", "-"): json.dumps(value) for name, value in annotations.items()}
    found = pod_devices(wanted, notes)
    assert found is not None
    return found


def chosen(found: Grants, type_: str = "gpu") -> list[int]:
    return [each.minor for each in found if each.type == type_]


@pytest.mark.parametrize(
    ("used", "wanted", "minors"),
    [
        ((), {NVIDIA: 1}, [0]),
        ((0,), {NVIDIA: 1}, [1]),
        ((4,), {NVIDIA: 1}, [5]),
        ((0, 4, 5), {NVIDIA: 1}, [1]),
        ((), {NVIDIA: 2}, [0, 1]),
        ((0,), {NVIDIA: 2}, [2, 3]),
        ((6,), {NVIDIA: 2}, [4, 5]),
        ((0, 2, 4, 6), {NVIDIA: 2}, [1, 3]),
        ((0,), {NVIDIA: 3}, [1, 2, 3]),
        ((), {NVIDIA: 4}, [0, 1, 2, 3]),
        ((0,), {NVIDIA: 4}, [4, 5, 6, 7]),
        ((0, 7), {NVIDIA: 6}, [1, 2, 3, 4, 5, 6]),
        ((), {NVIDIA: 8}, list(range(8))),
        ((3,), {NVIDIA: 8}, None),
        ((3,), {GPU: 50}, [2]),
    ],
)
def test_gpus_are_chosen_close_together_and_beside_those_in_use(
    used: tuple[int, ...], wanted: Mapping[str, int], minors: list[int] | None
) -> None:
    room = DeviceRoom(read_devices(manifest(*eight())), taken(*used))
    if minors is None:
        with pytest.raises(NoDevicesError, match="Insufficient gpu devices"):
            allocate(room, asked(wanted), LEAST)
    else:
        assert chosen(allocate(room, asked(wanted), LEAST)) == minors


@pytest.mark.parametrize(
    ("scope", "used", "fits"),
    [
        ("PCIe", (), True),
        ("PCIe", (0, 2, 4, 6), False),
        ("NUMANode", (0, 2, 4, 6), True),
        ("Device", (), False),
    ],
)
def test_a_required_scope_is_not_left(scope: str, used: tuple[int, ...], fits: bool) -> None:
    room = DeviceRoom(read_devices(manifest(*eight())), taken(*used))
    wanted = asked({NVIDIA: 2}, device_allocate_hint={"gpu": {"requiredTopologyScope": scope}})
    if fits:
        assert len(allocate(room, wanted, LEAST)) == 2
    else:
        with pytest.raises(NoDevicesError):
            allocate(room, wanted, LEAST)


@pytest.mark.parametrize(
    ("used", "wanted", "left"),
    [
        ({RATIO: 60, MEMORY: 10 * GIB}, {RATIO: 40}, False),
        ({RATIO: 60, MEMORY: 9 * GIB}, {RATIO: 40}, True),
        ({RATIO: 60, MEMORY: 9 * GIB}, {RATIO: 41}, False),
        ({CORE: 90}, {CORE: 20, MEMORY: GIB}, False),
        ({CORE: 90}, {MEMORY: GIB}, True),
        ({}, {MEMORY: 17 * GIB}, False),
        ({CORE: 500}, {MEMORY: GIB}, True),
    ],
)
def test_memory_and_its_ratio_mean_each_other(
    used: dict[str, int], wanted: Mapping[str, int], left: bool
) -> None:
    room = DeviceRoom(read_devices(manifest(device("gpu", 0, 0, 0))), taken(0, **used))
    if left:
        (grant,) = allocate(room, asked(wanted), LEAST)
        assert grant.resources.keys() >= {RATIO, MEMORY}
    else:
        with pytest.raises(NoDevicesError):
            allocate(room, asked(wanted), LEAST)


def test_what_is_filled_in_is_rounded_down() -> None:
    room = DeviceRoom(read_devices(manifest(device("gpu", 0, 0, 0))), ())
    assert allocate(room, asked({MEMORY: 8 * GIB - 1}), LEAST)[0].resources[RATIO] == 49
    assert allocate(room, asked({RATIO: 33}), LEAST)[0].resources[MEMORY] == 33 * 16 * GIB // 100


def test_devices_that_are_not_healthy_or_not_selected_are_left_out() -> None:
    devices = [
        device("gpu", 0, 0, 0, health=False),
        device("gpu", 1, 0, 0, labels={"kind": "fast"}),
        device("gpu", 2, 0, 0),
    ]
    room = DeviceRoom(read_devices(manifest(*devices)), ())
    assert chosen(allocate(room, asked({NVIDIA: 1}), LEAST)) == [1]
    slow = {"gpu": {"selector": {"matchExpressions": [{"key": "kind", "operator": "DoesNotExist"}]}}}
    assert chosen(allocate(room, asked({NVIDIA: 1}, device_allocate_hint=slow), LEAST)) == [2]
    with pytest.raises(NoDevicesError):
        allocate(room, asked({NVIDIA: 3}), LEAST)
    with pytest.raises(NoDevicesError, match="no rdma devices") as told:
        allocate(room, asked({RDMA: 1}), LEAST)
    assert not told.value.is_resolvable


def networks(**more: Any) -> list[dict[str, Any]]:
    return [device("rdma", minor, minor // 2, minor, **more) for minor in range(4)]


@pytest.mark.parametrize(
    ("amount", "hint", "minors"),
    [
        (100, {}, [0]),
        (200, {}, [0, 1]),
        (1, {"allocateStrategy": "ApplyForAll"}, [0, 1, 2, 3]),
        (3, {"allocateStrategy": "RequestsAsCount"}, [0, 1, 2]),
        (2, {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"}, [0, 1]),
    ],
)
def test_other_devices_by_amount_all_of_them_or_as_many(
    amount: int, hint: dict[str, str], minors: list[int]
) -> None:
    room = DeviceRoom(read_devices(manifest(*networks())), ())
    found = allocate(room, asked({RDMA: amount}, device_allocate_hint={"rdma": hint}), LEAST)
    assert chosen(found, "rdma") == minors


def test_all_devices_means_those_that_are_selected_and_all_of_these() -> None:
    every = {"rdma": {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"net": "a"}}}}
    some = [*networks(labels={"net": "a"})[:2], *networks()[2:]]
    wanted = asked({RDMA: 100}, device_allocate_hint=every)
    found = allocate(DeviceRoom(read_devices(manifest(*some)), ()), wanted, LEAST)
    assert chosen(found, "rdma") == [0, 1]
    with pytest.raises(NoDevicesError, match="Insufficient rdma"):
        allocate(DeviceRoom(read_devices(manifest(*some)), found[:1]), wanted, LEAST)
    with pytest.raises(NoDevicesError, match="that the pod selects") as told:
        allocate(DeviceRoom(read_devices(manifest(*networks())), ()), wanted, LEAST)
    assert not told.value.is_resolvable


@pytest.mark.parametrize(
    ("policy", "used", "minors"),
    [("DeviceLevel", (0,), [1]), ("PCIeLevel", (0,), [2]), ("PCIeLevel", (0, 2, 4, 6), None)],
)
def test_who_wants_to_be_alone_is(policy: str, used: tuple[int, ...], minors: list[int] | None) -> None:
    room = DeviceRoom(read_devices(manifest(*eight())), taken(*used, **{CORE: 10, RATIO: 10}))
    wanted = asked({GPU: 50}, device_allocate_hint={"gpu": {"exclusivePolicy": policy}})
    if minors is None:
        with pytest.raises(NoDevicesError):
            allocate(room, wanted, LEAST)
    else:
        assert chosen(allocate(room, wanted, LEAST)) == minors


def test_a_virtual_function_is_given_once() -> None:
    groups = [
        {"labels": {"fast": "no"}, "vfs": [{"busID": "0"}]},
        {"labels": {"fast": "yes"}, "vfs": [{"busID": "1"}, {"busID": "2"}]},
    ]
    devices = read_devices(manifest(device("rdma", 0, 0, 0, vfGroups=groups)))
    wanted = asked(
        {RDMA: 10}, device_allocate_hint={"rdma": {"vfSelector": {"matchLabels": {"fast": "yes"}}}}
    )
    first = allocate(DeviceRoom(devices, ()), wanted, LEAST)
    second = allocate(DeviceRoom(devices, first), wanted, LEAST)
    assert [each.vfs for each in (*first, *second)] == [("1",), ("2",)]
    with pytest.raises(NoDevicesError):
        allocate(DeviceRoom(devices, first + second), wanted, LEAST)


def joint(scope: str = "", **hint: Any) -> dict[str, Any]:
    found = {"deviceTypes": ["gpu", "rdma"], **({"requiredScope": scope} if scope else {})}
    return {"device_joint_allocate": found, **({"device_allocate_hint": hint} if hint else {})}


@pytest.mark.parametrize(
    ("gpus", "amount", "scope", "used", "found"),
    [
        (1, 100, "", (), ([0], [0])),
        (1, 100, "SamePCIe", (4,), ([5], [2])),
        (2, 100, "SamePCIe", (), ([0, 1], [0])),
        (4, 200, "SamePCIe", (), ([0, 1, 2, 3], [0, 1])),
        (4, 100, "", (), ([0, 1, 2, 3], [0])),
        (4, 100, "SamePCIe", (), None),
        (1, 200, "SamePCIe", (), None),
        (1, 200, "", (), ([0], [0, 1])),
    ],
)
def test_devices_that_belong_together_are_at_the_same_switches(
    gpus: int, amount: int, scope: str, used: tuple[int, ...], found: tuple[list[int], list[int]] | None
) -> None:
    room = DeviceRoom(read_devices(manifest(*eight(), *networks())), taken(*used))
    wanted = asked({NVIDIA: gpus, RDMA: amount}, **joint(scope))
    if found is None:
        with pytest.raises(NoDevicesError, match="Joint-Allocate rules violation"):
            allocate(room, wanted, LEAST)
    else:
        grants = allocate(room, wanted, LEAST)
        assert (chosen(grants), chosen(grants, "rdma")) == found


def test_the_kind_that_decides_goes_where_the_other_one_has_room() -> None:
    devices = read_devices(manifest(*eight(), *networks()))
    busy = read_grants(
        json.dumps({"rdma": [{"minor": each, "resources": {RDMA: 100}} for each in (0, 1, 3)]})
    )
    grants = allocate(DeviceRoom(devices, busy), asked({NVIDIA: 1, RDMA: 100}, **joint("SamePCIe")), LEAST)
    assert (chosen(grants), chosen(grants, "rdma")) == ([4], [2])


def sets(*minors: list[int], score: int = 1, bandwidth: str = "400Gi") -> list[dict[str, Any]]:
    return [{"minors": each, "allocationScore": score, "ringBusBandwidth": bandwidth} for each in minors]


PARTITIONS = {
    "2": [*sets([0, 3], [1, 2], [4, 7], [5, 6], score=2), *sets([0, 1], score=1, bandwidth="50Gi")],
    "4": sets([0, 1, 2, 3], [4, 5, 6, 7]),
    "8": sets(list(range(8))),
}


@pytest.mark.parametrize(
    ("policy", "spec", "used", "count", "minors"),
    [
        ("Honor", {}, (), 2, [4, 7]),
        ("Honor", {}, (4,), 2, [5, 6]),
        ("Honor", {}, (2, 3, 4, 5), 2, [0, 1]),
        ("Honor", {"allocatePolicy": "Restricted"}, (2, 3, 4, 5), 2, None),
        ("Honor", {"ringBusBandwidth": "100Gi"}, (2, 3, 4, 5), 2, None),
        ("Prefer", {"ringBusBandwidth": "100Gi"}, (2, 3, 4, 5), 2, [0, 1]),
        ("", {"allocatePolicy": "BestEffort"}, (), 2, [4, 7]),
        ("", {"allocatePolicy": "Restricted"}, (), 3, None),
        ("Honor", {}, (), 3, None),
        ("Prefer", {}, (), 3, [0, 1, 2]),
        ("", {}, (), 2, [0, 1]),
        ("Honor", {}, (1,), 4, [4, 5, 6, 7]),
    ],
)
def test_whole_gpus_by_partitions(
    policy: str, spec: dict[str, str], used: tuple[int, ...], count: int, minors: list[int] | None
) -> None:
    labels = {"node.koordinator.sh/gpu-partition-policy": policy}
    room = DeviceRoom(read_devices(manifest(*eight(), labels=labels, partitions=PARTITIONS)), taken(*used))
    wanted = asked({NVIDIA: count}, **({"gpu_partition_spec": spec} if spec else {}))
    if minors is None:
        with pytest.raises(NoDevicesError):
            allocate(room, wanted, LEAST)
    else:
        assert chosen(allocate(room, wanted, LEAST)) == minors
    assert chosen(allocate(room, asked({GPU: 10}), LEAST)), "shares are of no partition"


@pytest.mark.parametrize(
    ("used", "wanted", "least", "most"),
    [
        ((), {NVIDIA: 1}, 50, 50),
        ((), {GPU: 50}, 75, 25),
        ((0,), {GPU: 50}, 0, 0),
    ],
    ids=["memory is not implied while scoring", "half", "a device that is full"],
)
def test_the_score_of_a_node(used: tuple[int, ...], wanted: Mapping[str, int], least: int, most: int) -> None:
    devices = read_devices(manifest(device("gpu", 0, 0, 0)))
    full = {CORE: 100, RATIO: 100, MEMORY: 16 * GIB}
    room = DeviceRoom(devices, taken(*used, **full))
    assert node_score(room, asked(wanted), LEAST) == least
    assert node_score(room, asked(wanted), MOST) == (most if not used else 100)


def test_scores_of_several_kinds_are_added() -> None:
    room = DeviceRoom(read_devices(manifest(*eight(), *networks())), ())
    assert node_score(room, asked({NVIDIA: 1, RDMA: 100}), LEAST) == (87 + 100) // 2 + 75


REQUESTS = st.sampled_from(
    [
        {NVIDIA: 1}, {NVIDIA: 2}, {NVIDIA: 3}, {GPU: 30}, {RATIO: 50}, {MEMORY: 5 * GIB + 7}, {CORE: 70, MEMORY: GIB},
        {SHARED: 2, RATIO: 66}, {RDMA: 40}, {RDMA: 200}, {NVIDIA: 1, RDMA: 100}, {GPU: 100, RDMA: 60},
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(REQUESTS, st.booleans(), st.integers(0, 9)), max_size=25), st.booleans())
def test_no_device_is_given_twice_and_what_is_given_back_is_what_was_taken(
    steps: list[tuple[dict[str, int], bool, int]], is_joint: bool
) -> None:
    devices = read_devices(manifest(*eight(), *networks()))
    held: list[Grants] = []
    for wanted, gives_back, number in steps:
        if gives_back and held:
            held.pop(number % len(held))
            continue
        room = DeviceRoom(devices, [each for grants in held for each in grants])
        try:
            found = allocate(room, asked(wanted, **(joint() if is_joint else {})), LEAST)
        except NoDevicesError:
            continue
        assert len({each.key for each in found}) == len(found), "a device is not given twice to one pod"
        assert read_grants(written_grants(found)) == found
        held.append(found)
        everything = DeviceRoom(devices, [each for grants in held for each in grants])
        for each in (each for kind in devices.devices.values() for each in kind):
            used = everything.used(each)
            assert all(amount <= each.total[name] for name, amount in used.items())
            assert everything.free(each) == {
                name: total - used.get(name, 0) for name, total in each.total.items()
            }


@pytest.mark.parametrize(
    "broken",
    [
        manifest({"type": "gpu", "minor": "x"}),
        manifest({"type": "gpu", "health": True, "resources": {CORE: "many"}}),
        manifest(partitions=[1]),
        manifest(partitions={"2": [{"score": 1}]}),
        manifest(partitions={"2": [{"minors": [], "allocationScore": float("inf")}]}),
        {"metadata": {"annotations": {f"{PREFIX}gpu-partitions": "[" * 100_000}}},
    ],
)
def test_a_device_object_that_cannot_be_read_is_told(broken: Manifest) -> None:
    with pytest.raises(DeviceError):
        read_devices(broken)


def test_what_is_not_known_is_left_out() -> None:
    assert read_devices(manifest({"type": "xpu", "minor": 0})) == NodeDevices()
    assert read_grants("{") == read_grants('{"xpu":[{}]}') == read_grants("") == ()
    assert read_grants('{"gpu":[{"resources":{}}]}') == ()
    assert DeviceType.GPU in read_devices(manifest(device("gpu", 0, 0, 0))).devices


# ---------------------------------------------------------------- the plugin


SHARE: Mapping[str, Any] = {"DeviceShare": None}


def cluster(*names: str) -> FakeCluster:
    found = FakeCluster(*(node(name, "64", "64Gi") for name in names))
    for name in names:
        shown = manifest(device("gpu", 0, 0, 0), device("gpu", 1, 0, 0))
        found.informers.put(DEVICES, {**shown, "metadata": {**shown["metadata"], "name": name}})
    return found


def given_to(world: FakeCluster, wanted: PodInfo) -> Any:
    return json.loads(world.manifests[wanted.name]["metadata"]["annotations"][f"{PREFIX}device-allocated"])


def test_pods_are_told_their_devices_and_give_them_back() -> None:
    async def story() -> None:
        world = cluster("n1")
        framework = world.framework(SHARE)
        one, two, three = (pod(name, "1", "1Gi", more={NVIDIA: "1"}) for name in ("one", "two", "three"))
        for each in (one, two):
            assert await world.schedule(framework, each) is None
        assert given_to(world, one)["gpu"][0] == {
            "minor": 0,
            "resources": {CORE: "100", RATIO: "100", MEMORY: str(16 * GIB)},
            "id": "gpu-0",
        }
        assert given_to(world, two)["gpu"][0]["minor"] == 1
        failure = await world.schedule(framework, three)
        assert failure is not None
        assert "Insufficient gpu devices" in failure.text
        world.informers.put(PODS, world.manifests[one.name])
        world.removed(one)
        world.informers.delete(PODS, dict(one.manifest))
        assert await world.schedule(framework, three) is None
        assert given_to(world, three)["gpu"][0]["minor"] == 0
        later = world.framework(SHARE)
        plugin = later.plugins["DeviceShare"]
        assert isinstance(plugin, DeviceShare)
        (page,) = plugin.endpoints()
        later.set_snapshot(world.snapshot())
        assert [each["used"][CORE] for each in page.read({"node": "n1"})] == [100, 100]
        assert page.read({"node": "n9"}) is None

    asyncio.run(story())


def test_after_a_restart_annotations_say_who_has_what() -> None:
    async def story() -> None:
        before = cluster("n1")
        framework = before.framework(SHARE)
        one = pod("one", "1", "1Gi", more={RATIO: "50"})
        assert await before.schedule(framework, one) is None
        after = cluster("n1")
        after.nodes = dict(before.nodes)
        framework = after.framework(SHARE)
        two = pod("two", "1", "1Gi", more={NVIDIA: "2"})
        failure = await after.schedule(framework, two)
        assert failure is not None
        assert "Insufficient gpu devices" in failure.text
        three = pod("three", "1", "1Gi", more={NVIDIA: "1"})
        assert await after.schedule(framework, three) is None
        assert given_to(after, three)["gpu"][0]["minor"] == 1

    asyncio.run(story())


def forged(text: str, **more: Any) -> PodInfo:
    """A pod that says itself which devices it has."""
    return pod("forged", "1", "1Gi", annotations={f"{PREFIX}device-allocated": text}, **more)


LESS = json.dumps({"gpu": [{"minor": 0, "resources": {CORE: "-100", RATIO: "-100", MEMORY: "-16Gi"}}]})


@pytest.mark.parametrize("text", [LESS, "[" * 100_000, '{"gpu": [{"minor": Infinity}]}'], ids=str.__len__)
@pytest.mark.parametrize("more", [{}, {RATIO: "50"}], ids=["asks-for-none", "asks"])
def test_what_a_pod_says_of_itself_gives_nobody_a_device(text: str, more: dict[str, str]) -> None:
    async def story() -> None:
        world = cluster("n1")
        world.nodes["n1"] = node("n1", "64", "64Gi", forged(text, more=more, node="n1"))
        framework = world.framework(SHARE)
        for name in ("one", "two"):
            assert await world.schedule(framework, pod(name, "1", "1Gi", more={NVIDIA: "1"})) is None
        failure = await world.schedule(framework, pod("three", "1", "1Gi", more={NVIDIA: "1"}))
        assert failure is not None
        assert "Insufficient gpu devices" in failure.text

    asyncio.run(story())


def test_a_pod_that_asks_for_no_device_is_not_bound_with_the_word_that_it_has_one() -> None:
    async def story() -> None:
        world = cluster("n1")
        framework = world.framework(SHARE)
        taking = forged(json.dumps({"gpu": [{"minor": 0, "resources": {CORE: "100", RATIO: "100"}}]}))
        assert await world.schedule(framework, taking) is None
        assert world.manifests[taking.name]["metadata"]["annotations"] == {}
        assert await world.schedule(framework, pod("two", "1", "1Gi", more={NVIDIA: "2"})) is None

    asyncio.run(story())


def test_a_reservation_is_kept_no_device() -> None:
    async def story() -> None:
        world = cluster("n1")
        framework = world.framework(SHARE)
        reservation = replace(pod("r", "1", "1Gi", more={NVIDIA: "2"}), is_reservation=True)
        plugin = framework.plugins["DeviceShare"]
        assert isinstance(plugin, DeviceShare)
        context = CycleState()
        framework.set_snapshot(world.snapshot())
        assert plugin.pre_filter(context, reservation, ()) == (None, new_status(Code.SKIP))
        assert plugin.reserve(context, reservation, "n1") is None
        assert await world.schedule(framework, pod("one", "1", "1Gi", more={NVIDIA: "2"})) is None

    asyncio.run(story())


class Refuses:
    """Refuses the pod `one` before it is bound."""

    def __init__(self, args: object, handle: object) -> None:
        del args, handle

    def name(self) -> str:
        return "Refuses"

    def pre_bind(self, context: object, pod: PodInfo, node_name: str) -> Status | None:
        return None if pod.pod.name != "one" else new_status(Code.UNSCHEDULABLE, "no")


def test_a_pod_that_is_given_up_gives_its_devices_back() -> None:
    async def story() -> None:
        world = cluster("n1")
        framework = world.framework({"DeviceShare": None, "Refuses": Refuses})
        assert await world.schedule(framework, pod("one", "1", "1Gi", more={NVIDIA: "2"})) is not None
        assert await world.schedule(framework, pod("two", "1", "1Gi", more={NVIDIA: "2"})) is None

    asyncio.run(story())


def test_who_asks_for_no_device_goes_anywhere_and_others_go_where_devices_are() -> None:
    async def story() -> None:
        world = cluster("n1", "n2")
        world.nodes["n3"] = node("n3", "64", "64Gi")
        broken = manifest({"type": "gpu", "minor": "x"})
        world.informers.put(DEVICES, {**broken, "metadata": {"name": "n2"}})
        framework = world.framework(SHARE)
        assert await world.schedule(framework, pod("plain", "1", "1Gi")) is None
        assert await world.schedule(framework, pod("one", "1", "1Gi", more={NVIDIA: "2"})) is None
        assert world.bound["default/one"] == "n1"
        failure = await world.schedule(framework, pod("two", "1", "1Gi", more={NVIDIA: "1"}))
        assert failure is not None
        for text in (
            "node(s) missing Device",
            "the node's Device cannot be read",
            "Insufficient gpu devices",
        ):
            assert text in failure.text
        failure = await world.schedule(framework, pod("bad", "1", "1Gi", more={GPU: "150"}))
        assert failure is not None
        assert_rejected(
            failure.status, "above 100", Code.UNSCHEDULABLE_AND_UNRESOLVABLE, RejectionClass.POLICY
        )

    asyncio.run(story())


def test_nodes_are_scored_by_what_is_used_of_their_devices() -> None:
    async def story() -> None:
        world = cluster("n1", "n2")
        packs = {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": RATIO, "weight": 1}]}}
        framework = world.framework({"DeviceShare": None}, {"DeviceShare": packs})
        for number in range(4):
            assert await world.schedule(framework, pod(f"p{number}", "1", "1Gi", more={GPU: "50"})) is None
        assert len(set(world.bound.values())) == 1

    asyncio.run(story())


def test_gpus_of_some_models_are_not_shared() -> None:
    async def story() -> None:
        world = cluster("n1")
        shown = manifest(
            device("gpu", 0, 0, 0),
            labels={"node.koordinator.sh/gpu-vendor": "v", "node.koordinator.sh/gpu-model": "m"},
        )
        world.informers.put(DEVICES, shown)
        args = {"gpuShareUnsupportedModels": [{"vendor": "v", "model": "m"}]}
        framework = world.framework({"DeviceShare": None}, {"DeviceShare": args})
        failure = await world.schedule(framework, pod("part", "1", "1Gi", more={GPU: "50"}))
        assert failure is not None
        assert "cannot be shared (v m)" in failure.text
        assert await world.schedule(framework, pod("whole", "1", "1Gi", more={GPU: "100"})) is None

    asyncio.run(story())


def test_published_args_are_taken_and_all_faults_are_told() -> None:
    published = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "DeviceShareArgs",
        "scoringStrategy": {"type": "LeastAllocated", "resources": [{"name": RATIO, "weight": 1}]},
        "disableDeviceNUMATopologyAlignment": True,
        "gpuSharedResourceTemplatesConfig": {"configMapName": "x", "matchedResources": [NPU_CORE]},
    }
    assert check(published, DeviceShareArgs).scoring_strategy.resources[0].name == RATIO
    assert [each.name for each in check(None, DeviceShareArgs).scoring_strategy.resources] == [
        RATIO,
        MEMORY,
        RDMA,
        FPGA,
    ]
    wrong = {
        "scoringStrategy": {"type": "Best", "resources": [{"name": "cpu", "weight": 101}]},
        "kind": "Other",
    }
    with pytest.raises(FaultsError) as told:
        check(wrong, DeviceShareArgs)
    assert all(name in str(told.value) for name in ("Best", "101", "Other"))
