"""The history of the last minutes: load, permit and size of each VM by time, and the last events. No I/O; the time is passed in.

Time is cut into buckets of `BUCKET_S`, the same for all VMs. A bucket has the largest values that were heard in it, and none if nothing
was heard. Everything is bounded: the buckets, the VMs that are remembered, and the events.
"""

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal, TypeAlias

from parley.top.events import EventKind, EventLine, KnownVm, happened, known, short
from parley.top.model import VmRow
from protocol.explaining import AmountShown

BUCKET_S: Final = 2.0
BUCKETS: Final = 120
"""Four minutes."""
HELD_BUCKETS: Final = 3
"""A value that was heard stands for so many buckets more, until the next answer: an answer may take longer than a bucket."""
MAX_VMS: Final = 10_000
"""VMs that are remembered, of all agents: 30 MB. Further ones have no past, and no events."""
MAX_EVENTS: Final = 200
FOLLOWED_S: Final = 10.0
"""A size that changes so soon after its permit is one event with it."""
_NANO: Final = 1e9

Measured: TypeAlias = Literal["cpu", "memory"]
"""CPUs, or bytes."""
Key: TypeAlias = tuple[str, str]
"""Agent and VM."""
_STEPS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 60, BUCKETS)
_FIELDS: Final = 6
_UNKNOWN: Final = -1.0
"""The value of a bucket in which nothing was heard; a heard value is at least 0."""
_EMPTY: Final = array("f", [_UNKNOWN]) * (_FIELDS * BUCKETS)


@dataclass(frozen=True, slots=True)
class Past:
    """One resource of a VM by time, the oldest first; NaN for unknown values."""

    load: tuple[float, ...]
    permit: tuple[float, ...]
    size: tuple[float, ...]

    @property
    def top(self) -> float:
        """The largest load and permit; 0 if nothing is known."""
        return max((each for each in (*self.load, *self.permit) if not math.isnan(each)), default=0.0)

    @property
    def moved(self) -> float:
        """The movement of the permit: the largest divided by the smallest; 1 if it has not moved."""
        known_ones = [each for each in self.permit if each > 0]
        return max(known_ones) / min(known_ones) if known_ones else 1.0


@dataclass(slots=True)
class _VmPast:
    """The buckets of a VM: six fields, each a ring. `bucket` is the latest one."""

    ring: "array[float]"
    bucket: int
    known: KnownVm
    event: int | None = None
    """The number of its latest event."""

    def take(self, bucket: int, sample: tuple[float, ...]) -> None:
        """Enter what was heard in a bucket, which is no earlier one. Short gaps before it are filled, long ones stay."""
        ring, gap = self.ring, bucket - self.bucket
        if gap > 0:
            is_held = gap <= HELD_BUCKETS
            for step in range(max(1, gap - BUCKETS + 1), gap + 1):
                at = (self.bucket + step) % BUCKETS
                for start in range(0, _FIELDS * BUCKETS, BUCKETS):
                    ring[start + at] = (
                        ring[start + self.bucket % BUCKETS] if is_held and step < gap else _UNKNOWN
                    )
            self.bucket = bucket
        at = bucket % BUCKETS
        for index, value in enumerate(sample):
            place = index * BUCKETS + at
            ring[place] = max(ring[place], value)

    def column(self, of: int, first: int, after: int) -> float:
        """The largest value of a field in the buckets from `first` to `after`, without that."""
        first, after = max(first, self.bucket - BUCKETS + 1), min(after, self.bucket + 1)
        if first >= after:
            return math.nan
        start, begin, end = of * BUCKETS, first % BUCKETS, (after - 1) % BUCKETS + 1
        if begin < end:
            largest = max(self.ring[start + begin : start + end])
        else:  # around the end of the ring
            largest = max(*self.ring[start + begin : start + BUCKETS], *self.ring[start : start + end])
        return largest if largest >= 0 else math.nan


@dataclass(slots=True)
class _AgentPast:
    """The last answer of an agent."""

    daemon: str
    vms: dict[Key, _VmPast] = field(default_factory=dict)
    is_away: bool = False


class History:
    """The past of all agents' VMs. `now_s` is any clock that does not go back; if it does, everything before is forgotten but events."""

    def __init__(self, max_vms: int = MAX_VMS) -> None:
        self._max_vms = max_vms
        self._agents: dict[str, _AgentPast] = {}
        self._vms: dict[Key, _VmPast] = {}
        self._events: dict[int, EventLine] = {}
        self._numbers = count()
        self._first: int | None = None
        self._now = 0

    def heard(self, agent: str, daemon: str, rows: Iterable[VmRow], now_s: float) -> None:
        """Take an agent's answer. `daemon` tells one life of the agent from another."""
        self._turn(now_s)
        self._first = self._now if self._first is None else self._first
        past = self._agents.get(agent)
        is_first = past is None
        if past is None:
            past = self._agents[agent] = _AgentPast(daemon)
        elif past.daemon != daemon:
            self._say(EventLine(now_s, EventKind.NOTE, "agent", f"{agent} was started again"))
        elif past.is_away:
            self._say(EventLine(now_s, EventKind.NOTE, "agent", f"{agent} answers again"))
        past.daemon, past.is_away = daemon, False
        before, past.vms = past.vms, {}
        for row in rows:
            vm = before.pop(row.key, None)
            if vm is not None:
                self._compare(vm, row, now_s)
            elif len(self._vms) >= self._max_vms:
                continue
            else:
                vm = self._vms[row.key] = _VmPast(_EMPTY[:], self._now, known(row))
                if not is_first:
                    self._say(EventLine(now_s, EventKind.NEW, short(row.name), _is_now(row)), vm)
            past.vms[row.key] = vm
            vm.take(self._now, _sample(row))
        for key in before:
            del self._vms[key]
            self._say(EventLine(now_s, EventKind.GONE, short(key[1]), "the agent does not name it any more"))

    def missed(self, agent: str, fault: str, now_s: float) -> None:
        """An agent did not answer: one event for all tries in a row."""
        self._turn(now_s)
        past = self._agents.get(agent)
        if past is not None and not past.is_away:
            past.is_away = True
            self._say(EventLine(now_s, EventKind.FAULT, "agent", f"{agent}: {fault}"))

    def note(self, subject: str, text: str, now_s: float) -> None:
        self._turn(now_s)
        self._say(EventLine(now_s, EventKind.NOTE, subject, text))

    def tick(self, now_s: float) -> None:
        """Time has passed: without an answer the past ends before the right edge."""
        self._turn(now_s)

    def events(self) -> Iterator[EventLine]:
        """The last events, the latest first."""
        return reversed(self._events.values())

    def column_s(self, width: int) -> float:
        """How many seconds one of `width` columns stands for."""
        return self._step(width) * BUCKET_S

    def past(self, key: Key, measured: Measured, width: int) -> Past | None:
        """A resource of a VM in `width` columns, of which the last one is now; None for a VM that is not remembered."""
        vm = self._vms.get(key)
        if vm is None or width < 1:
            return None
        step = self._step(width)
        # Columns begin at multiples of their width, so that a past that moves on does not change its shape.
        first = (self._now // step - width + 1) * step
        fields = (0, 1, 2) if measured == "cpu" else (3, 4, 5)
        columns = [(first + place * step, first + (place + 1) * step) for place in range(width)]
        return Past(*(tuple(vm.column(of, *column) for column in columns) for of in fields))

    def _step(self, width: int) -> int:
        """Buckets of a column: as few as show all that is remembered."""
        age = 1 if self._first is None else min(self._now - self._first + 1, BUCKETS)
        return next(step for step in _STEPS if step * width >= age)

    def _turn(self, now_s: float) -> None:
        now = math.floor(now_s / BUCKET_S)
        if now < self._now and self._first is not None:  # the clock was set back
            self._first = now
            for vm in self._vms.values():
                vm.ring, vm.bucket = _EMPTY[:], now
        self._now = now

    def _compare(self, vm: _VmPast, row: VmRow, now_s: float) -> None:
        for event in happened(vm.known, row, now_s):
            last = self._events.get(vm.event) if vm.event is not None else None
            is_repeat = last is not None and event.is_repeat_of(last)
            is_followed = (
                last is not None
                and last.kind is EventKind.PERMIT
                and event.kind in {EventKind.GREW, EventKind.PERMIT}
                and now_s - last.at_s <= FOLLOWED_S
            )
            if vm.event is not None and (is_repeat or is_followed):
                del self._events[vm.event]
            self._say(event.after(last) if last is not None and is_repeat else event, vm)
        vm.known = known(row, vm.known)

    def _say(self, event: EventLine, vm: _VmPast | None = None) -> None:
        number = next(self._numbers)
        self._events[number] = event
        if vm is not None:
            vm.event = number
        if len(self._events) > MAX_EVENTS:
            del self._events[next(iter(self._events))]


def _sample(row: VmRow) -> tuple[float, ...]:
    permit, size = _worth(row.permit), _worth(row.size)
    load = _UNKNOWN if row.load is None else max(row.load, 0.0)
    used = _UNKNOWN if row.memory_used is None else max(row.memory_used, 0.0)
    return load, permit[0], size[0], used, permit[1], size[1]


def _worth(amount: AmountShown | None) -> tuple[float, float]:
    if amount is None or amount.worth is None:
        return _UNKNOWN, _UNKNOWN
    return amount.worth[0] / _NANO, amount.worth[1] / _NANO


def _is_now(row: VmRow) -> str:
    return f"has {row.size}" if row.size is not None else "of no known size yet"
