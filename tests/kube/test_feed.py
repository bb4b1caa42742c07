"""The agent's feed on a real API server: pods of its node come, change and go as their labels and policies say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hosting.kubernetes import names
from labs.clusters.control_plane import ControlPlane
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms, parley_programs
from tests.support.processes import free_port
from tests.support.waiting import shown_blocking

WANTED = {names.ENABLED: "true"}


@pytest.fixture
def parley(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ParleyPrograms]:
    with parley_programs(control_plane, tmp_path) as found:
        yield found


def test_pods_of_the_node_come_and_go_as_labels_and_policies_say(
    parley: ParleyPrograms, hollow_nodes: MakeHollowNodes, objects: Objects
) -> None:
    """The API server is killed in between: what is known stays, and what was missed is told afterwards, without a restart."""
    node, other = hollow_nodes(2).names
    objects.create_pod(pod("labelled", node=node, labels=WANTED))
    objects.create_pod(pod("elsewhere", node=other, labels=WANTED))
    objects.create_pod(pod("plain", node=node, labels={"app": "web"}))
    parley.agent(node, [free_port()])

    def vms() -> set[str]:
        return {name.partition("/")[2] for name in parley.vms(node)}

    shown_blocking("the labelled pod", lambda: vms() == {"labelled"})
    policy = {
        "apiVersion": "parley.dev/v1alpha1",
        "kind": "ScalingPolicy",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "bounds": {"max": {"cpu": "2"}}},
    }
    objects.apply(policy)
    shown_blocking("the pod that the policy selects", lambda: vms() == {"labelled", "plain"})
    one = parley.page(f"agent-{node}", f"/v1/vms/{objects.namespace}/plain")
    assert one["bounds"]["max"]["cpu"] == "2"

    parley.plane.kill_api_server()
    shown_blocking("the agent tells it", lambda: "VMs cannot be read" in parley.text(f"agent-{node}"))
    assert vms() == {"labelled", "plain"}
    parley.plane.start_api_server()
    objects.delete("pods", "labelled")
    shown_blocking("the pod is gone here, too", lambda: vms() == {"plain"})
