"""The amount that must be released so that a share of the node is free again: integers only, with hysteresis.

A task begins to release if the upper threshold is reached, and goes on until the lower one is. Source: reference/koordinator.md 3.3.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from agent.node.qos.core.evicting import (
    Evictable,
    EvictionTask,
    ReleaseTarget,
    Share,
    best_effort_order,
    priority_order,
    shares,
)
from agent.node.qos.core.states import PodState

Order: TypeAlias = Callable[[Collection[Evictable], str, Share], tuple[PodState, ...]]
"""The victims of a task, in their order."""


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


def used_task(
    name: str,
    resource: EvictResource,
    thresholds: EvictThresholds,
    order: Order,
    found: Collection[Evictable],
    *,
    was_releasing: bool,
) -> EvictionTask:
    amounts = TakenAmount(resource.used, resource.capacity, f"{resource.name} in use")
    task = pressure_task(name, resource.used_target, amounts, thresholds, was_releasing=was_releasing)
    return with_victims(task, found, resource.used_share, order)


def allocatable_task(
    name: str,
    resource: EvictResource,
    rules: EvictRules,
    found: Collection[Evictable],
    *,
    was_releasing: bool,
) -> EvictionTask:
    """Releases requests of pods up to a priority that lie above the lower threshold."""

    def share(each: Evictable) -> int | None:
        is_counted = each.pod.priority <= rules.allocatable_max_priority
        return resource.requested_share(each) if is_counted else None

    requested = sum(shares(found, share).values())
    amounts = TakenAmount(requested, resource.allocatable, f"{resource.name} requested of allocatable")
    task = pressure_task(
        name,
        resource.requested_target,
        amounts,
        rules.allocatable,
        was_releasing=was_releasing,
        is_strict=True,
    )
    return with_victims(task, found, share, by_priority(rules.allocatable_max_priority))


def with_victims(
    task: EvictionTask, found: Collection[Evictable], share: Share, order: Order
) -> EvictionTask:
    """The task with its victims, if any are needed, and with the amount that every pod would release."""
    victims = order(found, task.name, share) if task.amount else ()
    return replace(task, victims=victims, shares=shares(found, share))


def of_best_effort(max_priority: int) -> Order:
    return lambda found, task, share: best_effort_order(found, task, share, max_priority)


def by_priority(max_priority: int) -> Order:
    return lambda found, task, share: priority_order(found, task, share, max_priority)
