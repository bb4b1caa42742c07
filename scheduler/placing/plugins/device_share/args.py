"""The args of `DeviceShare`, with the published names, defaults and ranges."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hosting.kubernetes.devices import FPGA, MEMORY, RATIO, RDMA, TYPE_OF
from hosting.settings import Settings
from scheduler.placing.plugins.base import PublishedArgs


class DeviceWeight(Settings):
    """How much a resource counts in the score of devices."""

    name: str
    """The resource."""
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """Its part of the score, against that of the others."""


def _published() -> list[DeviceWeight]:
    return [DeviceWeight(name=name) for name in (RATIO, MEMORY, RDMA, FPGA)]


class DeviceScoringStrategy(Settings):
    """How nodes and devices are scored."""

    type: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    """Whether devices that are used less score higher, or those that are used more."""
    resources: Annotated[list[DeviceWeight], Field(min_length=1)] = Field(default_factory=_published)

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for index, each in enumerate(found.get("resources", ())):
            if each.name not in TYPE_OF:
                yield f"resources.{index}.name", f"must be a resource of devices, not {each.name}"


class UnsupportedModel(Settings):
    """GPUs of which no pod may have a share."""

    vendor: str
    """As the label `node.koordinator.sh/gpu-vendor` of the Device says."""
    model: str
    """As the label `node.koordinator.sh/gpu-model` says."""


class DeviceShareArgs(PublishedArgs):
    """The args."""

    scoring_strategy: DeviceScoringStrategy = Field(default_factory=DeviceScoringStrategy)
    disable_device_numa_topology_alignment: bool = Field(False, alias="disableDeviceNUMATopologyAlignment")
    """Whether devices have no say in which NUMA nodes a pod gets where a NUMA policy holds."""
    gpu_share_unsupported_models: list[UnsupportedModel] = Field(default_factory=list)
    """GPUs of which no pod may have a share, by vendor and model."""
    gpu_shared_resource_templates_config: dict[str, Any] | None = None
    """Accepted, without effect: there are no templates, and shares are as the Device says."""
