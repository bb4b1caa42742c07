"""The whole agent on a real API server: its node is short of memory, first only recommended, then with an eviction.

The control groups of the pods are made up; the memory of the node is this machine's, which is far more than the hollow node has.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.kube.cgroups import CgroupLoads, cgroup_loads
from tests.support.kube.events import events_of
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking

GIB = 1024**3
CLASSES = {"parley-test-low": 10, "parley-test-high": 1000}


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


def priority_class(name: str, value: int) -> Manifest:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def decisions(port: int) -> dict[str, str]:
    """The last decisions that `parley-agent qos` prints, the messages by their reasons."""
    command = [
        sys.executable,
        "-m",
        "agent",
        "qos",
        "--output",
        "json",
        "--address",
        f"http://127.0.0.1:{port}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    (found,) = (each for each in json.loads(done.stdout)["strategies"] if each["name"] == "MemoryEvict")
    return {each["reason"]: each["message"] for each in found["decisions"]}


@pytest.mark.timeout(240)
def test_a_node_that_is_short_of_memory_loses_its_lowest_priority(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects, tmp_path: Path
) -> None:
    (node,) = hollow_nodes(1, NodeSize("4", "512Mi")).names
    objects.apply(*(priority_class(name, value) for name, value in CLASSES.items()))
    size = {"cpu": "10m", "memory": "16Mi"}
    for name in ("high", "low"):
        manifest = pod(name, node=node, labels={names.EVICTION_ENABLED: "true"}, requests=size)
        manifest["spec"]["priorityClassName"] = f"parley-test-{name}"
        objects.create_pod(manifest)
    root = tmp_path / "cgroup"
    loads = CgroupLoads(root, lambda: objects.list("pods"), dict, cpus=0.1, memory_bytes=GIB // 4)
    args = {"MemoryEvict": {"maxVictims": 1, "coolTime": 3600, "window": 2, "interval": 0.2}}
    qos = {"featureGates": {"MemoryEvict": True}, "cgroupRoot": str(root), "interval": 0.2, "args": args}
    with cgroup_loads(loads):
        # It says what it would do, once, and does nothing.
        port = parley.agent(node, [free_port()], qos={**qos, "recommendOnly": ["MemoryEvict"]})
        shown_blocking("the recommendation", lambda: events_of(objects, "low"))
        shown_blocking("it stands", lambda: "cooling-down" in decisions(port))
        assert set(events_of(objects, "low")) == {"EvictionRecommended"}
        assert events_of(objects, "high") == {}
        assert [each["metadata"]["name"] for each in objects.list("pods")] == ["high", "low"]
        parley.kill(f"agent-{node}")
        # It does so.
        port = parley.agent(node, [free_port()], qos=qos)
        objects.shown(
            "low is gone", lambda: [each["metadata"]["name"] for each in objects.list("pods")] == ["high"]
        )
        note = objects.shown("its Event", lambda: events_of(objects, "low").get("Evicted"))
        said = decisions(port)
    assert note.startswith("MemoryEvict: memory in use ")
    assert note.endswith("of which this pod has 256 MiB")
    assert said["evicted"].startswith(f"{objects.namespace}/low evicted, for MemoryEvict; memory in use ")
    assert objects.get("pods", "high")["status"]["phase"] == "Running"
