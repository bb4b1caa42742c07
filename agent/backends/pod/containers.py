"""The containers of a pod by its object and its control groups: which of them run, how they ended, and the amounts that they may really
use; and the division of a pod's target among them. Pure.

The containers that are scaled share the amount that the others leave, by their declared weights, else in proportion to their requests. The
parts add up to the target exactly: each is rounded down to a whole milli-CPU or byte, and the largest remainders get one more. A limit
keeps its ratio to the request, rounded to the nearest; an equal limit stays equal and a larger one larger, so that the QoS class stays.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent.core.model import ContainersSeen
from hosting.kubernetes import objects, pods
from hosting.kubernetes.objects import RESOURCE_NAMES, ResourceName
from hosting.kubernetes.pods import ContainerSize
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Share
from protocol import quantities
from protocol.informant_pages import GroupAllowance, PodCgroups
from protocol.values import ZERO, Observation, Resources

LEAST: Final[Mapping[ResourceName, int]] = {"cpu": 10, "memory": 8 * 1024**2}
"""Below it (milli-CPU, bytes) a container is not shrunk: kernels round smaller CPU limits, and runtimes need some memory."""


class NotDivisibleError(Exception):
    """The pod cannot have that target, however it is divided. The text is for a person."""


@dataclass(frozen=True, slots=True)
class DivisionRules:
    """How one pod may be divided: the declared weights (none: by the requests), and whether containers may be restarted."""

    shares: Mapping[str, Share] = field(default_factory=dict)
    may_restart: bool = False

    def scaled(self, pod: Manifest, resource: ResourceName) -> list[ContainerSize]:
        return [each for each in pods.containers(pod) if not self.why_fixed(each, resource)]

    def names(self, pod: Manifest) -> frozenset[str]:
        """The containers of which any amount may change."""
        return frozenset(each.name for resource in RESOURCE_NAMES for each in self.scaled(pod, resource))

    def why_fixed(self, container: ContainerSize, resource: ResourceName) -> str:
        """Why a container keeps its amount of a resource; empty if the container is scaled."""
        if container.is_sidecar:
            return "it is a sidecar"
        if not container.requests.get(resource):
            return f"it requests no {resource}"
        if self.shares and not self.weight(container, resource):
            return f"it has no share of {resource}"
        if resource in container.restarts and not self.may_restart:
            return f"its resizePolicy restarts it for {resource} (annotation parley.dev/restart: allowed permits that)"
        return ""

    def weight(self, container: ContainerSize, resource: ResourceName) -> int:
        """How much of the resource the container gets beside the others."""
        if not self.shares:
            return container.requests.get(resource, 0)
        share = self.shares.get(container.name)
        if share is None:
            return 0
        return share.cpu if resource == "cpu" else share.memory


def resize_patch(pod: Manifest, target: Resources, rules: DivisionRules) -> Manifest:
    """The strategic merge patch of `pods/resize` that gives the pod `target`. Raises `NotDivisibleError`, `QuantityError`."""
    changes: dict[str, dict[str, dict[str, str]]] = {}
    parts = zip(RESOURCE_NAMES, target.named(), pods.target(pod).named(), strict=True)
    for resource, (_, wanted), (_, stands) in parts:
        if wanted == stands:
            continue
        scaled = rules.scaled(pod, resource)
        for container, amount in zip(
            scaled, _divided(pod, scaled, resource, wanted - stands, rules), strict=True
        ):
            of = changes.setdefault(container.name, {"requests": {}})
            of["requests"][resource] = _written(amount, resource)
            if resource in container.limits:
                limit = limit_for(container.requests[resource], container.limits[resource], amount)
                of.setdefault("limits", {})[resource] = _written(limit, resource)
    return {
        "spec": {"containers": [{"name": name, "resources": found} for name, found in changes.items()]},
    }


def _divided(
    pod: Manifest, scaled: Sequence[ContainerSize], resource: ResourceName, more: int, rules: DivisionRules
) -> list[int]:
    """The new requests of the scaled containers, which get `more` together (or less, if that is negative)."""
    if not scaled:
        found = ((each.name, rules.why_fixed(each, resource)) for each in pods.containers(pod))
        why = "; ".join(f"{name}: {text}" for name, text in found if text)
        raise NotDivisibleError(f"no container's {resource} may change: {why}")
    stands = [each.requests[resource] for each in scaled]
    weights = [rules.weight(each, resource) for each in scaled]
    least = [min(LEAST[resource], amount) for amount in stands]
    budget = sum(stands) + more
    if budget < sum(least):
        raise NotDivisibleError(
            f"the containers that are scaled would have {_written(max(budget, 0), resource)} of {resource} together, "
            f"and need {_written(sum(least), resource)}"
        )
    return divided(budget, weights, least)


def divided(budget: int, weights: Sequence[int], least: Sequence[int]) -> list[int]:
    """`budget` in proportion to `weights`, each part at least its `least`, which fit in the budget together. Exact in sum."""
    raised: set[int] = set()
    while True:
        free = [index for index in range(len(weights)) if index not in raised]
        rest, total = budget - sum(least[index] for index in raised), sum(weights[index] for index in free)
        low = {index for index in free if rest * weights[index] < least[index] * total}
        if not low:
            break
        raised |= low
    parts = [
        least[index] if index in raised else rest * weights[index] // total for index in range(len(weights))
    ]
    by_remainder = sorted(free, key=lambda index: (-(rest * weights[index] % total), index))
    for index in by_remainder[: budget - sum(parts)]:
        parts[index] += 1
    return parts


def limit_for(request: int, limit: int, new_request: int) -> int:
    """The limit that has the ratio to `new_request` that `limit` has to `request`."""
    if limit <= request:
        return new_request
    return max(new_request + 1, (2 * limit * new_request + request) // (2 * request))


def _written(amount: int, resource: ResourceName) -> str:
    quantity = (
        quantities.from_milli(amount) if resource == "cpu" else quantities.from_value(amount, binary=True)
    )
    return quantity.canonical()


@dataclass(frozen=True, slots=True)
class KnownPod:
    """The latest reading of a pod, and the amounts that earlier specs may still bring.

    `replaced` is the most that the pod may come to have by specs that were replaced before the node has told of the present one; nothing,
    once it has.
    """

    pod: Manifest
    replaced: Resources = ZERO

    def then(self, pod: Manifest) -> "KnownPod":
        """After another reading, which may have begun earlier."""
        if pods.generation(pod) < pods.generation(self.pod):
            return self
        if pods.is_known_to_node(pod):
            return KnownPod(pod)
        if pods.generation(pod) == pods.generation(self.pod):
            return KnownPod(pod, self.replaced)
        return KnownPod(pod, self.replaced.max(self.seen(0.0).use))

    def seen(self, begun_s: float) -> Observation:
        """The look that this reading is. Raises `QuantityError`."""
        size, target = pods.size(self.pod).max(self.replaced), pods.target(self.pod)
        refusal = pods.refusal(self.pod) if size != target else None
        return Observation(size, target, begun_s, refusal or why_never(self.pod))


def why_not_now(pod: Manifest) -> str | None:
    """Why the pod cannot be resized at present, for a person; None if it can."""
    if pod["metadata"].get("deletionTimestamp"):
        return "the pod is being deleted"
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return None if phase == "Running" else f"the pod is {phase}, not Running"


def why_never(pod: Manifest) -> str | None:
    """Why the pod cannot be resized as it is, for a person; None if it can."""
    status = pod.get("status") or {}
    if (pod["spec"].get("resources") or {}).get("requests") or (pod["spec"].get("resources") or {}).get(
        "limits"
    ):
        return "the pod has resources of its own (spec.resources), which are not scaled"
    if "kubernetes.io/config.mirror" in objects.annotations(pod):
        return "a static pod cannot be resized"
    if status.get("qosClass") == "BestEffort":
        return "the pod is BestEffort: none of its containers has a request, and the QoS class cannot change"
    if status.get("phase") == "Running" and not status.get("observedGeneration"):
        return "the node does not tell which spec it knows (status.observedGeneration): Kubernetes 1.34 or newer is needed"
    return None


DEAD: Final = ("waiting", "terminated")
MIB: Final = 2**20
ROUNDING_BYTES: Final = 2**16
"""The kernel counts memory in whole pages."""
ROUNDING_SHARE: Final = 100
"""A CPU limit is a whole number of microseconds in each period: less than this part of it is rounded."""


def seen(pod: Manifest, scaled: Collection[str]) -> ContainersSeen:
    """The containers by the pod's status; `scaled` are the names of the containers that are resized."""
    dead, ends, last, restarts = [], [], "", 0
    for name, status in pods.container_statuses(pod):
        restarts += int(status.get("restartCount") or 0)
        found = list(_ends(status))
        ends += [(str(each.get("containerID") or ""), str(each.get("reason") or "unknown")) for each in found]
        if found and not last:
            last = f"container {name} ended: {_told(found[0])}"
        state = status.get("state") or {}
        kind = next((each for each in DEAD if state.get(each) is not None), None)
        if kind is not None and name in scaled and not _is_over(pod, name, status):
            dead.append(f"container {name} does not run ({_told(state[kind])})")
    return ContainersSeen(waits="; ".join(dead), restarts=restarts, ends=tuple(ends), last_end=last)


def why_dead(pod: Manifest, scaled: Collection[str], cgroups: PodCgroups) -> str:
    """Which scaled container has no process any more although the pod's status says that it runs; empty if all have one.

    The status is up to some seconds older than the kernel's groups.
    """
    return "; ".join(
        f"container {name} does not run: {identity[:12]} has no process any more, which the pod's status does not tell yet"
        for name, status in pods.container_statuses(pod)
        if name in scaled
        and not _is_over(pod, name, status)
        and (identity := str(status.get("containerID") or "").rpartition("/")[2])
        and identity not in cgroups.containers
    )


def _is_over(pod: Manifest, name: str, status: Mapping[str, Any]) -> bool:
    """Whether a container has ended and is not started again: nobody waits for it, and its pod goes on without it."""
    ended = (status.get("state") or {}).get("terminated")
    if ended is None:
        return False
    spec = pod.get("spec") or {}
    own: Mapping[str, Any] = next(
        (each for each in spec.get("containers") or () if each.get("name") == name), {}
    )
    policy = own.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0)


@dataclass(frozen=True, slots=True)
class Judged:
    """The amount that the pod may really use, and the difference of its control groups from its status: the resources, and a text for a
    person."""

    size: Resources
    mismatched: tuple[str, ...] = ()
    text: str = ""


def judged(pod: Manifest, look: Observation, cgroups: PodCgroups) -> Judged:
    """Compare the groups with the limits that are in force by the pod's status. A pod that is being resized is not judged."""
    if not look.is_at_rest or look.refusal is not None or not pods.is_known_to_node(pod):
        return Judged(look.size)
    limits, amounts, texts = pods.limits(pod), dict(look.size.named()), {}
    for name in RESOURCE_NAMES:
        limit, allowed = limits.get(name), _of(cgroups.pod, name)
        if not limit or allowed is None or abs(allowed - limit) <= _rounding(name, limit):
            continue
        if allowed > limit and (name == "cpu" or _parts(name, cgroups) <= limit + _rounding(name, limit)):
            continue  # strategies lend CPU time; and the containers' own limits hold as well
        amounts[name] = amounts[name] * allowed // limit
        texts[name] = f"{_amount(name, allowed)} of {name} where {_amount(name, limit)} is in force"
    told = " and ".join(texts.values())
    text = f"the pod's control group allows {told} by its status" if told else ""
    return Judged(Resources(amounts["cpu"], amounts["memory"]), tuple(texts), text)


def _parts(name: ResourceName, cgroups: PodCgroups) -> int:
    """The amount that the running containers may use together, as far as they have limits."""
    return sum(_of(each, name) or 0 for each in cgroups.containers.values())


def _of(group: GroupAllowance, name: ResourceName) -> int | None:
    return group.vcpu_milli if name == "cpu" else group.memory_bytes


def _rounding(name: ResourceName, limit: int) -> int:
    return max(10, limit // ROUNDING_SHARE) if name == "cpu" else ROUNDING_BYTES


def _amount(name: ResourceName, amount: int) -> str:
    return f"{amount}m" if name == "cpu" else f"{amount // MIB} MiB"


def _ends(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The ends of a container that its status still tells, the latest first."""
    for state in (status.get("state"), status.get("lastState")):
        ended = (state or {}).get("terminated")
        if ended is not None:
            yield ended


def _told(state: Mapping[str, Any]) -> str:
    code = state.get("exitCode")
    reason = str(state.get("reason") or "no reason told")
    return reason if code is None else f"{reason}, exit code {code}"
