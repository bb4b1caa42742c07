"""The devices that a pod asks for, and whether it may ask like that. Source: reference/koordinator.md 2.8.

100 of a resource is a whole device, but for GPU memory, which is bytes. Pods ask by resources, and say in annotations how.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import ConfigDict

from hosting.kubernetes.devices import (
    CORE,
    FPGA,
    GPU,
    MEMORY,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RATIO,
    RDMA,
    SHARED,
    TYPE_OF,
    VENDOR_GPUS,
    WHOLE,
    DeviceType,
)
from hosting.kubernetes.koordinator import SCHEDULING
from hosting.settings import Settings
from protocol import quantities
from scheduler.placing.plugins.base import annotation_of

HINT: Final = f"{SCHEDULING}device-allocate-hint"
JOINT: Final = f"{SCHEDULING}device-joint-allocate"
PARTITION_SPEC: Final = f"{SCHEDULING}gpu-partition-spec"

M = TypeVar("M", bound=Settings)


class TopologyScope(enum.StrEnum):
    """How far apart devices may be that are allocated together, the narrowest first."""

    DEVICE = "Device"
    PCIE = "PCIe"
    NUMA_NODE = "NUMANode"
    NODE = "Node"


class ExclusivePolicy(enum.StrEnum):
    """What must be unused by others: nothing, the device, or every device of its kind at its PCIe switch."""

    NONE = ""
    DEVICE = "DeviceLevel"
    PCIE = "PCIeLevel"


COMBINATIONS: Final = frozenset(
    {
        *(frozenset({name}) for name in (*VENDOR_GPUS, GPU, MEMORY, RATIO, RDMA, FPGA)),
        *(frozenset({core, of}) for core, of in ((CORE, MEMORY), (CORE, RATIO), (NPU_CORE, RATIO))),
        *(frozenset({SHARED, *others}) for others in ((MEMORY,), (RATIO,), (CORE, MEMORY), (CORE, RATIO))),
        frozenset({SHARED, NPU_CORE, NPU_CPU, MEMORY}),
        frozenset({SHARED, NPU_CORE, NPU_CPU, NPU_DVPP, MEMORY}),
    }
)
"""The sets of resources of one kind of device that a pod may ask for."""
_IN_PARTS: Final = (GPU, CORE, RATIO, RDMA, FPGA)


class DeviceNote(Settings):
    """A part of an annotation. As in the published plugin, keys that are not known are left out."""

    model_config = ConfigDict(extra="ignore")


class LabelExpressionEntry(DeviceNote):
    """A line of `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] | None = None


class DeviceSelectorEntry(DeviceNote):
    """Labels of devices."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelExpressionEntry] | None = None


class DeviceHintEntry(DeviceNote):
    """The hint for one kind of device. Its strategy says how many: as the amount says, all that match, or as many as the amount."""

    selector: DeviceSelectorEntry | None = None
    vf_selector: DeviceSelectorEntry | None = None
    allocate_strategy: Literal["", "ApplyForAll", "RequestsAsCount"] | None = None
    required_topology_scope: Literal["", "Device", "PCIe", "NUMANode", "Node"] | None = None
    exclusive_policy: Literal["", "DeviceLevel", "PCIeLevel"] | None = None


class DeviceHintsEntry(DeviceNote):
    """The annotation `device-allocate-hint`."""

    gpu: DeviceHintEntry | None = None
    rdma: DeviceHintEntry | None = None
    fpga: DeviceHintEntry | None = None


class JointAllocationEntry(DeviceNote):
    """The annotation `device-joint-allocate`."""

    device_types: list[Literal["gpu", "rdma", "fpga"]] | None = None
    required_scope: Literal["", "SamePCIe"] | None = None


class GpuPartitionSpecEntry(DeviceNote):
    """The annotation `gpu-partition-spec`; the bandwidth is a quantity of bits per second."""

    allocate_policy: Literal["", "Restricted", "BestEffort"] | None = None
    ring_bus_bandwidth: str | int | float | None = None


class DeviceError(ValueError):
    """A pod asks for devices as nobody may, or an object that describes devices cannot be read."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """So many devices of one kind (0: all that match), and what is needed of each."""

    type: DeviceType
    count: int
    each: Mapping[str, int]
    selector: Mapping[str, Any] = field(default_factory=dict)
    vf_selector: Mapping[str, Any] | None = None
    scope: TopologyScope = TopologyScope.NODE
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE

    @property
    def is_shared(self) -> bool:
        """Whether others may have a part of the same device; always true of memory in bytes."""
        return self.type is DeviceType.GPU and self.each.get(RATIO, 0) < WHOLE


@dataclass(frozen=True, slots=True)
class PodDevices:
    """All that a pod asks for. `joint` are the kinds that belong together, the one that decides first; `is_restricted` and
    `bandwidth` are about partitions of GPUs."""

    requests: tuple[DeviceRequest, ...]
    joint: tuple[DeviceType, ...] = ()
    must_share_pcie: bool = False
    has_partition_spec: bool = False
    is_restricted: bool = False
    bandwidth: int = 0


def pod_devices(requests: Mapping[str, int], annotations: Mapping[str, str]) -> PodDevices | None:
    """The devices that a pod with these requests and annotations needs; None if it needs none. Raises `DeviceError`."""
    by_type: dict[DeviceType, dict[str, int]] = {}
    for name, amount in requests.items():
        if name in TYPE_OF:
            by_type.setdefault(TYPE_OF[name], {})[name] = amount
    if not by_type:
        return None
    hints = _noted(annotations, HINT, DeviceHintsEntry)
    joint = _noted(annotations, JOINT, JointAllocationEntry)
    partition = _noted(annotations, PARTITION_SPEC, GpuPartitionSpecEntry)
    try:
        bits = quantities.parse(str(partition.ring_bus_bandwidth or "0")).value()
    except quantities.QuantityError as error:
        raise DeviceError(f"annotation {PARTITION_SPEC}: ringBusBandwidth: {error}") from None
    return PodDevices(
        tuple(_request(type_, wanted, getattr(hints, type_)) for type_, wanted in sorted(by_type.items())),
        tuple(map(DeviceType, joint.device_types or ())),
        must_share_pcie=joint.required_scope == "SamePCIe",
        has_partition_spec=bool(partition.model_fields_set),
        is_restricted=partition.allocate_policy == "Restricted",
        bandwidth=bits,
    )


def validate(wanted: Mapping[str, int]) -> None:
    """Check the amounts of one kind of device. Raises `DeviceError`."""
    if frozenset(wanted) not in COMBINATIONS:
        raise DeviceError(f"{', '.join(sorted(wanted))} cannot be asked for together, or not without others")
    shares = wanted.get(SHARED, 0)
    for name in _IN_PARTS:
        amount = wanted.get(name, 0)
        if shares and (amount % shares or amount // shares > WHOLE):
            raise DeviceError(
                f"{name}: {amount} for {shares} shares must be the same for each of them, at most {WHOLE}"
            )
        if not shares and amount > WHOLE and amount % WHOLE:
            raise DeviceError(f"{name}: {amount} is above {WHOLE}, and then it must be a multiple of it")
    if shares and NPU_CORE in wanted and shares != 1:
        raise DeviceError(f"{SHARED}: {shares} must be 1 with {NPU_CORE}")
    if wanted.get(NPU_DVPP, 0) > WHOLE:
        raise DeviceError(f"{NPU_DVPP}: {wanted[NPU_DVPP]} must be at most {WHOLE}")


def _request(type_: DeviceType, wanted: Mapping[str, int], noted: DeviceHintEntry | None) -> DeviceRequest:
    validate(wanted)
    hint = noted or DeviceHintEntry()
    exclusive = ExclusivePolicy(hint.exclusive_policy or "")
    count, each = _of_gpus(wanted) if type_ is DeviceType.GPU else _in_parts(wanted)
    if type_ is not DeviceType.GPU and hint.allocate_strategy == "ApplyForAll":
        count = 0
    elif type_ is not DeviceType.GPU and hint.allocate_strategy == "RequestsAsCount":
        (name, count), *_ = wanted.items()
        each = {name: WHOLE if exclusive is ExclusivePolicy.DEVICE else 1}
    return DeviceRequest(
        type_,
        count,
        each,
        _selector(hint.selector) or {},
        _selector(hint.vf_selector),
        TopologyScope(hint.required_topology_scope or TopologyScope.NODE),
        exclusive,
    )


def _selector(noted: DeviceSelectorEntry | None) -> Mapping[str, Any] | None:
    return noted.model_dump(by_alias=True, exclude_none=True) if noted is not None else None


def _of_gpus(wanted: Mapping[str, int]) -> tuple[int, Mapping[str, int]]:
    """How many GPUs, and what of each. `gpu` and the vendors' names mean as much memory as cores."""
    found = {name: amount for name, amount in wanted.items() if name not in {GPU, SHARED, *VENDOR_GPUS}}
    whole = wanted.get(GPU, 0) + sum(WHOLE * wanted.get(name, 0) for name in VENDOR_GPUS)
    if whole:
        found = {CORE: whole, RATIO: whole}
    count = wanted.get(SHARED, 0) or max(found.get(RATIO, 0) // WHOLE, 1)
    return count, {name: amount // count for name, amount in found.items()}


def _in_parts(wanted: Mapping[str, int]) -> tuple[int, Mapping[str, int]]:
    ((name, amount),) = wanted.items()
    return max(amount // WHOLE, 1), {name: min(amount, WHOLE)}


def _noted(annotations: Mapping[str, str], name: str, model: type[M]) -> M:
    try:
        return annotation_of(name, annotations.get(name) or "{}", model)
    except ValueError as error:
        raise DeviceError(str(error)) from None
