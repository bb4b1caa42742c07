"""The flags that `MemoryEvict` and `CPUEvict` have in common, and what can be wrong with them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from agent.node.qos.core.evict_pressure import EvictRules, EvictThresholds
from agent.node.qos.core.evicting import EvictionLimits
from agent.node.qos.ports import FlagSet

HIGHEST_PRIORITY: Final = 1_000_000_000
"""The highest priority that a user's PriorityClass may have; those above are the system's. Source: scheduling.k8s.io/v1."""
HYSTERESIS_PERCENT: Final = 2
MAX_WINDOW_S: Final = 300
"""The metric cache keeps no more."""


@dataclass(frozen=True, slots=True)
class EvictFlag:
    """A flag. `suffix` follows the strategy's prefix; `least` and `most` bound numbers."""

    suffix: str
    default: float | str
    help_text: str
    least: float = 0
    most: float = 0


def common_flags(
    tasks: tuple[str, ...], default_tasks: str, *, threshold_percent: int, cooldown_s: float, window_s: float
) -> tuple[EvictFlag, ...]:
    """The flags with a strategy's own defaults. `tasks` are those that it has."""
    known = ", ".join(tasks)
    return (
        EvictFlag("tasks", default_tasks, f"who is evicted and why, in this order: any of {known}"),
        EvictFlag(
            "threshold-percent",
            threshold_percent,
            "of the capacity in use: from here on pods are evicted",
            1,
            100,
        ),
        EvictFlag(
            "lower-percent",
            -1,
            f"of the capacity in use: down to here; -1 for the threshold less {HYSTERESIS_PERCENT}",
            -1,
            99,
        ),
        EvictFlag(
            "allocatable-threshold-percent",
            100,
            "of the allocatable requested by pods that count: above it pods are evicted",
            1,
            1000,
        ),
        EvictFlag(
            "allocatable-lower-percent",
            -1,
            f"of the allocatable: down to here; -1 for the threshold less {HYSTERESIS_PERCENT}",
            -1,
            999,
        ),
        EvictFlag(
            "max-priority",
            HIGHEST_PRIORITY,
            "pods above this priority are never evicted for what they use",
            -(2**31),
            2**31 - 1,
        ),
        EvictFlag(
            "allocatable-max-priority",
            0,
            "pods above this priority neither count as requested nor are evicted for it",
            -(2**31),
            2**31 - 1,
        ),
        EvictFlag("interval-seconds", 1.0, "time between two rounds", 0.1, 3600),
        EvictFlag("window-seconds", window_s, "time over which use is averaged", 1, MAX_WINDOW_S),
        EvictFlag("cool-time-seconds", cooldown_s, "time without evictions after an eviction", 0, 86_400),
        EvictFlag("max-victims", 5, "pods of which the API server is asked in one round at most", 1, 1000),
        EvictFlag(
            "lost-after-seconds",
            120.0,
            "a pod that is still there so long after its eviction does not count as released any more",
            1,
            86_400,
        ),
    )


class EvictFlags:
    """Reads the flags of a strategy; `prefix` begins their names."""

    def __init__(self, prefix: str, flags: tuple[EvictFlag, ...], known_tasks: tuple[str, ...]) -> None:
        self._prefix, self._flags, self._known_tasks = prefix, flags, known_tasks
        self._values: FlagSet | None = None

    def add_to(self, flags: FlagSet) -> None:
        """Add every flag."""
        self._values = flags
        for each in self._flags:
            flags.add(f"{self._prefix}{each.suffix}", each.default, each.help_text)

    def number(self, suffix: str) -> float:
        """The value of a flag that is a number."""
        return float(self._value(suffix))

    def whole(self, suffix: str) -> int:
        """The value of a flag that is a whole number."""
        return int(self._value(suffix))

    def _value(self, suffix: str) -> bool | float | str:
        assert self._values is not None, "init_flags comes first"
        return self._values.get(f"{self._prefix}{suffix}")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in their order, known or not."""
        return tuple(each.strip() for each in str(self._value("tasks")).split(",") if each.strip())

    def thresholds(self, kind: str = "") -> EvictThresholds:
        """Those of use, or of `allocatable-`."""
        upper, lower = self.whole(f"{kind}threshold-percent"), self.whole(f"{kind}lower-percent")
        return EvictThresholds(upper, max(0, upper - HYSTERESIS_PERCENT) if lower == -1 else lower)

    def rules(self) -> EvictRules:
        """What the tasks go by."""
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
        """Everything that is wrong, each with the flag's name, what was found and what would be right."""
        yield from self._ranges()
        yield from self._task_faults(self.tasks)
        yield from self.thresholds().faults(self._prefix)
        yield from self.thresholds("allocatable-").faults(f"{self._prefix}allocatable-")

    def _ranges(self) -> Iterator[str]:
        for each in self._flags:
            if isinstance(each.default, str):
                continue
            value = self.number(each.suffix)
            if not each.least <= value <= each.most:
                bounds = f"{each.least:g} to {each.most:g}"
                yield f"{self._prefix}{each.suffix}: must be from {bounds} (found {value:g})"

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
