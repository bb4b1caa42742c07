"""Plugins that judge a pod by itself: `PrioritySort` (its turn), `SchedulingGates` (whether it has one yet), `UnhandledFeatures`.

The first two are named as in kube-scheduler, which has plugins for the features that are not handled here, and places such pods
with our extender beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scheduler.placing.core.objects import NodeInfo, PodInfo, QueuedPod
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    EventResource,
    EventWithHint,
    PreFilterResult,
    QueueingHint,
    SchedulingEvent,
    Status,
    new_status,
)
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_conditions import spec_of


class PrioritySort(ShippedPlugin):
    """The higher priority first, then who has waited longer. Point: queueSort."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return (-first.pod.priority, first.since_s) < (-second.pod.priority, second.since_s)


class SchedulingGates(ShippedPlugin):
    """A pod waits while it has scheduling gates. Point: preEnqueue."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        return (EventWithHint(EventResource.POD, ActionType.UPDATE, _is_open),)

    def pre_enqueue(self, pod: PodInfo) -> Status | None:
        """Names the gates that are left."""
        gates = [str(each.get("name")) for each in spec_of(pod.manifest).get("schedulingGates") or ()]
        if not gates:
            return None
        return new_status(
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"waiting for scheduling gates: {', '.join(gates)}"
        )


def _is_open(pod: PodInfo, event: SchedulingEvent) -> QueueingHint:
    after = event.after
    if isinstance(after, PodInfo) and (
        after.uid != pod.uid or spec_of(after.manifest).get("schedulingGates")
    ):
        return QueueingHint.SKIP
    return QueueingHint.QUEUE


_VOLUMES: Final = {
    "persistentVolumeClaim": "a claim of a persistent volume",
    "ephemeral": "a claim of an ephemeral volume",
    "gcePersistentDisk": "a disk of GCE",
    "awsElasticBlockStore": "a volume of EBS",
    "azureDisk": "a disk of Azure",
    "iscsi": "a volume of iSCSI",
    "rbd": "a volume of RBD",
}
"""Sources of volumes that only some nodes, or one node at a time, can have."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class UnhandledFeatures(ShippedPlugin):
    """Refuses pods that ask for what no plugin here looks at. Preferences of that kind are let be. Point: preFilter."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Nothing helps but another pod."""
        return ()

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        found = list(_features(spec_of(pod.manifest)))
        if not found:
            return None, new_status(Code.SKIP)
        text = (
            f"this scheduler does not handle {', '.join(found)}; let kube-scheduler place such pods, with the "
            "extender of this scheduler"
        )
        return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)


def _features(spec: Mapping[str, Any]) -> Iterator[str]:
    """The features that are asked for, each with its place in the pod."""
    for index, volume in enumerate(spec.get("volumes") or ()):
        for source, text in _VOLUMES.items():
            if volume.get(source) is not None:
                yield f"{text} (spec.volumes[{index}].{source})"
    if spec.get("resourceClaims"):
        yield "claims of devices (spec.resourceClaims)"
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(kind) or {}).get(_REQUIRED):
            yield f"required affinity between pods (spec.affinity.{kind}.{_REQUIRED})"
    for group in ("workloadRef", "schedulingGroup"):
        if spec.get(group):
            yield f"pods that are scheduled as a group (spec.{group})"
