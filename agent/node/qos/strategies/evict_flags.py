"""The flags that `MemoryEvict` and `CPUEvict` have in common, and what can be wrong with them."""

from collections.abc import Iterable, Iterator
from typing import Final

from agent.node.qos.core.evict_pressure import EvictRules, EvictThresholds
from agent.node.qos.core.evicting import EvictionLimits
from agent.node.qos.strategies.strategy_flags import StrategyFlag, StrategyFlags

HIGHEST_PRIORITY: Final = 1_000_000_000
"""The highest priority that a user's PriorityClass may have; those above are the system's. Source: scheduling.k8s.io/v1."""
HYSTERESIS_PERCENT: Final = 2
MAX_WINDOW_S: Final = 300
"""The metric cache keeps no more."""


def common_flags(
    tasks: tuple[str, ...], default_tasks: str, *, threshold_percent: int, cooldown_s: float, window_s: float
) -> tuple[StrategyFlag, ...]:
    """The flags with a strategy's own defaults. `tasks` are those that it has."""
    known = ", ".join(tasks)
    return (
        StrategyFlag("tasks", default_tasks, f"who is evicted and why, in this order: any of {known}"),
        StrategyFlag(
            "threshold-percent",
            threshold_percent,
            "of the capacity in use: from here on pods are evicted",
            1,
            100,
        ),
        StrategyFlag(
            "lower-percent",
            -1,
            f"of the capacity in use: down to here; -1 for the threshold less {HYSTERESIS_PERCENT}",
            -1,
            99,
        ),
        StrategyFlag(
            "allocatable-threshold-percent",
            100,
            "of the allocatable requested by pods that count: above it pods are evicted",
            1,
            1000,
        ),
        StrategyFlag(
            "allocatable-lower-percent",
            -1,
            f"of the allocatable: down to here; -1 for the threshold less {HYSTERESIS_PERCENT}",
            -1,
            999,
        ),
        StrategyFlag(
            "max-priority",
            HIGHEST_PRIORITY,
            "pods above this priority are never evicted for what they use, nor as best effort",
            -(2**31),
            2**31 - 1,
        ),
        StrategyFlag(
            "allocatable-max-priority",
            0,
            "pods above this priority neither count as requested nor are evicted for it",
            -(2**31),
            2**31 - 1,
        ),
        StrategyFlag("interval-seconds", 1.0, "time between two rounds", 0.1, 3600),
        StrategyFlag("window-seconds", window_s, "time over which use is averaged", 1, MAX_WINDOW_S),
        StrategyFlag("cool-time-seconds", cooldown_s, "time without evictions after an eviction", 0, 86_400),
        StrategyFlag("max-victims", 5, "pods of which the API server is asked in one round at most", 1, 1000),
        StrategyFlag(
            "lost-after-seconds",
            120.0,
            "a pod that is still there so long after its eviction does not count as released any more",
            1,
            86_400,
        ),
    )


class EvictFlags(StrategyFlags):
    """Reads the flags of a strategy that evicts."""

    def __init__(self, prefix: str, flags: tuple[StrategyFlag, ...], known_tasks: tuple[str, ...]) -> None:
        super().__init__(prefix, flags)
        self._known_tasks = known_tasks

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in their order, known or not."""
        return tuple(each.strip() for each in str(self.value("tasks")).split(",") if each.strip())

    def thresholds(self, kind: str = "") -> EvictThresholds:
        """Those of use, or of `allocatable-`."""
        upper, lower = self.whole(f"{kind}threshold-percent"), self.whole(f"{kind}lower-percent")
        return EvictThresholds(upper, max(0, upper - HYSTERESIS_PERCENT) if lower == -1 else lower)

    def rules(self) -> EvictRules:
        return EvictRules(
            self.tasks,
            self.thresholds(),
            self.thresholds("allocatable-"),
            self.whole("max-priority"),
            self.whole("allocatable-max-priority"),
        )

    def limits(self) -> EvictionLimits:
        """How often pods are evicted."""
        return EvictionLimits(
            cooldown_s=self.number("cool-time-seconds"),
            max_victims=self.whole("max-victims"),
            lost_after_s=self.number("lost-after-seconds"),
            settle_s=self.number("window-seconds") + self.number("interval-seconds"),
        )

    def faults(self) -> Iterator[str]:
        """As for any strategy, and what is wrong with tasks and thresholds."""
        yield from super().faults()
        yield from self._task_faults(self.tasks)
        yield from self.thresholds().faults(self._prefix)
        yield from self.thresholds("allocatable-").faults(f"{self._prefix}allocatable-")

    def _task_faults(self, tasks: Iterable[str]) -> Iterator[str]:
        seen: set[str] = set()
        for each in tasks:
            if each not in self._known_tasks:
                yield f"{self._prefix}tasks: there is no task {each[:60]!r} (there are: {', '.join(self._known_tasks)})"
            elif each in seen:
                yield f"{self._prefix}tasks: {each} comes more than once"
            seen.add(each)
        if not seen:
            yield f"{self._prefix}tasks: must name at least one of {', '.join(self._known_tasks)}"
