"""The pods that wait for their turn: what `PodQueue` decides. Source: reference/kubernetes.md 1.9, kube-scheduler's scheduling queue.

A pod is in one of five pools:

| Pool | Its pods wait for | They leave it |
|---|---|---|
| active | their turn, in the order of the profile's QueueSort plugin | by `pop` |
| in flight | the end of their cycle | by `done`, or by `failed` |
| back-off | a moment: 1 s after the first failure, doubled with each to 10 s | when it has come |
| unschedulable | an event that may help, as the plugins that rejected them hint | by `move`, or after 5 minutes |
| gated | what a PreEnqueue plugin wants | by `move` or their own update, when the plugin agrees |

An event that comes while a pod is in flight is not lost: when the pod fails, it counts as if it had come then.
"""

import enum
import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from hosting.backoff import Backoff
from scheduler.placing.core.objects import PodInfo, QueuedPod
from scheduler.placing.core.values import (
    ActionType,
    EventResource,
    QueueingHint,
    RegisteredEvents,
    SchedulingEvent,
    Status,
    hint_of,
    is_success,
    is_waited_for,
)

MAX_PODS: Final = 10_000
"""Pods in all pools together."""
MAX_EVENTS: Final = 10_000
"""Events that are kept for pods in flight. With more, every pod whose cycle began before them is tried again."""
MIN_STALE: Final = 64
"""Places in a heap that pods have left are dropped when there are more of them than this, and than pods."""
INITIAL_BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 10.0
_BACKOFF: Final = Backoff(INITIAL_BACKOFF_S, cap_s=MAX_BACKOFF_S)
MAX_UNSCHEDULABLE_S: Final = 5 * 60.0
"""So long a pod stays in the unschedulable pool at most."""

Less: TypeAlias = Callable[[QueuedPod, QueuedPod], bool]
Gate: TypeAlias = Callable[[PodInfo], Status | None]
"""The word of the PreEnqueue plugins of the pod's profile. Raises nothing."""
EventsOf: TypeAlias = Callable[[PodInfo], RegisteredEvents]
"""The events that the plugins of the pod's profile wait for."""


class QueuePool(enum.StrEnum):
    """The place of a pod."""

    ACTIVE = "active"
    IN_FLIGHT = "in-flight"
    BACKOFF = "back-off"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a cycle ended without a node. `plugins` rejected the pod, and those in `pending` of them wait for somebody to act.

    Without plugins, any event may help.
    """

    plugins: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()


class _Wake(enum.IntEnum):
    """The effect of an event on a pod that waits for one."""

    NOTHING = 0
    QUEUE = 1
    AT_ONCE = 2
    """A plugin that said Pending has what it wanted: no back-off."""


@dataclass(slots=True)
class _QueueEntry:
    """A pod in the queue. `ticket` tells its place in a heap from those that it has left."""

    queued: QueuedPod
    pool: QueuePool = QueuePool.ACTIVE
    ticket: int = 0
    pending: frozenset[str] = frozenset()
    failed_s: float = 0.0
    parked_s: float = 0.0
    began_at: int = 0
    """How many events there had been when its cycle began."""
    must_retry: bool = False
    """Whether something has happened to the pod itself during its cycle."""

    @property
    def pod(self) -> PodInfo:
        return self.queued.pod

    @property
    def ready_s(self) -> float:
        """When its back-off is over."""
        return self.failed_s + backoff_s(self.queued.attempts)


@dataclass(slots=True)
class _Alike:
    """Pods that wait for the same events, because the same plugins of the same profile have rejected them."""

    registered: RegisteredEvents
    plugins: frozenset[str]
    entries: list[_QueueEntry] = field(default_factory=list)


def backoff_s(attempts: int) -> float:
    return _BACKOFF.delay_s(attempts, 0) if attempts > 0 else 0.0


def by_priority(first: QueuedPod, second: QueuedPod) -> bool:
    """The default order: the higher priority first, then who waits longer."""
    return (-first.pod.priority, first.since_s) < (-second.pod.priority, second.since_s)


class _TurnKey:
    """A place in the order of the active pool. Of equals the one that came first is first.

    The pod counts as it was when it got the place: a heap has no order any more where a place that was left moves in it.
    """

    __slots__ = ("entry", "less", "queued", "ticket")

    def __init__(self, entry: _QueueEntry, less: Less) -> None:
        self.entry, self.less, self.queued, self.ticket = entry, less, entry.queued, entry.ticket

    @property
    def is_current(self) -> bool:
        """Whether the pod has had no other place since."""
        return self.entry.ticket == self.ticket

    def __lt__(self, other: "_TurnKey") -> bool:
        mine, others = self.queued, other.queued
        if self.less(mine, others):
            return True
        return self.ticket < other.ticket and not self.less(others, mine)


class PodQueue:
    """The queue. `less` is the order of the active pool; where it raises, the default order holds for that comparison."""

    def __init__(
        self,
        less: Less,
        gate: Gate,
        events_of: EventsOf,
        *,
        max_pods: int = MAX_PODS,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._order = less
        self._gate = gate
        self._events_of = events_of
        self._max_pods = max_pods
        self._entries: dict[str, _QueueEntry] = {}
        self._in_flight: dict[str, _QueueEntry] = {}
        self._active: list[_TurnKey] = []
        self._backoff: list[tuple[float, int, _QueueEntry]] = []
        self._parked: dict[str, _QueueEntry] = {}
        """Unschedulable and gated pods, who came first first."""
        self._events: deque[SchedulingEvent] = deque(maxlen=max_events)
        self._events_seen = 0
        self._tickets = 0
        self.refused_total = 0
        """Pods that were not taken, because the queue was full."""
        self.order_faults_total = 0
        """Comparisons in which the QueueSort plugin failed."""
        self.hint_faults_total = 0
        """Hints that failed, which counts as Queue."""

    # ------------------------------------------------------------ what is known

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def pods(self) -> Iterator[PodInfo]:
        return (entry.pod for entry in self._entries.values())

    def find(self, uid: str) -> QueuedPod | None:
        entry = self._entries.get(uid)
        return entry.queued if entry is not None else None

    def pool_of(self, uid: str) -> QueuePool | None:
        """The place of a pod; None if it is not in the queue."""
        entry = self._entries.get(uid)
        return entry.pool if entry is not None else None

    def counts(self) -> Counter[QueuePool]:
        return Counter(entry.pool for entry in self._entries.values())

    def due_s(self) -> float | None:
        """When `flush` has something to do; None for never. May be too early, never too late."""
        moments = [self._backoff[0][0]] if self._backoff else []
        if self._parked:
            moments.append(next(iter(self._parked.values())).parked_s + MAX_UNSCHEDULABLE_S)
        return min(moments, default=None)

    # ------------------------------------------------------------ pods

    def add(self, pod: PodInfo, now_s: float) -> bool:
        """A pod is there, or was changed. Whether the queue has it now: a full queue takes no more pods."""
        entry = self._entries.get(pod.uid)
        if entry is not None:
            self._update(entry, pod, now_s)
            return True
        if len(self._entries) >= self._max_pods:
            self.refused_total += 1
            return False
        entry = self._entries[pod.uid] = _QueueEntry(QueuedPod(pod, now_s))
        self._activate(entry, now_s)
        return True

    def delete(self, uid: str) -> None:
        """A pod is gone, or has a node. Whatever its cycle says of a pod in flight has no effect from now on."""
        entry = self._entries.pop(uid, None)
        if entry is not None:
            self._leave(entry)

    def _update(self, entry: _QueueEntry, pod: PodInfo, now_s: float) -> None:
        before = entry.pod
        entry.queued = replace(entry.queued, pod=pod)
        event = SchedulingEvent(EventResource.POD, ActionType.UPDATE, before, pod)
        is_helped = _needs(before) != _needs(pod) or self._wake(entry, event) is not _Wake.NOTHING
        if entry.pool in {QueuePool.ACTIVE, QueuePool.GATED}:
            self._activate(entry, now_s)
        elif entry.pool is QueuePool.IN_FLIGHT:
            entry.must_retry |= _needs(before) != _needs(pod)
        elif entry.pool is QueuePool.UNSCHEDULABLE and is_helped:
            self._requeue(entry, now_s)

    # ------------------------------------------------------------ cycles

    def pop(self, now_s: float) -> QueuedPod | None:
        """The pod whose turn it is, in flight from now on; None where it is nobody's."""
        self.flush(now_s)
        while self._active:
            turn = heapq.heappop(self._active)
            if turn.is_current:
                return self._begin(turn.entry)
        return None

    def take(self, uid: str) -> QueuedPod | None:
        """A certain pod, in flight from now on; None where the queue does not have it, or it is in flight already."""
        entry = self._entries.get(uid)
        return self._begin(entry) if entry is not None and entry.pool is not QueuePool.IN_FLIGHT else None

    def _begin(self, entry: _QueueEntry) -> QueuedPod:
        self._place(entry, QueuePool.IN_FLIGHT)
        self._in_flight[entry.pod.uid] = entry
        entry.queued = replace(entry.queued, attempts=entry.queued.attempts + 1)
        entry.began_at, entry.must_retry = self._events_seen, False
        return entry.queued

    def failed(self, uid: str, rejection: Rejection | None, now_s: float) -> None:
        """The cycle of a pod has ended without a node. Without a `rejection` something failed: the pod is tried after a back-off.

        A cycle that ends well ends with `delete`.
        """
        entry = self._in_flight.get(uid)
        if entry is None:
            return
        missed = self._missed(entry)
        found = rejection or Rejection()
        entry.failed_s, entry.pending = now_s, found.pending
        entry.queued = replace(entry.queued, since_s=now_s, rejected_by=found.plugins)
        if rejection is None or entry.must_retry or missed is None:
            self._requeue(entry, now_s)
            return
        wake = max((self._wake(entry, event) for event in missed), default=_Wake.NOTHING)
        if wake is not _Wake.NOTHING:
            self._requeue(entry, now_s, at_once=wake is _Wake.AT_ONCE)
        else:
            self._park(entry, QueuePool.UNSCHEDULABLE, now_s)

    def in_flight(self) -> tuple[str, ...]:
        """The UIDs of the pods whose cycle goes on."""
        return tuple(self._in_flight)

    def _missed(self, entry: _QueueEntry) -> Sequence[SchedulingEvent] | None:
        """The events since the pod's cycle began; None where they are not all kept."""
        count = self._events_seen - entry.began_at
        return None if count > len(self._events) else list(self._events)[len(self._events) - count :]

    # ------------------------------------------------------------ what moves pods

    def move(self, events: Sequence[SchedulingEvent], now_s: float) -> None:
        """Things have happened, one after the other: pods that they may help leave the unschedulable pool, and gates are tried again.

        Most pods wait for none of them. So the pods that the same plugins have rejected are looked at only for the events of those.
        """
        if self._in_flight:
            self._events.extend(events)
            self._events_seen += len(events)
        groups: dict[tuple[int, frozenset[str]], _Alike] = {}
        for entry in self._parked.values():
            self._join(groups, entry)
        for event in events:
            gated: list[_QueueEntry] = []
            for group in groups.values():
                if group.entries and is_waited_for(group.registered, event, group.plugins):
                    group.entries = [each for each in group.entries if self._stays(each, event, now_s, gated)]
            for entry in gated:
                self._join(groups, entry)

    def _join(self, groups: dict[tuple[int, frozenset[str]], "_Alike"], entry: _QueueEntry) -> None:
        registered, plugins = self._events_of(entry.pod), entry.queued.rejected_by
        key = id(registered), plugins
        groups.setdefault(key, _Alike(registered, plugins)).entries.append(entry)

    def _stays(
        self, entry: _QueueEntry, event: SchedulingEvent, now_s: float, gated: list[_QueueEntry]
    ) -> bool:
        """Whether a pod goes on waiting as before. One that a gate stops joins `gated`."""
        wake = self._wake(entry, event)
        if wake is _Wake.NOTHING:
            return True
        self._requeue(entry, now_s, at_once=wake is _Wake.AT_ONCE)
        if entry.pod.uid in self._parked:
            gated.append(entry)
        return False

    def activate(self, uids: Sequence[str], now_s: float) -> None:
        """Give these pods their turn as soon as possible, whatever they wait for but their gates."""
        for uid in uids:
            entry = self._entries.get(uid)
            if entry is None or entry.pool is QueuePool.ACTIVE:
                continue
            if entry.pool is QueuePool.IN_FLIGHT:
                entry.must_retry = True
            else:
                self._activate(entry, now_s)

    def flush(self, now_s: float) -> None:
        """End the back-offs that are over, and the waits of pods that no event has helped for long."""
        while self._backoff and self._backoff[0][0] <= now_s:
            _, ticket, entry = heapq.heappop(self._backoff)
            if entry.ticket == ticket:
                self._activate(entry, now_s)
        late_s = now_s - MAX_UNSCHEDULABLE_S
        while self._parked and (oldest := next(iter(self._parked.values()))).parked_s <= late_s:
            self._requeue(oldest, now_s)

    def _wake(self, entry: _QueueEntry, event: SchedulingEvent) -> _Wake:
        """Whether an event may help a pod, as the plugins that rejected it hint; any event may help one that no plugin rejected.

        That its own room was given back helps no pod.
        """
        before = event.before
        if event.action is ActionType.DELETE and isinstance(before, PodInfo) and before.uid == entry.pod.uid:
            return _Wake.NOTHING
        registered = self._events_of(entry.pod)
        if entry.pending and self._helps(registered, entry.pod, event, entry.pending):
            return _Wake.AT_ONCE
        is_helped = self._helps(registered, entry.pod, event, entry.queued.rejected_by)
        return _Wake.QUEUE if is_helped else _Wake.NOTHING

    def _helps(
        self, registered: RegisteredEvents, pod: PodInfo, event: SchedulingEvent, plugins: frozenset[str]
    ) -> bool:
        verdict = hint_of(registered, pod, event, plugins)
        self.hint_faults_total += len(verdict.failures)
        return verdict.hint is QueueingHint.QUEUE

    # ------------------------------------------------------------ places

    def _requeue(self, entry: _QueueEntry, now_s: float, *, at_once: bool = False) -> None:
        """To the active pool, or first to the back-off where that is not over."""
        if at_once or entry.ready_s <= now_s:
            self._activate(entry, now_s)
            return
        self._place(entry, QueuePool.BACKOFF)
        heapq.heappush(self._backoff, (entry.ready_s, entry.ticket, entry))
        if len(self._backoff) > 2 * len(self._entries) + MIN_STALE:
            self._backoff = [each for each in self._backoff if each[2].ticket == each[1]]
            heapq.heapify(self._backoff)

    def _activate(self, entry: _QueueEntry, now_s: float) -> None:
        status = self._gate(entry.pod)
        if is_success(status):
            self._place(entry, QueuePool.ACTIVE)
            heapq.heappush(self._active, _TurnKey(entry, self._less))
            if len(self._active) > 2 * len(self._entries) + MIN_STALE:
                self._active = [turn for turn in self._active if turn.is_current]
                heapq.heapify(self._active)
            return
        assert status is not None
        plugins = frozenset({status.plugin}) if status.plugin else frozenset[str]()
        entry.queued, entry.pending = replace(entry.queued, rejected_by=plugins), frozenset()
        self._park(entry, QueuePool.GATED, now_s)

    def _park(self, entry: _QueueEntry, pool: QueuePool, now_s: float) -> None:
        self._place(entry, pool)
        entry.parked_s = now_s
        self._parked[entry.pod.uid] = entry

    def _place(self, entry: _QueueEntry, pool: QueuePool) -> None:
        self._leave(entry)
        entry.pool = pool

    def _leave(self, entry: _QueueEntry) -> None:
        """Its place in any pool is void."""
        self._tickets += 1
        entry.ticket = self._tickets
        self._parked.pop(entry.pod.uid, None)
        if self._in_flight.pop(entry.pod.uid, None) is not None and not self._in_flight:
            self._events.clear()

    def _less(self, first: QueuedPod, second: QueuedPod) -> bool:
        try:
            return self._order(first, second)
        except Exception:  # noqa: BLE001 - a plugin's fault must not break the order of a heap
            self.order_faults_total += 1
            return by_priority(first, second)


def _needs(pod: PodInfo) -> tuple[object, ...]:
    """The parts of a pod that plugins go by: a change may help the pod whatever the hints say."""
    return pod.amount, pod.bounds, pod.pool, pod.priority, dict(pod.labels)
