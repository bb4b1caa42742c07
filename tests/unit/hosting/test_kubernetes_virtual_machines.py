"""VirtualMachine objects: which fields of which release say what, and what is said of those that are wrong."""

from typing import Any

import pytest

from hosting.kubernetes import names
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine, as_cpus, machine_of
from protocol.values import ZERO, Bounds, Resources
from tests.support.amounts import GIB

SMALL = '{"min": {"cpu": 0.25, "mem": "1Gi"}, "max": {"cpu": 1.25, "mem": "5Gi"}}'
OURS = '{"max": {"cpu": "2", "memory": "2Gi"}}'


def machine(
    cpus: dict[str, Any] | None = None,
    *,
    slots: dict[str, Any] | None = None,
    slot: str | None = "1Gi",
    status: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A VirtualMachine of 1 to 4 CPUs and 1 to 8 slots, with 2 of each."""
    guest: dict[str, Any] = {
        "cpus": {"min": 1, "max": 4, "use": 2} if cpus is None else cpus,
        "memorySlots": {"min": 1, "max": 8, "use": 2} if slots is None else slots,
    }
    return {
        "metadata": {
            "namespace": "default",
            "name": "vm-a",
            "uid": "uid-of-vm-a",
            "resourceVersion": "7",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": {"guest": guest | ({"memorySlotSize": slot} if slot is not None else {})},
        "status": status or {},
    }


def test_a_vm_that_runs_says_where_and_how_large_it_is() -> None:
    status = {"phase": "Running", "podName": "vm-a-x", "node": "node-a", "cpus": 1, "memorySize": "4Gi"}
    found = VirtualMachine.read(machine(status=status, labels={names.POOL: "gold"}))
    assert (found.namespace, found.name, found.uid, found.version) == ("default", "vm-a", "uid-of-vm-a", "7")
    assert (found.pod_name, found.node, found.phase, found.pool) == ("vm-a-x", "node-a", "Running", "gold")
    assert (found.size, found.target) == (Resources(1000, 4 * GIB), Resources(2000, 2 * GIB))
    assert found.bounds == found.limits == Bounds(Resources(1000, GIB), Resources(4000, 8 * GIB))
    assert (found.slot_bytes, found.faults) == (GIB, ())


@pytest.mark.parametrize(
    ("manifest", "size", "target"),
    [
        pytest.param(
            machine(
                {"min": "250m", "max": "1.25", "use": "500m"}, status={"cpus": "250m", "memorySize": "1Gi"}
            ),
            Resources(250, GIB),
            Resources(500, 2 * GIB),
            id="later releases: quantities of CPU",
        ),
        pytest.param(
            machine({"min": 0.25, "max": 2, "use": 0.5}, status={"cpus": 0.5, "memorySize": 2**31}),
            Resources(500, 2 * GIB),
            Resources(500, 2 * GIB),
            id="plain numbers",
        ),
        pytest.param(machine(slot=None), None, Resources(2000, 2 * GIB), id="no slot: that of the CRD"),
        pytest.param(machine(slot="512Mi"), None, Resources(2000, GIB), id="a slot of its own"),
        pytest.param(machine(status={"cpus": 2}), None, Resources(2000, 2 * GIB), id="half a size is none"),
        pytest.param(
            machine({"min": 1, "max": 4, "use": 6}),
            None,
            Resources(6000, 2 * GIB),
            id="a use beyond the bounds",
        ),
    ],
)
def test_old_and_new_fields_are_read(
    manifest: dict[str, Any], size: Resources | None, target: Resources
) -> None:
    found = VirtualMachine.read(manifest)
    assert (found.size, found.target) == (size, target)


@pytest.mark.parametrize(
    ("status", "holds"),
    [
        ({}, Resources(2000, 2 * GIB)),
        ({"phase": "Running", "cpus": 3, "memorySize": "1Gi"}, Resources(3000, 2 * GIB)),
        ({"phase": "Migrating", "cpus": 2, "memorySize": "3Gi"}, Resources(2000, 3 * GIB)),
        ({"phase": "Failed", "cpus": 3, "memorySize": "3Gi"}, ZERO),
    ],
)
def test_it_holds_the_larger_of_size_and_target_until_it_has_ended(
    status: dict[str, Any], holds: Resources
) -> None:
    assert VirtualMachine.read(machine(status=status)).holds == holds


@pytest.mark.parametrize(
    ("annotations", "bounds", "fault"),
    [
        (
            {names.NEON_BOUNDS: SMALL},
            Bounds(Resources(1000, GIB), Resources(1250, 5 * GIB)),
            "becomes 1 CPU / 1Gi to",
        ),
        (
            {names.BOUNDS: '{"min": {"memory": "1536Mi"}, "max": {"memory": "3000Mi"}}'},
            Bounds(Resources(1000, 2 * GIB), Resources(4000, 2 * GIB)),
            "whole memory slots",
        ),
        ({names.BOUNDS: OURS}, Bounds(Resources(1000, GIB), Resources(2000, 2 * GIB)), ""),
        (
            {names.BOUNDS: OURS, names.NEON_BOUNDS: SMALL},
            Bounds(Resources(1000, GIB), Resources(2000, 2 * GIB)),
            "",
        ),
        (
            {names.NEON_BOUNDS: SMALL.replace("5Gi", "5G")},
            Bounds(Resources(1000, GIB), Resources(4000, 8 * GIB)),
            "max.mem: must be a multiple of the memory slot",
        ),
    ],
)
def test_bounds_of_annotations_hold_within_those_of_the_spec(
    annotations: dict[str, str], bounds: Bounds, fault: str
) -> None:
    found = VirtualMachine.read(machine(annotations=annotations))
    assert found.bounds == bounds
    assert fault in "\n".join(found.faults)
    assert bool(fault) is bool(found.faults)


@pytest.mark.parametrize(
    ("unit", "step", "fault"),
    [
        (None, None, ""),
        ('{"cpu": "250m"}', Resources(250, GIB), ""),
        ('{"cpu": "500m", "memory": "2Gi"}', Resources(500, 2 * GIB), ""),
        ('{"memory": "512Mi"}', None, "parley.dev/unit: memory: must be a multiple of the memory slot"),
    ],
)
def test_steps_are_whole_slots(unit: str | None, step: Resources | None, fault: str) -> None:
    found = VirtualMachine.read(machine(annotations={} if unit is None else {names.UNIT: unit}))
    assert (found.step, len(found.faults)) == (step, int(bool(fault)))
    assert fault in "".join(found.faults)


@pytest.mark.parametrize(
    ("labels", "is_enabled", "migration"),
    [
        ({}, False, "never"),
        ({names.NEON_ENABLED: "true"}, True, "never"),
        ({names.NEON_ENABLED: "yes"}, False, "never"),
        ({"autoscaling.neon.tech/auto-migration-enabled": "true"}, False, "auto"),
        ({"autoscaling.neon.tech/testing-only-always-migrate": "true"}, False, "always"),
        ({"autoscaling.neon.tech/testing-only-always-migrate": "false"}, False, "never"),
        ({"autoscaler/testing-only-always-migrate": ""}, False, "always"),
    ],
)
def test_labels_say_whether_it_is_scaled_and_may_move(
    labels: dict[str, str], is_enabled: bool, migration: str
) -> None:
    found = VirtualMachine.read(machine(labels=labels))
    assert (found.is_enabled, found.migration) == (is_enabled, migration)


@pytest.mark.parametrize(
    ("manifest", "faults"),
    [
        (
            {"metadata": machine()["metadata"], "spec": None},
            ["spec.guest.cpus.min: must be set", "spec.guest.memorySlots.use: must be set"],
        ),
        (
            machine({"min": "1Q", "max": -1, "use": True}, slots={"min": "1", "max": 70_000, "use": 1}),
            [
                "spec.guest.cpus.min: '1Q' is not a quantity",
                "spec.guest.cpus.max: must be a number of CPUs (found -1)",
                "spec.guest.cpus.use: 'True' is not a quantity",
                "spec.guest.memorySlots.min: must be a number of slots (found 1)",
                "spec.guest.memorySlots.max: must be a number of slots (found 70000)",
            ],
        ),
        (machine(slot="0"), ["spec.guest.memorySlotSize: must be an amount of memory (found 0)"]),
        (machine({"min": 0, "max": 1, "use": 1}), ["spec.guest: bounds: min must be above zero"]),
        (
            machine({"min": 3, "max": 1, "use": 1}),
            ["spec.guest: bounds: min (3 CPU / 1Gi) must not exceed max"],
        ),
        (
            machine(status={"cpus": "two", "memorySize": "-1"}),
            ["status.cpus: 'two' is not", "status.memorySize: must be an amount of memory"],
        ),
    ],
)
def test_every_field_at_fault_is_named(manifest: dict[str, Any], faults: list[str]) -> None:
    with pytest.raises(UnreadableVmError) as caught:
        VirtualMachine.read(manifest)
    for fault in faults:
        assert any(found.startswith(fault) for found in caught.value.faults), caught.value.faults


def test_a_runner_pod_names_its_vm() -> None:
    assert machine_of({"metadata": {"name": "p", "labels": {names.NEON_VM_NAME: "vm-a"}}}) == "vm-a"
    assert machine_of({"metadata": {"name": "p"}}) is None


def test_cpus_are_written_as_all_releases_read_them() -> None:
    assert [as_cpus(each) for each in (1000, 250, 2500, 12000)] == [1, "250m", "2500m", 12]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({names.BOUNDS: OURS}, {names.BOUNDS: '{"max": {"memory": "lots"}}'}),
        ({names.NEON_BOUNDS: SMALL}, {names.NEON_BOUNDS: SMALL.replace("5Gi", "5G")}),
        ({names.UNIT: '{"cpu": "250m"}'}, {names.UNIT: '{"memory": "512Mi"}'}),
    ],
    ids=["bounds", "published bounds", "steps"],
)
def test_an_annotation_with_faults_keeps_its_last_valid_value(
    good: dict[str, str], bad: dict[str, str]
) -> None:
    before = VirtualMachine.read(machine(annotations=good))
    found = VirtualMachine.read(machine(annotations=bad), before.valid)
    assert (found.bounds, found.step) == (before.bounds, before.step)
    assert (found.unknown, found.valid, before.valid) == ((), good, good)
    assert found.faults
    assert VirtualMachine.read(machine(annotations=bad)).unknown == tuple(bad)


def test_a_misspelt_annotation_of_a_machine_is_told() -> None:
    found = VirtualMachine.read(machine(annotations={"parley.dev/unot": "{}"}))
    assert (found.unknown, found.faults) == (
        (),
        ("parley.dev/unot: there is no such annotation, perhaps parley.dev/unit is meant",),
    )
