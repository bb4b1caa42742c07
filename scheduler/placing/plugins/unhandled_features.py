"""`UnhandledFeatures`: pods that ask for what no plugin here looks at are refused, rather than placed where they cannot run.

kube-scheduler has plugins for these features, and places such pods with our extender beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.status import Code, Status, new_status
from scheduler.placing.core.values import EventWithHint, PreFilterResult
from scheduler.placing.plugins.base import ShippedPlugin
from scheduler.placing.plugins.node_selectors import spec_of

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
    """The plugin. Point: preFilter. Preferences that no plugin looks at are let be."""

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Nothing helps but another pod."""
        return ()

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        del context, nodes
        found = list(_features(spec_of(pod.manifest)))
        if not found:
            return None, new_status(Code.SKIP)
        text = (
            f"this scheduler does not handle {', '.join(found)}; let kube-scheduler place such pods, with the "
            "extender of this scheduler"
        )
        return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, text)


def _features(spec: Mapping[str, Any]) -> Iterator[str]:
    """What is asked for, each with its place in the pod."""
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
