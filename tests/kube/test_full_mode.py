"""Parley's scheduler places pods that name it, on a real API server, while kube-scheduler is away."""

import json
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest
from click.testing import CliRunner

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from parley.program import main
from tests.support.kube.asking import Holdings, PodAgent
from tests.support.kube.growing import RoomWatch
from tests.support.kube.objects import pod
from tests.support.kube.placing import PlacingScene, started_kubeless_plane
from tests.support.waiting import shown_blocking

OURS: Final = "parley-scheduler"
ROOM_MILLI: Final = 4000
PODS: Final = 80
CLAIM: Final = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        yield plane


def _named(name: str, milli: int, **spec: Any) -> Manifest:
    """A pod that names Parley's scheduler; `spec` are more fields of its spec."""
    manifest = pod(name, requests={"cpu": f"{milli}m", "memory": "64Mi"})
    manifest["spec"] |= {"schedulerName": OURS, "terminationGracePeriodSeconds": 0, **spec}
    return manifest


def _explained(scene: PlacingScene, name: str) -> Any:
    """What `parley explain` says, as scripts read it."""
    pod_name = f"{scene.objects.namespace}/{name}"
    where = ("--scheduler", f"http://127.0.0.1:{scene.port}", "--agent", "http://127.0.0.1:1")
    done = CliRunner().invoke(main, ["explain", pod_name, *where, "-o", "json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_pods_that_name_the_scheduler_are_placed_by_it(scene: PlacingScene) -> None:
    nodes = scene.add_nodes(2, 2000)
    scene.start_parley("--mode", "full")
    early = [f"p{number}" for number in range(8)]
    scene.create(*(_named(name, 500) for name in early))
    placed = {name: scene.placed(name) for name in early}
    assert sorted(placed.values()) == [each for each in sorted(nodes) for _ in range(4)], (
        "both nodes are full"
    )
    scene.await_right_ledger()

    scene.create(_named("late", 500))
    assert "0/2 nodes are available" in scene.refused("late", "Insufficient cpu")
    assert "Insufficient cpu" in scene.refused_by_event("late")
    why = _explained(scene, "late")
    assert (why["cause"]["code"], why["cause"]["class"]) == ("unschedulable", "capacity")
    assert sum(each["nodes"] for each in why["diagnosis"]["failures"]) == 2
    assert {each["code"] for each in why["diagnosis"]["failures"]} == {"Unschedulable"}
    scene.objects.delete("pods", early[0])
    assert scene.placed("late") == placed[early[0]], "it is tried again when room becomes free"

    scene.objects.delete("pods", early[1])
    scene.create(
        _named("gated", 500, schedulingGates=[{"name": "test/gate"}]), _named("claims", 1, volumes=CLAIM)
    )
    assert "spec.volumes[0].persistentVolumeClaim" in scene.refused("claims")
    assert scene.node_of("gated") == ""
    scene.objects.patch("pods", "gated", {"spec": {"schedulingGates": None}})
    assert scene.placed("gated") == placed[early[1]]
    scene.await_right_ledger()


def test_a_pod_waits_for_room_that_a_permit_holds_and_comes_in_when_it_is_given_back(
    scene: PlacingScene,
) -> None:
    """Nothing happens at the API server then: only the ledger knows."""
    (node,) = scene.add_nodes(1, ROOM_MILLI)
    (created,) = scene.create(
        pod("grown", node=node, requests={"cpu": "500m", "memory": "64Mi"}, labels={names.ENABLED: "true"})
    )
    scene.start_parley("--mode", "full", "--handover", "60")  # longer than the test
    agent = PodAgent(created, [scene.port], Holdings(ROOM_MILLI), 500)

    def is_grown() -> bool:
        agent.ask(3500)
        return agent.held == 3500

    shown_blocking("the pod is permitted to grow", is_grown)
    scene.create(_named("late", 1000), pod("not-ours"))
    assert "Insufficient cpu" in scene.refused("late")
    agent.ask(500)
    assert scene.placed("late") == node
    assert scene.node_of("not-ours") == ""
    assert scene.audit() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_ended_while_it_binds_it_loses_no_pod(how: signal.Signals, scene: PlacingScene) -> None:
    scene.add_nodes(10, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    scene.start_parley("--mode", "full")
    created = scene.create(*(_named(f"pod-{number}", 200) for number in range(PODS)))
    shown_blocking("some are placed", lambda: len(room.bound()) >= PODS // 4)
    scene.parley.running.pop("a").end(how)
    scene.parley.again("a")
    more = scene.create(*(_named(f"more-{number}", 200) for number in range(PODS)))
    shown_blocking("all pods are placed", lambda: len(room.bound()) == 2 * PODS)
    scene.await_right_ledger()
    assert room.faults == []
    left = {each["metadata"]["uid"] for each in scene.objects.list("pods")}
    assert left == {each["metadata"]["uid"] for each in created + more}
