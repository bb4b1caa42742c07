"""The choice of happenings that become Events: repetitions are counted in one Event, and no object gets more than its share of new ones."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar

V = TypeVar("V")
BURST: Final = 10
"""New Events that one object may get at once."""
REFILL_S: Final = 60.0
"""How long until an object that has used up its burst may get another new Event."""
WRITE_EVERY_S: Final = 30.0
"""How often the count of an Event is written at most."""
FORGET_S: Final = 600.0
"""A happening that has not occurred for so long begins a new Event when it occurs again."""
MAX_REMEMBERED: Final = 2_000
"""Events, and objects, that are remembered; the longest silent go first."""

Verdict: TypeAlias = Literal["create", "count", "later", "drop"]
"""Write a new Event, or the count of one; count it, and write that some other time; or do nothing, because there are too many."""


@dataclass(slots=True)
class _Series:
    count: int
    last_s: float
    written_s: float


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class EventBudget:
    """The recent happenings. `now_s` is monotonic."""

    def __init__(self) -> None:
        self._series: OrderedDict[Hashable, _Series] = OrderedDict()
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def happened(self, about: Hashable, what: Hashable, now_s: float) -> tuple[Verdict, int]:
        """`what` happened to the object `about`: the verdict, and how often it has happened since its Event began."""
        key = (about, what)
        series = self._series.get(key)
        if series is None or now_s - series.last_s >= FORGET_S:
            if not self._spend(about, now_s):
                return "drop", 0
            _remember(self._series, key, _Series(1, now_s, now_s))
            return "create", 1
        self._series.move_to_end(key)
        series.count += 1
        series.last_s = now_s
        if now_s - series.written_s < WRITE_EVERY_S:
            return "later", series.count
        series.written_s = now_s
        return "count", series.count

    def forget(self, about: Hashable, what: Hashable) -> None:
        """The Event was never written, or is gone: the next time begins a new one."""
        self._series.pop((about, what), None)

    def _spend(self, about: Hashable, now_s: float) -> bool:
        bucket = self._buckets.get(about) or _Bucket(BURST, now_s)
        bucket.tokens = min(BURST, bucket.tokens + (now_s - bucket.at_s) / REFILL_S)
        bucket.at_s = now_s
        _remember(self._buckets, about, bucket)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


def _remember(memory: OrderedDict[Hashable, V], key: Hashable, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)
