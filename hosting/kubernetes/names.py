"""Labels, annotations and group that Parley gives a meaning to. docs/kubernetes.md tells users of them."""

from typing import Final

GROUP: Final = "parley.dev"
VERSION: Final = "v1alpha1"

ENABLED: Final = "parley.dev/enabled"
"""Label of a pod: "true" has it scaled, "false" keeps it from being scaled whatever a ScalingPolicy says."""
POOL: Final = "parley.dev/pool"
"""Label of a pod or VM: the pool that it belongs to."""
ROLE: Final = "parley.dev/role"
"""Label of a scheduler's pod: LEADER on the one that leads; the Service selects it."""
LEADER: Final = "leader"

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
EVICT: Final = "parley.dev/evict-when-stuck"
"""Annotation: "true" lets a pod be evicted that was denied what it needs for long."""

NEON_ENABLED: Final = "autoscaling.neon.tech/enabled"
"""Label of a VirtualMachine: "true" has it scaled. Source: reference/neon.md 6.2."""
NEON_CONFIG: Final = "autoscaling.neon.tech/config"
NEON_BOUNDS: Final = "autoscaling.neon.tech/bounds"
NEON_VM_NAME: Final = "vm.neon.tech/name"
"""Label of a runner pod: the VirtualMachine that runs in it."""
