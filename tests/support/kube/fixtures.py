"""Fixtures: a control plane for the session, and for each test a namespace and nodes of its own.

The conftest of each directory imports those that its tests use.
"""

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes, NodeSize
from labs.clusters.node.real_node import RealNode
from labs.clusters.programs import ClusterError, Programs
from tests.support.kube.assets import programs as found_programs
from tests.support.kube.objects import Objects
from tests.support.processes import free_port

_numbers = itertools.count(1)


class MakeHollowNodes(Protocol):
    """Starts hollow nodes for the length of the test."""

    def __call__(self, count: int = 1, size: NodeSize | None = None) -> HollowNodes: ...


@pytest.fixture(scope="session")
def programs() -> Programs:
    return found_programs()


@pytest.fixture(scope="session")
def control_plane(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests of the session. A test that kills parts of the control plane starts them again."""
    plane = ControlPlane(programs, tmp_path_factory.mktemp("control-plane"), free_port)
    try:
        yield plane.start()
    finally:
        plane.stop()


@pytest.fixture
def own_control_plane(programs: Programs, tmp_path: Path) -> Iterator[ControlPlane]:
    """One for this test alone: for tests that need an empty cluster, or break much of it."""
    plane = ControlPlane(programs, tmp_path / "control-plane", free_port)
    try:
        yield plane.start()
    finally:
        plane.stop()


@pytest.fixture
def objects(control_plane: ControlPlane) -> Iterator[Objects]:
    """A namespace of its own, with its default service account."""
    name = f"test-{next(_numbers)}"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.call("POST", "/api/v1/namespaces", namespace)
    found = Objects(control_plane, name)
    found.shown("the service account", lambda: found.get("serviceaccounts", "default"))
    yield found
    control_plane.call("DELETE", f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0})
    control_plane.call("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def hollow_nodes(control_plane: ControlPlane, programs: Programs) -> Iterator[MakeHollowNodes]:
    """Makes hollow nodes; after the test they are gone, from the cluster too."""
    with ExitStack() as stack:

        def make(count: int = 1, size: NodeSize | None = None) -> HollowNodes:
            prefix = f"hollow-{next(_numbers)}-"
            nodes = HollowNodes(programs, control_plane, free_port, count, prefix, size)
            stack.callback(_remove, control_plane, nodes)
            return nodes.start()

        yield make


@pytest.fixture(scope="session")
def real_node(control_plane: ControlPlane, programs: Programs) -> Iterator[RealNode]:
    """One real node for all tests of the session; without it the tests are skipped, with what is missing."""
    try:
        RealNode.check(programs)
    except ClusterError as error:
        pytest.skip(str(error))
    node = RealNode(programs, control_plane, free_port)
    try:
        yield node.start()
    finally:
        node.stop()
        _forget(control_plane, node.name)


def _remove(plane: ControlPlane, nodes: HollowNodes) -> None:
    nodes.kill()
    _forget(plane, *nodes.names)


def _forget(plane: ControlPlane, *names: str) -> None:
    for node in json.loads(plane.call("GET", "/api/v1/nodes"))["items"]:
        if (name := node["metadata"]["name"]) in names:
            plane.call("DELETE", f"/api/v1/nodes/{name}")
