"""Schedulers of one test, with a Lease of its own, on nodes without kubelets: pods there are pending, and count."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hosting.kubernetes.resources import NODES, PODS, Manifest
from labs.clusters.control_plane import ControlPlane
from tests.support.kube.objects import MERGE, Objects
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import fetch, free_port

LEASE_S: Final = "3"
HANDOVER_S: Final = "6"
"""Longer than an agent of these tests waits for an answer."""
SIZE: Final = {"cpu": "4", "memory": "16Gi"}


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


@pytest.fixture
def bare_nodes(control_plane: ControlPlane, objects: Objects) -> Iterator[list[str]]:
    """The names of four nodes of 4 CPUs and 16 GiB."""
    found = [f"{objects.namespace}-{number}" for number in range(4)]
    for name in found:
        control_plane.call("POST", NODES.path(), {"metadata": {"name": name}})
        body = {"status": {"capacity": SIZE, "allocatable": SIZE}}
        control_plane.call("PATCH", NODES.path(name=name, subresource="status"), body, MERGE)
    yield found
    for name in found:
        control_plane.call("DELETE", NODES.path(name=name))


def create_pod(objects: Objects, manifest: Manifest) -> Manifest:
    """Create a pod; nobody runs it."""
    created: Manifest = json.loads(objects.plane.call("POST", PODS.path(objects.namespace), manifest))
    return created


def start_scheduler(
    parley: ParleyPrograms, objects: Objects, name: str, *options: str, code: str = ""
) -> int:
    """A scheduler with the Lease of this test; its port. `code` starts it in another way."""
    port = parley.ports[name] = free_port()
    lease = ("--lease", f"{objects.namespace}/parley", "--lease-duration", LEASE_S, "--handover", HANDOVER_S)
    where = ("--kubernetes", "--kubeconfig", str(parley.kubeconfig), "--port", str(port))
    program = ("-c", code) if code else ("scheduler",)
    parley.start(name, *program, *where, *lease, *options)
    return port


def leads(port: int) -> bool:
    """Whether the scheduler at a port leads. Raises `OSError` while there is none."""
    return b"\nparley_scheduler_leading 1" in fetch(port, "/metrics")
