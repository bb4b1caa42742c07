"""Which scheduling cycles take too long. Source: reference/koordinator.md 1.9."""

from dataclasses import dataclass
from typing import Final

PERIOD_S: Final = 10.0
"""How often the monitor looks."""
SCHEDULING_TIMEOUT_S: Final = 30.0
"""A cycle that takes longer is slow."""
DROP_UNHANDLED_S: Final = 5.0
"""A pod that left the queue, and for which no cycle began within that time, is not watched any more."""


@dataclass(frozen=True, slots=True)
class SlowCycle:
    """A cycle that took `took_s` so far, or, where it `has_ended`, in all."""

    pod: str
    uid: str
    took_s: float
    has_ended: bool


@dataclass(frozen=True, slots=True)
class _Watched:
    pod: str
    dequeued_s: float
    started_s: float | None = None


class SchedulingMonitor:
    """The pods between the queue and the end of their cycle, by UID.

    A cycle counts in `timeouts` each time it is found to be slow, and once more when it ends: a count that grows says that cycles
    are slow now. A pod that was dequeued and whose cycle never began counts in `drops`.
    """

    def __init__(
        self, *, timeout_s: float = SCHEDULING_TIMEOUT_S, drop_unhandled_s: float = DROP_UNHANDLED_S
    ) -> None:
        self.timeouts = 0
        self.drops = 0
        self._timeout_s = timeout_s
        self._drop_s = drop_unhandled_s
        self._watched: dict[str, _Watched] = {}

    def dequeued(self, uid: str, pod: str, now_s: float) -> None:
        """The pod left the queue."""
        self._watched[uid] = _Watched(pod, now_s)

    def started(self, uid: str, pod: str, now_s: float) -> None:
        """The cycle of the pod began."""
        self._watched[uid] = _Watched(pod, now_s, now_s)

    def completed(self, uid: str, now_s: float) -> SlowCycle | None:
        """The pod was bound, failed or is gone; its cycle, where that was slow."""
        watched = self._watched.pop(uid, None)
        slow = self._slow(uid, watched, now_s, has_ended=True) if watched is not None else None
        self.timeouts += slow is not None
        return slow

    def check(self, now_s: float) -> tuple[SlowCycle, ...]:
        """The cycles that are slow now. What never began is dropped."""
        unhandled = [
            uid
            for uid, watched in self._watched.items()
            if watched.started_s is None and now_s - watched.dequeued_s > self._drop_s
        ]
        for uid in unhandled:
            del self._watched[uid]
        self.drops += len(unhandled)
        found = (self._slow(uid, watched, now_s) for uid, watched in self._watched.items())
        slow = tuple(cycle for cycle in found if cycle is not None)
        self.timeouts += len(slow)
        return slow

    def _slow(
        self, uid: str, watched: _Watched, now_s: float, *, has_ended: bool = False
    ) -> SlowCycle | None:
        if watched.started_s is None or now_s - watched.started_s <= self._timeout_s:
            return None
        return SlowCycle(watched.pod, uid, now_s - watched.started_s, has_ended)

    def __len__(self) -> int:
        return len(self._watched)
