"""The tasks of `MemoryEvict` and `CPUEvict`: how much must be released, for what, and by which pods. Integers only, with hysteresis.

A task begins to release if its upper threshold is reached, and goes on until its lower one is. Source: reference/koordinator.md 3.3. Other
than there, amounts are exact, and a node whose allocatable is unknown loses no pod. Amounts are bytes or milli-CPU.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from agent.node.qos.core.evicting import (
    Evictable,
    EvictionTask,
    ReleaseTarget,
    Share,
    best_effort_order,
    priority_order,
    shares,
)
from agent.node.qos.core.states import BEST_EFFORT_CLASS, NodeState, PodState

_BY_BEST_EFFORT_MEMORY: Final = "BEMemoryEvict"
_BY_SATISFACTION: Final = "BECPUEvict"
_BY_REQUESTS: Final = frozenset({"MemoryAllocatableEvict", "CPUAllocatableEvict"})
MEMORY_TASKS: Final = (_BY_BEST_EFFORT_MEMORY, "MemoryAllocatableEvict", "MemoryEvict")
CPU_TASKS: Final = (_BY_SATISFACTION, "CPUAllocatableEvict", "CPUEvict")
"""In the published order."""
SMALL_LIMIT_MILLI: Final = 1000
"""Below this limit best-effort pods are short of CPU with any use of it."""

Order: TypeAlias = Callable[[Collection[Evictable], str, Share, int], tuple[PodState, ...]]
"""The victims of a task up to a priority, in their order."""


@dataclass(frozen=True, slots=True)
class EvictThresholds:
    """In per cent of the whole. Releasing begins at the upper one and ends at the lower one."""

    upper_percent: int
    lower_percent: int


@dataclass(frozen=True, slots=True)
class EvictRules:
    """The rules that memory and CPU share. `tasks` run in their order. Pods above `max_priority` are evicted neither by use nor if best
    effort is short of CPU; those above `allocatable_max_priority` neither count nor go for the sake of requests."""

    tasks: tuple[str, ...]
    used: EvictThresholds
    allocatable: EvictThresholds
    max_priority: int
    allocatable_max_priority: int


@dataclass(frozen=True, slots=True)
class TakenAmount:
    """The taken part of a whole; None if that is unknown. `what` names the whole for people: `memory in use`."""

    taken: int | None
    whole: int
    what: str


def pressure_task(
    name: str,
    target: ReleaseTarget,
    amounts: TakenAmount,
    thresholds: EvictThresholds,
    *,
    was_releasing: bool,
    is_strict: bool = False,
) -> EvictionTask:
    """A task without victims: the amount to release until at most the lower threshold is taken. `is_strict` lets the upper
    threshold itself pass."""
    taken, whole = amounts.taken, amounts.whole
    if taken is None or whole <= 0:
        fault = "is not known" if taken is None else "has no whole to compare with"
        return EvictionTask(
            name, target, 0, f"{amounts.what} {fault}", is_calm=not was_releasing, is_known=False
        )
    upper, lower = thresholds.upper_percent, thresholds.lower_percent
    is_reached = taken * 100 > upper * whole if is_strict else taken * 100 >= upper * whole
    surplus = -(-(taken * 100 - lower * whole) // 100)
    is_releasing = is_reached or (was_releasing and surplus > 0)
    percent, tenth = divmod(taken * 1000 // whole, 10)
    state = f"releasing until {lower} %" if is_releasing else f"begins at {upper} %"
    if is_releasing and not is_reached:
        state = f"begun at {upper} %, {state}"
    return EvictionTask(
        name,
        target,
        surplus if is_releasing else 0,
        f"{amounts.what} {percent}.{tenth} % ({state})",
        is_calm=not is_releasing,
        inputs={"taken": taken, "whole": whole, "upper_percent": upper, "lower_percent": lower},
    )


@dataclass(frozen=True, slots=True)
class EvictResource:
    """One resource of the node, in bytes or milli-CPU: the used part of the capacity (None if that is unknown), the allocatable, and the
    amounts that pods use and request of it."""

    name: str
    used: int | None
    capacity: int
    allocatable: int
    used_target: ReleaseTarget
    requested_target: ReleaseTarget
    used_share: Share
    requested_share: Share


def memory_tasks(
    rules: EvictRules,
    node: NodeState,
    found: Collection[Evictable],
    used_bytes: int | None,
    releasing: Collection[str],
) -> tuple[EvictionTask, ...]:
    """The tasks of a round. `releasing` are those that were releasing in the round before."""
    resource = EvictResource(
        "memory",
        used_bytes,
        node.capacity.memory_bytes,
        node.allocatable.memory_bytes,
        ReleaseTarget.MEMORY_USED,
        ReleaseTarget.MEMORY_REQUESTED,
        lambda each: each.memory_used_bytes,
        lambda each: each.pod.requests.memory_bytes,
    )
    return tuple(_node_task(name, resource, rules, found, releasing) for name in rules.tasks)


def _node_task(
    name: str,
    resource: EvictResource,
    rules: EvictRules,
    found: Collection[Evictable],
    releasing: Collection[str],
) -> EvictionTask:
    """A task by the node's use, or by the requests of pods up to a priority."""

    def requested(each: Evictable) -> int | None:
        is_counted = each.pod.priority <= rules.allocatable_max_priority
        return resource.requested_share(each) if is_counted else None

    if name in _BY_REQUESTS:
        amount = sum(shares(found, requested).values())
        task = pressure_task(
            name,
            resource.requested_target,
            TakenAmount(amount, resource.allocatable, f"{resource.name} requested of allocatable"),
            rules.allocatable,
            was_releasing=name in releasing,
            is_strict=True,
        )
        return _with_victims(task, found, requested, priority_order, rules.allocatable_max_priority)
    task = pressure_task(
        name,
        resource.used_target,
        TakenAmount(resource.used, resource.capacity, f"{resource.name} in use"),
        rules.used,
        was_releasing=name in releasing,
    )
    order = best_effort_order if name == _BY_BEST_EFFORT_MEMORY else priority_order
    return _with_victims(task, found, resource.used_share, order, rules.max_priority)


def _with_victims(
    task: EvictionTask, found: Collection[Evictable], share: Share, order: Order, max_priority: int
) -> EvictionTask:
    """The task with its victims, if any are needed, and with the amount that every pod would release."""
    victims = order(found, task.name, share, max_priority) if task.amount else ()
    return replace(task, victims=victims, shares=shares(found, share))


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
    """As `memory_tasks`."""
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
        if name != _BY_SATISFACTION:
            return _node_task(name, resource, rules, found, releasing)
        without_victims = _satisfaction(satisfaction, figures, was_releasing=name in releasing)
        return _with_victims(
            without_victims, found, _best_effort_request, best_effort_order, rules.max_priority
        )

    return tuple(map(task, rules.tasks))


def _satisfaction(rules: SatisfactionRules, figures: CpuFigures, *, was_releasing: bool) -> EvictionTask:
    average, last, target = figures.average, figures.last, ReleaseTarget.BEST_EFFORT_CPU_REQUESTED
    if average is None or last is None:
        text = "CPU of best-effort pods is not known"
        return EvictionTask(_BY_SATISFACTION, target, 0, text, is_calm=not was_releasing, is_known=False)
    amount = min(each.lacking(rules, was_releasing=was_releasing) for each in (average, last))
    begun = f"begun at {rules.lower_percent} %, " if was_releasing else ""
    state = (
        f"{begun}releasing until limit/requests is {rules.upper_percent} %"
        if amount
        else f"begins where limit/requests is {rules.lower_percent} %"
    )
    return EvictionTask(
        _BY_SATISFACTION,
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


def _best_effort_request(found: Evictable) -> int | None:
    """Only pods in the kubelet's best-effort group are held back by its limit."""
    pod = found.pod
    return pod.batch_requests.vcpu_milli if pod.kubernetes_class == BEST_EFFORT_CLASS else None
