"""The devices that a pod asks for, and whether it may ask like that. Source: reference/koordinator.md 2.8.

100 of a resource is a whole device, but for GPU memory, which is bytes. Pods ask by resources, and say in annotations how.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from hosting.kubernetes.koordinator import SCHEDULING
from protocol import quantities

KOORDINATOR: Final = "koordinator.sh/"
CORE, MEMORY, RATIO = f"{KOORDINATOR}gpu-core", f"{KOORDINATOR}gpu-memory", f"{KOORDINATOR}gpu-memory-ratio"
GPU, SHARED = f"{KOORDINATOR}gpu", f"{KOORDINATOR}gpu.shared"
RDMA, FPGA = f"{KOORDINATOR}rdma", f"{KOORDINATOR}fpga"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
VENDOR_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
ALLOCATED: Final = f"{SCHEDULING}device-allocated"
HINT: Final = f"{SCHEDULING}device-allocate-hint"
JOINT: Final = f"{SCHEDULING}device-joint-allocate"
PARTITION_SPEC: Final = f"{SCHEDULING}gpu-partition-spec"

WHOLE: Final = 100
E = TypeVar("E", bound=enum.StrEnum)


class DeviceType(enum.StrEnum):
    """The kind of a device."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


class TopologyScope(enum.StrEnum):
    """How far apart devices may be that are allocated together, the narrowest first."""

    DEVICE = "Device"
    PCIE = "PCIe"
    NUMA_NODE = "NUMANode"
    NODE = "Node"


class DeviceStrategy(enum.StrEnum):
    """How many devices: as the amount says, all that match, or as many as the amount."""

    DEFAULT = ""
    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class ExclusivePolicy(enum.StrEnum):
    """What must be unused by others: nothing, the device, or every device of its kind at its PCIe switch."""

    NONE = ""
    DEVICE = "DeviceLevel"
    PCIE = "PCIeLevel"


TYPE_OF: Final[Mapping[str, DeviceType]] = {
    **dict.fromkeys(
        (*VENDOR_GPUS, GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP), DeviceType.GPU
    ),
    RDMA: DeviceType.RDMA,
    FPGA: DeviceType.FPGA,
}
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
    hints, joint, partition = (_noted(annotations, name) for name in (HINT, JOINT, PARTITION_SPEC))
    bandwidth = str(partition.get("ringBusBandwidth") or "0")
    try:
        bits = quantities.parse(bandwidth).value()
    except quantities.QuantityError as error:
        raise DeviceError(f"annotation {PARTITION_SPEC}: ringBusBandwidth: {error}") from None
    return PodDevices(
        tuple(_request(type_, wanted, hints.get(type_)) for type_, wanted in sorted(by_type.items())),
        tuple(_one_of(DeviceType, each, JOINT) for each in joint.get("deviceTypes") or ()),
        must_share_pcie=joint.get("requiredScope") == "SamePCIe",
        has_partition_spec=bool(partition),
        is_restricted=partition.get("allocatePolicy") == "Restricted",
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


def _request(type_: DeviceType, wanted: Mapping[str, int], noted: object) -> DeviceRequest:
    validate(wanted)
    hint: Mapping[str, Any] = noted if isinstance(noted, Mapping) else {}
    exclusive = _one_of(ExclusivePolicy, hint.get("exclusivePolicy") or "", HINT)
    count, each = _of_gpus(wanted) if type_ is DeviceType.GPU else _in_parts(wanted)
    strategy = _one_of(DeviceStrategy, hint.get("allocateStrategy") or "", HINT)
    if type_ is not DeviceType.GPU and strategy is DeviceStrategy.APPLY_FOR_ALL:
        count = 0
    elif type_ is not DeviceType.GPU and strategy is DeviceStrategy.REQUESTS_AS_COUNT:
        (name, count), *_ = wanted.items()
        each = {name: WHOLE if exclusive is ExclusivePolicy.DEVICE else 1}
    return DeviceRequest(
        type_,
        count,
        each,
        hint.get("selector") or {},
        hint.get("vfSelector"),
        _one_of(TopologyScope, hint.get("requiredTopologyScope") or TopologyScope.NODE, HINT),
        exclusive,
    )


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


def _noted(annotations: Mapping[str, str], name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(annotations.get(name) or "{}")
    except ValueError as error:
        raise DeviceError(f"annotation {name} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DeviceError(f"annotation {name} is no JSON object")
    return found


def _one_of(kind: type[E], text: str, where: str) -> E:
    if text not in frozenset(kind):
        raise DeviceError(f"annotation {where}: {text!r} is none of {', '.join(filter(None, kind))}")
    return kind(text)
