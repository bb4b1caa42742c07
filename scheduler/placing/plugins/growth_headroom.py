"""`GrowthHeadroom`: nodes are scored by what their rows are likely to want, not by what the rows keep now.

For each row of a node, and for the pod itself, the likely amount of a resource is

    likely = kept + pressure + growthShare · max(0, maximum - kept - pressure)

where `kept` is what is reserved for the row, `pressure` what it was denied for want of room, and `maximum` the upper bound of its
growth. A row that does not grow, or is moving to another node, is likely to want what it keeps. With the sum of a node, `likely`,

    utilization = 100 · likely / reservable     (percent, rounded down; from 0 to 200)

and the score of the resource follows from the shape of the strategy, a line between its points:

| Strategy                 | Shape: score at utilization                                                              |
|--------------------------|------------------------------------------------------------------------------------------|
| `LeastAllocated`         | 100 at 0, 0 at 200: the emptier the better                                               |
| `MostAllocated`          | 0 at 0, 100 at 100, 0 at 200: the fuller the better while all that is likely to grow has room |
| `RequestedToCapacityRatio` | as configured, from 0 to 10 as published, times 10                                     |

The score of a node is the mean of both resources, by their weights. Everything is in whole numbers. The names of the strategies, and
of what configures them, are those of kube-scheduler's `NodeResourcesFit`.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from hosting.amounts import share
from hosting.settings import Settings, check
from protocol.values import ZERO, Bounds, Resources
from scheduler.permits.core.model import Holder
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, PodInfo, RowInfo
from scheduler.placing.core.plugin import CycleContext
from scheduler.placing.core.values import Status
from scheduler.placing.plugins.base import NodeCache, ShippedPlugin
from scheduler.placing.plugins.ledger_fit import own_row

MILLION: Final = 1_000_000
MAX_UTILIZATION: Final = 200
"""Percent. Growth is likely and not certain, so nodes may be likely to want more than can be reserved; more than this is alike."""

Shape = tuple[tuple[int, int], ...]
"""Points (utilization in percent, score from 0 to 100), the utilization rising."""

LEAST: Final[Shape] = ((0, 100), (200, 0))
MOST: Final[Shape] = ((0, 0), (100, 100), (200, 0))


class ResourceWeight(Settings):
    """How much a resource counts in a node's score."""

    name: Literal["cpu", "memory"]
    """The resource."""
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    """Its part of the score, against that of the other resource."""


class UtilizationPoint(Settings):
    """A point of a shape, with the published ranges; but utilization may reach 200 percent."""

    utilization: Annotated[int, Field(ge=0, le=MAX_UTILIZATION)]
    """Per cent of the node in use."""
    score: Annotated[int, Field(ge=0, le=10)]
    """The score there; between two points it lies between theirs."""


class RequestedToCapacityRatioParam(Settings):
    """The shape of `RequestedToCapacityRatio`."""

    shape: Annotated[list[UtilizationPoint], Field(min_length=1)]

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        at = [point.utilization for point in found.get("shape", ())]
        if any(after <= before for before, after in pairwise(at)):
            yield "shape", f"utilization must rise from point to point, not {', '.join(map(str, at))}"


def _both() -> list[ResourceWeight]:
    return [ResourceWeight(name="cpu"), ResourceWeight(name="memory")]


class ScoringStrategy(Settings):
    """How scores follow from utilization. `requestedToCapacityRatio` is given with that strategy, and only with it."""

    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    """Whether emptier nodes score higher, fuller ones, or as a shape says."""
    resources: Annotated[list[ResourceWeight], Field(min_length=1)] = Field(default_factory=_both)
    requested_to_capacity_ratio: RequestedToCapacityRatioParam | None = None

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A shape where one is needed, and each resource once."""
        needs_shape = found.get("type") == "RequestedToCapacityRatio"
        if "type" in found and "requested_to_capacity_ratio" in found:
            has_shape = found["requested_to_capacity_ratio"] is not None
            if needs_shape and not has_shape:
                yield "requestedToCapacityRatio", "must be given where type is RequestedToCapacityRatio"
            if has_shape and not needs_shape:
                yield (
                    "requestedToCapacityRatio",
                    f"has no effect where type is {found['type']}; leave it out",
                )
        names = [each.name for each in found.get("resources", ())]
        if len(set(names)) < len(names):
            yield "resources", f"must name each resource once, not {', '.join(names)}"

    def points(self) -> Shape:
        if self.requested_to_capacity_ratio is not None:
            return tuple(
                (each.utilization, each.score * 10) for each in self.requested_to_capacity_ratio.shape
            )
        return LEAST if self.type == "LeastAllocated" else MOST


class GrowthHeadroomArgs(Settings):
    """The args of `GrowthHeadroom`. `growthShare` is the share, from 0 to 1, of what lies between what a VM keeps and its maximum
    that counts as likely."""

    growth_share_ppm: Annotated[int, share(0, 1)] = Field(500_000, alias="growthShare")
    """The share of what lies between what a VM keeps and its maximum that counts as likely."""
    scoring_strategy: ScoringStrategy = Field(default_factory=ScoringStrategy)


class GrowthHeadroom(ShippedPlugin):
    """The plugin. Point: score."""

    ARGS = GrowthHeadroomArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = check(args, GrowthHeadroomArgs)
        self._share_ppm = read.growth_share_ppm
        points = read.scoring_strategy.points()
        self._scores = tuple(shaped(points, utilization) for utilization in range(MAX_UTILIZATION + 1))
        """By utilization."""
        weights = {each.name: each.weight for each in read.scoring_strategy.resources}
        self._cpu_weight, self._memory_weight = weights.get("cpu", 0), weights.get("memory", 0)
        self._rows: NodeCache[Mapping[Holder, RowInfo], Resources] = NodeCache(self._of_rows)

    def score(self, context: CycleContext, pod: PodInfo, node: NodeInfo) -> tuple[int, Status | None]:
        """0 to 100, as the module says."""
        total = self._rows.of(node.name, node.rows) + likely(pod.amount, ZERO, pod.bounds, self._share_ppm)
        own = own_row(pod, node)
        if own is not None:
            total = total - self._of_row(own)
        cpu = self._scores[utilized(total.vcpu_milli, node.reservable.vcpu_milli)]
        memory = self._scores[utilized(total.memory_bytes, node.reservable.memory_bytes)]
        score = cpu * self._cpu_weight + memory * self._memory_weight
        return score // (self._cpu_weight + self._memory_weight), None

    def answers_by(self, context: CycleContext, pod: PodInfo) -> Hashable:
        return pod.amount, pod.bounds

    def is_steady_on(self, node: NodeInfo) -> bool:
        return True

    def _of_rows(self, rows: Mapping[Holder, RowInfo]) -> Resources:
        cpu = memory = 0
        for row in rows.values():
            amount = self._of_row(row)
            cpu += amount.vcpu_milli
            memory += amount.memory_bytes
        return Resources(cpu, memory)

    def _of_row(self, row: RowInfo) -> Resources:
        if row.is_migrating:
            return row.reserved
        return likely(row.reserved, row.pressure, row.bounds, self._share_ppm)


def likely(kept: Resources, pressure: Resources, bounds: Bounds | None, share_ppm: int) -> Resources:
    """The amount that a holder is likely to want: what it keeps and was denied, and a share of the rest up to its maximum, rounded up."""
    if bounds is None and pressure is ZERO:
        return kept
    cpu, memory = kept.vcpu_milli + pressure.vcpu_milli, kept.memory_bytes + pressure.memory_bytes
    if bounds is not None:
        most = bounds.max
        if most.vcpu_milli > cpu:
            cpu -= (cpu - most.vcpu_milli) * share_ppm // MILLION
        if most.memory_bytes > memory:
            memory -= (memory - most.memory_bytes) * share_ppm // MILLION
    return Resources(cpu, memory)


def utilized(wanted: int, capacity: int) -> int:
    """The utilization in percent, rounded down, at most `MAX_UTILIZATION`; also of a node where nothing can be reserved."""
    if capacity <= 0:
        return MAX_UTILIZATION
    return min(wanted * 100 // capacity, MAX_UTILIZATION)


def shaped(points: Shape, utilization: int) -> int:
    """The score at that utilization: on the line between the points around it, and beyond the ends as at the end."""
    after = bisect_right(points, utilization, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    left, low = points[after - 1]
    if after == len(points):
        return low
    right, high = points[after]
    return low + (high - low) * (utilization - left) // (right - left)
