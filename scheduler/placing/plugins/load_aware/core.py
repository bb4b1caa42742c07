"""Decisions of `LoadAwareScheduling`: the estimate of a pod, the load of a node, the filter's verdict and the score. Pure; whole numbers.

The load of a node is what its NodeMetric reports, and beside that, for each pod whose use the report cannot show yet, the part of the
pod's estimate that is above its reported use:

    unseen(pod) = max(0, estimate - reported use)     (the whole estimate of a pod that is not reported)

A report cannot show the use of a pod that was bound after the window of the report began, whose own time of estimation is not over, or
that was permitted to grow since. So a pod counts with the larger of estimate and report, and never with both.

All moments are seconds since the epoch: reports and pods have them of the wall clocks of nodes and API server.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Amounts = Mapping[str, int]
"""CPU in milli-CPU, all else in whole units, by resource; a resource that is left out is 0."""
PodKey = tuple[str, str]
"""Namespace and name, by which reports name pods."""
NONE: Final[Amounts] = {}
DEFAULT_ESTIMATES: Final[Amounts] = {"cpu": 250, "memory": 200 * 1024 * 1024}
"""The estimates of pods that request and limit nothing."""
REPORT_INTERVAL_S: Final = 60.0
"""Of NodeMetrics that do not say theirs."""


def rounded(dividend: int, divisor: int) -> int:
    """The quotient, half up; neither may be below 0."""
    return (2 * dividend + divisor) // (2 * divisor)


# ------------------------------------------------------------ pods


def estimate(
    asked: Amounts, limits: Amounts, factors: Mapping[str, int], defaults: Amounts
) -> dict[str, int]:
    """The likely use of a pod, by resource: a percentage (`factors`, else 100) of the larger of request and limit, at most the limit.

    `limits` leaves out resources without a limit. Of a pod that grows, `asked` is what it is permitted, and there are no limits.
    """
    found = {}
    for name in {**asked, **limits, **defaults}:
        limit = limits.get(name, 0)
        largest = max(asked.get(name, 0), limit)
        likely = rounded(largest * factors.get(name, 100), 100) if largest else defaults.get(name, 0)
        found[name] = min(likely, limit) if limit else likely
    return found


@dataclass(frozen=True, slots=True)
class PodLoad:
    """A pod on a node. `scheduled_at` is None until it is seen bound; `deadline_at` is when its estimate ends to count, if that is
    a moment of its own. `permitted` is what the ledger keeps for a pod that grows, None for one that does not."""

    key: PodKey
    uid: str
    estimate: Amounts
    is_prod: bool = True
    scheduled_at: float | None = None
    deadline_at: float | None = None
    permitted: Amounts | None = None


# ------------------------------------------------------------ reports


@dataclass(frozen=True, slots=True)
class PodReport:
    """The use of a pod. `held` is what it was permitted while it was measured; None if the report does not say, as none but our agent's does.
    A report without a class (`is_prod` None) says nothing against the pod's own."""

    usage: Amounts
    is_prod: bool | None = None
    held: Amounts | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A NodeMetric. `node` is None if the node's use is not in it. `aggregated` has for each type of figure the windows (s) that are not
    empty, the shortest first."""

    updated_at: float | None = None
    interval_s: float = REPORT_INTERVAL_S
    node: Amounts | None = None
    system: Amounts = field(default_factory=dict)
    aggregated: Mapping[str, tuple[tuple[float, Amounts], ...]] = field(default_factory=dict)
    pods: Mapping[PodKey, PodReport] = field(default_factory=dict)


Freshness = Literal["fresh", "expired", "missing"]


def freshness(report: NodeReport | None, now_at: float, expiration_s: float) -> Freshness:
    """Whether a report can be gone by. One without a moment is expired; one from the future, of a node whose clock is ahead, is fresh."""
    if report is None:
        return "missing"
    is_old = report.updated_at is None or now_at - report.updated_at >= expiration_s
    return "expired" if is_old else "fresh"


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """A type of figure (`avg`, `p50`, …) and its window in seconds; 0 for the longest that is reported."""

    type: str
    window_s: float = 0.0


def aggregated(report: NodeReport, wanted: UsageWindow) -> Amounts | None:
    """The figure over the wanted window, else over the longest window that is shorter, else the plain use of the node.

    After the restart of an agent long windows are empty for a while: shorter data is better than none.
    """
    windows = report.aggregated.get(wanted.type, ())
    fitting = [amounts for window_s, amounts in windows if not wanted.window_s or window_s <= wanted.window_s]
    return fitting[-1] if fitting else report.node


# ------------------------------------------------------------ nodes


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The load of a node: its report, and sums over its pods. `unseen` and `unseen_prod` are what estimates add to the report, `prod`
    the reported use of prod pods, `estimated` the estimates of all pods. `waiting` are the pods that are estimated, with what each adds."""

    report: NodeReport | None = None
    unseen: Counter[str] = field(default_factory=Counter)
    unseen_prod: Counter[str] = field(default_factory=Counter)
    prod: Counter[str] = field(default_factory=Counter)
    estimated: Counter[str] = field(default_factory=Counter)
    waiting: dict[PodKey, Amounts] = field(default_factory=dict)
    summed: dict[tuple[bool, UsageWindow | None], Amounts] = field(default_factory=dict, compare=False)
    """The answers of `existing`, each summed once."""

    def existing(self, *, prod_only: bool = False, wanted: UsageWindow | None = None) -> Amounts:
        """The load as the filter and the score look at it. Where the report has no use of the node, the estimates of all pods."""
        found = self.summed.get((prod_only, wanted))
        if found is None:
            found = self.summed[prod_only, wanted] = self._existing(prod_only, wanted)
        return found

    def _existing(self, prod_only: bool, wanted: UsageWindow | None) -> Amounts:
        if prod_only:
            return self.prod + self.unseen_prod
        if self.report is None:
            return self.estimated
        measured = self.report.node if wanted is None else aggregated(self.report, wanted)
        return self.estimated if measured is None else self.unseen + Counter(measured)


def node_load(
    report: NodeReport | None, pods: Iterable[PodLoad], *, prod_with_system: bool = False
) -> NodeLoad:
    """The load of a node with these pods."""
    load = NodeLoad(report)
    if report is not None and prod_with_system:
        load.prod.update(report.system)
    for pod in pods:
        load.estimated.update(pod.estimate)
        found = report.pods.get(pod.key) if report is not None else None
        more = _unseen(pod, report, found)
        if any(more.values()):
            load.waiting[pod.key] = more
            load.unseen.update(more)
        if pod.is_prod and (
            found is None or found.is_prod is False
        ):  # under another class: not reported as prod
            load.unseen_prod.update(pod.estimate)
        elif pod.is_prod and found is not None:
            load.prod.update(found.usage)
            load.unseen_prod.update(more)
    return load


def _unseen(pod: PodLoad, report: NodeReport | None, found: PodReport | None) -> Amounts:
    """The part of the pod's estimate that is above its reported use and that the report cannot show yet. That a pod which grows has grown
    since is taken for granted where the report does not say what it held."""
    if report is None or found is None:
        return pod.estimate
    is_new = (
        pod.scheduled_at is None
        or report.updated_at is None
        or report.updated_at - report.interval_s < pod.scheduled_at
        or (pod.deadline_at is not None and pod.deadline_at > report.updated_at)
    )
    held, permitted, more = found.held or {}, pod.permitted or {}, {}
    for name, amount in pod.estimate.items():
        has_grown = permitted.get(name, 0) > held.get(name, 0)
        more[name] = max(0, amount - found.usage.get(name, 0)) if is_new or has_grown else 0
    return more


# ------------------------------------------------------------ verdict and score


@dataclass(frozen=True, slots=True)
class UsageLimits:
    """The thresholds of a node (per cent, by resource), and the load that is compared with them."""

    thresholds: Mapping[str, int]
    prod_only: bool = False
    wanted: UsageWindow | None = None


def excesses(
    load: NodeLoad, pod_estimate: Amounts, capacity: Amounts, limits: UsageLimits
) -> tuple[str, ...]:
    """Why a pod would make the node too busy, a text for each resource; empty if it would not. The texts are the published ones."""
    existing = load.existing(prod_only=limits.prod_only, wanted=limits.wanted)
    kind = "aggregated usage" if limits.wanted is not None else "usage"
    found = []
    for name, threshold in limits.thresholds.items():
        most = capacity.get(name, 0)
        if threshold <= 0 or most <= 0:
            continue
        if rounded((existing.get(name, 0) + pod_estimate.get(name, 0)) * 100, most) > threshold:
            found.append(f"node(s) {name} {kind} exceed threshold")
    return tuple(found)


def score(
    used: Amounts,
    capacity: Amounts,
    weights: Mapping[str, int],
    dominant_weight: int,
    resources: Iterable[str],
) -> int:
    """0 to 100: the free share of each resource by its weight, and that of the scarcest one of all `resources` by `dominant_weight`."""
    free = {}
    for name in resources:
        most, left = capacity.get(name, 0), capacity.get(name, 0) - used.get(name, 0)
        free[name] = left * 100 // most if most > 0 and left > 0 else 0
    total = sum(free.get(name, 0) * weight for name, weight in weights.items())
    total += min(free.values(), default=0) * dominant_weight
    weight_sum = sum(weights.values()) + dominant_weight
    return total // weight_sum if weight_sum else 0
