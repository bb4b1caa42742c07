"""The content of a VirtualMachine object of NeonVM: its bounds, its size and target, its node, whether it is scaled and may move.

Agent and scheduler read these objects alike. CPUs are read as whole numbers, as v0.1.13 wrote them, and as quantities such as
"250m", as later releases write them; memory is in whole slots of `memorySlotSize`. Source: reference/neon.md 2.5, 6.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from hosting.kubernetes import annotations, names, objects
from hosting.kubernetes.annotations import Check, Checks, Valid, misspelt, settle
from hosting.kubernetes.resources import VIRTUAL_MACHINES, Manifest
from protocol import quantities
from protocol.fields import UINT16_MAX
from protocol.values import MAX_MEMORY_BYTES, MAX_VCPU_MILLI, ZERO, Bounds, Resources
from protocol.vminfo import LABEL_TESTING_ONLY_ALWAYS_MIGRATE

DEFAULT_SLOT: Final = "1Gi"
"""The memory slot of an object that names none, as its CRD has it."""
ALWAYS_MIGRATE: Final = "autoscaling.neon.tech/testing-only-always-migrate"
"""Label of later releases; v0.1.13 has another name for it, and any value counts there."""
AUTO_MIGRATION: Final = "autoscaling.neon.tech/auto-migration-enabled"
"""Label of later releases: "true" lets the scheduler migrate the VM."""

Migrating: TypeAlias = Literal["auto", "always", "never"]
"""Whether the scheduler may choose the VM to leave its node; the values of its settings."""


class UnreadableVmError(ValueError):
    """A VirtualMachine cannot be scaled, because fields are missing or wrong. `faults` are texts for a person. `holds` is the amount of its
    node that it keeps all the same; None if that cannot be told."""

    def __init__(self, faults: tuple[str, ...], holds: Resources | None) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults
        self.holds = holds


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """A VirtualMachine.

    `pod_name` is the runner pod that the VM is in now; empty before there is one. So is `node`. `size` is the amount that the VM has,
    None until its status tells; `target` is the amount that its spec asks for, which may lie outside the bounds. `bounds` are the
    effective ones: those of the annotations, within those of the spec (`limits`). `step` are the steps of growth, None if
    the VM names none of its own. `faults` are texts about ignored parts. `unknown` and `valid` are as in `Settled`: while any is
    unknown, the VM keeps its size.
    """

    namespace: str
    name: str
    uid: str
    version: str
    pod_name: str
    node: str
    phase: str
    scheduler_name: str
    limits: Bounds
    bounds: Bounds
    slot_bytes: int
    step: Resources | None
    size: Resources | None
    target: Resources
    is_enabled: bool
    is_disabled: bool
    migration: Migrating
    pool: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    faults: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    valid: Valid | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether the VM has ended for good, so that it holds nothing."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def holds(self) -> Resources:
        """The amount of its node that the VM keeps: the larger of size and target.

        While the VM migrates, the pod that it moves to keeps the same of the other node.
        """
        return ZERO if self.is_terminal else (self.size or ZERO).max(self.target)

    @classmethod
    def read(
        cls, manifest: Manifest, last: Valid | None = None, more: Checks = MappingProxyType({})
    ) -> "VirtualMachine":
        """Raises `UnreadableVmError` with every fault, if the size, the bounds or the target cannot be known.

        `last` has the valid annotations of the look before. `more` are checks beside those that all readers have.
        """
        guest, status = _mapping(_mapping(manifest, "spec"), "guest"), _mapping(manifest, "status")
        wrong: list[str] = []
        slot = _amount(guest, "memorySlotSize", "spec.guest", wrong, default=DEFAULT_SLOT)
        cpus = [
            _milli(_mapping(guest, "cpus"), key, "spec.guest.cpus", wrong) for key in ("min", "max", "use")
        ]
        slots = [
            _count(_mapping(guest, "memorySlots"), key, "spec.guest.memorySlots", wrong) * slot
            for key in ("min", "max", "use")
        ]
        size = _size(status, wrong)
        if wrong:
            raise UnreadableVmError(tuple(wrong), _holds(guest, status))
        least, most, target = (Resources(cpu, memory) for cpu, memory in zip(cpus, slots, strict=True))
        try:
            limits = Bounds(least, most)
        except ValueError as error:
            raise UnreadableVmError((f"spec.guest: {error}",), _holds(guest, status)) from None
        settled = settle(objects.annotations(manifest), {**_checks(limits, slot), **more}, last)
        labels, found = objects.labels(manifest), settled.annotations
        faults = [*settled.faults, *misspelt(manifest)]
        return cls(
            namespace=objects.namespace(manifest),
            name=objects.name(manifest),
            uid=objects.uid(manifest),
            version=objects.version(manifest),
            pod_name=str(status.get("podName") or ""),
            node=str(status.get("node") or ""),
            phase=str(status.get("phase") or ""),
            scheduler_name=str(_mapping(manifest, "spec").get("schedulerName") or ""),
            limits=limits,
            bounds=bounds_of(found, limits, slot, faults) or limits,
            slot_bytes=slot,
            step=step_of(found, Resources(1000, slot), slot, faults),
            size=size,
            target=target,
            is_enabled=labels.get(names.NEON_ENABLED) == "true",
            is_disabled=labels.get(names.NEON_ENABLED) == "false",
            migration=_migration(labels),
            pool=labels.get(names.POOL),
            labels=labels,
            annotations=found,
            faults=tuple(faults),
            unknown=settled.unknown,
            valid=settled.valid,
        )


def _checks(limits: Bounds, slot_bytes: int) -> dict[str, Check]:
    """The checks of agent and scheduler. That bounds are made narrower is no fault of theirs."""

    def neon_bounds(found: Mapping[str, str], faults: list[str]) -> None:
        if annotations.bounds(found, limits, []) is None:  # else they are not read
            annotations.neon_bounds(found, slot_bytes, faults)

    base = Resources(1000, slot_bytes)
    return {
        names.BOUNDS: lambda found, faults: annotations.bounds(found, limits, faults),
        names.NEON_BOUNDS: neon_bounds,
        names.UNIT: lambda found, faults: step_of(found, base, slot_bytes, faults),
    }


def bounds_of(
    found: Mapping[str, object], limits: Bounds, slot_bytes: int, faults: list[str]
) -> Bounds | None:
    """The bounds that a VM's annotations give it; None if they say nothing usable.

    Our annotation goes before the published one. Neither leads beyond `limits`, which the API server enforces. Bounds that are no whole
    number of slots are made narrower.
    """
    said = annotations.bounds(found, limits, faults)
    if said is None:
        said = annotations.neon_bounds(found, slot_bytes, faults)
    if said is None:
        return None
    least, most = limits.clamp(said.min), limits.clamp(said.max)
    up, down = -(-least.memory_bytes // slot_bytes), most.memory_bytes // slot_bytes
    within = Bounds(
        Resources(least.vcpu_milli, min(up, down) * slot_bytes), Resources(most.vcpu_milli, down * slot_bytes)
    )
    if within != said:
        faults.append(
            f"bounds: {said.min} to {said.max} becomes {within.min} to {within.max}: whole memory slots within spec.guest"
        )
    return within


def step_of(
    found: Mapping[str, object], base: Resources, slot_bytes: int, faults: list[str]
) -> Resources | None:
    """The steps of growth that a VM's annotations give it, in whole slots; None if they say nothing usable."""
    said = annotations.step(found, base, faults)
    if said is not None and said.memory_bytes % slot_bytes:
        faults.append(f"{names.UNIT}: memory: must be a multiple of the memory slot, {slot_bytes} bytes")
        return None
    return said


def machine_of(pod: Manifest) -> str | None:
    """The name of the VirtualMachine, in the pod's namespace, whose runner pod this is, by its label or its owner; None for any other.

    While a VM migrates, and for a moment afterwards, two pods name it: `VirtualMachine.pod_name` says which one has it.
    """
    return objects.labels(pod).get(names.NEON_VM_NAME) or objects.owner(pod, VIRTUAL_MACHINES)


def as_cpus(vcpu_milli: int) -> int | str:
    """CPUs as a VirtualMachine says them: a number if they are whole, which all releases read, else a quantity."""
    return vcpu_milli // 1000 if vcpu_milli % 1000 == 0 else f"{vcpu_milli}m"


def _size(status: Mapping[str, Any], wrong: list[str]) -> Resources | None:
    """The size in the status; None if it leaves CPU or memory open, as before the VM runs."""
    if status.get("cpus") is None or status.get("memorySize") is None:
        return None
    return Resources(
        _milli(status, "cpus", "status", wrong), _amount(status, "memorySize", "status", wrong, least=0)
    )


def _holds(guest: Mapping[str, Any], status: Mapping[str, Any]) -> Resources | None:
    """The larger of size and target, as far as they are given; None if the size is missing, or if either is wrong."""
    wrong: list[str] = []
    size, cpu, memory = _size(status, wrong), 0, 0
    cpus, slots = _mapping(guest, "cpus"), _mapping(guest, "memorySlots")
    if cpus.get("use") is not None:
        cpu = _milli(cpus, "use", "", wrong)
    if slots.get("use") is not None:
        slot = _amount(guest, "memorySlotSize", "", wrong, default=DEFAULT_SLOT)
        memory = _count(slots, "use", "", wrong) * slot
    return None if wrong or size is None else size.max(Resources(cpu, memory))


def _migration(labels: Mapping[str, str]) -> Migrating:
    if LABEL_TESTING_ONLY_ALWAYS_MIGRATE in labels or labels.get(ALWAYS_MIGRATE) == "true":
        return "always"
    return "auto" if labels.get(AUTO_MIGRATION) == "true" else "never"


def _mapping(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    child = parent.get(key)
    return child if isinstance(child, Mapping) else {}


def _milli(parent: Mapping[str, Any], key: str, path: str, wrong: list[str]) -> int:
    quantity = _quantity(parent, key, path, wrong)
    if quantity is None:
        return 0
    millis = quantity.milli_value()
    if not 0 <= millis <= MAX_VCPU_MILLI:
        wrong.append(f"{path}.{key}: must be a number of CPUs (found {annotations.short(parent.get(key))})")
    return millis


def _amount(
    parent: Mapping[str, Any],
    key: str,
    path: str,
    wrong: list[str],
    *,
    default: str | None = None,
    least: int = 1,
) -> int:
    quantity = _quantity({key: default, **parent}, key, path, wrong)
    if quantity is None:
        return 0
    if not least <= quantity.value() <= MAX_MEMORY_BYTES // UINT16_MAX:
        wrong.append(
            f"{path}.{key}: must be an amount of memory (found {annotations.short(parent.get(key))})"
        )
    return quantity.value()


def _count(parent: Mapping[str, Any], key: str, path: str, wrong: list[str]) -> int:
    found = parent.get(key)
    if found is None:
        wrong.append(f"{path}.{key}: must be set")
        return 0
    if type(found) is not int or not 0 <= found <= UINT16_MAX:
        wrong.append(f"{path}.{key}: must be a number of slots (found {annotations.short(found)})")
        return 0
    return found


def _quantity(parent: Mapping[str, Any], key: str, path: str, wrong: list[str]) -> quantities.Quantity | None:
    found = parent.get(key)
    if found is None:
        wrong.append(f"{path}.{key}: must be set")
        return None
    try:
        return quantities.parse(str(found))
    except quantities.QuantityError as error:
        wrong.append(f"{path}.{key}: {error}")
        return None
