"""What a pod's object says to the agent: the look, and what keeps the pod from being resized. Pure."""

from dataclasses import dataclass

from hosting.kubernetes import objects, pods
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO, Observation, Resources


@dataclass(frozen=True, slots=True)
class KnownPod:
    """The latest reading of a pod, and what earlier specs may still bring.

    `replaced` is the most that the pod may come to have by specs that were replaced before the node has told of the present one; nothing,
    once it has.
    """

    pod: Manifest
    replaced: Resources = ZERO

    def then(self, pod: Manifest) -> "KnownPod":
        """After another reading, which may have begun earlier."""
        if pods.generation(pod) < pods.generation(self.pod):
            return self
        if pods.is_known_to_node(pod):
            return KnownPod(pod)
        if pods.generation(pod) == pods.generation(self.pod):
            return KnownPod(pod, self.replaced)
        return KnownPod(pod, self.replaced.max(self.seen(0.0).use))

    def seen(self, begun_s: float) -> Observation:
        """The look that this reading is. Raises `QuantityError`."""
        size, target = pods.size(self.pod).max(self.replaced), pods.target(self.pod)
        refusal = pods.refusal(self.pod) if size != target else None
        return Observation(size, target, begun_s, refusal or why_never(self.pod))


def why_not_now(pod: Manifest) -> str | None:
    """Why the pod cannot be resized at present, for a person; None where it can."""
    if pod["metadata"].get("deletionTimestamp"):
        return "the pod is being deleted"
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return None if phase == "Running" else f"the pod is {phase}, not Running"


def why_never(pod: Manifest) -> str | None:
    """Why the pod cannot be resized as it is, for a person; None where it can."""
    status = pod.get("status") or {}
    if (pod["spec"].get("resources") or {}).get("requests") or (pod["spec"].get("resources") or {}).get(
        "limits"
    ):
        return "the pod has resources of its own (spec.resources), which are not scaled"
    if "kubernetes.io/config.mirror" in objects.annotations(pod):
        return "a static pod cannot be resized"
    if status.get("qosClass") == "BestEffort":
        return "the pod is BestEffort: none of its containers has a request, and the QoS class cannot change"
    if status.get("phase") == "Running" and not status.get("observedGeneration"):
        return "the node does not tell which spec it knows (status.observedGeneration): Kubernetes 1.34 or newer is needed"
    return None
