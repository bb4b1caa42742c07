"""Time series of a node in memory, shared by the collectors' thread and those of the strategies.

A lock is held for the copies of one series, or for adding one batch, never while samples are sorted or added up.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from agent.node.qos.core.metrics import (
    OUT_OF_ORDER_S,
    Aggregate,
    Aggregation,
    MetricError,
    MetricKind,
    MetricSample,
    Series,
    aggregate,
    most_bytes,
    property_fault,
    sample_fault,
)

_SHOWN_FAULTS: Final = 5
_SWEEP_S: Final = 1.0
"""A cache that is full looks for old series so often, however many new ones are offered."""
_Key = tuple[str, ...]
_Keyed = tuple[MetricSample, _Key]


class TimeSeriesCache:
    """A `MetricCache` of at most `max_series` series, each of at most `max_samples` samples of the last `max_age_s` seconds.

    `longer` has other bounds (samples, seconds) for kinds without properties, which have one series each. The content never takes more
    than `bound_bytes`. `clock` is the one of the samples' time stamps.
    """

    def __init__(
        self,
        *,
        max_series: int = 4096,
        max_samples: int = 300,
        max_age_s: float = 300.0,
        longer: Mapping[MetricKind, tuple[int, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_series = max_series
        self._max_samples = max_samples
        self._max_age_s = max_age_s
        self._longer = dict(longer or {})
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[MetricKind, dict[_Key, Series]] = {}
        self._swept_s = clock()

    @property
    def bound_bytes(self) -> int:
        long_bytes = sum(most_bytes(samples) for samples, _ in self._longer.values())
        return self._max_series * most_bytes(self._max_samples) + long_bytes

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def append(self, samples: Iterable[MetricSample]) -> None:
        """Add samples, all or none of them; another sample of the same series and moment is replaced. Raises `MetricError` with the
        first reasons: a property, a value that is no number or below 0, a time stamp far from now or more than `OUT_OF_ORDER_S`
        before the newest of its series, or no room for a further series."""
        batch, now_s = tuple(samples), self._clock()
        _raise([sample_fault(each, now_s, self._max_age_s) for each in batch])
        keyed = [(each, tuple(each.properties[name] for name in each.kind.properties)) for each in batch]
        with self._lock:
            if now_s - self._swept_s > self._max_age_s / 8:
                self._sweep(now_s)
            _raise(self._order_faults(keyed))
            self._make_room(keyed, now_s)
            for each, key in keyed:
                self._kinds[each.kind][key].add(each.at_s, each.value)

    def query(
        self,
        kind: MetricKind,
        window_s: float,
        aggregation: Aggregation = Aggregation.AVG,
        properties: Mapping[str, str] | None = None,
    ) -> Aggregate:
        """As `MetricCache.query`. If `properties` leave some of the kind's open, the samples of all such series count."""
        wanted = properties or {}
        _raise([property_fault(kind, wanted, is_whole=False)])
        first_s, last_s = self._window(kind, window_s)
        at_s: list[float] = []
        values: list[float] = []
        for key in self._keys(kind, wanted):
            times, found = self._copy(kind, key, first_s, last_s)
            at_s.extend(times)
            values.extend(found)
        try:
            return aggregate(at_s, values, aggregation)
        except MetricError as error:
            told = "".join(f" {name}={value}" for name, value in wanted.items())
            raise MetricError(f"{kind.name}{told}, the last {window_s:g} s: {error}") from None

    def query_each(
        self, kind: MetricKind, window_s: float, aggregation: Aggregation = Aggregation.AVG
    ) -> Mapping[tuple[str, ...], Aggregate]:
        """As `MetricCache.query_each`: series without a sample in the window are left out."""
        first_s, last_s = self._window(kind, window_s)
        found = {}
        for key in self._keys(kind, {}):
            times, values = self._copy(kind, key, first_s, last_s)
            if values:
                found[key] = aggregate(times, values, aggregation)
        return found

    def end(self, name: str, value: str) -> None:
        """End every series with that property, of any kind: the pod or container is gone."""
        with self._lock:
            for kind, inside in self._kinds.items():
                if name in kind.properties:
                    index = kind.properties.index(name)
                    for key in [key for key in inside if key[index] == value]:
                        del inside[key]
            self._drop_empty()

    def _window(self, kind: MetricKind, window_s: float) -> tuple[float, float]:
        if not window_s > 0:
            raise MetricError(f"the window is {window_s!r} s: it must be above 0")
        now_s = self._clock()
        return now_s - min(window_s, self._bounds(kind)[1]), now_s

    def _bounds(self, kind: MetricKind) -> tuple[int, float]:
        """The most samples of a series, and their most seconds."""
        return self._longer.get(kind, (self._max_samples, self._max_age_s))

    def _keys(self, kind: MetricKind, wanted: Mapping[str, str]) -> list[_Key]:
        """The series of a kind that have the wanted properties."""
        if len(wanted) == len(kind.properties):
            return [tuple(wanted[name] for name in kind.properties)]
        fixed = [(kind.properties.index(name), value) for name, value in wanted.items()]
        with self._lock:
            keys = list(self._kinds.get(kind, ()))
        return [key for key in keys if all(key[index] == value for index, value in fixed)]

    def _copy(
        self, kind: MetricKind, key: _Key, first_s: float, last_s: float
    ) -> tuple[Sequence[float], Sequence[float]]:
        with self._lock:
            series = self._kinds.get(kind, {}).get(key)
            return ((), ()) if series is None else series.between(first_s, last_s)

    def _count(self) -> int:
        return sum(map(len, self._kinds.values()))

    def _sweep(self, now_s: float) -> None:
        """Drop the series whose newest sample is too old."""
        self._swept_s = now_s
        for kind, inside in self._kinds.items():
            oldest_s = now_s - self._bounds(kind)[1]
            for key in [key for key, series in inside.items() if series.newest_s < oldest_s]:
                del inside[key]
        self._drop_empty()

    def _drop_empty(self) -> None:
        for kind in [kind for kind, inside in self._kinds.items() if not inside]:
            del self._kinds[kind]

    def _order_faults(self, batch: Sequence[_Keyed]) -> list[str | None]:
        """The fault of each sample that comes too long after later samples of its series, those of the batch included."""
        newest: dict[tuple[MetricKind, _Key], float] = {}
        found: list[str | None] = []
        for each, key in batch:
            before_s = newest.get((each.kind, key))
            if before_s is None:
                series = self._kinds.get(each.kind, {}).get(key)
                before_s = each.at_s if series is None else series.newest_s
            if each.at_s < before_s - OUT_OF_ORDER_S:
                found.append(
                    f"{each.kind.name}: time stamp {each.at_s!r} is more than {OUT_OF_ORDER_S:g} s before the newest of its series, "
                    f"{before_s!r}"
                )
            newest[each.kind, key] = max(before_s, each.at_s)
        return found

    def _make_room(self, batch: Sequence[_Keyed], now_s: float) -> None:
        """Make the series that a batch begins. Raises `MetricError` if there would be too many."""
        new = {(each.kind, key) for each, key in batch if key not in self._kinds.get(each.kind, {})}
        if new and self._count() + len(new) > self._max_series:
            if now_s - self._swept_s >= _SWEEP_S:
                self._sweep(now_s)
            count = self._count()
            if count + len(new) > self._max_series:
                raise MetricError(
                    f"there are {count} series, and {len(new)} more would be above {self._max_series}"
                )
        for kind, key in new:
            self._kinds.setdefault(kind, {})[key] = Series(*self._bounds(kind))


def _raise(faults: Sequence[str | None]) -> None:
    found = [each for each in faults if each is not None]
    if found:
        more = "" if len(found) <= _SHOWN_FAULTS else f"; and {len(found) - _SHOWN_FAULTS} more"
        raise MetricError("; ".join(found[:_SHOWN_FAULTS]) + more)
