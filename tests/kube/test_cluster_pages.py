"""docs/kubernetes.md, typed as it is written, on a real control plane with a hollow node.

A hollow node runs no containers: the programs of the deployed pods run beside it, as `tests/support/kube/containers.py` tells, and the
load of the page's own pod is what its cgroup says.
"""

import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from parley.clusters.control_plane import ControlPlane
from parley.clusters.hollow_nodes import HollowNodes
from parley.clusters.programs import Programs
from tests.processes.pages import ROOT, Reader
from tests.support.kube.cgroups import CgroupLoads, cgroup_loads
from tests.support.kube.containers import DeployedContainers, deployed_containers
from tests.support.kube.objects import Objects
from tests.support.own_network import own_network
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking

SYSTEM: Final = "parley-system"
PAGES_ON_A_CLUSTER: Final = ("docs/kubernetes.md",)


@dataclass(frozen=True, slots=True)
class NodeOfPrograms:
    """A control plane with one hollow node, on which the programs of Parley's deployed pods really run."""

    plane: ControlPlane
    containers: DeployedContainers

    def log(self, component: str, event: str) -> list[str]:
        """The lines of an event that programs have logged."""
        words = (f'"component":"{component}"', f'"event":"{event}"')
        return [line for line in self.containers.log().splitlines() if all(word in line for word in words)]

    def leader(self) -> str:
        """The pod that bears the leader's label; empty where none does."""
        label = f"--selector={names.ROLE}={names.LEADER}"
        found = self.plane.kubectl("get", "pods", f"--namespace={SYSTEM}", label, "--output=name").split()
        return found[0] if len(found) == 1 else ""


@pytest.fixture(scope="module")
def pod_network() -> Iterator[str]:
    """Addresses that are none of loopback: no EndpointSlice takes those."""
    with own_network() as network:
        yield network


@pytest.fixture(scope="module")
def node(
    programs: Programs, pod_network: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeOfPrograms]:
    directory = tmp_path_factory.mktemp("page")  # a short name: kubelets make sockets below it
    plane = ControlPlane(programs, directory, free_port)
    nodes = HollowNodes(programs, plane, free_port, prefix="page-", pod_network=pod_network)
    logs, cgroups = tmp_path_factory.mktemp("logs"), tmp_path_factory.mktemp("cgroup")
    system, default = Objects(plane, SYSTEM), Objects(plane, "default")

    def scaled() -> list[Manifest]:
        return [
            each for each in default.list("pods") if each["metadata"]["labels"].get(names.ENABLED) == "true"
        ]

    loads = CgroupLoads(cgroups, scaled, lambda: nodes.cgroups(nodes.names[0]), cpus=1.0)
    try:
        plane.start()
        nodes.start()
        with cgroup_loads(loads), deployed_containers(plane, system, logs, cgroups) as containers:
            yield NodeOfPrograms(plane, containers)
    finally:
        nodes.kill()
        plane.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES_ON_A_CLUSTER)
def test_the_commands_of_a_page_print_what_it_shows(
    node: NodeOfPrograms, programs: Programs, tmp_path: Path, page: str
) -> None:
    with Reader(tmp_path) as reader:
        shutil.copytree(ROOT / "deploy", reader.place / "deploy")
        kubectl = reader.place / "programs/kubectl"
        command = shlex.join([programs.path("kubectl"), f"--kubeconfig={node.plane.kubeconfig}"])
        kubectl.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        kubectl.chmod(0o755)
        reader.follow((ROOT / page).read_text())
    assert len(node.log("scheduler", "leads")) == 1
    said = node.containers.log()
    assert "Traceback" not in said
    assert "orbidden" not in said, "the deployed rights do not suffice"


@pytest.mark.timeout(300)
def test_an_upgrade_completes_and_somebody_leads_again(node: NodeOfPrograms) -> None:
    """Schedulers that do not lead are ready, too, and an agent does not wait for the one that it replaces."""
    plane = node.plane
    both = ("deployment/parley-scheduler", "daemonset/parley-agent")
    plane.kubectl("apply", f"--kustomize={ROOT / 'deploy/overlays/kind'}")
    before = shown_blocking("a scheduler leads", node.leader)
    for each in both:
        plane.kubectl("rollout", "restart", f"--namespace={SYSTEM}", each)
        shown_blocking(f"{each} is replaced", partial(_is_rolled_out, plane, each))
    after = shown_blocking("another scheduler leads", lambda: node.leader().replace(before, ""))
    assert after.startswith("pod/parley-scheduler-")
    assert "Traceback" not in node.containers.log()


def _is_rolled_out(plane: ControlPlane, what: str) -> bool:
    said = plane.kubectl("rollout", "status", f"--namespace={SYSTEM}", "--watch=false", what)
    return "successfully rolled out" in said
