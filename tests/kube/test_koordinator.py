"""Koordinator's objects on a real API server, with Parley's scheduler in full mode and VMs that grow meanwhile: never more than a node has."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.koordinator import NODE_METRICS, PUBLISHED_RESERVATIONS
from hosting.kubernetes.objects import time_written
from hosting.kubernetes.resources import MERGE_PATCH, Manifest, ResourceType
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from scheduler.placing.plugins.published_reservations import ALLOCATED
from tests.support.kube.growing import GrowingCrowd, GrowingPod, RoomWatch
from tests.support.kube.objects import pod
from tests.support.kube.placing import PlacingScene, started_kubeless_plane
from tests.support.waiting import shown_blocking

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "koordinator"
OURS: Final = "parley-scheduler"
ROOM_MILLI: Final = 4000
SEED: Final = 4


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        plane.kubectl("apply", "--server-side", f"--kustomize={DEPLOY}")
        for type_ in (NODE_METRICS, PUBLISHED_RESERVATIONS):
            shown_blocking(f"{type_.kind} is served", partial(plane.call, "GET", type_.path()))
        yield plane


def ours(name: str, milli: int, *, labels: dict[str, str] | None = None, **annotations: str) -> Manifest:
    """A pod that names Parley's scheduler."""
    requests = {"cpu": f"{milli}m", "memory": "64Mi"}
    manifest = pod(name, requests=requests, labels=labels, annotations=annotations)
    manifest["spec"] |= {"schedulerName": OURS, "terminationGracePeriodSeconds": 0}
    return manifest


def growing(name: str, node: str) -> Manifest:
    """A pod on a node that an agent scales."""
    requests = {"cpu": "100m", "memory": "64Mi"}
    return pod(name, node=node, requests=requests, labels={names.ENABLED: "true"})


def get(plane: ControlPlane, type_: ResourceType, name: str) -> Manifest:
    found: Manifest = json.loads(plane.call("GET", type_.path(name=name)))
    return found


def reservation(name: str, milli: int, **spec: Any) -> Manifest:
    requests = {"cpu": f"{milli}m", "memory": "64Mi"}
    template = {"spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]}}
    owners = [{"labelSelector": {"matchLabels": {"app": name}}}]
    return {
        "apiVersion": PUBLISHED_RESERVATIONS.api_version,
        "kind": PUBLISHED_RESERVATIONS.kind,
        "metadata": {"name": name},
        "spec": {"template": template, "owners": owners, "ttl": "1h", **spec},
    }


def test_a_reservation_is_used_by_its_owner_while_vms_grow_beside_it(scene: PlacingScene) -> None:
    (node,) = scene.add_nodes(1, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    scene.start_parley("--mode", "full")
    vms = scene.create(*(growing(f"vm-{number}", node) for number in range(3)))
    scene.objects.apply(reservation("db", 1500))

    def phase() -> str:
        return str(get(scene.plane, PUBLISHED_RESERVATIONS, "db").get("status", {}).get("phase", ""))

    shown_blocking("it has its room", lambda: phase() == "Available")
    with GrowingCrowd(ROOM_MILLI, SEED) as crowd:
        for each in vms:
            crowd.adopt(GrowingPod(scene.objects, each, room, [scene.port]))
        shown_blocking("VMs go on growing", lambda: crowd.changes > 30)
        scene.create(ours("other", 1500), ours("owner", 1500, labels={"app": "db"}))
        assert scene.placed("owner") == node
        shown_blocking("it was used", lambda: phase() == "Succeeded")
    assert crowd.failures == []
    assert room.faults == []
    allocated = json.loads(scene.objects.get("pods", "owner")["metadata"]["annotations"][ALLOCATED])
    assert allocated["name"] == "db"
    assert scene.audit() == []


def test_a_reservation_that_cannot_be_read_or_finds_no_room_says_so(scene: PlacingScene) -> None:
    scene.add_nodes(1, 1000)
    scene.start_parley("--mode", "full")
    scene.objects.apply(reservation("large", 2000), reservation("odd", 100, ttl="soon"))

    def said(name: str, type_: str) -> str:
        conditions = get(scene.plane, PUBLISHED_RESERVATIONS, name).get("status", {}).get("conditions", ())
        found = [each for each in conditions if each["type"] == type_]
        return f"{found[0]['reason']}: {found[0]['message']}" if found else ""

    shown_blocking("no room", lambda: "Insufficient cpu" in said("large", "Scheduled"))
    shown_blocking("a fault", lambda: "Faults: ttl" in said("odd", "Ready"))
    change = {"spec": {"ttl": "1h"}}
    scene.plane.call("PATCH", PUBLISHED_RESERVATIONS.path(name="odd"), change, MERGE_PATCH)
    shown_blocking("it is mended", lambda: "Available" in said("odd", "Ready"))
    for name in ("large", "odd"):
        scene.plane.call("DELETE", PUBLISHED_RESERVATIONS.path(name=name))


LOAD_AWARE: Final = {
    "scheduling": {
        "profiles": [
            {
                "plugins": {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling", "weight": 5}]}},
                "pluginConfig": [{"name": "LoadAwareScheduling", "args": {"staleMetrics": "Reject"}}],
            }
        ]
    }
}


def report(scene: PlacingScene, node: str, milli: int) -> None:
    """The node's NodeMetric says that so much CPU is used there."""
    use = {"resources": {"cpu": f"{milli}m", "memory": "1Gi"}}
    status = {"updateTime": time_written(datetime.now(UTC)), "nodeMetric": {"nodeUsage": use}}
    scene.plane.call("PATCH", f"{NODE_METRICS.path(name=node)}/status", {"status": status}, MERGE_PATCH)


def test_pods_follow_the_load_that_is_reported(scene: PlacingScene, tmp_path: Path) -> None:
    """A pod that was rejected for load, or for want of a report, is tried again with the next report."""
    config = tmp_path / "scheduler.json"
    config.write_text(json.dumps(LOAD_AWARE))
    first, second = scene.add_nodes(2, ROOM_MILLI)
    head = {"apiVersion": NODE_METRICS.api_version, "kind": NODE_METRICS.kind}
    scene.objects.apply(*({**head, "metadata": {"name": each}} for each in (first, second)))
    scene.start_parley("--mode", "full", "--config", str(config))
    scene.create(ours("waits", 100))
    assert "2 node(s) nodeMetric expired" in scene.refused("waits")
    report(scene, first, 3600)
    report(scene, second, 400)
    assert scene.placed("waits") == second
    scene.create(*(ours(f"p{number}", 100) for number in range(4)))
    assert {scene.placed(f"p{number}") for number in range(4)} == {second}
    report(scene, second, 3900)
    scene.create(ours("late", 100))
    assert "2 node(s) cpu usage exceed threshold" in scene.refused("late")
    report(scene, first, 100)
    assert scene.placed("late") == first
    for each in (first, second):
        scene.plane.call("DELETE", NODE_METRICS.path(name=each))


def test_a_node_has_metrics_once_its_agent_writes_them(scene: PlacingScene, tmp_path: Path) -> None:
    """The programs themselves: an agent whose settings say so, and a scheduler that rejects nodes without metrics."""
    config = tmp_path / "scheduler.json"
    config.write_text(json.dumps(LOAD_AWARE))
    (node,) = scene.add_nodes(1, 64 * ROOM_MILLI)  # so that what else this machine does is little
    scene.start_parley("--mode", "full", "--config", str(config))
    scene.create(ours("waits", 100))
    assert "1 node(s) nodeMetric missing" in scene.refused("waits")
    scene.parley.agent(node, [scene.port], qos={"nodeMetric": True})
    assert scene.placed("waits") == node
    found = get(scene.plane, NODE_METRICS, node)
    assert [each["name"] for each in found["metadata"]["ownerReferences"]] == [node]
    assert set(found["status"]["nodeMetric"]["nodeUsage"]["resources"]) == {"cpu", "memory"}
