"""`MemoryEvict`: evicts pods where the node's memory runs short. Its rules are in `agent.node.qos.core.memory_evict`."""

import random
import time
from collections.abc import Callable, Collection
from typing import Final

from agent.node.qos.core.evicting import Evictable, EvictionMarks, EvictionTask
from agent.node.qos.core.memory_evict import BEST_EFFORT, MEMORY_TASKS, PRIORITY, memory_tasks
from agent.node.qos.core.metrics import NODE_MEMORY_USAGE, POD_MEMORY_USAGE, Aggregate
from agent.node.qos.core.states import NodeState, PodState
from agent.node.qos.strategies.evict_flags import EvictFlags, common_flags
from agent.node.qos.strategies.evict_rounds import EvictStrategy

PREFIX: Final = "memory-evict-"


class MemoryEvict(EvictStrategy):
    """Source of the cool-down: reference/koordinator.md 3.1."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        flags = common_flags(
            MEMORY_TASKS, f"{BEST_EFFORT},{PRIORITY}", threshold_percent=70, cooldown_s=4.0, window_s=10.0
        )
        super().__init__(EvictFlags(PREFIX, flags, MEMORY_TASKS), POD_MEMORY_USAGE, clock, rng)

    def tasks(
        self, node: NodeState, found: Collection[Evictable], releasing: Collection[str]
    ) -> tuple[EvictionTask, ...]:
        """By the memory that is in use without reclaimable page cache."""
        used = self.node_metric(NODE_MEMORY_USAGE)
        used_bytes = None if used is None else round(used.value)
        return memory_tasks(self.flags.rules(), node, found, used_bytes, releasing)

    def evictable(self, pod: PodState, marks: EvictionMarks, used: Aggregate | None) -> Evictable:
        return Evictable(pod, marks, memory_used_bytes=None if used is None else round(used.value))
