"""Parley's scheduler as the extender of the real kube-scheduler: what it is asked, what it refuses, and what happens without it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import POOLS, Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from tests.support.kube.asking import Holdings, PodAgent
from tests.support.kube.extender import extender_proxy
from tests.support.kube.objects import MERGE, Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.placing import PlacingScene, ours, started_kubeless_plane
from tests.support.waiting import shown_blocking

HIGH: Final = "test-high"
BOUNDS: Final = '{"max": {"cpu": "2"}}'


@pytest.fixture(scope="module")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with started_kubeless_plane(programs, tmp_path_factory.mktemp("kubeless")) as plane:
        plane.kubectl("create", "priorityclass", HIGH, "--value=1000")
        yield plane


@pytest.fixture
def scene(parley: ParleyPrograms, objects: Objects) -> Iterator[PlacingScene]:
    found = PlacingScene(parley, objects)
    yield found
    found.end()


def _growing(name: str, node: str) -> Manifest:
    """A pod of 500m that is on its node already, and may grow up to 2 CPUs."""
    return ours(name, 500, node=node, labels={names.ENABLED: "true"}, annotations={names.BOUNDS: BOUNDS})


def _agent(scene: PlacingScene, created: Manifest) -> PodAgent:
    """The agent of a pod of 500m, when it may grow: a scheduler that has just started must hear of it first."""
    agent = PodAgent(created, [scene.port], Holdings(2500), 500)

    def is_settled() -> bool:
        answer = agent.ask(750)
        agent.ask(500)
        return answer is not None and not answer["reasons"]

    shown_blocking(f"{agent.name} is permitted to grow", is_settled)
    return agent


# ---------------------------------------------------------------- who is asked about what


def test_pods_that_the_ledger_need_not_know_never_reach_the_extender(scene: PlacingScene) -> None:
    scene.add_nodes(2, 4000)
    with extender_proxy(scene.start_parley()) as proxy:
        scene.start_kube_scheduler(proxy.port)
        scene.create(
            *(pod(f"other-{number}", requests={"cpu": "100m", "memory": "64Mi"}) for number in range(10))
        )
        scene.create(ours("ours", 500))
        for name in (*(f"other-{number}" for number in range(10)), "ours"):
            scene.placed(name)
        assert {call.pod for call in proxy.calls} == {"ours"}
        assert proxy.count() == {"filter": 1, "prioritize": 1, "bind": 1}
    scene.await_right_ledger()


def test_a_node_that_fills_up_before_the_binding_is_refused_and_another_one_is_found(
    scene: PlacingScene,
) -> None:
    nodes = scene.add_nodes(2, 2000)
    created = scene.create(*(_growing(f"on-{node}", node) for node in nodes))
    with extender_proxy(scene.start_parley()) as proxy:
        agents = {node: _agent(scene, each) for node, each in zip(nodes, created, strict=True)}
        chosen: list[str] = []

        def fill(verb: str, request: Mapping[str, Any]) -> None:
            if verb == "bind":
                chosen.append(request["Node"])
                if len(chosen) == 1:
                    agents[chosen[0]].ask(2000)

        proxy.before = fill
        scene.start_kube_scheduler(proxy.port)
        scene.create(ours("late", 1000))
        node = scene.placed("late")
        refused, bound = proxy.of("bind", "late")
    assert agents[chosen[0]].held == 2000
    assert (refused.answer["Error"], bound.answer["Error"]) == (scene.refused_by_event("late"), "")
    assert [node] == [each for each in nodes if each != chosen[0]]


def test_a_refused_pod_comes_in_when_a_permit_falls(scene: PlacingScene) -> None:
    """Nothing that kube-scheduler sees happens then: its own books have had room for the pod all the time."""
    (node,) = scene.add_nodes(1, 2500)
    (created,) = scene.create(_growing("grown", node))
    with extender_proxy(scene.start_parley("--handover", "60")) as proxy:  # longer than the test
        agent = _agent(scene, created)
        agent.ask(2000)
        assert agent.held == 2000
        scene.start_kube_scheduler(proxy.port)
        scene.create(ours("late", 1000))
        # kube-scheduler's own word on the pod, in its condition, brings a second attempt, and nothing a third.
        shown_blocking("it was refused twice", lambda: len(proxy.of("filter", "late")) == 2)
        agent.ask(500)
        assert scene.placed("late") == node
    scene.await_right_ledger()


# ---------------------------------------------------------------- preemption


def test_victims_that_would_not_make_room_are_vetoed(scene: PlacingScene) -> None:
    """On the first node a pod was permitted to grow, which kube-scheduler cannot know yet."""
    grown, other = nodes = scene.add_nodes(2, 2500)
    created = scene.create(*(_high(_growing(f"on-{node}", node)) for node in nodes))
    scene.create(*(ours(f"victim-{node}", 1000, node=node) for node in nodes))
    with extender_proxy(scene.start_parley("--handover", "60")) as proxy:  # longer than the test
        _agent(scene, created[1])
        agent = _agent(scene, created[0])
        agent.ask(1500)
        assert agent.held == 1500
        scene.start_kube_scheduler(proxy.port)
        scene.create(_high(ours("first", 1500)))
        assert scene.placed("first") == other
        (call,) = proxy.of("preempt", "first")
        assert set(call.request["NodeNameToMetaVictims"]) == {grown, other}
        assert set(call.answer["NodeNameToMetaVictims"]) == {other}

        scene.create(_high(ours("second", 1500)))
        call = shown_blocking("all victims are vetoed", lambda: proxy.of("preempt", "second"))[0]
        assert call.answer == {"NodeNameToMetaVictims": {}}
        scene.refused("second")
    left = {each["metadata"]["name"] for each in scene.objects.list("pods")}
    assert left == {f"on-{grown}", f"on-{other}", f"victim-{grown}", "first", "second"}
    assert scene.audit() == []


def _high(manifest: Manifest) -> Manifest:
    """The pod as one that may preempt others, and that nobody here preempts."""
    manifest["spec"]["priorityClassName"] = HIGH
    return manifest


# ---------------------------------------------------------------- pools


def test_a_pod_of_a_full_pool_waits_until_the_pool_is_raised(scene: PlacingScene) -> None:
    """A pod that is not scaled counts in its pool as well."""
    scene.add_nodes(2, 8000)
    pool = scene.objects.namespace
    scene.objects.apply(
        {
            "apiVersion": POOLS.api_version,
            "kind": POOLS.kind,
            "metadata": {"name": pool},
            "spec": {"computeUnit": {"cpu": 1, "memory": "1Gi"}, "limits": {"maxUnits": 2}},
        }
    )
    scene.start_kube_scheduler(scene.start_parley())
    for name in ("first", "second", "third"):
        scene.create(ours(name, 1000, labels={names.POOL: pool}))
        if name != "third":
            scene.placed(name)
    scene.refused("third", pool)
    scene.plane.call("PATCH", POOLS.path(name=pool), {"spec": {"limits": {"maxUnits": 3}}}, MERGE)
    scene.placed("third")


# ---------------------------------------------------------------- an extender that is away


@contextmanager
def _killed(scene: PlacingScene) -> Iterator[None]:
    scene.parley.kill("a")
    yield
    scene.parley.again("a")


def test_without_the_extender_placement_stops_unless_it_may_be_ignored(scene: PlacingScene) -> None:
    scene.add_nodes(2, 4000)
    with extender_proxy(scene.start_parley()) as proxy:
        scene.start_kube_scheduler(proxy.port)
        scene.create(ours("before", 500))
        scene.placed("before")
        with _killed(scene):
            scene.create(ours("waits", 500))
            scene.refused("waits")
        scene.placed("waits")
        scene.await_right_ledger()

        scene.start_kube_scheduler(proxy.port, ignorable=True)
        with _killed(scene):
            scene.create(ours("goes-on", 500))
            scene.placed("goes-on")
        scene.await_right_ledger()
