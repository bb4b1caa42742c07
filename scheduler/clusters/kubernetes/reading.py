"""What objects of Kubernetes are to the scheduler: computes only.

A pod on a node is either scaled, and then a VM of the ledger, or another pod that holds what kube-scheduler counts for it. A pod in
which a NeonVM runs is described by its VirtualMachine. Whatever cannot be read counts as the whole node, so that nothing grows
beside it, and is told as a fault.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import ScalingPolicy, scaling_of
from hosting.kubernetes.virtual_machines import VirtualMachine
from protocol.values import ZERO, Resources
from protocol.wire import PodName
from scheduler.core.model import Migration, NodeSpec, PodSpec, VmSpec

MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What reading an object raises that is not as the API says."""


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
    """What a pod is, what is wrong with it, as texts for a person, and the ScalingPolicy and the VirtualMachine that count for it.

    `is_old` says that the pod cannot be read now, and that this is what it was before."""

    found: Found
    faults: tuple[str, ...] = ()
    policy: str | None = None
    machine: str | None = None
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the description of a pod rests on beside the pod itself. `room` is its node's allocatable, None where the node is not
    known; `policies` are those of its namespace. `machine` is the VirtualMachine that its label names (`machine_name`), None where
    there is none; `machine_fault` says why that cannot be read."""

    room: Resources | None
    policies: Sequence[ScalingPolicy] = ()
    machine_name: str | None = None
    machine: VirtualMachine | None = None
    machine_fault: str = ""


def node_of(manifest: Manifest) -> NodeSpec:
    """A node. Raises one of `MALFORMED`."""
    found = objects.amounts((manifest.get("status") or {}).get("allocatable"))
    return NodeSpec(objects.name(manifest), pods.resources(found).max(ZERO))


def node_name(pod: Manifest) -> str:
    """The node of a pod; empty while it has none."""
    spec = pod.get("spec")
    return str(spec.get("nodeName") or "") if isinstance(spec, Mapping) else ""


def describe(pod: Manifest, around: Surroundings) -> Description:
    """What a pod with a node is. Raises one of `MALFORMED` where that cannot be told."""
    if around.machine_fault:
        raise ValueError(around.machine_fault)
    if around.machine_name is not None:
        return _in_machine(pod, around.machine_name, around.machine)
    room = around.room if around.room is not None else pods.holds(pod)
    scaling = scaling_of(pod, around.policies, room) if room.is_positive() else None
    if scaling is None:
        return Description(_other(pod))
    faults = (*scaling.obstacles, *scaling.faults)
    if scaling.obstacles:
        return Description(_other(pod), faults, scaling.policy)
    spec = VmSpec(
        _name(pod),
        objects.uid(pod),
        node_name(pod),
        scaling.bounds,
        scaling.step.memory_bytes,
        scaling.step,
        Migration.NEVER,
        scaling.pool,
        pods.is_terminal(pod),
        _labels(pod),
        is_tied=bool(scaling.is_tied),
        reservation=_reservation(pod),
    )
    return Description(FoundVm(spec, pods.size(pod), pods.target(pod)), faults, scaling.policy)


def unreadable(pod: Manifest, room: Resources | None) -> FoundPod:
    """A pod with a node of which nothing more can be told: it counts as all that the node has."""
    return FoundPod(PodSpec(_name(pod), objects.uid(pod), node_name(pod), room if room is not None else ZERO))


def _in_machine(pod: Manifest, name: str, machine: VirtualMachine | None) -> Description:
    """A pod that a NeonVM is in, moves to, or has left."""
    if machine is None:
        faults = (f"there is no VirtualMachine {name}",)
        return Description(_other(pod), faults, machine=name)
    if not machine.is_enabled or machine.pod_name != objects.name(pod):
        return Description(_other(pod, machine.holds), machine=name)
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
    )
    size = machine.size if machine.size is not None else machine.target
    return Description(FoundVm(spec, size, machine.target), machine.faults, machine=name)


def _other(pod: Manifest, at_least: Resources = ZERO) -> FoundPod:
    has_ended = pods.is_terminal(pod)
    held = pods.target(pod) if has_ended else pods.holds(pod).max(at_least)
    spec = PodSpec(_name(pod), objects.uid(pod), node_name(pod), held, has_ended, _reservation(pod))
    return FoundPod(spec)


def _reservation(pod: Manifest) -> str | None:
    return objects.annotations(pod).get(names.RESERVATION) or None


def _name(pod: Manifest) -> PodName:
    return PodName(objects.name(pod), objects.namespace(pod))


def _labels(pod: Manifest) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(objects.labels(pod).items()))
