"""The scheduler behind a Service is found on a real API server, by the Service's endpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.daemon.kubernetes import SERVICE_LABEL
from hosting.kubernetes import names
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes, NodeSize
from labs.clusters.programs import Programs
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.own_network import own_network
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking

NODE = "found-0"


@pytest.fixture
def address() -> Iterator[str]:
    """None of loopback: no EndpointSlice takes those."""
    with own_network() as network:
        yield f"{network}.0.1"


@pytest.fixture
def parley(address: str, programs: Programs, tmp_path: Path) -> Iterator[ParleyPrograms]:
    """A cluster of its own, in the same network."""
    plane = ControlPlane(programs, tmp_path / "plane", free_port)
    nodes = HollowNodes(programs, plane, free_port, 1, "found-", NodeSize("4", "8Gi"))
    try:
        plane.start()
        nodes.start()
        with parley_programs(plane, tmp_path) as found:
            yield found
    finally:
        nodes.kill()
        plane.stop()


def test_the_scheduler_is_found_through_its_service(parley: ParleyPrograms, address: str) -> None:
    """First it has no endpoint, then one; the agent is not started again."""
    objects = Objects(parley.plane, "default")
    shown_blocking("the service account", lambda: objects.get("serviceaccounts", "default"))
    objects.create_pod(pod("p", node=NODE, labels={names.ENABLED: "true"}))
    scheduler = parley.scheduler(
        "scheduler", "--first-start", "--lease-duration", "2", "--host", address, "--plain-http"
    )
    service = {"service": "default/parley-scheduler", "port": scheduler}
    parley.agent(NODE, [scheduler], scheduler=service, otherSchedulers=[])

    def vm() -> dict[str, Any]:
        return parley.vms(NODE)["default/p"]

    shown_blocking("no scheduler is known", lambda: "no scheduler is known" in str(vm()["faults"]))
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "parley-scheduler-1", "labels": {SERVICE_LABEL: "parley-scheduler"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "permits", "port": scheduler}],
    }
    objects.apply(slice_)
    shown_blocking("a permit", lambda: vm()["permit"])
