"""The types of objects that are read and written, their paths, and the kinds of patches (content types)."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from hosting.kubernetes import names

Manifest: TypeAlias = dict[str, Any]
"""An object of the API as its JSON says it."""


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A type of objects, e.g. `v1/pods`. `group` is empty for the core."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As an object's `apiVersion` names it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The path of all objects, of those of a namespace, or of one object or its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.is_namespaced and namespace else ""
        one = f"/{name}" if name else ""
        return f"{root}{scope}/{self.plural}{one}" + (f"/{subresource}" if subresource else "")


PODS: Final = ResourceType("", "v1", "pods", "Pod")
NODES: Final = ResourceType("", "v1", "nodes", "Node", is_namespaced=False)
CONFIG_MAPS: Final = ResourceType("", "v1", "configmaps", "ConfigMap")
SECRETS: Final = ResourceType("", "v1", "secrets", "Secret")
LIMIT_RANGES: Final = ResourceType("", "v1", "limitranges", "LimitRange")
RESOURCE_QUOTAS: Final = ResourceType("", "v1", "resourcequotas", "ResourceQuota")
LEASES: Final = ResourceType("coordination.k8s.io", "v1", "leases", "Lease")
ENDPOINT_SLICES: Final = ResourceType("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
EVENTS: Final = ResourceType("events.k8s.io", "v1", "events", "Event")
VERTICAL_POD_AUTOSCALERS: Final = ResourceType(
    "autoscaling.k8s.io", "v1", "verticalpodautoscalers", "VerticalPodAutoscaler"
)
VIRTUAL_MACHINES: Final = ResourceType("vm.neon.tech", "v1", "virtualmachines", "VirtualMachine")
MIGRATIONS: Final = ResourceType("vm.neon.tech", "v1", "virtualmachinemigrations", "VirtualMachineMigration")
POOLS: Final = ResourceType(names.GROUP, names.VERSION, "pools", "Pool", is_namespaced=False)
RESERVATIONS: Final = ResourceType(
    names.GROUP, names.VERSION, "reservations", "Reservation", is_namespaced=False
)
SCALING_POLICIES: Final = ResourceType(names.GROUP, names.VERSION, "scalingpolicies", "ScalingPolicy")


MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
