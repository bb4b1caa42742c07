"""How a pod is mended whose control groups differ from the size that its node tells: by a resize to another size. Pure.

A kubelet that finds a new size while a container is dead writes the container's group at its start, and never the pod's
(docs/decisions/0038-a-dead-container-is-not-resized.md). Any change of the resource while all containers run has it write both. Growth is tried first: a
kubelet shrinks memory only while it knows the use of each container, which it does not for a while after a restart. Of a pod with a dead container the new size
is taken back: in the old one, which the pod's group allows, the container can start.
"""

from agent.core.per_resource import Reasons
from agent.core.state import RunnerState
from protocol.values import Resources


def mended(wanted: Resources, why: Reasons, state: RunnerState, now_s: float) -> tuple[Resources, Reasons]:
    """The size to want, and why: a step more than the target of each resource that differs, as far as the VM's maximum allows."""
    link, most = state.backend, state.vm.bounds.max
    if link.observation is None or link.containers.waits or not link.is_mending_due(now_s):
        return wanted, why
    more = (link.observation.target + _steps(state)).min(most)
    text = f"another size mends its control groups: {link.containers.mismatch}"
    cpu, memory = _is_behind(state)
    return Resources(
        max(wanted.vcpu_milli, more.vcpu_milli) if cpu else wanted.vcpu_milli,
        max(wanted.memory_bytes, more.memory_bytes) if memory else wanted.memory_bytes,
    ), Reasons(text if cpu else why.cpu, text if memory else why.memory)


def taken_back(state: RunnerState, now_s: float) -> Resources | None:
    """The size to which a pod with a dead container is resized: the amount that its own group allows; None if that is no less than its
    target."""
    link = state.backend
    assert link.observation is not None, "before the first look"
    size, target = link.observation.size, link.observation.target
    is_less = size != target and size.fits_in(target) and size.is_positive()
    return size if is_less and link.is_mending_due(now_s) else None


def lower(state: RunnerState, target: Resources) -> Resources:
    """The target with a step less of each resource that differs, but not below the VM's minimum; for a VM that cannot grow."""
    return (target - _steps(state)).max(state.vm.bounds.min.min(target))


def _steps(state: RunnerState) -> Resources:
    step, (cpu, memory) = state.unit.step, _is_behind(state)
    return Resources(step.vcpu_milli if cpu else 0, step.memory_bytes if memory else 0)


def _is_behind(state: RunnerState) -> tuple[bool, bool]:
    """Which resources are to change; those of a tied VM change together."""
    behind = state.backend.containers.mismatched
    return ("cpu" in behind, "memory" in behind) if state.unit.is_apart else (True, True)
