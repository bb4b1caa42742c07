"""The life of a placeholder on a real API server with an unmodified kube-scheduler: it pends while a pod is denied growth, goes when a new node
takes it, and is gone with the denial."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.kube.deployed import DEPLOY
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import NAMESPACE, ParleyPrograms, parley_programs
from tests.support.processes import free_port, write_json
from tests.support.waiting import shown_blocking

POOL = "test.dev/pool"
SMALL = NodeSize("2", "4Gi")


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


def labelled(plane: ControlPlane, node: str) -> None:
    plane.call(
        "PATCH",
        f"/api/v1/nodes/{node}",
        {"metadata": {"labels": {POOL: "blue"}}},
        "application/strategic-merge-patch+json",
    )


def test_a_placeholder_pends_until_there_is_a_node_or_no_denial(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects, tmp_path: Path
) -> None:
    plane = parley.plane
    plane.kubectl("apply", f"--filename={DEPLOY}/components/placeholder/priority-class.yaml")
    (node,) = hollow_nodes(1, SMALL).names
    labelled(plane, node)
    port = free_port()
    size = {"cpu": "1500m", "memory": "256Mi"}
    objects.create_pod(pod("neighbour", node=node, requests={"cpu": "500m", "memory": "128Mi"}))
    running = objects.create_pod(
        pod(
            "busy",
            node=node,
            labels={names.ENABLED: "true"},
            annotations={names.INFORMANT: str(port)},
            requests=size,
        )
    )
    parley.load(running, port, cpus=4)
    settings = {"after": 2, "nodePoolLabels": [POOL], "most": {"cpu": 1, "memory": "1Gi"}}
    config = write_json(tmp_path / "config.yaml", {"placeholder": settings})
    scheduler = parley.scheduler("scheduler", "--first-start", "--config", str(config))
    kubernetes = {"kubeconfig": str(plane.kubeconfig), "informant": "http://127.0.0.1:10302"}
    parley.agent(node, [scheduler], kubernetes=kubernetes)
    vm = f"{objects.namespace}/busy"
    shown_blocking("the pod is denied", lambda: parley.vms(node)[vm]["reasonCode"] == "node-headroom")

    def placeholders() -> list[Manifest]:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={names.PLACEHOLDER}%3Dtrue"
        found: list[Manifest] = json.loads(plane.call("GET", path))["items"]
        return found

    def is_unschedulable(uid: str) -> bool:
        return any(
            each["metadata"]["uid"] == uid and condition.get("reason") == "Unschedulable"
            for each in placeholders()
            for condition in each["status"].get("conditions", ())
        )

    (made,) = shown_blocking("a placeholder", placeholders)
    assert made["spec"]["nodeSelector"] == {POOL: "blue"}
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (-10, "Never")
    assert set(made["spec"]["containers"][0]["resources"]["requests"]) <= {"cpu", "memory"}
    uid = made["metadata"]["uid"]
    shown_blocking("kube-scheduler finds no node for it", lambda: is_unschedulable(uid))

    parley.load(running, port, cpus=0.1)
    shown_blocking("it is gone with the denial", lambda: not placeholders())
    parley.load(running, port, cpus=4)
    (again,) = shown_blocking("another one", placeholders)
    assert again["metadata"]["uid"] != uid
    (new,) = hollow_nodes(1, SMALL).names  # as an autoscaler would
    labelled(plane, new)
    shown_blocking("it got a node and is gone", lambda: not placeholders())

    assert parley.vms(node)[vm]["reasonCode"] == "node-headroom"
