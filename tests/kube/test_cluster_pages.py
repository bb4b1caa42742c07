"""docs/kubernetes.md, typed as it is written, on a real control plane with a hollow node.

A hollow node runs no containers: the programs of the deployed pods run beside it, as `tests/support/kube/containers.py` tells, and the
load of the page's own pod is what its cgroup says.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
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
from tests.support.kube.containers import deployed_containers
from tests.support.kube.objects import Objects
from tests.support.processes import free_port

PAGES_ON_A_CLUSTER: Final = ("docs/kubernetes.md",)
POD_NETWORK: Final = "198.19"
"""Kept for benchmarks of networks (RFC 2544), so nobody is met there."""
ROUTE: Final = ("local", f"{POD_NETWORK}.0.0/16", "dev", "lo")


@pytest.fixture
def pod_network() -> Iterator[str]:
    """Addresses that are this machine's own, and none of loopback: no EndpointSlice takes those."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, to give pods addresses that an EndpointSlice takes")
    subprocess.run(["ip", "route", "replace", *ROUTE], check=True)
    yield POD_NETWORK
    subprocess.run(["ip", "route", "del", *ROUTE], check=False)


@pytest.fixture
def plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """In a directory with a short name: kubelets make sockets below it."""
    plane = ControlPlane(programs, tmp_path_factory.mktemp("page"), free_port)
    try:
        yield plane.start()
    finally:
        plane.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES_ON_A_CLUSTER)
def test_the_commands_of_a_page_print_what_it_shows(
    plane: ControlPlane, programs: Programs, pod_network: str, tmp_path: Path, page: str
) -> None:
    nodes = HollowNodes(programs, plane, free_port, prefix="page-", pod_network=pod_network)
    system, default = Objects(plane, "parley-system"), Objects(plane, "default")
    logs, cgroups = tmp_path / "logs", tmp_path / "cgroup"
    logs.mkdir()

    def scaled() -> list[Manifest]:
        return [
            each for each in default.list("pods") if each["metadata"]["labels"].get(names.ENABLED) == "true"
        ]

    loads = CgroupLoads(cgroups, scaled, lambda: nodes.cgroups(nodes.names[0]), cpus=1.0)
    (tmp_path / "reader").mkdir()
    try:
        nodes.start()
        with (
            cgroup_loads(loads),
            deployed_containers(plane, system, logs, cgroups) as containers,
            Reader(tmp_path / "reader") as reader,
        ):
            shutil.copytree(ROOT / "deploy", reader.place / "deploy")
            kubectl = reader.place / "programs/kubectl"
            command = shlex.join([programs.path("kubectl"), f"--kubeconfig={plane.kubeconfig}"])
            kubectl.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            kubectl.chmod(0o755)
            reader.follow((ROOT / page).read_text())
            said = containers.log()
            assert "Traceback" not in said
            leaders = [
                line
                for line in said.splitlines()
                if '"component":"scheduler"' in line and '"event":"leads"' in line
            ]
            assert len(leaders) == 1, leaders
    finally:
        nodes.kill()
