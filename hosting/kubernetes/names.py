"""Labels, annotations and group that Parley gives a meaning to. docs/guides/kubernetes.md tells users of them."""

from typing import Final

GROUP: Final = "parley.dev"
VERSION: Final = "v1alpha1"

ENABLED: Final = "parley.dev/enabled"
"""Label of a pod: "true" has it scaled, "false" keeps it from being scaled even if a ScalingPolicy says otherwise."""
QOS_CLASS: Final = "parley.dev/qos-class"
"""Label of a pod: "BE" lets strategies on the node hold it back for others, "LS" does not; else Kubernetes' own class decides."""
POOL: Final = "parley.dev/pool"
"""Label of a pod or VM: the pool that it belongs to."""
ROLE: Final = "parley.dev/role"
"""Label of a scheduler's pod: LEADER on the one that leads; the Service selects it."""
LEADER: Final = "leader"
PLACEHOLDER: Final = "parley.dev/placeholder"
"""Label of the pods that the scheduler makes in its own namespace, so that a cluster autoscaler adds a node for growth that is denied."""

CONFIG: Final = "parley.dev/config"
"""Annotation, JSON: `policies`, `windows`, `tied`."""
UNIT: Final = "parley.dev/unit"
"""Annotation, JSON: the steps of growth, `{cpu, memory}`."""
BOUNDS: Final = "parley.dev/bounds"
"""Annotation, JSON: `{min: {cpu, memory}, max: {cpu, memory}}`."""
SHARES: Final = "parley.dev/shares"
"""Annotation, JSON: for each container that is scaled, its weights `{cpu, memory}`; a container that is left out keeps its size."""
RESTART: Final = "parley.dev/restart"
"""Annotation: "allowed" lets a container be resized whose resizePolicy restarts it."""
FENCE: Final = "parley.dev/fence"
"""Annotation that agents write to a pod or a VirtualMachine: the generation of the life that may resize it, and a count of that life,
as `GENERATION.COUNT`."""
INFORMANT: Final = "parley.dev/informant"
"""Annotation: the port of an informant inside the pod, which is asked instead of the node's."""
METRICS_PLUGIN: Final = "parley.dev/metrics-plugin"
"""Annotation: the plugin of the node that tells the load, instead of that of the agent's settings; empty for the exporter."""
EVICT: Final = "parley.dev/evict-when-stuck"
"""Annotation: "true" lets a pod be evicted whose needs were denied for long."""
EVICTION_ENABLED: Final = "parley.dev/eviction-enabled"
"""Label (or annotation) of a pod: "true" lets QoS strategies evict it by priority, "false" keeps them from evicting it at all."""
EVICTION_PRIORITY: Final = "parley.dev/eviction-priority"
"""Annotation: a whole number, 0 if left out; pods with lower ones are evicted first, before their priorities are compared."""
SUB_PRIORITY: Final = "parley.dev/priority"
"""Label: a whole number that orders the eviction of pods of one priority, the lowest first. Annotation: the priority with which a VM waits
for room and is asked for some, instead of the pod's."""
YIELD: Final = "parley.dev/yield"
"""Annotation: how much the VM gives back to others that wait for room on its node: "slack" (the default: comfort only), "to-minimum" (for a
VM of higher priority all but its minimum) or "never"."""
EVICTION_POLICY: Final = "parley.dev/eviction-policy"
"""Annotation, a JSON list: the eviction tasks that may evict the pod, such as `["MemoryEvict"]`; all if left out."""
CPU_BURST: Final = "parley.dev/cpu-burst"
"""Annotation, JSON with the published names (`policy`, `cpuBurstPercent`, ...): how far the pod's containers may exceed their CPU limit."""
HELD: Final = "parley.dev/held"
"""Key among the extensions of a pod in a NodeMetric: what the pod was permitted, `{cpu, memory}`, since the report before at least."""
DENIED: Final = "parley.dev/Denied"
"""Type of a pod's condition: the pod should have more than is permitted, and has been so for a while."""
PREDICTED: Final = "autoscaling.k8s.io/predicted-pod-requests"
"""Annotation that agents write to a pod that is denied for want of room, JSON: the requests `{cpu, memory}` of the whole pod as it should
be. Source: Karpenter's design of resizes in place (kubernetes-sigs/karpenter#3037), the annotation that carries the prediction."""
CGROUP_MISMATCH: Final = "parley.dev/CgroupMismatch"
"""Type of a pod's condition: its control groups allow another size than the one that its status tells."""
ROOM_FREED: Final = "parley.dev/RoomFreed"
"""Type of the condition by which kube-scheduler is made to try a pod again: since we refused the pod, room has become free that
kube-scheduler does not see."""

RESERVATION: Final = "parley.dev/reservation"
"""Annotation that the scheduler gives a pod when it binds it: the UID of the reservation whose room the pod uses."""
RESERVATION_REQUIRED: Final = "parley.dev/reservation-required"
"""Annotation: "true" (any word but "false") places a pod only if it gets the room of a reservation."""
MANAGED: Final = "parley.dev/managed"
"""Extended resource of pods that kube-scheduler must ask us about. No node has any of it, and none is needed."""

_EITHER: Final = frozenset({EVICTION_ENABLED, EVICTION_PRIORITY, SUB_PRIORITY, EVICTION_POLICY})
LABELS: Final = _EITHER | {ENABLED, QOS_CLASS, POOL, ROLE, PLACEHOLDER}
"""All that are read of a pod or VirtualMachine."""
ANNOTATIONS: Final = _EITHER | {
    CONFIG,
    UNIT,
    BOUNDS,
    SHARES,
    RESTART,
    FENCE,
    INFORMANT,
    METRICS_PLUGIN,
    YIELD,
    EVICT,
    CPU_BURST,
    RESERVATION,
    RESERVATION_REQUIRED,
}
"""All that are read of a pod or VirtualMachine, or written to it."""

KOORDINATOR: Final = "koordinator.sh/"
"""The published prefix of `eviction-enabled`, `eviction-priority`, `eviction-policy` and `priority`, which are understood if ours are not
given. Source: reference/koordinator.md 3.3."""
PUBLISHED_CPU_BURST: Final = "koordinator.sh/cpuBurst"
"""As `CPU_BURST`, if that is not given."""

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
"""Extended resource that Koordinator's best-effort pods request instead of CPU, in milli-CPU. Source: reference/koordinator.md 3.3."""
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
"""As `BATCH_CPU`, in bytes."""

NEON_ENABLED: Final = "autoscaling.neon.tech/enabled"
"""Label of a VirtualMachine: "true" has it scaled. Source: reference/neon.md 6.2."""
NEON_CONFIG: Final = "autoscaling.neon.tech/config"
NEON_BOUNDS: Final = "autoscaling.neon.tech/bounds"
NEON_VM_NAME: Final = "vm.neon.tech/name"
"""Label of a runner pod: the VirtualMachine that runs in it."""
