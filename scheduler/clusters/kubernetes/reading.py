"""The meaning of Kubernetes objects for the scheduler: computes only.

A pod on a node is either scaled, and then a VM of the ledger, or another pod that holds what kube-scheduler counts for it. A pod in
which a NeonVM runs is described by its VirtualMachine. A pod that cannot be read counts as the whole node, so that nothing
grows beside it, and is told as a fault.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.annotations import Valid
from hosting.kubernetes.koordinator import cpus_told
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import ScalingPolicy, pool_of, scaling_of
from hosting.kubernetes.virtual_machines import VirtualMachine
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Migration, NodeSpec, PodSpec, VmSpec
from scheduler.permits.core.rules import is_listed
from scheduler.placing.plugins.published_reservations import ALLOCATED, allocated_uid

MALFORMED: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
"""The errors raised by the reading of an object that is not as the API says."""


_KEEPING_OFF: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True)
class FoundVm:
    """A pod that is scaled: its row in the ledger, and its size and target as the cluster shows them."""

    spec: VmSpec
    size: Resources
    target: Resources


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod that is not scaled."""

    spec: PodSpec


Found: TypeAlias = FoundVm | FoundPod


@dataclass(frozen=True, slots=True)
class Description:
    """A pod as it was found, its faults as texts for a person, and the ScalingPolicy and the VirtualMachine that count for it.

    `vm_pod` is the pod that this VirtualMachine is in, if that is another one. `is_old` says that the pod cannot be read now, and that
    this is its earlier description. `valid` is the part of the pod's annotations that counts, for the next look."""

    found: Found
    faults: tuple[str, ...] = ()
    policy: str | None = None
    machine: str | None = None
    is_old: bool = False
    vm_pod: str | None = None
    valid: Valid | None = None


@dataclass(frozen=True, slots=True)
class PodContext:
    """The inputs of a pod's description beside the pod itself. `room` is its node's allocatable, None if the node is not known;
    `policies` are those of its namespace; `last` is the earlier valid part of its annotations. `machine` is the VirtualMachine that its
    label names (`machine_name`), None if there is none; `machine_fault` says why that cannot be read, `machine_holds` what it keeps all
    the same, if that can be told. `is_served` is a VirtualMachine that a published agent may serve. `placeholders_in` is the namespace of
    placeholders."""

    room: Resources | None
    policies: Sequence[ScalingPolicy] = ()
    machine_name: str | None = None
    machine: VirtualMachine | None = None
    machine_fault: str = ""
    machine_holds: Resources | None = None
    is_served: bool = False
    last: Valid | None = None
    placeholders_in: str = ""


def is_served_by_published(
    globs: tuple[str, ...], scheduler_name: str | None, machine: VirtualMachine, node: str
) -> bool:
    """Whether a published agent may serve a VirtualMachine: on the nodes of `globs`, and by its scheduler's name, which is any if
    ours has none. Published agents know no label for that."""
    return is_listed(globs, node) and scheduler_name in (None, machine.scheduler_name)


def node_of(manifest: Manifest) -> NodeSpec:
    """A node. Raises one of `MALFORMED`."""
    found = objects.amounts((manifest.get("status") or {}).get("allocatable"))
    return NodeSpec(objects.name(manifest), pods.resources(found).max(ZERO), taints=taints(manifest))


def taints(node: Manifest) -> tuple[str, ...]:
    """The taints that keep pods off a node, `KEY=VALUE:EFFECT`, in a fixed order. A node that takes no pods has one of its own."""
    spec = node.get("spec") or {}
    found = {
        f"{each['key']}={each.get('value') or ''}:{each['effect']}"
        for each in spec.get("taints") or ()
        if each["effect"] in _KEEPING_OFF
    }
    if spec.get("unschedulable"):
        found.add(f"{_UNSCHEDULABLE}=:NoSchedule")
    return tuple(sorted(found))


def node_name(pod: Manifest) -> str:
    """The node of a pod; empty while it has none."""
    spec = pod.get("spec")
    return str(spec.get("nodeName") or "") if isinstance(spec, Mapping) else ""


def describe(pod: Manifest, around: PodContext) -> Description:
    """The description of a pod with a node. Raises one of `MALFORMED` if it cannot be told."""
    if is_placeholder(pod, around.placeholders_in):
        return Description(FoundPod(PodSpec(_name(pod), objects.uid(pod), node_name(pod), ZERO)))
    if around.machine_fault:
        raise ValueError(around.machine_fault)
    if around.machine_name is not None:
        return _in_machine(pod, around.machine_name, around.machine, is_served=around.is_served)
    room = around.room if around.room is not None else pods.holds(pod)
    scaling = scaling_of(pod, around.policies, room, around.last) if room.is_positive() else None
    pool = pool_of(pod, around.policies)
    if scaling is None:
        return Description(_other(pod, pool=pool))
    faults = (*scaling.obstacles, *scaling.faults)
    if scaling.obstacles:
        return Description(_other(pod, pool=pool), faults, scaling.policy, valid=scaling.valid)
    bounds = _on_its_cpus(pod, scaling.bounds)
    spec = VmSpec(
        _name(pod),
        objects.uid(pod),
        node_name(pod),
        bounds,
        scaling.step.memory_bytes,
        scaling.step,
        Migration.NEVER,
        pool,
        pods.is_terminal(pod),
        _labels(pod),
        is_tied=bool(scaling.is_tied),
        reservation=_reservation(pod),
        unknown_settings=scaling.unknown,
        declared_vcpu_milli=scaling.bounds.max.vcpu_milli if bounds is not scaling.bounds else None,
    )
    found = FoundVm(spec, pods.size(pod), pods.target(pod))
    return Description(found, faults, scaling.policy, valid=scaling.valid)


def _on_its_cpus(pod: Manifest, bounds: Bounds) -> Bounds:
    """The bounds of a pod that was given CPUs of its own: no permit makes them more."""
    cpu_milli = 1000 * len(cpus_told(objects.annotations(pod)).cpus)
    if not cpu_milli or bounds.max.vcpu_milli <= cpu_milli:
        return bounds
    most = Resources(cpu_milli, bounds.max.memory_bytes)
    return Bounds(bounds.min.min(most), most)


def is_placeholder(pod: Manifest, namespace: str) -> bool:
    """Whether a pod is a placeholder of the scheduler in `namespace`: it goes as soon as it has a node, and holds nothing that anybody could miss.
    In other namespaces the label has no meaning: else its writer would get room that nobody counts."""
    return objects.namespace(pod) == namespace and objects.labels(pod).get(names.PLACEHOLDER) == "true"


def unreadable(pod: Manifest, room: Resources | None, in_machine: Resources | None = None) -> FoundPod:
    """A pod with a node of which nothing more can be told: it counts as all that the node has; as what its VirtualMachine keeps, if
    that is known."""
    if in_machine is not None:
        with suppress(*MALFORMED):
            return _other(pod, in_machine)
    return FoundPod(PodSpec(_name(pod), objects.uid(pod), node_name(pod), room if room is not None else ZERO))


def _in_machine(pod: Manifest, name: str, machine: VirtualMachine | None, *, is_served: bool) -> Description:
    """A pod that a NeonVM is in, moves to, or has left."""
    if machine is None:
        faults = (f"there is no VirtualMachine {name}",)
        return Description(_other(pod), faults, machine=name)
    if machine.pod_name != objects.name(pod):  # its pool counts the pod that has the VM
        return Description(_other(pod, machine.holds), machine=name, vm_pod=machine.pod_name or None)
    if not (machine.is_enabled or (is_served and not machine.is_disabled)):
        return Description(_other(pod, machine.holds, machine.pool), machine=name)
    spec = VmSpec(
        _name(pod),
        objects.uid(pod),
        node_name(pod),
        machine.bounds,
        machine.slot_bytes,
        machine.step,
        Migration(machine.migration),
        machine.pool,
        machine.is_terminal or pods.is_terminal(pod),
        tuple(sorted(machine.labels.items())),
        is_tied=True,
        reservation=_reservation(pod),
        unknown_settings=machine.unknown,
    )
    size = machine.size if machine.size is not None else machine.target
    return Description(FoundVm(spec, size, machine.target), machine.faults, machine=name)


def _other(pod: Manifest, at_least: Resources = ZERO, pool: str | None = None) -> FoundPod:
    has_ended = pods.is_terminal(pod)
    held = pods.target(pod) if has_ended else pods.holds(pod).max(at_least)
    spec = PodSpec(_name(pod), objects.uid(pod), node_name(pod), held, has_ended, _reservation(pod), pool)
    return FoundPod(spec)


def _reservation(pod: Manifest) -> str | None:
    annotations = objects.annotations(pod)
    return annotations.get(names.RESERVATION) or allocated_uid(annotations.get(ALLOCATED))


def _name(pod: Manifest) -> PodName:
    return PodName(objects.name(pod), objects.namespace(pod))


def _labels(pod: Manifest) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(objects.labels(pod).items()))
