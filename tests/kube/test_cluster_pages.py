"""docs/guides/kubernetes.md, typed as it is written, on a real control plane with a hollow node.

A hollow node runs no containers: the programs of the deployed pods run beside it, as `tests/support/kube/containers.py` tells, and the
load of the page's own pod is what its cgroup says.
"""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from tests.processes.pages import ROOT, Reader
from tests.support.kube import plugin
from tests.support.kube.node_of_programs import SYSTEM, NodeOfPrograms, make_certificates, node_of_programs
from tests.support.own_network import own_network
from tests.support.waiting import shown_blocking

PAGES_ON_A_CLUSTER: Final = ("docs/guides/kubernetes.md",)


@pytest.fixture(scope="module")
def pod_network() -> Iterator[str]:
    """Addresses that are none of loopback: no EndpointSlice takes those."""
    with own_network() as network:
        yield network


@pytest.fixture(scope="module")
def node(
    programs: Programs, pod_network: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeOfPrograms]:
    made = (tmp_path_factory.mktemp(name) for name in ("page", "logs", "cgroup"))
    with node_of_programs(programs, pod_network, *made, prefix="page-") as found:
        yield found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES_ON_A_CLUSTER)
def test_the_commands_of_a_page_print_what_it_shows(
    node: NodeOfPrograms, programs: Programs, tmp_path: Path, page: str
) -> None:
    with Reader(tmp_path) as reader:
        shutil.copytree(ROOT / "deploy", reader.place / "deploy")
        plugin.install(reader.place / "programs", programs, node.plane.kubeconfig)
        reader.follow((ROOT / page).read_text())
    assert len(node.log("scheduler", "leads")) == 1
    said = node.containers.log()
    assert "Traceback" not in said
    assert "orbidden" not in said, "the deployed rights do not suffice"


@pytest.mark.timeout(300)
def test_an_upgrade_completes_and_somebody_leads_again(node: NodeOfPrograms, tmp_path: Path) -> None:
    """Schedulers that do not lead are ready, too, and an agent does not wait for the one that it replaces."""
    plane = node.plane
    both = ("deployment/parley-scheduler", "daemonset/parley-agent")
    make_certificates(plane, tmp_path)
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
