"""Laws that hold on a real API server under load, whatever happens to it, or to the way there.

No node's room is given twice, by the agents' change logs and by the API server; each pod is resized again; none of our programs is
started again.
"""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from labs.clusters.control_plane import ControlPlane
from tests.support.kube.faulty_api import KINDS, faulty_api
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.schedulers import leads
from tests.support.kube.under_load import HANDOVER_S, UnderLoad, is_nearly_full, watched
from tests.support.waiting import shown_blocking

pytestmark = pytest.mark.timeout(300)
"""Each step waits for loads that go up and down, some for leases that run out, too."""

CUT_S: Final = float(HANDOVER_S) + 5
"""Longer than leases, permits and the hand-over last."""


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(10_000)


def _nothing_is_wrong(scene: UnderLoad) -> None:
    """Also says that there was load: without, nothing would have been tried. Nothing fails any more, so load comes by itself."""
    shown_blocking("a node was nearly full", lambda: is_nearly_full(scene.most_used()))
    assert scene.faults() == []
    assert scene.onlooker.looks > 20
    assert scene.audit() == []


def test_the_api_server_is_started_again_under_load(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects, seed: int
) -> None:
    scene = UnderLoad(parley, hollow_nodes, objects, seed)
    with watched(scene):
        for node in scene.nodes:
            scene.agent(node)
        scene.goes_on()
        pids = scene.pids()
        for away_s in (1, 6):
            parley.plane.kill_api_server()
            time.sleep(away_s)
            parley.plane.start_api_server()
        scene.goes_on()
        assert scene.pids() == pids
        _nothing_is_wrong(scene)


def test_a_fifth_of_all_calls_fails(
    parley: ParleyPrograms,
    hollow_nodes: MakeHollowNodes,
    objects: Objects,
    tmp_path: Path,
    seed: int,
) -> None:
    with faulty_api(parley.plane, tmp_path, seed) as way:
        parley.kubeconfig = way.kubeconfig
        scene = UnderLoad(parley, hollow_nodes, objects, seed)
        with watched(scene):
            for node in scene.nodes:
                scene.agent(node)
            scene.goes_on()
            pids = scene.pids()
            way.share = 0.2
            scene.goes_on()
            scene.goes_on()
            shown_blocking("each kind of failure", lambda: all(way.failed[kind] >= 3 for kind in KINDS))
            way.share = 0.0
            scene.goes_on()
            assert scene.pids() == pids
            _nothing_is_wrong(scene)


def test_the_leader_and_an_agent_are_cut_off_for_longer_than_all_leases(
    parley: ParleyPrograms,
    hollow_nodes: MakeHollowNodes,
    objects: Objects,
    control_plane: ControlPlane,
    tmp_path: Path,
    seed: int,
) -> None:
    """They reach each other, and not the API server. Meanwhile the rest goes on with another leader."""
    with faulty_api(control_plane, tmp_path, seed) as way:
        parley.kubeconfig = way.kubeconfig
        scene = UnderLoad(parley, hollow_nodes, objects, seed, HANDOVER_S)
        with watched(scene):
            parley.kubeconfig = control_plane.kubeconfig
            b = scene.second_scheduler()
            here, there = scene.nodes
            scene.agent(there)
            parley.kubeconfig = way.kubeconfig
            scene.agent(here)
            scene.goes_on()
            pids = scene.pids()

            way.cut()
            mended_s = time.monotonic() + CUT_S
            shown_blocking("b leads", lambda: leads(b))
            while time.monotonic() < mended_s:
                scene.goes_on(there)
            way.mend()
            scene.goes_on()
            assert scene.pids() == pids
            _nothing_is_wrong(scene)


def test_two_agents_of_one_node_under_load_never_hold_more_than_there_is(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects, seed: int
) -> None:
    """As in a rolling update whose state directory was lost: nothing on the node keeps them apart."""
    scene = UnderLoad(parley, hollow_nodes, objects, seed, HANDOVER_S)
    with watched(scene):
        for node in scene.nodes:
            scene.agent(node)
        scene.goes_on()
        node = scene.nodes[0]
        for number in range(2):
            scene.agent(node, stateDirectory=str(parley.directory / f"state-{node}-{number}"))
            scene.goes_on()
            assert parley.running.pop("earlier").end() == 0
        shown_blocking("both loads were high", lambda: is_nearly_full(scene.held(node).largest[node]))
        assert scene.held(node).overcommits == []
        assert scene.onlooker.faults == []
        assert scene.audit() == []
