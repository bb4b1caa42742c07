"""Evicts for memory: by the used part of the node's capacity, and by the requested part of its allocatable.

Source: reference/koordinator.md 3.3, "Memory evict". Other than there, amounts are exact, and a node whose allocatable is unknown loses no
pod.
"""

from collections.abc import Collection
from typing import Final

from agent.node.qos.core.evict_pressure import (
    EvictResource,
    EvictRules,
    allocatable_task,
    by_priority,
    of_best_effort,
    used_task,
)
from agent.node.qos.core.evicting import Evictable, EvictionTask, ReleaseTarget
from agent.node.qos.core.states import NodeState

BEST_EFFORT: Final = "BEMemoryEvict"
ALLOCATABLE: Final = "MemoryAllocatableEvict"
PRIORITY: Final = "MemoryEvict"
MEMORY_TASKS: Final = (BEST_EFFORT, ALLOCATABLE, PRIORITY)
"""In the published order."""


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

    def task(name: str) -> EvictionTask:
        was_releasing = name in releasing
        if name == ALLOCATABLE:
            return allocatable_task(name, resource, rules, found, was_releasing=was_releasing)
        order = (of_best_effort if name == BEST_EFFORT else by_priority)(rules.max_priority)
        return used_task(name, resource, rules.used, order, found, was_releasing=was_releasing)

    return tuple(map(task, rules.tasks))
