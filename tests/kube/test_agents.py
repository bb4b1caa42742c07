"""Agents that are replaced on a real API server: one after the other, and two for one pod for a while."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hosting.kubernetes import names, pods
from hosting.kubernetes import objects as reading
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import Program, free_port
from tests.support.waiting import shown_blocking


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


class Scene:
    """A node with one busy pod, a scheduler, and an agent."""

    def __init__(self, parley: ParleyPrograms, nodes: MakeHollowNodes, objects: Objects) -> None:
        self.parley, self.objects = parley, objects
        (self.node,) = nodes(1, NodeSize("4", "8Gi")).names
        self.informant = free_port()
        self.scheduler = parley.scheduler("scheduler", "--first-start")
        annotations = {names.INFORMANT: str(self.informant)}
        manifest = pod("busy", node=self.node, labels={names.ENABLED: "true"}, annotations=annotations)
        self.pod = objects.create_pod(manifest)
        self.load(1.2)
        self.agent()
        shown_blocking("the pod has grown", lambda: self.size() >= 1250)

    def agent(self, **settings: Any) -> Program:
        """The agent of the node from now on; an earlier one goes on, under another name."""
        name = f"agent-{self.node}"
        if name in self.parley.running:
            self.parley.running["first"] = self.parley.running.pop(name)
        self.parley.agent(self.node, [self.scheduler], informant=self.informant, **settings)
        return self.parley.running[name]

    def load(self, cpus: float) -> None:
        self.parley.load(self.pod, self.informant, cpus=cpus)

    def now(self) -> Manifest:
        return self.objects.get("pods", "busy")

    def size(self) -> int:
        found = self.now()
        return pods.size(found).vcpu_milli if pods.size(found) == pods.target(found) else 0

    def life(self) -> str:
        """The mark of the agent's life that may resize the pod."""
        return reading.annotations(self.now())[names.FENCE].partition(".")[0]

    def vm(self) -> dict[str, Any]:
        return self.parley.vms(self.node)[f"{self.objects.namespace}/busy"]


def test_an_agent_follows_another_on_its_node_and_nothing_is_lost(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects
) -> None:
    """The next one waits for the lock in the state directory; the pod keeps what it has, and goes on growing."""
    scene = Scene(parley, hollow_nodes, objects)
    size, life, second = scene.size(), scene.life(), scene.agent()
    shown_blocking("the next agent waits", lambda: "another agent has this node" in second.text())
    assert scene.life() == life, "an agent that waits touches nothing"
    assert parley.running["first"].end(signal.SIGTERM) == 0
    shown_blocking("the next agent has a permit", lambda: scene.vm()["permit"])
    assert scene.life() > life
    assert pods.size(scene.now()).vcpu_milli >= size  # a growth may be under way
    scene.load(2.2)
    shown_blocking("the pod grows on", lambda: scene.size() >= 2250)
