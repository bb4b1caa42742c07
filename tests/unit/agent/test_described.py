"""The objects of a node describe its VMs."""

import json
from typing import Any, cast

import pytest

from agent.core.model import VmKind
from agent.sources.described import Found, NodeFacts, describe, describe_machine, room_of
from hosting.kubernetes.objects import ResourceName
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import ScalingPolicy
from protocol.values import Resources
from tests.support.amounts import GIB, MIB
from tests.support.manifests import node_manifest, pod_manifest

ROOM = Resources(16_000, 64 * GIB)


def facts(*policies: ScalingPolicy, **fixed: str) -> NodeFacts:
    """Those of a node; `fixed` says what of its pods cannot be changed."""
    return NodeFacts(
        ROOM, "http://127.0.0.1:10302/", policies, lambda *_: cast("dict[ResourceName, str]", fixed)
    )


FACTS = facts()


def test_a_pod_that_names_nothing_may_grow_to_its_nodes_room() -> None:
    found = describe(pod_manifest("web-0", uid="u-1"), FACTS)
    assert found is not None
    assert found.description is not None
    vm = found.description.vm
    assert (vm.name, vm.pod_uid, vm.kind) == ("default/web-0", "u-1", VmKind.POD)
    assert (vm.bounds.min, vm.bounds.max, vm.unit.step) == (
        Resources(100, 128 * MIB),
        ROOM,
        Resources(100, 128 * MIB),
    )
    assert found.description.informant_url == "http://127.0.0.1:10302/pods/u-1"


def policy(**spec: Any) -> ScalingPolicy:
    return ScalingPolicy.read(
        {"metadata": {"namespace": "default", "name": "all"}, "spec": {"selector": {}, **spec}}
    )


def test_the_policy_of_a_pod_becomes_its_annotations_and_foreign_ones_are_left_out() -> None:
    bounds = json.dumps({"max": {"cpu": 2, "memory": "2Gi"}})
    pod = pod_manifest(
        "a",
        labels={},
        annotations={"parley.dev/bounds": bounds, "cni.example/ip": "10.0.0.1", "parley.dev/fence": "3"},
    )
    found = describe(pod, facts(policy(tied=True, unit={"cpu": "1"})))
    assert found is not None
    assert found.description is not None
    assert found.description.vm.bounds.max == Resources(2000, 2 * GIB)
    assert found.description.is_tied
    assert found.description.annotations == {
        "parley.dev/bounds": bounds,
        "parley.dev/unit": '{"cpu": "1"}',
        "parley.dev/config": '{"tied": true}',
    }


@pytest.mark.parametrize(
    ("pod", "is_wanted"),
    [
        (pod_manifest("a", phase="Pending"), True),
        (pod_manifest("a", requests={"cpu": "1"}), True),  # no request for memory: the API refuses to add one
        (pod_manifest("a", labels={}), False),
        (pod_manifest("a", phase="Succeeded"), False),
        (pod_manifest("a", phase="Failed"), False),
        (pod_manifest("a", deletionTimestamp="2026-01-01T00:00:00Z"), False),
        (pod_manifest("a", labels={"parley.dev/enabled": "true", "vm.neon.tech/name": "vm"}), False),
    ],
)
def test_which_pods_have_no_runner(pod: Manifest, is_wanted: bool) -> None:
    found = describe(pod, FACTS)
    assert (found is not None) == is_wanted
    assert found is None or found.description is None
    assert bool(found and found.obstacles) == (
        pod["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    )


@pytest.mark.parametrize(("address", "host"), [("10.1.0.7", "10.1.0.7"), ("fd00::7", "[fd00::7]")])
def test_an_informant_in_the_pod_is_asked_at_the_pods_address(address: str, host: str) -> None:
    pod = pod_manifest("a", annotations={"parley.dev/informant": "10301"})
    pod["status"]["podIP"] = address
    found = describe(pod, FACTS)
    assert found is not None
    assert found.description is not None
    assert found.description.informant_url == f"http://{host}:10301"
    del pod["status"]["podIP"]
    assert describe(pod, FACTS) == Found(pod, found.scaling, valid=found.valid)


def machine(**status: Any) -> Manifest:
    return {
        "metadata": {
            "namespace": "default",
            "name": "db",
            "uid": "u-db",
            "labels": {"autoscaling.neon.tech/enabled": "true"},
        },
        "spec": {
            "guest": {
                "memorySlotSize": "1Gi",
                "cpus": {"min": 1, "max": 4, "use": 1},
                "memorySlots": {"min": 1, "max": 8, "use": 2},
            }
        },
        "status": {
            "node": "node-1",
            "podName": "db-x",
            "phase": "Running",
            "cpus": 1,
            "memorySize": "2Gi",
            **status,
        },
    }


PODS = {("default", "db-x"): pod_manifest("db-x", uid="u-pod", labels={"vm.neon.tech/name": "db"})}


def test_a_virtual_machine_is_scaled_by_the_pod_that_it_runs_in() -> None:
    found = describe_machine(machine(), "node-1", PODS)
    assert found is not None
    assert found.description is not None
    vm = found.description.vm
    assert (vm.name, vm.pod_uid, vm.kind, vm.virtual_machine) == (
        "default/db-x",
        "u-pod",
        VmKind.NEONVM,
        "db",
    )
    assert (vm.slot_bytes, vm.unit.step, vm.bounds.max) == (
        GIB,
        Resources(1000, GIB),
        Resources(4000, 8 * GIB),
    )
    assert (found.description.informant_url, found.description.is_tied) == ("http://10.1.0.7:10301", True)


def test_a_virtual_machine_without_its_pod_waits_and_another_nodes_is_not_ours() -> None:
    waiting = describe_machine(machine(), "node-1", {})
    assert waiting is not None
    assert waiting.description is None
    for status in ({"node": "node-2"}, {"phase": "Failed"}):
        assert describe_machine(machine(**status), "node-1", PODS) is None
    wrong = machine()
    del wrong["spec"]["guest"]["cpus"]["max"]
    told = describe_machine(wrong, "node-1", PODS)
    assert told is not None
    assert told.obstacles == ("spec.guest.cpus.max: must be set",)


def test_a_node_without_room_is_told() -> None:
    assert room_of(node_manifest("node-1", "16", "64Gi")) == ROOM
    for status in ({}, {"allocatable": {"cpu": "1"}}, {"allocatable": {"cpu": "much", "memory": "1Gi"}}):
        with pytest.raises(ValueError, match="allocatable"):
            room_of({"status": status})


def test_a_resource_that_no_container_may_change_keeps_its_amount_and_both_make_an_obstacle() -> None:
    bounds = json.dumps({"max": {"cpu": 2, "memory": "2Gi"}})
    pod = pod_manifest("a", annotations={"parley.dev/bounds": bounds})
    found = describe(pod, facts(memory="main: it restarts"))
    assert found is not None
    assert found.description is not None
    within = found.description.vm.bounds
    assert (within.min, within.max) == (Resources(100, 512 * MIB), Resources(2000, 512 * MIB))
    assert (found.description.annotations, found.faults) == (
        {},
        ("memory stays as it is: main: it restarts",),
    )
    both = describe(pod, facts(cpu="x", memory="y"))
    assert both is not None
    assert (both.description, len(both.obstacles)) == (None, 2)


TYPO = {"parley.dev/bounds": '{"max": {"memory": "lots"}}'}
CAPPED = {"parley.dev/bounds": '{"max": {"memory": "2Gi"}}'}


def test_a_pod_keeps_its_bounds_after_a_typo_and_its_size_where_they_are_not_known() -> None:
    before = describe(pod_manifest("a", annotations=CAPPED), FACTS)
    assert before is not None
    after = describe(pod_manifest("a", annotations=TYPO), FACTS, before.valid)
    assert after is not None
    assert after.description == before.description
    assert after.faults[0].startswith("parley.dev/bounds: max.memory")

    started = describe(pod_manifest("a", annotations=TYPO), FACTS)
    assert started is not None
    assert started.description is None
    assert started.obstacles == (
        "no valid value of parley.dev/bounds is known: the size stays as it is until that is mended",
    )
    assert started.faults == after.faults, "what is wrong is told as well"


def test_a_virtual_machine_keeps_its_bounds_after_a_typo_and_its_size_where_they_are_not_known() -> None:
    def annotated(annotations: dict[str, str]) -> Manifest:
        made = machine()
        made["metadata"]["annotations"] = annotations
        return made

    before = describe_machine(annotated(CAPPED), "node-1", PODS)
    assert before is not None
    after = describe_machine(annotated(TYPO), "node-1", PODS, before.valid)
    assert after is not None
    assert (after.description, before.description is None) == (before.description, False)
    started = describe_machine(annotated(TYPO), "node-1", PODS)
    assert started is not None
    assert (started.description, len(started.obstacles)) == (None, 1)


def test_containers_and_their_states_are_described_so_that_a_change_is_noticed() -> None:
    pod = pod_manifest("a")
    state = {
        "name": "main",
        "containerID": "containerd://7",
        "state": {"terminated": {"reason": "OOMKilled"}},
    }
    found = describe(pod | {"status": pod["status"] | {"containerStatuses": [state]}}, FACTS)
    assert found is not None
    assert found.description is not None
    assert found.description.containers == ("main containerd://7 terminated",)
