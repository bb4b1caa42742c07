"""Objects of Kubernetes as the states that strategies see, and the marks of pods about their eviction.

Of marks our names are read first, then the published ones (reference/koordinator.md 3.3). A mark that cannot be read is a fault and protects
the pod: a number has it go after all others, a word keeps it from going, and a list of tasks allows none.
"""

import json
from typing import Final

from agent.node.qos.core.evicting import LAST, EvictionMarks
from agent.node.qos.core.states import (
    BEST_EFFORT_CLASS,
    ContainerState,
    NodeState,
    PodState,
    QosClass,
    ScalingPolicyState,
    VmState,
)
from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.annotations import short
from hosting.kubernetes.koordinator import priority_class_of
from hosting.kubernetes.resources import Manifest
from protocol import quantities
from protocol.values import ZERO, Resources

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the mirror of a static pod: deleting the mirror does not end the pod."""
APP: Final = "app.kubernetes.io/name"
AGENT: Final = "parley-agent"
"""The agent's own pods, as `deploy` labels them."""


def pod_state(pod: Manifest) -> PodState:
    """A pod as strategies see it. Its requests are those that kube-scheduler counts, its limits those that the kubelet sets on its cgroup.

    Raises `protocol.quantities.QuantityError` for an amount that the API server would have refused.
    """
    labels = objects.labels(pod)
    # The API server sets the class of each pod that it takes in. Without one, a pod is not among the first to be held back.
    kubernetes_class = str((pod.get("status") or {}).get("qosClass") or "Burstable")
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
        priority_class=priority_class_of(pod).value,
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


def _qos(label: str | None, kubernetes_class: str) -> QosClass:
    if label in tuple(QosClass):
        return QosClass(label)
    return QosClass.BEST_EFFORT if kubernetes_class == BEST_EFFORT_CLASS else QosClass.LATENCY_SENSITIVE


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
    if MIRROR in objects.annotations(pod):
        return "Node"
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(each["kind"]) for each in owners if each.get("controller")), "")


def marks_of(pod: PodState, vm: VmState | None) -> EvictionMarks:
    """The marks of a pod. `vm` is the VM that the agent scales in it, if any."""
    faults: list[str] = []
    is_enabled = _word(pod, faults)
    return EvictionMarks(
        is_enabled,
        _number(pod, names.EVICTION_PRIORITY, faults) or 0,
        _number(pod, names.SUB_PRIORITY, faults),
        _tasks(pod, faults),
        _obstacle(pod, vm, is_asked_for=is_enabled is True),
        tuple(faults),
    )


def _text(pod: PodState, name: str) -> tuple[str, str | None]:
    """The text with the name that it was found by."""
    published = names.KOORDINATOR + name.partition("/")[2]
    for key in (name, published):
        for found in (pod.labels, pod.annotations):
            if key in found:
                return key, found[key]
    return name, None


def _word(pod: PodState, faults: list[str]) -> bool | None:
    name, text = _text(pod, names.EVICTION_ENABLED)
    if text not in (None, "true", "false"):
        faults.append(f'{name}: must be true or false (found {short(text)}): counts as "false"')
    return text == "true" if text is not None else None


def _number(pod: PodState, name: str, faults: list[str]) -> int | None:
    name, text = _text(pod, name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 19:
        return int(text)
    faults.append(
        f"{name}: must be a whole number (found {short(text)}): the pod is evicted after all others"
    )
    return LAST


def _tasks(pod: PodState, faults: list[str]) -> frozenset[str] | None:
    name, text = _text(pod, names.EVICTION_POLICY)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return frozenset(found)
    faults.append(f"{name}: must be a list of tasks in JSON (found {short(text)}): no task evicts the pod")
    return frozenset()


def _obstacle(pod: PodState, vm: VmState | None, *, is_asked_for: bool) -> str:
    if MIRROR in pod.annotations or pod.controller_kind == "Node":
        return "static pod: the node would keep it"
    if pod.labels.get(APP) == AGENT:
        return "the agent itself"
    is_vm = (
        vm is not None
        or pod.labels.get(names.ENABLED, "false") != "false"
        or names.NEON_VM_NAME in pod.labels
    )
    if is_vm and (
        pod.annotations.get(names.EVICT) == "true" or (vm is not None and vm.is_evicted_when_stuck)
    ):
        return f"{names.EVICT}, or evictWhenStuck of its ScalingPolicy, has the agent evict it when it is denied what it needs"
    if is_vm and not is_asked_for:
        return f"scaled by Parley, without {names.EVICTION_ENABLED}"
    if pod.controller_kind == "DaemonSet" and not is_asked_for:
        return f"a DaemonSet makes it anew on the same node, without {names.EVICTION_ENABLED}"
    return ""
