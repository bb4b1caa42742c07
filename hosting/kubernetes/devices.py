"""Devices of nodes: the resources by which pods ask for them, and the annotation that tells a pod which ones it has.

100 of a resource is a whole device, but for GPU memory, which is bytes, and for the vendors' names, which count GPUs.
Source: reference/koordinator.md 2.8.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hosting.kubernetes.koordinator import SCHEDULING
from protocol import quantities

KOORDINATOR: Final = "koordinator.sh/"
CORE, MEMORY, RATIO = f"{KOORDINATOR}gpu-core", f"{KOORDINATOR}gpu-memory", f"{KOORDINATOR}gpu-memory-ratio"
GPU, SHARED = f"{KOORDINATOR}gpu", f"{KOORDINATOR}gpu.shared"
RDMA, FPGA = f"{KOORDINATOR}rdma", f"{KOORDINATOR}fpga"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
VENDOR_GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
ALLOCATED: Final = f"{SCHEDULING}device-allocated"
"""Annotation of a pod, JSON by type: its devices."""
WHOLE: Final = 100


class DeviceType(enum.StrEnum):
    """The kind of a device."""

    GPU = "gpu"
    RDMA = "rdma"
    FPGA = "fpga"


TYPE_OF: Final[Mapping[str, DeviceType]] = {
    **dict.fromkeys(
        (*VENDOR_GPUS, GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP), DeviceType.GPU
    ),
    RDMA: DeviceType.RDMA,
    FPGA: DeviceType.FPGA,
}


class DeviceKey(NamedTuple):
    """A device of a node."""

    type: DeviceType
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """The part of one device that a pod has."""

    type: DeviceType
    minor: int
    resources: Mapping[str, int]
    id: str = ""
    vfs: tuple[str, ...] = ()

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.type, self.minor)


Grants = tuple[DeviceGrant, ...]


def written_grants(grants: Grants) -> str:
    """The grants of a pod as its annotation has them, JSON by type."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in grants:
        one: dict[str, Any] = {
            "minor": each.minor,
            "resources": {name: str(amount) for name, amount in sorted(each.resources.items())},
        }
        if each.id:
            one["id"] = each.id
        if each.vfs:
            one["extension"] = {"vfs": [{"busID": bus} for bus in each.vfs]}
        found.setdefault(str(each.type), []).append(one)
    return json.dumps(found, separators=(",", ":"))


def read_grants(text: str) -> Grants:
    """The grants of a pod's annotation; none of one that cannot be read, or that this scheduler does not know. Negative amounts count
    as 0."""
    try:
        return tuple(
            DeviceGrant(
                DeviceType(type_),
                int(each["minor"]),
                {
                    name: max(quantities.parse(str(amount)).value(), 0)
                    for name, amount in each["resources"].items()
                },
                str(each.get("id") or ""),
                tuple(str(vf["busID"]) for vf in (each.get("extension") or {}).get("vfs") or ()),
            )
            for type_, granted in json.loads(text or "{}").items()
            if type_ in frozenset(DeviceType)
            for each in granted
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return ()
