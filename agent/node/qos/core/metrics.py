"""The kinds of metrics that the metric cache keeps, how a window of samples becomes one number, and figures from consecutive readings of
counters and files. A figure that cannot be known is None; nothing is made up."""

import enum
import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


class Aggregation(enum.StrEnum):
    """How the samples of a window become one number. Percentiles are the lower nearest rank, as in Koordinator: P90 of nine
    samples is the eighth."""

    AVG = "avg"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    LAST = "last"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class MetricKind:
    """A kind of metric. A sample sets each property of the kind; a query may set some of them."""

    name: str
    properties: tuple[str, ...] = ()


NODE_CPU_USAGE: Final = MetricKind("node_cpu_usage")
"""Busy CPUs of the node (cores, not millionths)."""
NODE_MEMORY_USAGE: Final = MetricKind("node_memory_usage")
"""Memory of the node in use without reclaimable page cache, in bytes."""
NODE_MEMORY_WITH_PAGE_CACHE: Final = MetricKind("node_memory_usage_with_page_cache")
SYS_CPU_USAGE: Final = MetricKind("sys_cpu_usage")
"""Busy CPUs of processes in no pod."""
SYS_MEMORY_USAGE: Final = MetricKind("sys_memory_usage")
POD_CPU_USAGE: Final = MetricKind("pod_cpu_usage", ("pod_uid",))
POD_MEMORY_USAGE: Final = MetricKind("pod_memory_usage", ("pod_uid",))
POD_CPU_THROTTLED: Final = MetricKind("pod_cpu_throttled", ("pod_uid",))
"""The share of the CPU limit's periods in which the pod was held back, from 0 to 1."""
CONTAINER_CPU_USAGE: Final = MetricKind("container_cpu_usage", ("container_id",))
CONTAINER_MEMORY_USAGE: Final = MetricKind("container_memory_usage", ("container_id",))
CONTAINER_CPU_THROTTLED: Final = MetricKind("container_cpu_throttled", ("container_id",))
NODE_BE: Final = MetricKind("node_be", ("be_resource", "be_allocation"))
"""The pods of the kubelet's best-effort group together; `be_resource` is `cpu` or `memory`, `be_allocation` is `usage`, `real-limit` or `request` (of
batch resources, for these pods request nothing else)."""
PSI: Final = MetricKind("psi", ("psi_resource", "psi_precision", "psi_degree"))
"""Pressure of the node in per cent: `cpu`/`memory`/`io`, `avg10`/`avg60`/`avg300`, `some`/`full`."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a metric. `at_s` is monotonic."""

    kind: MetricKind
    at_s: float
    value: float
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The result for a window. `count` samples over `span_s` seconds (from the first to the last) back the value."""

    value: float
    count: int
    span_s: float


class MetricError(Exception):
    """A sample or a query that does not fit the metric's kind, or a window without samples. The text says which."""


def milli(cpus: float) -> int:
    return math.floor(cpus * 1000 + 0.5)


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


_ID: Final = re.compile(r"(?:.*-)?([0-9a-f]{64})(?:\.scope)?")
"""With the driver systemd the group of a container is called `<runtime>-<id>.scope`, with cgroupfs `<id>`."""
_CONMON: Final = "crio-conmon-"
"""CRI-O keeps the process that watches a container in a group of its own."""
_DEGREES: Final = ("some", "full")
_PRECISIONS: Final = ("avg10", "avg60", "avg300")


class Counter:
    """A total that only rises, as long as it counts the same thing."""

    __slots__ = ("_at_s", "_total")

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._total = 0.0

    def rate(self, at_s: float, total: float) -> float | None:
        """The rise for each second since the last reading. None at the first one, if no time has passed, and if the total
        fell: then another thing is counted, from now on."""
        before_s, before = self._at_s, self._total
        if before_s is not None and total >= before and at_s <= before_s:
            return None  # the next reading tells the rise since the moment that is known
        self._at_s, self._total = at_s, total
        if before_s is None or total < before:
            return None
        return (total - before) / (at_s - before_s)


class Throttling:
    """The periods of a CPU limit, and those of them in which tasks were held back."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def share(self, periods: int, throttled: int) -> float | None:
        """The share of the periods since the last reading in which tasks were held back; 0 if none passed, since nothing ran.
        None at the first reading, without a limit so far, and if a counter fell or exceeds the number of periods."""
        before, self._last = self._last, (periods, throttled)
        if before is None or not periods:
            return None
        passed, held = periods - before[0], throttled - before[1]
        if passed < 0 or not 0 <= held <= passed:
            return None
        return held / passed if passed else 0.0


def container_id(group: str) -> str | None:
    """The runtime's ID of the container that a group inside a pod's belongs to; None if the group is no container's."""
    found = None if group.startswith(_CONMON) else _ID.fullmatch(group)
    return None if found is None else found[1]


def pressure(text: str) -> Iterator[tuple[str, str, float]]:
    """The averages of a file of pressure: `avg10`/`avg60`/`avg300`, `some`/`full`, per cent. Parts that are none are left out."""
    for line in text.splitlines():
        degree, _, fields = line.partition(" ")
        for name, _, written in (each.partition("=") for each in fields.split()):
            if degree in _DEGREES and name in _PRECISIONS and re.fullmatch(r"\d+(\.\d+)?", written):
                yield name, degree, float(written)


def total(parts: Iterable[float | None]) -> float | None:
    """The sum of all parts; None if one of them is not known."""
    found = 0.0
    for each in parts:
        if each is None:
            return None
        found += each
    return found


def rest(whole: float | None, parts: Iterable[float | None]) -> float | None:
    """The part of the whole that is in none of the parts, at least 0; None if the whole or a part is unknown."""
    inside = total(parts)
    return None if whole is None or inside is None else max(0.0, whole - inside)
