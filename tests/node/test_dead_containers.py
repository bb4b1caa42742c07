"""Resizes around a container that dies, with the real kubelet: which leaves a pod's control group behind where one comes while a container is dead.

What the kubelet does is told by the first test: it would say that the kubelet has mended its ways.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.real_node import RealNode
from tests.support.kube.loads import Load, limits
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.waiting import shown_blocking

MIB = 2**20
ENOUGH_MIB, TOO_MUCH_MIB = 10, 400
BEGIN = {"cpu": "200m", "memory": "64Mi"}
STEP = json.dumps({"cpu": "100m", "memory": "64Mi"})
MOST_MIB = 320
BOUNDS = json.dumps({"min": BEGIN, "max": {"cpu": "1", "memory": f"{MOST_MIB}Mi"}})


@pytest.fixture
def parley(control_plane: ControlPlane, real_node: RealNode, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        scheduler = found.scheduler("scheduler", "--first-start", "--lease-duration", "2")
        found.agent(real_node.name, [scheduler], informant=found.node_informant())
        yield found


class _Pod:
    """A pod of one container that asks for `BEGIN`, as the API server and its control groups show it."""

    def __init__(self, node: RealNode, objects: Objects, load: Load, *, scaled: bool) -> None:
        labels = {names.ENABLED: "true"} if scaled else {}
        notes = {names.UNIT: STEP, names.BOUNDS: BOUNDS}
        manifest = load.pod("p", node=node.name, requests=BEGIN, labels=labels, annotations=notes)
        load.set(memory_mib=ENOUGH_MIB)
        self._node, self._objects, self._load = node, objects, load
        self._created = objects.create_pod(manifest)

    def status(self) -> Manifest:
        found: Manifest = self._objects.get("pods", "p")["status"]
        return found

    def container(self) -> Manifest:
        found: Manifest = self.status()["containerStatuses"][0]
        return found

    def wants(self, mib: int) -> None:
        self._load.set(memory_mib=mib)

    def dies(self, then_mib: int = ENOUGH_MIB) -> None:
        """The kernel kills it again and again: from the second time on the kubelet waits for some seconds before a start. After that
        it needs `then_mib`."""
        self.wants(TOO_MUCH_MIB)
        shown_blocking(
            "the back-off",
            lambda: self.container()["restartCount"] and "running" not in self.container()["state"],
        )
        self.wants(then_mib)

    def runs(self) -> None:
        shown_blocking("the container runs", lambda: "running" in self.container()["state"])

    def group(self) -> dict[str, int]:
        return limits(*(self._node.pod_cgroup(self._created, each) for each in ("cpu", "memory")))

    def is_whole(self) -> bool:
        found = self._objects.get("pods", "p")
        if "running" not in found["status"]["containerStatuses"][0]["state"]:
            return False
        inner = limits(*(self._node.container_cgroup(found, each) for each in ("cpu", "memory")))
        wanted = found["spec"]["containers"][0]["resources"]["limits"]["memory"]
        return inner == self.group() and wanted == f"{inner['memory_bytes'] // MIB}Mi"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    folder = tmp_path / "load"
    folder.mkdir()
    return Load(folder)


def test_the_kubelet_leaves_the_pods_group_behind_until_a_running_container_grows(
    real_node: RealNode, objects: Objects, load: Load
) -> None:
    pod = _Pod(real_node, objects, load, scaled=False)
    pod.dies()
    objects.resize("p", cpu="200m", memory="256Mi")
    pod.runs()
    objects.resized("p")
    assert pod.group()["memory_bytes"] == 64 * MIB
    objects.resize("p", cpu="200m", memory="320Mi")
    shown_blocking("the pod's group", lambda: pod.group()["memory_bytes"] == 320 * MIB)


def test_what_a_killed_container_needs_comes_when_it_runs_again(
    parley: ParleyPrograms, real_node: RealNode, objects: Objects, load: Load
) -> None:
    """The kill may come at any moment of a resize: then the pod's group is mended as well."""
    pod = _Pod(real_node, objects, load, scaled=True)
    vm = _settled(parley, real_node, objects)
    pod.dies(then_mib=50)
    shown_blocking("the kills are counted", lambda: vm()["counts"]["ends"].get("OOMKilled", 0) >= 2)
    shown_blocking("growth", lambda: pod.group()["memory_bytes"] > 64 * MIB and pod.is_whole())
    restarts = pod.container()["restartCount"]
    shown_blocking("every restart is counted", lambda: vm()["counts"]["restarts"] == restarts)
    shown = parley.page(f"agent-{real_node.name}", f"/v1/vms/{objects.namespace}/p")["containers"]
    assert (shown["restarts"], shown["notRunning"]) == (restarts, None)
    assert "OOMKilled" in shown["lastEnd"]


def test_a_group_that_somebody_elses_resize_has_left_behind_is_mended(
    parley: ParleyPrograms, real_node: RealNode, objects: Objects, load: Load
) -> None:
    pod = _Pod(real_node, objects, load, scaled=True)
    _settled(parley, real_node, objects)
    parley.pause(f"agent-{real_node.name}")
    pod.dies(then_mib=50)
    objects.resize("p", cpu="200m", memory="256Mi")
    pod.runs()
    objects.resized("p")
    assert pod.group()["memory_bytes"] == 64 * MIB
    parley.resume(f"agent-{real_node.name}")
    shown_blocking("it is mended", pod.is_whole)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_a_container_that_cannot_start_in_its_pods_group_starts_in_the_old_size(
    resource: str, parley: ParleyPrograms, real_node: RealNode, objects: Objects, load: Load
) -> None:
    """With cgroup v1 the kernel takes no CPU limit of a container that is above its pod's. One that is killed at each start is the same."""
    pod = _Pod(real_node, objects, load, scaled=True)
    _settled(parley, real_node, objects)
    parley.pause(f"agent-{real_node.name}")
    pod.dies(then_mib=TOO_MUCH_MIB)
    objects.resize("p", **(BEGIN | {"cpu": "900m"} if resource == "cpu" else BEGIN | {"memory": "192Mi"}))
    shown_blocking("another end", lambda: pod.container()["restartCount"] >= 2)
    parley.resume(f"agent-{real_node.name}")
    pod.wants(ENOUGH_MIB)
    shown_blocking("it is mended", pod.is_whole)


def _settled(parley: ParleyPrograms, node: RealNode, objects: Objects) -> Callable[[], dict[str, Any]]:
    """The pod as its agent shows it, once that has its permit and nothing to do."""

    def look() -> dict[str, Any]:
        return parley.vms(node.name)[f"{objects.namespace}/p"]

    def is_at_rest() -> bool:
        found = look()
        return found["informant"] == "active" and bool(found["load"]) and found["goal"] == found["target"]

    shown_blocking("the agent", is_at_rest)
    return look
