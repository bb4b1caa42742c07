"""The main story on a real API server: a labelled pod grows under load, is denied on a full node, and shrinks after the load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes import names, pods
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


def _events(objects: Objects, name: str) -> list[dict[str, Any]]:
    path = f"/apis/events.k8s.io/v1/namespaces/{objects.namespace}/events"
    found = json.loads(objects.plane.call("GET", path))["items"]
    return [each for each in found if each["regarding"]["name"] == name]


def test_a_labelled_pod_grows_is_denied_and_shrinks(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects
) -> None:
    nodes = hollow_nodes(1, NodeSize("4", "8Gi"))
    node, port = nodes.names[0], free_port()
    scheduler = parley.scheduler("scheduler", "--first-start", "--lease-duration", "2")
    objects.create_pod(pod("other", node=node, requests={"cpu": "2", "memory": "1Gi"}))
    annotations = {names.INFORMANT: str(port)}
    busy = objects.create_pod(pod("busy", node=node, labels={names.ENABLED: "true"}, annotations=annotations))
    parley.load(busy, port, cpus=0.2)
    parley.agent(node, [scheduler])

    def cpu_milli() -> int:
        found = objects.get("pods", "busy")
        assert found["status"]["containerStatuses"][0]["restartCount"] == 0
        return pods.size(found).vcpu_milli if pods.size(found) == pods.target(found) else 0

    def vm() -> dict[str, Any]:
        return parley.vms(node)[f"{objects.namespace}/busy"]

    parley.load(busy, port, cpus=1.2)
    shown_blocking("the pod has grown", lambda: cpu_milli() >= 1250)
    cgroup = f"{objects.namespace}/busy"
    assert nodes.cgroups(node)[cgroup]["cpuQuotaUs"] >= 125_000

    parley.load(busy, port, cpus=4)
    shown_blocking("the pod fills its node", lambda: cpu_milli() == 2000)
    shown_blocking("the reason is told", lambda: vm()["reasonCode"] == "node-headroom")
    shown_blocking("an Event tells it", lambda: "node-headroom" in json.dumps(_events(objects, "busy")))

    parley.load(busy, port, cpus=0.1)
    shown_blocking("the pod has shrunk", lambda: 0 < cpu_milli() <= 500)
