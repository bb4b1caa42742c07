"""Manifests of pods, nodes and policies as the states that strategies see."""

from typing import Any

import pytest

from agent.node.qos.core.states import ContainerState, NodeState, PodState, QosClass, ScalingPolicyState
from agent.node.qos.pods import node_state, pod_state, policy_state
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO, Resources
from tests.support.manifests import node_manifest, pod_manifest

MIB = 1024**2
BE, LS = QosClass.BEST_EFFORT, QosClass.LATENCY_SENSITIVE


def pod_of(qos_class: str | None = "Burstable", **more: Any) -> Manifest:
    manifest = pod_manifest("a", **more)
    manifest["status"] |= {} if qos_class is None else {"qosClass": qos_class}
    return manifest


def test_a_pod_is_what_scheduler_kubelet_and_runtime_say() -> None:
    manifest = pod_of(labels={"app": "x"}, annotations={"note": "y"})
    main = manifest["spec"]["containers"][0]
    main["resources"] = {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "64Mi"}}
    manifest["spec"] |= {
        "priority": 7,
        "overhead": {"cpu": "10m"},
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always", "resources": {"limits": {"cpu": "200m"}}},
            {"name": "init", "resources": {"requests": {"cpu": "3"}}},
        ],
    }
    manifest["status"]["containerStatuses"] = [{"name": "main", "containerID": "containerd://abc"}]
    manifest["status"]["initContainerStatuses"] = [{"name": "sidecar", "containerID": "cri-o://def"}]
    assert pod_state(manifest) == PodState(
        namespace="default",
        name="a",
        uid="uid-a",
        qos=LS,
        kubernetes_class="Burstable",
        priority=7,
        requests=Resources(3210, 64 * MIB),
        limits=Resources(1210, 0),
        containers=(
            ContainerState("main", Resources(500, 64 * MIB), Resources(1000, 64 * MIB), "abc"),
            ContainerState("sidecar", Resources(200, 0), Resources(200, 0), "def"),
        ),
        labels={"app": "x"},
        annotations={"note": "y"},
        priority_class="koord-prod",
    )


@pytest.mark.parametrize(
    ("kubernetes_class", "label", "expected"),
    [
        ("BestEffort", None, BE),
        ("Burstable", None, LS),
        ("Guaranteed", None, LS),
        (None, None, LS),
        ("Burstable", "BE", BE),
        ("BestEffort", "LS", LS),
        ("BestEffort", "be", BE),
        ("Guaranteed", "LSR", LS),
    ],
)
def test_the_label_decides_before_kubernetes_own_class(
    kubernetes_class: str | None, label: str | None, expected: QosClass
) -> None:
    labels = {} if label is None else {"parley.dev/qos-class": label}
    assert pod_state(pod_of(kubernetes_class, labels=labels)).qos is expected


def test_batch_resources_are_counted_in_milli_cpu_and_bytes() -> None:
    """An init container needs no more than the containers after it."""
    manifest = pod_of("BestEffort")

    def asks(cpu: str, **more: Any) -> Manifest:
        amounts = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": "1Gi"}
        return {"name": f"c{cpu}", "resources": {"requests": amounts, "limits": amounts}, **more}

    spec = manifest["spec"]
    spec["containers"] = [asks("1500"), asks("2k"), {"name": "none"}]
    spec["initContainers"] = [asks("500", restartPolicy="Always"), asks("3500")]
    assert pod_state(manifest).batch_requests == Resources(4000, 3 * 1024 * MIB)
    spec["initContainers"].append(asks("3501"))
    assert pod_state(manifest).batch_requests == Resources(4001, 3 * 1024 * MIB)
    assert pod_state(manifest | {"status": {"phase": "Failed"}}).batch_requests == ZERO


@pytest.mark.parametrize(
    ("more", "is_finished", "is_ending", "requests"),
    [
        ({"phase": "Succeeded"}, True, False, ZERO),
        ({"phase": "Pending"}, False, False, Resources(500, 512 * MIB)),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False, True, Resources(500, 512 * MIB)),
    ],
)
def test_a_pod_that_has_ended_or_is_ending_is_marked(
    more: dict[str, Any], is_finished: bool, is_ending: bool, requests: Resources
) -> None:
    state = pod_state(pod_of(**more))
    assert (state.is_finished, state.is_ending, state.requests) == (is_finished, is_ending, requests)


@pytest.mark.parametrize(
    ("owners", "annotations", "kind"),
    [
        ([], {}, ""),
        ([{"kind": "ConfigMap"}, {"kind": "DaemonSet", "controller": True}], {}, "DaemonSet"),
        ([{"kind": "Node", "controller": True}], {"kubernetes.io/config.mirror": "hash"}, "Node"),
    ],
)
def test_what_controls_a_pod_is_told(owners: list[Manifest], annotations: dict[str, str], kind: str) -> None:
    assert pod_state(pod_of(ownerReferences=owners, annotations=annotations)).controller_kind == kind


def test_a_node_has_what_its_status_says() -> None:
    manifest = node_manifest("n", "3", "6Gi")
    manifest["status"]["capacity"] = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    manifest["metadata"]["labels"] = {"zone": "z"}
    assert node_state(manifest) == NodeState(
        "n", Resources(4000, 8192 * MIB), Resources(3000, 6144 * MIB), {"zone": "z"}
    )
    assert node_state({"metadata": {"name": "new"}}).capacity == ZERO


def test_a_policy_keeps_its_spec_as_it_is() -> None:
    found = policy_state({"metadata": {"namespace": "team", "name": "p"}, "spec": {"enabled": False}})
    assert found == ScalingPolicyState("team", "p", {"enabled": False})
