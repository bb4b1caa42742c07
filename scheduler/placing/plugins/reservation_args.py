"""The args of `Reservation`. Source: reference/koordinator.md 2.6."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from hosting.settings import Settings
from scheduler.placing.plugins.base import PublishedArgs


class PreAllocationConfigArgs(Settings):
    """Read, and without an effect: only pods that match the owners are waited for."""

    enable_cluster_mode: bool = False
    """No effect."""
    cluster_label_key: str = "pod.koordinator.sh/is-pre-allocatable"
    """No effect."""
    cluster_priority_annotation_key: str = "pod.koordinator.sh/pre-allocatable-priority"
    """No effect."""
    prefer_no_pre_allocated_pods: bool = False
    """No effect."""


class SelectorIndexArgs(Settings):
    """Read, and without an effect: reservations are looked for by their node."""

    enabled: bool = False
    """No effect."""
    key_prefixes: list[str] = Field(default_factory=list)
    """No effect."""
    keys: list[str] = Field(default_factory=list)
    """No effect."""


class ReservationArgs(PublishedArgs):
    """The args of `Reservation`. Those that have no effect here are read, so that a published configuration is taken as it is."""

    enable_preemption: bool = False
    """No effect: who preempts is not told by reservations."""
    min_candidate_nodes_percentage: Annotated[int, Field(ge=0, le=100)] = 10
    """No effect without preemption."""
    min_candidate_nodes_absolute: Annotated[int, Field(ge=0)] = 100
    """No effect without preemption."""
    controller_workers: Annotated[int, Field(ge=1)] = 1
    """No effect: one task does it."""
    gc_duration_seconds: Annotated[int, Field(ge=0)] = 86_400
    """So long after its end a published Reservation is deleted."""
    gc_interval_seconds: Annotated[int, Field(ge=1)] = 60
    """How often those that have ended are looked for."""
    resync_interval_seconds: Annotated[int, Field(ge=0)] = 60
    """No effect: changes are followed."""
    disable_garbage_collection: bool = False
    """Reservations that have ended stay."""
    pre_allocation_config: PreAllocationConfigArgs = Field(default_factory=PreAllocationConfigArgs)
    ignored_resources: list[str] = Field(default_factory=list)
    """Names of extended resources that reservations do not keep."""
    ignored_resource_groups: list[str] = Field(default_factory=list)
    """The parts before the slash of names that reservations do not keep."""
    reservation_selector_index: SelectorIndexArgs = Field(default_factory=SelectorIndexArgs)

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names without a prefix are those of native resources, such as `cpu`, `pods` and `hugepages-2Mi`."""
        yield from super().rules(found)
        for name in found.get("ignored_resources") or ():
            group, slash, rest = name.partition("/")
            if not (group and slash and rest) or group == "kubernetes.io":
                yield "ignoredResources", f"{name!r} is not the name of an extended resource"
        for group in found.get("ignored_resource_groups") or ():
            if not group or "/" in group or group == "kubernetes.io":
                yield "ignoredResourceGroups", f"{group!r} is not the group of extended resources"
