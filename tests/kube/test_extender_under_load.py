"""kube-scheduler places many pods while others on the same nodes grow and shrink by permits: the same room is never given away twice."""

import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from tests.support.kube.extender import extender_proxy
from tests.support.kube.growing import GrowingCrowd, GrowingPod, RoomWatch
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.placing import PlacingScene, ours, started_kubeless_plane
from tests.support.waiting import shown_blocking

NODES: Final = 50
ROOM_MILLI: Final = 4000
PODS: Final = 500
EACH_MILLI: Final = 200
GROWING: Final = 100
"""So many of these pods grow when they are placed, beside one on each node that is there from the beginning."""
FEW_NODES: Final = 10
FEW_PODS: Final = 80
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


def _uids(pods: Iterable[Manifest]) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def _none_is_lost(scene: PlacingScene, created: Iterable[Manifest]) -> None:
    left = _uids(scene.objects.list("pods"))
    assert _uids(created).items() <= left.items()


def test_pods_are_placed_while_others_grow(scene: PlacingScene) -> None:
    seed = random.SystemRandom().randrange(10_000)
    sys.stdout.write(f"seed {seed}\n")
    nodes = scene.add_nodes(NODES, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    first = scene.create(*(_growing(f"first-{node}", node) for node in nodes))
    scene.start_kube_scheduler(scene.start_parley())
    shown_blocking("all nodes have their first pod", lambda: len(room.bound()) == NODES)

    with GrowingCrowd(MOST_MILLI, seed) as crowd:

        def adopt(*pods: Manifest) -> None:
            for pod in pods:
                crowd.adopt(GrowingPod(scene.objects, pod, room, [scene.port]))

        adopt(*first)
        shown_blocking("the first pods grow", lambda: crowd.changes > NODES)
        growing = scene.create(*(_growing(f"growing-{number}") for number in range(GROWING)))
        steady = scene.create(*(ours(f"steady-{number}", EACH_MILLI) for number in range(PODS - GROWING)))
        still = set(_uids(growing))

        def all_are_placed() -> bool:
            bound = set(room.bound())
            adopt(*(scene.objects.get("pods", name) for name in still & bound))
            still.difference_update(bound)
            return bound.issuperset(_uids(growing + steady))

        shown_blocking("all pods are placed", all_are_placed)
        since = crowd.changes
        shown_blocking("they go on", lambda: crowd.changes > since + NODES or crowd.failures)

    assert crowd.failures == []
    assert room.faults == []
    assert max(room.most_milli.values()) > ROOM_MILLI * 0.85, "there was hardly any load"
    _none_is_lost(scene, first + growing + steady)
    assert scene.audit() == []


def test_the_extender_is_killed_while_it_binds(scene: PlacingScene) -> None:
    scene.add_nodes(FEW_NODES, ROOM_MILLI)
    room = RoomWatch(scene.plane, scene.objects.namespace, ROOM_MILLI)
    binds = itertools.count()

    def go_away(verb: str, _: object) -> None:
        if verb == "bind" and next(binds) == FEW_PODS // 4:
            scene.parley.kill("a")

    with extender_proxy(scene.start_parley()) as proxy:
        proxy.before = go_away
        scene.start_kube_scheduler(proxy.port)
        created = scene.create(*(ours(f"pod-{number}", EACH_MILLI) for number in range(FEW_PODS)))
        shown_blocking("kube-scheduler has noticed", scene.refusals)
        scene.parley.again("a")
        shown_blocking("all pods are placed", lambda: len(room.bound()) == FEW_PODS)
    scene.await_right_ledger()
    assert room.faults == []
    _none_is_lost(scene, created)
