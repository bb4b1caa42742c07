"""The fields of a NeonVM `VirtualMachine` object that the scheduler and the agent need. Source: seed 004."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import field
from msgspec.structs import replace

from protocol import quantities, wire
from protocol.errors import Fault, RemoteProtocolError
from protocol.fields import UINT16_MAX, Uint16, WireQuantity
from protocol.wire import SlotResources

LABEL_TESTING_ONLY_ALWAYS_MIGRATE: Final = "autoscaler/testing-only-always-migrate"
"""A VM with this label, with any value, is always chosen for migration. Source: seed 004."""


class VmCpuInfo(wire.Message, frozen=True):
    """vCPUs: bounds and use. Source: seed 004."""

    min: Uint16
    max: Uint16
    use: Uint16


class VmMemInfo(wire.Message, frozen=True):
    """Memory slots: bounds and use, and the size of one slot in bytes. Source: seed 004."""

    min: Uint16
    max: Uint16
    use: Uint16
    slot_size: WireQuantity = field(name="slotSize")


class VmInfo(wire.Message, frozen=True):
    """The part of a `VirtualMachine` that scaling needs. Source: seed 004."""

    name: str
    namespace: str
    cpu: VmCpuInfo
    mem: VmMemInfo
    always_migrate: bool = field(name="alwaysMigrate")

    def min(self) -> SlotResources:
        """The least that the VM must have. Source: seed 004, Min."""
        return SlotResources(self.cpu.min, self.mem.min)

    def max(self) -> SlotResources:
        """The most that the VM may have. Source: seed 004, Max."""
        return SlotResources(self.cpu.max, self.mem.max)

    def using(self) -> SlotResources:
        """The amounts that the VM uses. Source: seed 004, Using."""
        return SlotResources(self.cpu.use, self.mem.use)

    def with_using(self, use: SlotResources) -> "VmInfo":
        """The same VM using `use`. Source: seed 004, SetUsing (values are frozen here)."""
        return replace(self, cpu=replace(self.cpu, use=use.vcpu), mem=replace(self.mem, use=use.mem))


def extract_vm_info(vm: Mapping[str, Any]) -> VmInfo:
    """The `VmInfo` of a `VirtualMachine` object as the API server gives it.

    Raises `RemoteProtocolError` naming every field that is missing or wrong, or when the use lies outside the bounds.
    Source: seed 004, ExtractVmInfo.
    """
    faults: list[Fault] = []
    metadata, guest = _mapping(vm, "metadata"), _mapping(_mapping(vm, "spec"), "guest")
    cpu = _amounts(guest, "cpus", faults)
    mem = _amounts(guest, "memorySlots", faults)
    slot_size = quantities.Quantity(0)
    try:
        slot_size = quantities.parse(str(guest.get("memorySlotSize", "0")))
    except quantities.QuantityError as error:
        faults.append(Fault(".spec.guest.memorySlotSize", str(error)))
    if faults:
        raise RemoteProtocolError("bad VirtualMachine", tuple(faults))
    always_migrate = LABEL_TESTING_ONLY_ALWAYS_MIGRATE in _mapping(metadata, "labels")
    info = VmInfo(
        str(metadata.get("name", "")),
        str(metadata.get("namespace", "")),
        VmCpuInfo(*cpu),
        VmMemInfo(*mem, slot_size),
        always_migrate,
    )
    _check_use(info)
    return info


def _check_use(info: VmInfo) -> None:
    use = Fault(".spec.guest", f"the use must lie within {info.min()} and {info.max()}", str(info.using()))
    if info.using().has_field_greater_than(info.max()) or info.using().has_field_less_than(info.min()):
        raise RemoteProtocolError("bad VirtualMachine", (use,))


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    child = parent.get(key)
    return child if isinstance(child, Mapping) else {}


def _amounts(guest: Mapping[str, Any], key: str, faults: list[Fault]) -> tuple[int, int, int]:
    found = _mapping(guest, key)
    result = [0, 0, 0]
    for index, name in enumerate(("min", "max", "use")):
        amount = found.get(name)
        path = f".spec.guest.{key}.{name}"
        if amount is None:
            faults.append(Fault(path, "must be set"))
        elif type(amount) is not int or not 0 <= amount <= UINT16_MAX:
            faults.append(Fault(path, f"must be a whole number, 0 to {UINT16_MAX}", repr(amount)[:40]))
        else:
            result[index] = amount
    return result[0], result[1], result[2]
