"""A cluster on this machine on which Parley is installed as docs/guides/kubernetes.md does, with its real programs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from hosting.kubernetes import names
from hosting.kubernetes.resources import Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes
from labs.clusters.programs import Programs
from parley.certs.commands import certs
from tests.support.kube.cgroups import CgroupLoads, cgroup_loads
from tests.support.kube.containers import DeployedContainers, deployed_containers
from tests.support.kube.deployed import DEPLOY
from tests.support.kube.objects import Objects
from tests.support.processes import free_port

SYSTEM: Final = "parley-system"


@dataclass(frozen=True, slots=True)
class NodeOfPrograms:
    """A control plane with hollow nodes, on which the programs of Parley's deployed pods really run."""

    plane: ControlPlane
    nodes: HollowNodes
    containers: DeployedContainers

    def log(self, component: str, event: str) -> list[str]:
        words = (f'"component":"{component}"', f'"event":"{event}"')
        return [line for line in self.containers.log().splitlines() if all(word in line for word in words)]

    def leader(self) -> str:
        """The pod that bears the leader's label; empty if none does."""
        label = f"--selector={names.ROLE}={names.LEADER}"
        found = self.plane.kubectl("get", "pods", f"--namespace={SYSTEM}", label, "--output=name").split()
        return found[0] if len(found) == 1 else ""


def make_certificates(plane: ControlPlane, directory: Path) -> None:
    """The Secrets that the pods wait for, as docs/guides/kubernetes.md makes them."""
    hosts = {
        "scheduler": "parley-scheduler.parley-system.svc",
        "agent-ports": "parley-agent.parley-system.svc",
    }
    made = directory / "certificates"
    options = [f"--{name}={host}" for name, host in hosts.items()]
    done = CliRunner().invoke(certs, ["create", str(made), *options])
    assert done.exit_code == 0, done.output
    plane.kubectl("apply", f"--filename={DEPLOY / 'base/namespace.yaml'}")
    for secret, folder in (("parley-scheduler-tls", "scheduler"), ("parley-agent-tls", "agent-ports")):
        files = f"--from-file={made / folder}"
        where = f"--namespace={SYSTEM}"
        plane.kubectl("delete", "secret", secret, where, "--ignore-not-found")
        plane.kubectl("create", "secret", "generic", secret, where, files)


@contextmanager
def node_of_programs(
    programs: Programs,
    pod_network: str,
    directory: Path,
    logs: Path,
    cgroups: Path,
    *,
    prefix: str,
    count: int = 1,
) -> Iterator[NodeOfPrograms]:
    """The cluster for the length of a `with` block; Parley is not installed yet. Labelled pods use one CPU each.

    `directory` has a short name: kubelets make sockets below it.
    """
    plane = ControlPlane(programs, directory, free_port)
    nodes = HollowNodes(programs, plane, free_port, count, prefix=prefix, pod_network=pod_network)
    labelled = f"/api/v1/pods?labelSelector={names.ENABLED}%3Dtrue"

    def scaled() -> list[Manifest]:
        found: list[Manifest] = json.loads(plane.call("GET", labelled))["items"]
        return found

    def groups() -> dict[str, dict[str, int]]:
        return {name: group for node in nodes.names for name, group in nodes.cgroups(node).items()}

    loads = CgroupLoads(cgroups, scaled, groups, cpus=1.0)
    try:
        plane.start()
        nodes.start()
        with (
            cgroup_loads(loads),
            deployed_containers(plane, Objects(plane, SYSTEM), logs, cgroups) as containers,
        ):
            yield NodeOfPrograms(plane, nodes, containers)
    finally:
        nodes.kill()
        plane.stop()
