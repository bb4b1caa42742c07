"""`MemoryEvict`: evicts pods if the node's memory runs short. Its rules are in `agent.node.qos.core.memory_evict`."""

import random
import time
from collections.abc import Callable, Collection
from typing import Annotated, ClassVar

from pydantic import Field

from agent.node.qos.core.evicting import Evictable, EvictionMarks, EvictionTask
from agent.node.qos.core.memory_evict import BEST_EFFORT, MEMORY_TASKS, PRIORITY, memory_tasks
from agent.node.qos.core.metrics import NODE_MEMORY_USAGE, POD_MEMORY_USAGE, Aggregate
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.strategies.evict_rounds import MAX_WINDOW_S, EvictArgs, EvictStrategy


class MemoryEvictArgs(EvictArgs):
    """The args of `MemoryEvict`, by the memory of the node."""

    TASKS: ClassVar[tuple[str, ...]] = MEMORY_TASKS

    tasks: Annotated[list[str], Field(min_length=1)] = [BEST_EFFORT, PRIORITY]  # noqa: RUF012 - pydantic copies it
    threshold_percent: Annotated[int, Field(ge=1, le=100)] = 70
    window: Annotated[float, Field(ge=1, le=MAX_WINDOW_S)] = 10.0
    cool_time: Annotated[float, Field(ge=0, le=86_400)] = 4.0


class MemoryEvict(EvictStrategy[MemoryEvictArgs]):
    """Source of the cool-down: reference/koordinator.md 3.1."""

    args_model = MemoryEvictArgs

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        super().__init__(MemoryEvictArgs(), POD_MEMORY_USAGE, clock, rng)

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the memory that is in use without reclaimable page cache."""
        used = self.node_metric(NODE_MEMORY_USAGE)
        used_bytes = None if used is None else round(used.value)
        return memory_tasks(self.args.evict_rules(), node, found, used_bytes, releasing)

    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        return Evictable(pod, marks, memory_used_bytes=None if used is None else round(used.value))
