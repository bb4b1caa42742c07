"""The memory of decisions: the last ones of each VM, the last ones of all, and how often each was repeated. It is bounded.

Decisions are kept by the name of the pod, because an agent that names a pod which is not there is told why just there. Repeats are
found on tracks of their own: waits, refused requests and migrations stand beside what was decided. A denial that is found again after
its pool was asked is the same denial, and an agent that is refused again and again, while another one is served, is refused once.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from protocol.explaining import DecisionOutcome, ProgressCode
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.explain.core import records
from scheduler.explain.core.records import DecisionContent, DecisionEvent, RememberedDecision
from scheduler.permits.core import events

OF_A_VM: Final = 16
"""Decisions that are remembered of each VM."""
LEAST_OF_A_VM: Final = 4
"""How many at least, however many VMs there are."""
OF_ALL_VMS: Final = 160_000
"""Decisions of VMs that are remembered together: beyond 10,000 VMs, each has fewer."""
LATEST: Final = 4096
"""Decisions that are remembered of all VMs in their order."""
ABSENT: Final = 1024
"""VMs that have gone whose decisions are remembered."""
UNKNOWN: Final = 256
"""Pods that are remembered because an agent named them, though there never was such a VM: anybody can invent names."""
UNKNOWN_BURST: Final = 64
"""Decisions about pods that are not there that are remembered one after the other, and then one in `UNKNOWN_EVERY_S` seconds."""
UNKNOWN_EVERY_S: Final = 5.0
ABSENT_S: Final = 3600.0
"""For how long both are."""
REFUSAL_S: Final = 120.0
"""For how long after a refused request the same refusal repeats it; later it is another one."""
MIGRATION_S: Final = 120.0
"""For how long the latest that became of a migration is news: one that fails is tried again within 60 s."""
PERMITS: Final = 16
"""Permits of a VM that are remembered with their times."""
LOADS: Final = 16
"""Load averages of a VM that are remembered with their times."""
LOAD_EVERY_S: Final = 4.0
"""Between two of them: an agent that asks more often is not noted each time, so that they reach back for a minute at least."""


class DecisionTrack(msgspec.Struct, gc=False):
    """The latest decision of one kind, and its repeats; None if nothing repeats it any more. No part of a cycle.

    `requested` is the amount that was asked for last: another amount that meets the same limits repeats the decision."""

    latest: RememberedDecision | None = None
    content: DecisionContent | None = None
    requested: Resources | None = None

    def repeats(self, content: DecisionContent, requested: Resources | None, now_s: float) -> bool:
        """Whether a decision repeats the latest one; it is counted there."""
        if self.latest is None or self.content != content:
            return False
        self.latest.times += 1
        self.latest.last_s = now_s
        self.requested = requested
        return True


@dataclass(slots=True)
class Trail:
    """The memory of one pod. `decided` are permits, which stand until all that is asked for is permitted; `waits` those since then,
    `refusals` the requests that were refused. `is_held` says that a request waits now: the latest of `waits`, which stands longer,
    because a wait that comes again with the same denial behind it is the same wait.

    `uid` is empty if the cluster showed no VM of that name, `absent_since_s` (Unix time) is when it went, or was asked for in vain first.
    `permits` are its latest permits as they are told, encoded like decisions: items of a JSON array, each with a comma behind it.
    """

    uid: str = ""
    ring: deque[RememberedDecision] = field(default_factory=deque)
    decided: DecisionTrack = field(default_factory=DecisionTrack)
    waits: DecisionTrack = field(default_factory=DecisionTrack)
    refusals: DecisionTrack = field(default_factory=DecisionTrack)
    migrations: DecisionTrack = field(default_factory=DecisionTrack)
    negotiations: DecisionTrack = field(default_factory=DecisionTrack)
    is_held: bool = False
    absent_since_s: float | None = None
    permits: bytes = b""
    permits_told: int = 0

    def track(self, outcome: DecisionOutcome) -> DecisionTrack:
        if outcome is DecisionOutcome.HELD:
            return self.waits
        if outcome is DecisionOutcome.MIGRATION:
            return self.migrations
        if outcome is DecisionOutcome.NEGOTIATION:
            return self.negotiations
        return self.refusals if outcome is DecisionOutcome.REFUSED else self.decided

    @property
    def has_failed_to_leave(self) -> bool:
        """Whether the latest news of its migration is that it could not be started."""
        content = self.migrations.content
        return content is not None and content.codes[:1] == ((ProgressCode.MIGRATION_FAILED.value, None),)

    def refusal(self, now_s: float) -> RememberedDecision | None:
        """The latest refused request, if it is recent."""
        latest = self.refusals.latest
        return latest if latest is not None and now_s - latest.last_s <= REFUSAL_S else None

    def migration(self, now_s: float) -> RememberedDecision | None:
        """The latest outcome of a migration, if it is recent."""
        latest = self.migrations.latest
        return latest if latest is not None and now_s - latest.last_s <= MIGRATION_S else None


@dataclass(slots=True)
class ReportedLoads:
    """The load averages that the agent of one VM reported lately, `told` of them, as they are told: items of a JSON array, each with a comma behind it."""

    uid: str
    items: bytes = b""
    told: int = 0
    last_s: float = -math.inf


class DecisionMemory:
    """Takes decisions, and tells them again. Times are seconds of Unix time."""

    def __init__(
        self,
        of_all_vms: int = OF_ALL_VMS,
        latest: int = LATEST,
        absent: int = ABSENT,
        unknown: int = UNKNOWN,
    ) -> None:
        self._of_all_vms = of_all_vms
        self._max_absent, self._max_unknown = absent, unknown
        self._live: dict[PodName, Trail] = {}
        self._absent: dict[PodName, Trail] = {}
        self._unknown: dict[PodName, Trail] = {}
        self._loads: dict[PodName, ReportedLoads] = {}
        self._unknown_left, self._unknown_at_s = float(UNKNOWN_BURST), 0.0
        self._latest: deque[RememberedDecision] = deque(maxlen=latest)
        self.number = 0
        """That of the latest decision; 0 before the first."""
        self.left_out = 0
        """How many decisions about pods that are not there were too many to be remembered."""

    # ------------------------------------------------------------ what happens

    def reported(self, pod: PodName, uid: str, load: float, at_s: float) -> None:
        """The agent of a VM has reported its load with a request that was answered. The same report may come again."""
        loads = self._loads.get(pod)
        if loads is None or loads.uid != uid:
            loads = self._loads[pod] = ReportedLoads(uid)
        if at_s - loads.last_s < LOAD_EVERY_S:
            return
        loads.last_s = at_s
        loads.items += records.load_item(at_s, load)
        if loads.told < LOADS:
            loads.told += 1
        else:
            loads.items = _without_first(loads.items, records.LOAD_END)

    def decided(
        self, decided: events.Decided, uid: str, now_s: float, load: float | None = None
    ) -> DecisionEvent | None:
        """A permit was told that changes something, or is not all of its request. None if it repeats the decision before it. Any other
        permit is `satisfied`."""
        outcome = records.outcome_of(decided)
        if not decided.changed and self._repeats(decided, uid, outcome, now_s):
            return None
        event = records.of_decided(decided, uid, load)
        trail = self._add(decided.pod, event, now_s)
        if decided.changed:
            _note_permit(trail, now_s, decided.permit)
        return event

    def satisfied(self, pod: PodName) -> None:
        """All that is asked for is permitted, as before: a denial that stood does not any more."""
        trail = self.trail(pod)
        if trail is not None and (trail.decided.content is not None or trail.waits.content is not None):
            trail.decided.content = trail.waits.content = None

    def record(self, pod: PodName, event: DecisionEvent, now_s: float) -> bool:
        """Anything but a permit has happened; False if it repeats what stands, or is left out."""
        content = records.content_of_event(event)
        trail = self.trail(pod)
        if trail is not None and (trail.uid == event.uid or not event.uid):
            track = trail.track(event.outcome)
            is_new = track is trail.refusals and trail.refusal(now_s) is None
            if not is_new and track.repeats(content, event.requested, now_s):
                trail.is_held |= track is trail.waits
                return False
        if not event.uid and not self._may_remember_unknown(now_s):
            self.left_out += 1
            return False
        self._add(pod, event, now_s)
        return True

    def released(self, pod: PodName) -> None:
        """The request that was held waits no more. Most answers leave no trace of their own."""
        trail = self.trail(pod)
        if trail is not None:
            trail.is_held = False

    def gone(self, pod: PodName, now_s: float) -> None:
        """A VM has gone; its decisions are remembered for a while."""
        self._loads.pop(pod, None)
        trail = self._live.pop(pod, None)
        if trail is not None:
            self._keep_absent(pod, trail, now_s)

    # ------------------------------------------------------------ what is remembered

    def trail(self, pod: PodName) -> Trail | None:
        return self._live.get(pod) or self._absent.get(pod) or self._unknown.get(pod)

    def trail_of(self, pod: PodName, uid: str) -> Trail | None:
        """The memory of one VM; None if it is of another one that had the name before."""
        trail = self.trail(pod)
        return trail if trail is not None and trail.uid == uid else None

    def loads_of(self, pod: PodName, uid: str) -> bytes:
        """The load averages of a VM, as `ReportedLoads` has them; none of another one that had the name before."""
        loads = self._loads.get(pod)
        return loads.items if loads is not None and loads.uid == uid else b""

    def absent(self, pod: PodName, now_s: float) -> Trail | None:
        """The memory of a pod that is no VM, or none any more."""
        trail = self._absent.get(pod) or self._unknown.get(pod)
        if trail is None or trail.absent_since_s is None:
            return None
        last_s = max(each.last_s for each in trail.ring) if trail.ring else 0.0
        return trail if now_s - max(trail.absent_since_s, last_s) <= ABSENT_S else None

    def after(self, number: int) -> Iterator[RememberedDecision]:
        skipped = max(number - (self.number - len(self._latest)), 0)
        return islice(self._latest, skipped, None)

    def newest_first(self) -> Iterator[RememberedDecision]:
        return reversed(self._latest)

    def are_lost(self, number: int) -> bool:
        return number < self.number - len(self._latest)

    # ------------------------------------------------------------ keeping

    def _repeats(self, decided: events.Decided, uid: str, outcome: DecisionOutcome, now_s: float) -> bool:
        """Whether a permit that is not whole repeats what stands; it is counted there."""
        trail = self._live.get(decided.pod)
        if trail is None or trail.uid != uid or trail.decided.content is None:
            return False
        reasons = decided.reasons[: records.MAX_LIMITS]
        content = records.content_of(outcome, decided.permit, reasons)
        return trail.decided.repeats(content, decided.requested, now_s)

    def _add(self, pod: PodName, event: DecisionEvent, now_s: float) -> Trail:
        trail = self._opened(pod, event.uid, now_s)
        self.number += 1
        remembered = records.remember(self.number, event, now_s)
        self._latest.append(remembered)
        trail.ring.append(remembered)
        depth = max(min(OF_A_VM, self._of_all_vms // max(len(self._live), 1)), LEAST_OF_A_VM)
        while len(trail.ring) > depth:
            trail.ring.popleft()
        track = trail.track(event.outcome)
        track.latest, track.content = remembered, records.content_of_event(event)
        track.requested = event.requested
        if track is trail.decided:
            trail.waits.content = None
        trail.is_held |= track is trail.waits
        return trail

    def _opened(self, pod: PodName, uid: str, now_s: float) -> Trail:
        """The trail of a pod, among those of VMs if it is one."""
        if uid:
            trail = self._live.get(pod)
            if trail is None:
                kept = self._unknown if pod in self._unknown else self._absent
                trail = self._live[pod] = kept.pop(pod) if pod in kept else Trail()
                trail.absent_since_s = None
            if trail.uid != uid:  # another VM by the same name begins anew, with the decisions before it
                trail.uid = uid
                trail.decided, trail.waits, trail.refusals, trail.migrations, trail.negotiations = (
                    DecisionTrack(),
                    DecisionTrack(),
                    DecisionTrack(),
                    DecisionTrack(),
                    DecisionTrack(),
                )
                trail.permits, trail.permits_told, trail.is_held = b"", 0, False
            return trail
        self.gone(pod, now_s)
        trail = self._absent.get(pod) or self._unknown.get(pod) or Trail()
        self._keep_absent(pod, trail, now_s)
        return trail

    def _keep_absent(self, pod: PodName, trail: Trail, now_s: float) -> None:
        """Keep what is remembered of a VM that has gone, or, in a place of its own, of a name that may be invented."""
        kept, most = (self._absent, self._max_absent) if trail.uid else (self._unknown, self._max_unknown)
        if kept.pop(pod, None) is None:
            trail.absent_since_s = now_s
        kept[pod] = trail
        while len(kept) > most:
            kept.pop(next(iter(kept)))

    def _may_remember_unknown(self, now_s: float) -> bool:
        """Whether one more decision about a pod that is not there may be remembered: they must not wash away those of VMs."""
        earned = max(now_s - self._unknown_at_s, 0.0) / UNKNOWN_EVERY_S
        self._unknown_at_s = now_s
        self._unknown_left = min(self._unknown_left + earned, UNKNOWN_BURST)
        if self._unknown_left < 1:
            return False
        self._unknown_left -= 1
        return True


def _note_permit(trail: Trail, now_s: float, permit: Resources) -> None:
    trail.permits += records.permit_item(now_s, permit)
    if trail.permits_told < PERMITS:
        trail.permits_told += 1
    else:
        trail.permits = _without_first(trail.permits, records.PERMIT_END)


def _without_first(items: bytes, end: bytes) -> bytes:
    return items[items.index(end) + len(end) :]
