"""kube-scheduler places many pods while others on the same nodes grow and shrink by permits: the same room is never given away twice."""

import random
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from parley.clusters.control_plane import ControlPlane
from parley.clusters.programs import Programs
from tests.support.kube.growing import GrowingCrowd, GrowingPod, RoomWatch
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.placing import PlacingScene, ours, started_kubeless_plane
from tests.support.waiting import shown_blocking

NODES: Final = 50
ROOM_MILLI: Final = 4000
PODS: Final = 500
EACH_MILLI: Final = 200
GROWING_OF: Final = 5
"""Every fifth of the pods that are placed grows later, beside one on each node that is there from the beginning."""
MOST_MILLI: Final = 2000
BOUNDS: Final = '{"min": {"cpu": "200m"}, "max": {"cpu": "2"}}'


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        yield plane


@pytest.fixture
def scene(parley: ParleyPrograms, objects: Objects) -> Iterator[PlacingScene]:
    found = PlacingScene(parley, objects)
    yield found
    found.end()


def _growing(name: str, node: str = "") -> Manifest:
    return ours(
        name, EACH_MILLI, node=node, labels={names.ENABLED: "true"}, annotations={names.BOUNDS: BOUNDS}
    )


def test_pods_are_placed_while_others_grow(scene: PlacingScene) -> None:
    seed = random.SystemRandom().randrange(10_000)
    sys.stdout.write(f"seed {seed}\n")
    nodes = scene.add_nodes(NODES, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    first = scene.create(*(_growing(f"first-{node}", node) for node in nodes))
    scene.start_kube_scheduler(scene.start_parley())
    shown_blocking("all nodes have their first pod", lambda: len(room.bound()) == NODES)

    def grower(pod: Manifest) -> GrowingPod:
        return GrowingPod(scene.objects, pod, room, [scene.port])

    with GrowingCrowd(MOST_MILLI, seed) as crowd:
        for pod in first:
            crowd.adopt(grower(pod))
        shown_blocking("the first pods grow", lambda: crowd.changes > NODES)
        wanted = {
            manifest["metadata"]["name"]: manifest
            for manifest in (
                _growing(f"pod-{number}") if number % GROWING_OF == 0 else ours(f"pod-{number}", EACH_MILLI)
                for number in range(PODS)
            )
        }
        created = {pod["metadata"]["name"]: pod for pod in scene.create(*wanted.values())}
        waiting = {name for name in created if "annotations" in wanted[name]["metadata"]}

        def all_are_placed() -> bool:
            bound = set(room.bound())
            for name in waiting & bound:
                waiting.discard(name)
                crowd.adopt(grower(scene.objects.get("pods", name)))
            return bound.issuperset(created)

        shown_blocking("all pods are placed", all_are_placed)
        since = crowd.changes
        shown_blocking("they go on", lambda: crowd.changes > since + NODES or crowd.failures)

    assert crowd.failures == []
    assert room.faults == []
    assert max(room.most_milli.values()) > ROOM_MILLI * 0.85, "there was hardly any load"
    after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in scene.objects.list("pods")}
    assert {name: after.get(name) for name in created} == {
        name: pod["metadata"]["uid"] for name, pod in created.items()
    }
    assert scene.audit() == []
