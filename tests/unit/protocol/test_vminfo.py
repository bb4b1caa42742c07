"""`VirtualMachine` objects: what is read, and every fault by its place."""

import copy
from typing import Any

import pytest

from protocol import vminfo, wire
from protocol.errors import RemoteProtocolError
from protocol.quantities import parse

VM: dict[str, Any] = {
    "metadata": {"name": "vm-a", "namespace": "default", "labels": {"x": "y"}},
    "spec": {
        "guest": {
            "cpus": {"min": 1, "max": 8, "use": 2},
            "memorySlots": {"min": 2, "max": 32, "use": 8},
            "memorySlotSize": "512Mi",
        }
    },
}


def _with(value: Any, *path: str) -> dict[str, Any]:
    """`VM` with `value` at `path`, or without that key where `value` is ..."""
    changed = copy.deepcopy(VM)
    *parents, last = path
    inner = changed
    for name in parents:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return changed


def _faults(vm: dict[str, Any]) -> list[str]:
    with pytest.raises(RemoteProtocolError) as caught:
        vminfo.extract_vm_info(vm)
    return [fault.path for fault in caught.value.faults]


def test_a_complete_object_is_read() -> None:
    info = vminfo.extract_vm_info(VM)
    assert (info.name, info.namespace, info.always_migrate) == ("vm-a", "default", False)
    assert (info.min(), info.max(), info.using()) == (
        wire.SlotResources(1, 2),
        wire.SlotResources(8, 32),
        wire.SlotResources(2, 8),
    )
    assert info.mem.slot_size == parse("512Mi")


def test_setting_the_use_changes_nothing_else() -> None:
    info = vminfo.extract_vm_info(VM)
    changed = info.with_using(wire.SlotResources(3, 9))
    assert changed.using() == wire.SlotResources(3, 9)
    assert changed.with_using(info.using()) == info
    assert info.using() == wire.SlotResources(2, 8)


@pytest.mark.parametrize("value", ["", "false", "true"])
def test_the_label_counts_whatever_its_value(value: str) -> None:
    label = {vminfo.LABEL_TESTING_ONLY_ALWAYS_MIGRATE: value}
    assert vminfo.extract_vm_info(_with(label, "metadata", "labels")).always_migrate


@pytest.mark.parametrize("metadata", [{}, None, [], "x"])
def test_an_object_without_metadata_has_no_name(metadata: object) -> None:
    info = vminfo.extract_vm_info(_with(metadata, "metadata"))
    assert (info.name, info.namespace, info.always_migrate) == ("", "", False)


@pytest.mark.parametrize("kind", ["cpus", "memorySlots"])
@pytest.mark.parametrize("bound", ["min", "max", "use"])
@pytest.mark.parametrize("value", [..., None, "1", 1.0, True, -1, 65536, [], 10**100])
def test_a_missing_or_wrong_amount_is_named(kind: str, bound: str, value: object) -> None:
    assert _faults(_with(value, "spec", "guest", kind, bound)) == [f".spec.guest.{kind}.{bound}"]


@pytest.mark.parametrize("value", ["", "1GB", "x", True, [], {}, None, float("nan"), float("inf")])
def test_a_wrong_slot_size_is_named(value: object) -> None:
    assert _faults(_with(value, "spec", "guest", "memorySlotSize")) == [".spec.guest.memorySlotSize"]


@pytest.mark.parametrize("value", [1073741824, "1073741824", "1Gi", "1024Mi"])
def test_a_slot_size_is_a_quantity_as_text_or_number(value: object) -> None:
    info = vminfo.extract_vm_info(_with(value, "spec", "guest", "memorySlotSize"))
    assert info.mem.slot_size == parse("1Gi")


@pytest.mark.parametrize("vm", [{}, {"spec": None}, {"spec": []}, {"spec": {"guest": "x"}}])
def test_every_fault_of_an_empty_object_comes_at_once(vm: dict[str, Any]) -> None:
    assert _faults(vm) == [
        f".spec.guest.{kind}.{bound}" for kind in ("cpus", "memorySlots") for bound in ("min", "max", "use")
    ]


@pytest.mark.parametrize(("kind", "use"), [("cpus", 9), ("cpus", 0), ("memorySlots", 33), ("memorySlots", 1)])
def test_a_use_outside_the_bounds_is_refused(kind: str, use: int) -> None:
    assert _faults(_with(use, "spec", "guest", kind, "use")) == [".spec.guest"]
