"""Describes the VMs of a node by objects of Kubernetes: computes only.

A pod is described by its own labels and annotations and the ScalingPolicy that selects it (`hosting.kubernetes.scaling`), a NeonVM by its
VirtualMachine (`hosting.kubernetes.virtual_machines`) and the pod that it runs in.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from agent.core.model import Vm, VmKind
from agent.core.ports import VmChange, VmDescribed, VmDescription, VmRemoved
from hosting.addresses import endpoint
from hosting.kubernetes import names, objects, pods
from hosting.kubernetes.annotations import Checks, Valid, stays
from hosting.kubernetes.objects import ResourceName
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Scaling, ScalingPolicy, scaling_of
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine, machine_of
from protocol.extension import MAX_PRIORITY, MIN_PRIORITY
from protocol.quantities import QuantityError
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PodName

INFORMANT_PORT: Final = 10301
"""The published port of the informant in a NeonVM."""
_READ: Final = frozenset(
    {
        names.CONFIG,
        names.UNIT,
        names.BOUNDS,
        names.METRICS_PLUGIN,
        names.SUB_PRIORITY,
        names.YIELD,
        names.NEON_CONFIG,
        names.NEON_BOUNDS,
    }
)
"""The annotations that a runner reads. Others are read elsewhere, change with every write, or are not ours."""

_NO_CHECKS: Final[Checks] = MappingProxyType({})

Pods: TypeAlias = Mapping[tuple[str, str], Manifest]
"""Pods by namespace and name."""


@dataclass(frozen=True, slots=True)
class Found:
    """A VM of this node that somebody wants scaled, by its object: a pod, or a VirtualMachine. `scaling` is None for the latter.

    `description` is None while it cannot be scaled: before it runs, if its informant has no address yet, or because of `obstacles`, which
    do not pass by themselves. `faults` name the ignored parts of its annotations. Both are texts for a person. `valid` has the annotations
    that count, for the next look.
    """

    manifest: Manifest
    scaling: Scaling | None = None
    description: VmDescription | None = None
    faults: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    valid: Valid | None = None


Fixed: TypeAlias = Callable[[Manifest, Scaling], Mapping[ResourceName, str]]
"""The resources of a pod of which no container's amount may be changed, and why."""


@dataclass(frozen=True, slots=True)
class AgentChecks:
    """The agent's own checks of the annotations of pods, and of VirtualMachines."""

    of_pods: Checks = field(default_factory=dict)
    of_machines: Checks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts that the descriptions of a node's pods rest on. `room` is the node's allocatable, the maximum of a pod that names none;
    `informant` the URL of the node's informant."""

    room: Resources
    informant: str
    policies: Sequence[ScalingPolicy]
    fixed: Fixed
    checks: Checks = field(default_factory=dict)
    policy_faults: Sequence[tuple[str, str]] = ()
    """Namespaces with the faults of a ScalingPolicy there, which may be that of any pod."""


def room_of(node: Manifest) -> Resources:
    """The amount that the node has for pods. Raises `ValueError` if it does not say."""
    try:
        found = objects.amounts((node.get("status") or {}).get("allocatable"))
    except QuantityError as error:
        raise ValueError(f"the allocatable resources of the node cannot be read: {error}") from None
    if any(found.get(each, 0) <= 0 for each in objects.RESOURCE_NAMES):
        raise ValueError("the node has no allocatable CPU and memory yet")
    return pods.resources(found)


def describe(pod: Manifest, facts: NodeFacts, last: Valid | None = None) -> Found | None:
    """The pod as it is scaled; None if nobody asks for it, and if it ends. A NeonVM's pod is none of its own. `last` has the valid
    annotations of the look before."""
    if _is_ending(pod) or machine_of(pod) is not None:
        return None
    scaling = scaling_of(pod, facts.policies, facts.room, last, facts.checks)
    if scaling is None:
        return None
    obstacles = (*scaling.obstacles, *_unknown(scaling.unknown))
    faults = (
        *scaling.faults,
        *(text for namespace, text in facts.policy_faults if namespace == objects.namespace(pod)),
    )
    found = Found(pod, scaling, None, faults, obstacles, scaling.valid)
    if obstacles:
        return found
    fixed = facts.fixed(pod, scaling)
    texts = tuple(f"{resource} stays as it is: {why}" for resource, why in fixed.items())
    if len(fixed) == len(objects.RESOURCE_NAMES):
        return replace(found, obstacles=texts)
    found = replace(found, faults=(*faults, *texts))
    url = _informant(pod, scaling, facts.informant)
    if url is None or not _is_running(pod):
        return found
    vm = Vm(
        PodName(objects.name(pod), objects.namespace(pod)),
        objects.uid(pod),
        _bounds(pod, scaling.bounds, fixed),
        ComputeUnit(scaling.step),
        scaling.step.memory_bytes,
        VmKind.POD,
        priority=_priority(pod),
    )
    annotations = read_by_runner(scaling.annotations)
    if fixed:  # else the runner would read wider ones there
        annotations.pop(names.BOUNDS, None)
    states = pods.container_states(pod)
    spec = VmDescription(vm, url, annotations, None, scaling.is_tied, containers=states)
    return replace(found, description=spec)


def _bounds(pod: Manifest, bounds: Bounds, fixed: Collection[str]) -> Bounds:
    """The bounds; those of a resource that is fixed are its present amount."""
    stands = pods.target(pod)

    def kept(amount: Resources) -> Resources:
        return Resources(
            stands.vcpu_milli if "cpu" in fixed else amount.vcpu_milli,
            stands.memory_bytes if "memory" in fixed else amount.memory_bytes,
        )

    return Bounds(kept(bounds.min), kept(bounds.max))


def _unknown(names_: Collection[str]) -> tuple[str, ...]:
    return (stays(names_),) if names_ else ()


def describe_machine(
    manifest: Manifest, node: str, pods_of_node: Pods, last: Valid | None = None, checks: Checks = _NO_CHECKS
) -> Found | None:
    """The VirtualMachine as it is scaled; None if nobody asks for it, and if it ends or is on another node. `last` has the valid
    annotations of the look before."""
    try:
        machine = VirtualMachine.read(manifest, last, checks)
    except UnreadableVmError as error:
        status = manifest.get("status")
        is_here = isinstance(status, Mapping) and status.get("node") == node
        is_wanted = objects.labels(manifest).get(names.NEON_ENABLED) == "true"
        return Found(manifest, obstacles=error.faults) if is_here and is_wanted else None
    if not machine.is_enabled or machine.is_terminal or machine.node != node or _is_going(manifest):
        return None
    found = Found(manifest, faults=machine.faults, obstacles=_unknown(machine.unknown), valid=machine.valid)
    pod = pods_of_node.get((machine.namespace, machine.pod_name))
    address = _address(pod) if pod is not None else None
    if found.obstacles or pod is None or address is None or _is_ending(pod) or not _is_running(pod):
        return found
    vm = Vm(
        PodName(machine.pod_name, machine.namespace),
        objects.uid(pod),
        machine.bounds,
        ComputeUnit(Resources(1000, machine.slot_bytes)),
        machine.slot_bytes,
        VmKind.NEONVM,
        machine.name,
        _priority(pod),
    )
    url = f"http://{endpoint(address, INFORMANT_PORT)}"
    return replace(found, description=VmDescription(vm, url, read_by_runner(machine.annotations), None, True))


def read_by_runner(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations that a runner reads: a change of any other is none for it."""
    return {name: text for name, text in annotations.items() if name in _READ}


def _informant(pod: Manifest, scaling: Scaling, of_node: str) -> str | None:
    """The URL of the informant; None while the pod has no address."""
    if scaling.informant_port is None:
        return f"{of_node.rstrip('/')}/pods/{objects.uid(pod)}"
    address = _address(pod)
    return f"http://{endpoint(address, scaling.informant_port)}" if address is not None else None


def _priority(pod: Manifest) -> int:
    """The priority that the pod's class has given it."""
    found = (pod.get("spec") or {}).get("priority")
    return found if isinstance(found, int) and MIN_PRIORITY <= found <= MAX_PRIORITY else 0


def _address(pod: Manifest) -> str | None:
    return (pod.get("status") or {}).get("podIP") or None


def _is_running(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def _is_going(manifest: Manifest) -> bool:
    return "deletionTimestamp" in manifest["metadata"]


def _is_ending(pod: Manifest) -> bool:
    return pods.is_terminal(pod) or _is_going(pod)


def changes_between(
    before: Mapping[str, VmDescription], now: Mapping[str, VmDescription]
) -> Iterator[VmChange]:
    """The changes that turn the VMs of `before` into those of `now`, by their names. A VM made anew ends first."""
    for name, spec in before.items():
        if name not in now or now[name].vm.pod_uid != spec.vm.pod_uid:
            yield VmRemoved(name)
    for name, spec in now.items():
        if before.get(name) != spec:
            yield VmDescribed(spec)
