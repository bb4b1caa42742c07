"""The size of a pod: the amounts in its spec, those that its node has allocated, and those in force.

A pod's size, as agent and scheduler count it, is the sum of the *requests* of its containers, with sidecars and overhead:
they take up the node's room. Source: reference/kubernetes.md 4.2.

A resize is done when the node has allocated the amounts of the spec and all of them are in force, limits included: only then are size
and target equal. A memory limit that the node cannot lower shows in `actual_limits` alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

from hosting.kubernetes.objects import RESOURCE_NAMES, ResourceName, amounts, condition
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO, Resources

PENDING: Final = "PodResizePending"
IN_PROGRESS: Final = "PodResizeInProgress"
INFEASIBLE: Final = "Infeasible"
DEFERRED: Final = "Deferred"
ERROR: Final = "Error"


@dataclass(frozen=True, slots=True)
class ContainerSize:
    """A container or sidecar, its amounts by resource; those that it leaves open are left out.

    `allocated` are the requests that the node reserves, `actual` those in force; None if the node has not told. `restarts` are
    the resources whose change restarts the container.
    """

    name: str
    is_sidecar: bool
    requests: Mapping[ResourceName, int]
    limits: Mapping[ResourceName, int]
    allocated: Mapping[ResourceName, int] | None
    actual: Mapping[ResourceName, int] | None
    actual_limits: Mapping[ResourceName, int] | None
    restarts: frozenset[ResourceName]

    def size(self) -> Resources:
        """The amounts that the node has given the container and may not have taken back yet."""
        return Resources(self._given("cpu"), self._given("memory"))

    def _given(self, resource: ResourceName) -> int:
        """While one word of the node is above the spec, the largest of them; else the smallest, so that only a resize that is done equals
        the spec."""
        wanted = self.requests.get(resource, 0)
        told = list(self._told(resource, wanted))
        if not told or not wanted:
            return wanted
        return max(told) if max(told) > wanted else min(told)

    def _told(self, resource: ResourceName, wanted: int) -> Iterator[int]:
        """The node's figures of a resource, as requests; a limit in force counts in the ratio of the spec."""
        if self.allocated is not None:
            yield self.allocated.get(resource, 0)
        if self.actual is not None:
            yield self.actual.get(resource, 0)
        limit, shown = self.limits.get(resource), (self.actual_limits or {}).get(resource)
        if (
            limit and shown
        ):  # rounded away from the spec, so that another limit never looks like the wanted one
            yield -(-wanted * shown // limit) if shown > limit else wanted * shown // limit

    def applied(self) -> Resources:
        """The amount that kube-scheduler counts beside the spec: the larger of allocated and actual requests; the spec, if the node has
        told neither."""
        told = [found for found in (self.allocated, self.actual) if found is not None]
        if not told:
            return resources(self.requests)
        return reduce(Resources.max, map(resources, told))


def resources(found: Mapping[ResourceName, int]) -> Resources:
    """An amount with zero for resources that are left open."""
    return Resources(found.get("cpu", 0), found.get("memory", 0))


def containers(pod: Manifest) -> tuple[ContainerSize, ...]:
    """The containers and sidecars of a pod, in the order of its spec. Raises `QuantityError`."""
    spec, status = pod["spec"], pod.get("status") or {}
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    told = {
        each.get("name"): each
        for key in ("containerStatuses", "initContainerStatuses")
        for each in status.get(key) or ()
    }
    return tuple(
        _container(each, told.get(each["name"], {}), is_sidecar=is_sidecar)
        for found, is_sidecar in ((spec.get("containers") or (), False), (sidecars, True))
        for each in found
    )


def _container(spec: Manifest, status: Manifest, *, is_sidecar: bool) -> ContainerSize:
    written = spec.get("resources") or {}
    limits = amounts(written.get("limits"))
    shown = status.get("resources")
    allocated = status.get("allocatedResources")
    policies = {
        each.get("resourceName"): each.get("restartPolicy") for each in spec.get("resizePolicy") or ()
    }
    return ContainerSize(
        name=str(spec["name"]),
        is_sidecar=is_sidecar,
        requests=limits | amounts(written.get("requests")),
        limits=limits,
        allocated=None if allocated is None else amounts(allocated),
        actual=None if shown is None else amounts(shown.get("limits")) | amounts(shown.get("requests")),
        actual_limits=None if shown is None else amounts(shown.get("limits")),
        restarts=frozenset(each for each in RESOURCE_NAMES if policies.get(each) == "RestartContainer"),
    )


def container_statuses(pod: Manifest) -> Iterator[tuple[str, Manifest]]:
    """The node's status of each container that is no init container, by name."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        yield str(each.get("name")), each


def container_states(pod: Manifest) -> tuple[str, ...]:
    """Each container with its identity and state: differs once one has died or was started."""
    return tuple(
        f"{name} {status.get('containerID') or ''} {next(iter(status.get('state') or {}), '')}"
        for name, status in container_statuses(pod)
    )


def target(pod: Manifest) -> Resources:
    """The amount that the spec asks for. Raises `QuantityError`."""
    return sum((resources(each.requests) for each in containers(pod)), _overhead(pod))


def size(pod: Manifest) -> Resources:
    """The amount that the node has given the pod and may not have taken back yet. Raises `QuantityError`."""
    return sum((each.size() for each in containers(pod)), _overhead(pod))


def generation(pod: Manifest) -> int:
    """The number of its spec: every change of the spec raises it."""
    return int(pod["metadata"].get("generation") or 0)


def is_known_to_node(pod: Manifest) -> bool:
    """Whether the status speaks of the present spec. Before that the node may still carry out an earlier one."""
    return int((pod.get("status") or {}).get("observedGeneration") or 0) >= generation(pod)


def refusal(pod: Manifest) -> str | None:
    """Why the node does not carry out the present spec, for a person; None if it does, or has not said. A refusal of an earlier
    spec does not count."""
    for type_, reasons in ((PENDING, {DEFERRED, INFEASIBLE}), (IN_PROGRESS, {ERROR})):
        found = condition(pod, type_)
        if found is None or found.get("status") != "True" or found.get("reason") not in reasons:
            continue
        status = pod.get("status") or {}
        about = found.get("observedGeneration") or status.get("observedGeneration") or 0
        if int(about) >= generation(pod):
            return f"{found['reason']}: {found.get('message') or 'the node says no more'}"
    return None


def holds(pod: Manifest) -> Resources:
    """The amount that kube-scheduler counts for a pod: containers and sidecars, or the largest init container with the sidecars before it;
    the largest of spec, allocated and actual, without the spec if a resize is infeasible. Raises `QuantityError`."""
    if is_terminal(pod):
        return ZERO
    spec = pod["spec"]
    pending = condition(pod, PENDING)
    is_infeasible = pending is not None and pending.get("reason") == INFEASIBLE
    running = ZERO
    for each in containers(pod):
        running += each.applied() if is_infeasible else each.applied().max(resources(each.requests))
    whole = amounts((spec.get("resources") or {}).get("requests"))
    most = running.max(_peak(pod))
    return Resources(whole.get("cpu", most.vcpu_milli), whole.get("memory", most.memory_bytes)) + _overhead(
        pod
    )


def requests_of(pod: Manifest, size: Resources) -> Resources:
    """The amount that kube-scheduler would count for the pod if it were made anew with that size: not less than it needs while it starts.
    Raises `QuantityError`."""
    return size.max(_peak(pod) + _overhead(pod))


def limits(pod: Manifest) -> dict[ResourceName, int]:
    """The limits of the whole pod, as the kubelet sets them on its cgroup; a resource that some container leaves open has none.
    Raises `QuantityError`. Source: `ResourceConfigForPod` of Kubernetes 1.35."""
    starting = list(_while_starting(pod, "limits"))
    running = [each.limits for each in containers(pod)]
    whole = amounts((pod["spec"].get("resources") or {}).get("limits"))
    overhead = amounts(pod["spec"].get("overhead"))
    found: dict[ResourceName, int] = {}
    for name in RESOURCE_NAMES:
        amount = whole.get(name)
        if not amount and all(each.get(name) for each in (*running, *starting)):
            amount = max(sum(each[name] for each in running), *(each[name] for each in starting), 0)
        if amount:
            found[name] = amount + overhead.get(name, 0)
    return found


def _peak(pod: Manifest) -> Resources:
    """The most that the pod asks for while its init containers run."""
    return reduce(Resources.max, (resources(each) for each in _while_starting(pod, "requests")), ZERO)


def _while_starting(
    pod: Manifest, key: Literal["requests", "limits"]
) -> Iterator[Mapping[ResourceName, int]]:
    """The amounts that the pod asks for while each init container runs, the sidecars before it included."""
    sidecars: dict[ResourceName, int] = {}
    for each in pod["spec"].get("initContainers") or ():
        size = _container(each, {}, is_sidecar=True)
        own = size.requests if key == "requests" else size.limits
        together = {
            name: sidecars.get(name, 0) + own.get(name, 0)
            for name in RESOURCE_NAMES
            if name in sidecars or name in own
        }
        if each.get("restartPolicy") == "Always":
            sidecars = together
        yield together


def is_terminal(pod: Manifest) -> bool:
    """Whether all its containers have ended for good, so that it holds nothing."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _overhead(pod: Manifest) -> Resources:
    return resources(amounts(pod["spec"].get("overhead")))
