"""The main story on a real node: a labelled pod is throttled, heard from outside, permitted more, resized in place, and shrinks.

Nothing is put into the pod. Kubelet, containers and cgroups are real; so are the API server and all of Parley's programs.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.real_node import RealNode
from protocol.quantities import parse
from tests.support.kube.loads import Load, limits, throttled_periods
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.waiting import shown_blocking

MIB = 2**20
SOON = ("--first-start", "--lease-duration", "2")


@pytest.fixture
def parley(control_plane: ControlPlane, real_node: RealNode, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        scheduler = found.scheduler("scheduler", *SOON)
        informant = found.node_informant()
        found.agent(real_node.name, [scheduler], informant=informant)
        yield found


class _Watched:
    """A labelled pod of one container on the real node, as its cgroups and the agent show it."""

    def __init__(self, node: RealNode, parley: ParleyPrograms, objects: Objects, found: Manifest) -> None:
        self._parley, self._objects, self._node = parley, objects, node
        self._name = found["metadata"]["name"]
        self.groups = tuple(node.container_cgroup(found, each) for each in ("cpu", "memory"))

    def limits(self) -> dict[str, int]:
        return limits(*self.groups)

    def vm(self) -> dict[str, Any]:
        return self._parley.vms(self._node.name)[f"{self._objects.namespace}/{self._name}"]

    def restarts(self) -> int:
        found = self._objects.get("pods", self._name)
        return int(found["status"]["containerStatuses"][0]["restartCount"])


@pytest.fixture
def load(tmp_path: Path) -> Load:
    folder = tmp_path / "load"
    folder.mkdir()
    return Load(folder)


def _labelled(load: Load, node: RealNode, **requests: str) -> Manifest:
    return load.pod("p", node=node.name, requests=requests, labels={names.ENABLED: "true"})


def test_a_throttled_pod_grows_in_place_and_shrinks_afterwards(
    parley: ParleyPrograms, real_node: RealNode, objects: Objects, load: Load
) -> None:
    load.set(cpu_milli=50, memory_mib=20)
    found = objects.create_pod(_labelled(load, real_node, cpu="200m", memory="128Mi"))
    pod = _Watched(real_node, parley, objects, found)
    load.set(cpu_milli=700, memory_mib=20)
    shown_blocking("throttling", lambda: throttled_periods(pod.groups[0]) > 0)
    shown_blocking("growth in the cgroup", lambda: pod.limits()["cpu_milli"] >= 750)
    before = throttled_periods(pod.groups[0])
    load.set(cpu_milli=50, memory_mib=20)
    shown_blocking("the shrink in the cgroup", lambda: pod.limits()["cpu_milli"] <= 250)
    assert (
        throttled_periods(pod.groups[0]) <= before + 20
    )  # the load ends in the middle of a period, or of a resize
    assert pod.restarts() == 0


def test_memory_grows_before_it_runs_out_and_never_shrinks_below_what_is_in_use(
    parley: ParleyPrograms, real_node: RealNode, objects: Objects, load: Load
) -> None:
    load.set(memory_mib=40)
    found = objects.create_pod(_labelled(load, real_node, cpu="100m", memory="128Mi"))
    pod = _Watched(real_node, parley, objects, found)
    load.set(memory_mib=118)
    shown_blocking("growth in the cgroup", lambda: pod.limits()["memory_bytes"] >= 256 * MIB)
    load.set(memory_mib=245)
    shown_blocking("more growth", lambda: pod.limits()["memory_bytes"] >= 384 * MIB)
    load.set(memory_mib=20)
    shown_blocking("the shrink", lambda: pod.limits()["memory_bytes"] <= 128 * MIB)
    assert pod.restarts() == 0


@pytest.fixture
def comfortable(control_plane: ControlPlane, real_node: RealNode, tmp_path: Path) -> Iterator[ParleyPrograms]:
    """Programs whose VMs keep for ten minutes what they needed once."""
    with parley_programs(control_plane, tmp_path) as found:
        scheduler = found.scheduler("scheduler", *SOON)
        periods = {"metrics": 0.5, "tick": 2, "downWindow": 600}
        found.agent(real_node.name, [scheduler], informant=found.node_informant(), periods=periods)
        yield found


def test_on_a_full_node_an_idle_neighbour_gives_its_room_to_a_pod_that_is_throttled(
    comfortable: ParleyPrograms,
    real_node: RealNode,
    control_plane: ControlPlane,
    objects: Objects,
    tmp_path: Path,
) -> None:
    node = json.loads(control_plane.call("GET", f"/api/v1/nodes/{real_node.name}"))
    room = int(parse(node["status"]["allocatable"]["cpu"]).nanos) // 10**6
    filler = Load(tmp_path / "filler").pod(
        "filler", node=real_node.name, requests={"cpu": f"{room - 1000}m", "memory": "64Mi"}
    )
    objects.create_pod(filler)
    loads = {name: Load(tmp_path / name) for name in ("gives", "takes")}
    pods = {}
    for name, load in loads.items():
        load.set(cpu_milli=20, memory_mib=20)
        manifest = load.pod(
            name,
            node=real_node.name,
            requests={"cpu": "200m", "memory": "128Mi"},
            labels={names.ENABLED: "true"},
        )
        pods[name] = _Watched(real_node, comfortable, objects, objects.create_pod(manifest))
    loads["gives"].set(cpu_milli=2000, memory_mib=20)
    shown_blocking("gives has the whole node", lambda: pods["gives"].limits()["cpu_milli"] >= 750)
    loads["gives"].set(cpu_milli=20, memory_mib=20)
    loads["takes"].set(cpu_milli=2000, memory_mib=20)
    shown_blocking("takes grows", lambda: pods["takes"].limits()["cpu_milli"] >= 500)
    assert pods["gives"].limits()["cpu_milli"] <= 500
    said = comfortable.page("scheduler", f"/v1/explain/{objects.namespace}/gives")
    assert "yielded" in {limit["code"] for each in said["decisions"] for limit in each["limits"]}
    assert pods["gives"].restarts() == pods["takes"].restarts() == 0
