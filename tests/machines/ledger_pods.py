"""Pods that are no VMs: they come without asking the scheduler, which is told later."""

from typing import TYPE_CHECKING

from protocol.values import ZERO, Resources
from protocol.wire import PodName
from tests.machines.cluster_models import Node, OtherPod
from tests.machines.core_port import pod_spec

if TYPE_CHECKING:
    from tests.machines.ledger_world import World


def pod_comes(world: "World", node: Node, requests: Resources) -> OtherPod:
    """A pod begins that the scheduler was not asked about; it is told later."""
    name = f"pod-{world.count()}"
    pod = OtherPod(pod_spec(PodName(name, "default"), name, node.name, requests), node)
    world.pods.append(pod)
    node.account.other_unseen += requests
    world.observer.other(node.account, requests)
    return pod


def pod_is_told(world: "World", pod: OtherPod) -> None:
    """The scheduler is told of a pod, or that it has ended."""
    if pod.has_ended:
        world.pods.remove(pod)
        world.port.pod_gone(pod.spec)
    elif not pod.is_told:
        pod.is_told = True
        world.port.pod_seen(pod.spec)
        if pod.is_unseen:
            world.observer.other_told(pod.node.account, pod.spec.requests)
    world.ledger_changed(pod.node)


def pod_ends(world: "World", pod: OtherPod) -> None:
    """A pod has run to its end: it uses nothing more, whether it is still listed or not."""
    pod.has_ended = True
    world.observer.other(pod.node.account, ZERO - pod.spec.requests)
    if not pod.is_told and pod.is_unseen:
        pod.node.account.other_unseen -= pod.spec.requests
