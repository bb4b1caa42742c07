"""Parley's scheduler places pods that name it, on a real API server, while kube-scheduler is away."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from parley.clusters.control_plane import ControlPlane
from parley.clusters.programs import Programs
from tests.support.kube.asking import Holdings, PodAgent
from tests.support.kube.growing import RoomWatch
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.placing import PlacingScene, started_kubeless_plane
from tests.support.waiting import shown_blocking

OURS: Final = "parley-scheduler"
ROOM_MILLI: Final = 4000
PODS: Final = 80


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        yield plane


@pytest.fixture
def scene(parley: ParleyPrograms, objects: Objects) -> Iterator[PlacingScene]:
    found = PlacingScene(parley, objects)
    found.plane.stop_scheduler()
    yield found
    found.end()


def _named(name: str, milli: int) -> dict[str, Any]:
    """A pod that names Parley's scheduler."""
    manifest = pod(name, requests={"cpu": f"{milli}m", "memory": "64Mi"})
    manifest["spec"] |= {"schedulerName": OURS, "terminationGracePeriodSeconds": 0}
    return manifest


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


def test_killed_while_it_binds_it_loses_no_pod(scene: PlacingScene) -> None:
    scene.add_nodes(10, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    scene.start_parley("--mode", "full")
    created = scene.create(*(_named(f"pod-{number}", 200) for number in range(PODS)))
    shown_blocking("some are placed", lambda: len(room.bound()) >= PODS // 4)
    scene.parley.kill("a")
    scene.parley.again("a")
    more = scene.create(*(_named(f"more-{number}", 200) for number in range(PODS)))
    shown_blocking("all pods are placed", lambda: len(room.bound()) == 2 * PODS)
    scene.await_right_ledger()
    assert room.faults == []
    left = {each["metadata"]["uid"] for each in scene.objects.list("pods")}
    assert left == {each["metadata"]["uid"] for each in created + more}
