"""The division of a pod's target among its containers. Pure.

The containers that are scaled share the amount that the others leave, by their declared weights, else in proportion to their requests. The
parts add up to the target exactly: each is rounded down to a whole milli-CPU or byte, and the largest remainders get one more. A limit
keeps its ratio to the request, rounded to the nearest; an equal limit stays equal and a larger one larger, so that the QoS class stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hosting.kubernetes import pods
from hosting.kubernetes.objects import RESOURCE_NAMES, ResourceName
from hosting.kubernetes.pods import ContainerSize
from hosting.kubernetes.resources import Manifest
from hosting.kubernetes.scaling import Share
from protocol import quantities
from protocol.values import Resources

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
