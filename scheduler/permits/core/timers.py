"""When the clock looks at which VM. Looking at every VM each second would cost 10,000 looks."""

import heapq


class TimerQueue:
    """Due times by UID, one for each VM. Entries of the heap that are no longer valid are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def due_s(self, uid: str) -> float | None:
        """When a VM is looked at next; None for never."""
        return self._due.get(uid)

    def schedule(self, uid: str, due_s: float | None) -> None:
        """Look at a VM at `due_s` at the latest; None leaves its time as it is."""
        if due_s is None:
            return
        known_s = self._due.get(uid)
        if known_s is None or due_s < known_s:
            self._due[uid] = due_s
            heapq.heappush(self._heap, (due_s, uid))

    def cancel(self, uid: str) -> None:
        """Look at a VM no more: it has gone."""
        self._due.pop(uid, None)

    def take_due(self, now_s: float) -> list[str]:
        """Take the VMs that are due off the queue, in an order that does not depend on how they came into it.

        Each is looked at once, so that one that is due again at the same instant (times are rounded) cannot hold the clock.
        """
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            due_s, uid = heapq.heappop(self._heap)
            if self._due.get(uid) == due_s:
                del self._due[uid]
                found.append(uid)
        return sorted(found)
