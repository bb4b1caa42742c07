"""The owner's view of a pod on a real API server: Events, a condition, and a budget that keeps a pod from being evicted."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from protocol import quantities
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


@pytest.mark.timeout(240)  # an eviction waits for 30 s, room elsewhere is told after as long
def test_a_denied_pod_has_events_and_a_condition_and_its_budget_holds(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects
) -> None:
    """The pod fills its node and wants more. It may be evicted once another node has room, but for its budget. When it wants no more, nothing is
    left at it. Another pod cannot be scaled at all."""
    (node,) = hollow_nodes(1, NodeSize("2", "4Gi")).names
    port = free_port()
    labels = {names.ENABLED: "true", "app": "busy"}
    annotations = {names.INFORMANT: str(port), names.EVICT: "true"}
    size = {"cpu": "1500m", "memory": "256Mi"}
    template = pod("busy", node=node, labels=labels, annotations=annotations, requests=size)
    without = pod("unscalable", node=node, labels=labels, requests={"cpu": "100m"}, limits={})
    objects.create_pod(without)
    objects.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "busy"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"app": "busy", "of": "set"}},
                "template": {
                    "metadata": {"labels": {**labels, "of": "set"}, "annotations": annotations},
                    "spec": template["spec"],
                },
            },
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "one"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"of": "set"}}},
        },
    )

    def busy() -> Manifest | None:
        found = [each for each in objects.list("pods") if each["metadata"]["name"].startswith("busy-")]
        return found[0] if found and found[0]["status"].get("podIP") else None

    running = shown_blocking("the pod of the set runs", busy)
    name, uid = running["metadata"]["name"], running["metadata"]["uid"]
    vm = f"{objects.namespace}/{name}"
    parley.load(running, port, cpus=4)
    scheduler = parley.scheduler("scheduler", "--first-start")
    settings = {
        "kubeconfig": str(parley.plane.kubeconfig),
        "evictAfter": 30,
        "deniedAfter": 5,
        "predictedRequests": True,
    }
    parley.agent(node, [scheduler], kubernetes=settings)

    def events(of: str) -> dict[str, str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{objects.namespace}/events"
        found = json.loads(objects.plane.call("GET", path))["items"]
        return {each["reason"]: each["note"] for each in found if each["regarding"]["name"] == of}

    shown_blocking("a pod without a request is told", lambda: "NotScalable" in events("unscalable"))
    shown_blocking("the pod is denied", lambda: parley.vms(node)[vm]["reasonCode"] == "node-headroom")
    shown_blocking("the denial is told", lambda: "node-headroom" in events(name).get("GrowthDenied", ""))
    condition = objects.condition(name, names.DENIED, "GrowthDenied")
    assert (condition["status"], condition["message"]) == ("True", events(name)["GrowthDenied"])
    assert condition["message"].startswith("denied ")
    assert " CPU" in condition["message"].partition(", of the ")[0]

    def predicted() -> dict[str, str]:
        found = objects.get("pods", name)["metadata"]["annotations"].get(names.PREDICTED)
        return json.loads(found) if found is not None else {}

    foretold = shown_blocking("the size that it should have is foretold", predicted)
    assert quantities.parse(foretold["cpu"]).milli_value() > 1500
    assert set(foretold) == {"cpu", "memory"}

    def is_old() -> bool:
        since = datetime.fromisoformat(condition["lastTransitionTime"])
        return datetime.now(UTC) - since > timedelta(seconds=30)

    shown_blocking("the denial is old enough for an eviction", is_old)
    assert "Evicting" not in events(name), "no node has room for it"
    hollow_nodes(1, NodeSize("8", "16Gi"))
    shown_blocking("the budget says no", lambda: "budget" in events(name).get("EvictionRefused", ""))
    assert objects.get("pods", name)["metadata"]["uid"] == uid
    parley.load(running, port, cpus=0.1)
    condition = objects.condition(name, names.DENIED, "GrowthPermitted")
    assert (condition["status"], condition.get("message", "")) == ("False", "")
    assert predicted() == {}
    shown_blocking("that it is over is told", lambda: "GrowthPermitted" in events(name))
    page = parley.page(f"agent-{node}", "/v1/vms")
    assert [each["vm"] for each in page["notScaled"]] == [f"{objects.namespace}/unscalable"]
