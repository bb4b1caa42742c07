"""Virtual time: one clock and one queue of what will happen. Nothing waits; the next happening moves the clock."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

Act = Callable[[], object]


@dataclass(slots=True, eq=False)
class Timer:
    """Something that will happen at `moment_s`, unless it is called off."""

    moment_s: float
    act: Act | None

    def cancel(self) -> None:
        """It will not happen. Calling off what has happened changes nothing."""
        self.act = None


class Clock:
    """Seconds of one monotonic clock for everybody. What is due at the same moment happens in the order of its making."""

    START_S = 1000.0

    def __init__(self) -> None:
        self.now_s = self.START_S
        self.steps = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._serial = 0

    def at(self, moment_s: float, act: Act) -> Timer:
        """Let `act` happen at that moment, which may be now and is never earlier."""
        timer = Timer(max(moment_s, self.now_s), act)
        self._serial += 1
        heapq.heappush(self._heap, (timer.moment_s, self._serial, timer))
        return timer

    def after(self, span_s: float, act: Act) -> Timer:
        """Let `act` happen when `span_s` have passed."""
        return self.at(self.now_s + span_s, act)

    def run_until(self, end_s: float) -> None:
        """Let everything happen that is due before `end_s`, one after the other."""
        heap = self._heap
        while heap and heap[0][0] < end_s:
            moment_s, _, timer = heapq.heappop(heap)
            act = timer.act
            if act is not None:
                self.now_s = moment_s
                self.steps += 1
                timer.act = None
                act()
        self.now_s = end_s
