"""Samples of one metric in order of time, and how those of a window become one number."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from agent.node.qos.core.metrics import Aggregate, Aggregation, MetricError, MetricKind, MetricSample

OUT_OF_ORDER_S: Final = 60.0
"""So much earlier than the newest sample of its series a sample may come; and so much ahead of the clock."""
MAX_VALUE: Final = float(2**63)
"""No figure of a machine is larger; sums of such figures stay finite."""
MAX_PROPERTIES: Final = 8
MAX_CHARACTERS: Final = 256
"""So long may the name of a kind and the values of its properties be together."""
_BYTES_BESIDE: Final = 3072
"""Bytes of a series beside its samples, with the longest names, at most."""
_PERCENTILES: Final = {Aggregation.P50: 50, Aggregation.P90: 90, Aggregation.P95: 95, Aggregation.P99: 99}


def rank(count: int, percent: int) -> int:
    """The index of a percentile among `count` sorted samples, at least 1 of them: `int(count * share) - 1`, at least 0, in whole numbers.

    This is Koordinator's lower nearest rank, without the share as a binary fraction.
    """
    return max(0, count * percent // 100 - 1)


def aggregate(at_s: Sequence[float], values: Sequence[float], aggregation: Aggregation) -> Aggregate:
    """One number from samples in any order; of two at the same moment the last counts as newer.

    Raises `MetricError` for an unknown aggregation, and if there is no sample, except for `COUNT`.
    """
    try:
        wanted = Aggregation(aggregation)
    except ValueError:
        raise MetricError(
            f"aggregation {aggregation!r} is unknown: it must be one of {', '.join(Aggregation)}"
        ) from None
    count = len(values)
    if not count:
        if wanted is Aggregation.COUNT:
            return Aggregate(0.0, 0, 0.0)
        raise MetricError(f"there is no sample, so no {wanted}")
    return Aggregate(_value(at_s, values, wanted), count, max(at_s) - min(at_s))


def _value(at_s: Sequence[float], values: Sequence[float], wanted: Aggregation) -> float:
    count = len(values)
    match wanted:
        case Aggregation.AVG:
            return math.fsum(values) / count
        case Aggregation.LAST:
            return values[max(range(count), key=lambda index: (at_s[index], index))]
        case Aggregation.COUNT:
            return float(count)
        case _:
            return sorted(values)[rank(count, _PERCENTILES[wanted])]


class Series:
    """At most `max_samples` samples of at most `max_age_s`, counted from the newest, in two arrays of doubles."""

    __slots__ = ("_at_s", "_max_age_s", "_max_samples", "_values")

    def __init__(self, max_samples: int, max_age_s: float) -> None:
        self._max_samples = max_samples
        self._max_age_s = max_age_s
        self._at_s = array("d")
        self._values = array("d")

    @property
    def newest_s(self) -> float:
        """The moment of the newest sample; minus infinity if there is none."""
        return self._at_s[-1] if self._at_s else -math.inf

    def __len__(self) -> int:
        return len(self._at_s)

    def add(self, at_s: float, value: float) -> None:
        """Add a sample; another sample of the same moment is replaced. Samples that are too old or too many go, the oldest first."""
        if at_s > self.newest_s:
            self._at_s.append(at_s)
            self._values.append(value)
        else:
            index = bisect_left(self._at_s, at_s)
            if self._at_s[index] == at_s:
                self._values[index] = value
                return
            self._at_s.insert(index, at_s)
            self._values.insert(index, value)
        surplus = max(
            len(self._at_s) - self._max_samples, bisect_left(self._at_s, self.newest_s - self._max_age_s)
        )
        if surplus > 0:
            del self._at_s[:surplus], self._values[:surplus]

    def between(self, first_s: float, last_s: float) -> tuple[Sequence[float], Sequence[float]]:
        """Copies of the moments and values from `first_s` to `last_s`, both included."""
        first, last = bisect_left(self._at_s, first_s), bisect_right(self._at_s, last_s)
        return self._at_s[first:last], self._values[first:last]


def most_bytes(max_samples: int) -> int:
    """The memory that a series takes at most. An array reserves up to a sixteenth more than its items take."""
    return 2 * 8 * (max_samples + 1 + (max_samples + 1) // 16 + 8) + _BYTES_BESIDE


def sample_fault(sample: MetricSample, now_s: float, max_age_s: float) -> str | None:
    """Why a sample is refused on its own, without a look at earlier ones; None if it is not."""
    kind, value, at_s = sample.kind, sample.value, sample.at_s
    wrong = property_fault(kind, sample.properties, is_whole=True)
    if wrong is not None:
        return wrong
    characters = len(kind.name) + sum(len(sample.properties[name]) for name in kind.properties)
    if len(kind.properties) > MAX_PROPERTIES or characters > MAX_CHARACTERS:
        return (
            f"{kind.name[:MAX_CHARACTERS]}: name and properties have {characters} characters in {len(kind.properties)} properties: "
            f"at most {MAX_CHARACTERS} in {MAX_PROPERTIES} are kept"
        )
    if not 0 <= value <= MAX_VALUE:  # NaN compares as false
        return f"{kind.name}: value {value!r} must be a number from 0 to 2^63"
    if not now_s - max_age_s <= at_s <= now_s + OUT_OF_ORDER_S:
        return (
            f"{kind.name}: time stamp {at_s!r} must be from {max_age_s:g} s before now to {OUT_OF_ORDER_S:g} s after it "
            f"(now is {now_s:.3f})"
        )
    return None


def property_fault(kind: MetricKind, properties: Mapping[str, str], *, is_whole: bool) -> str | None:
    """Which properties a kind does not have, and, if all must be set (`is_whole`), which are missing; None if nothing is wrong."""
    unknown = sorted(properties.keys() - set(kind.properties))
    missing = [name for name in kind.properties if name not in properties] if is_whole else []
    found = [
        *(f"property {name!r} is unknown" for name in unknown),
        *(f"property {name!r} is missing" for name in missing),
    ]
    if not found:
        return None
    has = f"the kind has {', '.join(kind.properties)}" if kind.properties else "the kind has none"
    return f"{kind.name}: {'; '.join(found)} ({has})"
