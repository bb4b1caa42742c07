"""The pods that were refused here, until kube-scheduler should try them again: computes only.

kube-scheduler tries a pod again when something happens that kube-scheduler sees: not when a VM's permit falls, a pool is raised, or room
that was kept is given back. The events that may help a pod are found as in full mode, by the queue and the events that plugins wait for.
"""

from collections.abc import Collection, Iterable
from typing import Final

from protocol.values import ZERO, Resources
from scheduler.permits.core.core import Core
from scheduler.permits.core.model import Holder, Kind
from scheduler.placing.core.objects import PodInfo, QueuedPod
from scheduler.placing.core.queue import (
    MAX_UNSCHEDULABLE_S,
    EventsOf,
    PodQueue,
    QueuePool,
    Rejection,
    by_priority,
)
from scheduler.placing.core.values import Code, SchedulingEvent, Status, new_status

MAX_REFUSED: Final = 500
"""Pods that are remembered: an event is held against each of them, some 25 µs, while agents wait.

Those beyond wait until kube-scheduler tries them on its own, which is after 5 minutes.
"""
AGAIN_S: Final = 30.0
"""Of a pod that kube-scheduler has not tried since it was told, it is told again after so long, until five minutes after the refusal. Longer than
any back-off of kube-scheduler's."""
VICTIMS: Final = "victims"
"""The reason of pods for which others would have to go: how much is free now says nothing of them."""
NO_ROOM: Final = new_status(Code.UNSCHEDULABLE, "no node has that much room").by("LedgerFit")


class RefusedPods:
    """The pods, by UID, in the order of their priority and then of their refusal."""

    def __init__(self, events_of: EventsOf, *, max_pods: int = MAX_REFUSED) -> None:
        """`events_of`: what the plugins of a pod's profile wait for."""
        self._queue = PodQueue(by_priority, self._gate, events_of, max_pods=max_pods)
        self._told: dict[str, tuple[QueuedPod, float]] = {}
        """The pods that kube-scheduler was told of and has not tried since, with that moment, in its order."""
        self._for_victims: set[str] = set()
        """The pods, by UID, that were refused for want of `VICTIMS`."""
        self._largest = ZERO
        self.looks = 0
        """How often something has happened. Keep the number when a pod begins to be judged, for `refused`."""
        self.told_total = 0
        """How often kube-scheduler was told to try a pod again."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_waiting(self) -> bool:
        """Whether there may be something to tell kube-scheduler even where nothing happens."""
        return bool(self._told) or len(self._queue) > 0

    def refused(self, pod: PodInfo, reasons: Collection[str], looks: int, now_s: float) -> None:
        """A pod was refused, by these plugins or for want of `VICTIMS`. They may have missed events since `looks`."""
        self._told.pop(pod.uid, None)
        self._for_victims.discard(pod.uid)
        if VICTIMS in reasons:
            self._for_victims.add(pod.uid)
        if not self._queue.add(pod, now_s):
            self._for_victims.discard(pod.uid)
            return
        self._queue.take(pod.uid)
        self._queue.failed(pod.uid, Rejection(frozenset(reasons)) if looks == self.looks else None, now_s)

    def gone(self, uid: str) -> None:
        """The pod has a node, may have one, or is no more."""
        self._told.pop(uid, None)
        self._for_victims.discard(uid)
        self._queue.delete(uid)

    def happened(self, events: Iterable[SchedulingEvent], largest: Resources, now_s: float) -> None:
        """These events may help pods; `largest` is the room of `largest_room`."""
        self._largest = largest
        happened = tuple(events)
        self.looks += len(happened)
        self._queue.move(happened, now_s)

    def due(self, most: int, now_s: float) -> list[PodInfo]:
        """The pods, at most so many, that kube-scheduler is to be told of now; each must be settled by `told` or `failed`.

        No pod is due within a second of its refusal, or five minutes after it: by then kube-scheduler has tried the pod anyway.
        """
        for pod in list(self._queue.pods()):
            queued = self._queue.find(pod.uid)
            if queued is not None and queued.since_s + MAX_UNSCHEDULABLE_S <= now_s:
                self.gone(pod.uid)
        self._remind(now_s)
        found: list[PodInfo] = []
        while len(found) < most and (queued := self._queue.pop(now_s)) is not None:
            if self._gate(queued.pod) is None:
                found.append(queued.pod)
            else:  # others have taken the room meanwhile
                self._queue.failed(queued.pod.uid, Rejection(queued.rejected_by), now_s)
        return found

    def told(self, uid: str, now_s: float) -> None:
        """kube-scheduler knows. A pod that was refused once more since then stays remembered for that."""
        self.told_total += 1
        queued = self._queue.find(uid)
        if queued is not None and self._queue.pool_of(uid) is QueuePool.IN_FLIGHT:
            self._queue.delete(uid)
            self._told[uid] = queued, now_s

    def _remind(self, now_s: float) -> None:
        """The pods that kube-scheduler has not tried although it was told of them are due again: such a notice may have been lost."""
        for uid, (queued, told_s) in list(self._told.items()):
            if told_s + AGAIN_S > now_s:
                return
            del self._told[uid]
            if queued.since_s + MAX_UNSCHEDULABLE_S <= now_s or not self._queue.add(
                queued.pod, queued.since_s
            ):
                self._for_victims.discard(uid)

    def failed(self, uids: Iterable[str], now_s: float) -> None:
        """kube-scheduler could not be told of these pods: they are due again after a back-off."""
        for uid in uids:
            self._queue.failed(uid, None, now_s)

    def recover(self, now_s: float) -> None:
        """The task that told kube-scheduler was interrupted."""
        self.failed(self._queue.in_flight(), now_s)

    def _gate(self, pod: PodInfo) -> Status | None:
        return None if pod.uid in self._for_victims or pod.amount.fits_in(self._largest) else NO_ROOM


def largest_room(core: Core) -> Resources:
    """No node of the ledger has more room for a pod than this, of each resource; what reservations keep counts as room."""
    kept: dict[str, Resources] = {}
    for reservation in core.state.reservations:
        row = core.ledger.row(Holder(Kind.RESERVATION, reservation.uid))
        if row is not None:
            kept[row.node] = kept.get(row.node, ZERO) + row.reserved
    largest = ZERO
    for account in core.ledger.nodes():
        capacity = account.capacity
        largest = largest.max(capacity.reservable - account.reserved + kept.get(capacity.name, ZERO))
    return largest
