"""What the other tests here stand on: the control plane and the hollow nodes answer as a real cluster does."""

from labs.clusters.hollow_nodes import HollowFaults, NodeSize
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod

SMALL = NodeSize(cpu="2", memory="2Gi", allocatable_cpu="1500m", allocatable_memory="1536Mi")


def test_a_pod_is_scheduled_and_resized_in_place(objects: Objects, hollow_nodes: MakeHollowNodes) -> None:
    nodes = hollow_nodes(size=SMALL)
    running = objects.create_pod(pod("p", requests={"cpu": "500m", "memory": "256Mi"}))
    assert running["spec"]["nodeName"] in nodes.names
    objects.resize("p", cpu="1", memory="512Mi")
    after = objects.resized("p")["status"]["containerStatuses"][0]
    assert after["resources"]["limits"] == {"cpu": "1", "memory": "512Mi"}
    assert after["restartCount"] == 0
    cgroup = nodes.cgroups(nodes.names[0])[f"{objects.namespace}/p"]
    assert (cgroup["cpuQuotaUs"], cgroup["memoryBytes"]) == (100_000, 512 * 2**20)


def test_what_the_node_could_never_hold_is_infeasible(
    objects: Objects, hollow_nodes: MakeHollowNodes
) -> None:
    (node,) = hollow_nodes(size=SMALL).names
    objects.create_pod(pod("p", node=node))
    objects.resize("p", cpu="5")
    refused = objects.condition("p", "PodResizePending", "Infeasible")
    assert "cpu, requested: 5000, capacity: 1500" in refused["message"]


def test_what_others_hold_defers_a_resize_until_they_leave(
    objects: Objects, hollow_nodes: MakeHollowNodes
) -> None:
    (node,) = hollow_nodes(size=SMALL).names
    objects.create_pod(pod("other", node=node, requests={"cpu": "800m", "memory": "256Mi"}))
    objects.create_pod(pod("p", node=node))
    objects.resize("p", cpu="1")
    deferred = objects.condition("p", "PodResizePending", "Deferred")
    assert "cpu, requested: 1000, used: 800, capacity: 1500" in deferred["message"]
    objects.delete("pods", "other")
    assert objects.resized("p")["status"]["containerStatuses"][0]["allocatedResources"]["cpu"] == "1"


def test_a_runtime_that_refuses_is_an_error_until_it_heals(
    objects: Objects, hollow_nodes: MakeHollowNodes
) -> None:
    nodes = hollow_nodes(size=SMALL)
    (node,) = nodes.names
    objects.create_pod(pod("p", node=node))
    nodes.set_faults(node, HollowFaults(update_error="no such luck"))
    objects.resize("p", cpu="1")
    failed = objects.condition("p", "PodResizeInProgress", "Error")
    assert "no such luck" in failed["message"]
    nodes.set_faults(node, HollowFaults())
    objects.resized("p")
