"""Evicts for CPU: if best-effort pods get too little of their requests, by the used part of the node's capacity, and by the requested part
of its allocatable. Source: reference/koordinator.md 3.3, "CPU evict". All amounts are milli-CPU.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.evict_pressure import (
    EvictResource,
    EvictRules,
    Order,
    allocatable_task,
    by_priority,
    of_best_effort,
    used_task,
    with_victims,
)
from agent.node.qos.core.evicting import Evictable, EvictionTask, ReleaseTarget
from agent.node.qos.core.states import BEST_EFFORT_CLASS, NodeState

SATISFACTION: Final = "BECPUEvict"
ALLOCATABLE: Final = "CPUAllocatableEvict"
PRIORITY: Final = "CPUEvict"
CPU_TASKS: Final = (SATISFACTION, ALLOCATABLE, PRIORITY)
"""In the published order."""
SMALL_LIMIT_MILLI: Final = 1000
"""Below this limit best-effort pods are short of CPU with any use of it."""


@dataclass(frozen=True, slots=True)
class SatisfactionRules:
    """Satisfaction is the CPU limit of best-effort pods in per cent of their requests. Releasing begins at the lower percentage and aims at
    the upper one, if the pods use at least `usage_percent` of the limit."""

    lower_percent: int
    upper_percent: int
    usage_percent: int


@dataclass(frozen=True, slots=True)
class BestEffortCpu:
    """The amounts that best-effort pods use together, may use (the whole machine if no limit is set), and request."""

    usage_milli: int
    limit_milli: int
    request_milli: int

    def lacking(self, rules: SatisfactionRules, *, was_releasing: bool) -> int:
        """How much of the requests must go, so that the limit satisfies the rest; 0 for nothing."""
        limit, request = self.limit_milli, self.request_milli
        if limit <= 0 or request <= 0:
            return 0
        if limit >= SMALL_LIMIT_MILLI and self.usage_milli * 100 < rules.usage_percent * limit:
            return 0
        begins = rules.upper_percent if was_releasing else rules.lower_percent
        if limit * 100 > begins * request:
            return 0
        return max(0, -(-(rules.upper_percent * request - limit * 100) // 100))

    def text(self) -> str:
        """For people."""
        return f"use {self.usage_milli}m, limit {self.limit_milli}m, requests {self.request_milli}m"


@dataclass(frozen=True, slots=True)
class CpuFigures:
    """The measurements; None if one is unknown. `average` and `last` are of best-effort pods: over the window, and the newest."""

    used_milli: int | None
    average: BestEffortCpu | None
    last: BestEffortCpu | None


def cpu_tasks(
    rules: EvictRules,
    satisfaction: SatisfactionRules,
    node: NodeState,
    found: Collection[Evictable],
    figures: CpuFigures,
    releasing: Collection[str],
) -> tuple[EvictionTask, ...]:
    """The tasks of a round. `releasing` are those that were releasing in the round before."""
    resource = EvictResource(
        "CPU",
        figures.used_milli,
        node.capacity.vcpu_milli,
        node.allocatable.vcpu_milli,
        ReleaseTarget.CPU_USED,
        ReleaseTarget.CPU_REQUESTED,
        lambda each: each.cpu_used_milli,
        lambda each: each.pod.requests.vcpu_milli,
    )

    def task(name: str) -> EvictionTask:
        was_releasing = name in releasing
        if name == SATISFACTION:
            order = of_best_effort(rules.max_priority)
            return _satisfaction(satisfaction, found, figures, order, was_releasing=was_releasing)
        if name == ALLOCATABLE:
            return allocatable_task(name, resource, rules, found, was_releasing=was_releasing)
        order = by_priority(rules.max_priority)
        return used_task(name, resource, rules.used, order, found, was_releasing=was_releasing)

    return tuple(map(task, rules.tasks))


def _satisfaction(
    rules: SatisfactionRules,
    found: Collection[Evictable],
    figures: CpuFigures,
    order: Order,
    *,
    was_releasing: bool,
) -> EvictionTask:
    average, last, target = figures.average, figures.last, ReleaseTarget.BEST_EFFORT_CPU_REQUESTED
    if average is None or last is None:
        text = "CPU of best-effort pods is not known"
        unknown = EvictionTask(SATISFACTION, target, 0, text, is_calm=not was_releasing, is_known=False)
        return with_victims(unknown, found, _best_effort_request, order)
    amount = min(each.lacking(rules, was_releasing=was_releasing) for each in (average, last))
    begun = f"begun at {rules.lower_percent} %, " if was_releasing else ""
    state = (
        f"{begun}releasing until limit/requests is {rules.upper_percent} %"
        if amount
        else f"begins where limit/requests is {rules.lower_percent} %"
    )
    task = EvictionTask(
        SATISFACTION,
        target,
        amount,
        f"CPU of best-effort pods: {average.text()} ({state})",
        is_calm=not amount,
        inputs={
            "usage_milli": average.usage_milli,
            "limit_milli": average.limit_milli,
            "request_milli": average.request_milli,
            "lower_percent": rules.lower_percent,
            "upper_percent": rules.upper_percent,
        },
    )
    return with_victims(task, found, _best_effort_request, order)


def _best_effort_request(found: Evictable) -> int | None:
    """Only pods in the kubelet's best-effort group are held back by its limit."""
    pod = found.pod
    return pod.batch_requests.vcpu_milli if pod.kubernetes_class == BEST_EFFORT_CLASS else None
