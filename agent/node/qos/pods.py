"""Objects of Kubernetes as the states that strategies see."""

from typing import Final

from agent.node.qos.core.states import ContainerState, NodeState, PodState, QosClass, ScalingPolicyState
from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.resources import Manifest
from protocol import quantities
from protocol.values import ZERO, Resources

_MIRROR: Final = "kubernetes.io/config.mirror"


def pod_state(pod: Manifest) -> PodState:
    """A pod as strategies see it. Its requests are those that kube-scheduler counts, its limits those that the kubelet sets on its cgroup.

    Raises `protocol.quantities.QuantityError` for an amount that the API server would have refused.
    """
    labels, kubernetes_class = objects.labels(pod), _kubernetes_class(pod)
    return PodState(
        namespace=objects.namespace(pod),
        name=objects.name(pod),
        uid=objects.uid(pod),
        qos=_qos(labels.get(names.QOS_CLASS), kubernetes_class),
        kubernetes_class=kubernetes_class,
        priority=int(pod["spec"].get("priority") or 0),
        requests=pods.holds(pod),
        limits=pods.resources(pods.limits(pod)),
        containers=_containers(pod),
        labels=labels,
        annotations=objects.annotations(pod),
        is_finished=pods.is_terminal(pod),
        is_ending="deletionTimestamp" in pod["metadata"],
        controller_kind=_controller_kind(pod),
        batch_requests=_batch_requests(pod),
    )


def node_state(node: Manifest) -> NodeState:
    """A node as strategies see it; an amount that its status leaves open is 0. Raises `protocol.quantities.QuantityError`."""
    status = node.get("status") or {}
    allocatable = objects.amounts(status.get("allocatable"))
    return NodeState(
        name=objects.name(node),
        capacity=pods.resources(allocatable | objects.amounts(status.get("capacity"))),
        allocatable=pods.resources(allocatable),
        labels=objects.labels(node),
        annotations=objects.annotations(node),
    )


def policy_state(policy: Manifest) -> ScalingPolicyState:
    return ScalingPolicyState(objects.namespace(policy), objects.name(policy), policy.get("spec") or {})


def _kubernetes_class(pod: Manifest) -> str:
    """The API server sets the class of each pod that it takes in. Without one, a pod is not among the first to be held back."""
    return str((pod.get("status") or {}).get("qosClass") or "Burstable")


def _qos(label: str | None, kubernetes_class: str) -> QosClass:
    if label in tuple(QosClass):
        return QosClass(label)
    return QosClass.BEST_EFFORT if kubernetes_class == "BestEffort" else QosClass.LATENCY_SENSITIVE


def _batch_requests(pod: Manifest) -> Resources:
    """As kube-scheduler counts extended resources: containers and sidecars, or the largest init container with the sidecars before it."""
    if pods.is_terminal(pod):
        return ZERO
    sidecars, peak = ZERO, ZERO
    for each in pod["spec"].get("initContainers") or ():
        peak = peak.max(sidecars + _batch_amounts(each))
        if each.get("restartPolicy") == "Always":
            sidecars += _batch_amounts(each)
    return sum(map(_batch_amounts, pod["spec"].get("containers") or ()), sidecars).max(peak)


def _batch_amounts(container: Manifest) -> Resources:
    """An extended resource is given as a limit, and as a request only if both are the same."""
    written = container.get("resources") or {}
    asked = {**(written.get("limits") or {}), **(written.get("requests") or {})}
    cpu, memory = (
        quantities.parse(str(asked.get(name, 0))).value() for name in (names.BATCH_CPU, names.BATCH_MEMORY)
    )
    return Resources(cpu, memory)


def _containers(pod: Manifest) -> tuple[ContainerState, ...]:
    status = pod.get("status") or {}
    ids = {
        each["name"]: str(each.get("containerID") or "").rpartition("://")[2]
        for key in ("containerStatuses", "initContainerStatuses")
        for each in status.get(key) or ()
    }
    return tuple(
        ContainerState(
            each.name, pods.resources(each.requests), pods.resources(each.limits), ids.get(each.name, "")
        )
        for each in pods.containers(pod)
    )


def _controller_kind(pod: Manifest) -> str:
    """The kind of the object that controls the pod. A static pod belongs to its node, whose kubelet marks the pod's mirror."""
    if _MIRROR in objects.annotations(pod):
        return "Node"
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(each["kind"]) for each in owners if each.get("controller")), "")
