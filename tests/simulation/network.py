"""The network between agents and the scheduler: messages travel, are lost, come late, and whole VMs are cut off. Notices come twice now and
then, too.

A connection is one request and one reply. Who gave up waiting hears nothing any more, but what was sent may still arrive.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.simulation.clock import Clock

T = TypeVar("T")
QUICK_S = (0.001, 0.02)
NOTICE_LOST = 0.1
NOTICE_REPEATED = 0.1
NOTICE_LATE = 0.1
NOTICE_LATE_S = 30.0


@dataclass(slots=True)
class Weather:
    """The faults that befall messages until `until_s`: chances of loss, and of a delay of up to `late_s`."""

    until_s: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late_request: float = 0.0
    late_reply: float = 0.0
    late_s: float = 0.0


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """One request that waits for its reply: `take` is called with it, at most once, unless the caller has hung up."""

    take: Callable[[T], object]
    is_open: bool = True

    def hang_up(self) -> None:
        self.is_open = False

    def answer(self, reply: T) -> None:
        if self.is_open:
            self.is_open = False
            self.take(reply)


@dataclass(slots=True, eq=False)
class Network:
    """Carries requests and replies. `cut_until_s` are the VMs whose agents reach no scheduler."""

    clock: Clock
    dice: random.Random
    notices: random.Random  # their own: other draws stay as they were
    weather: Weather = field(default_factory=Weather)
    cut_until_s: dict[str, float] = field(default_factory=dict)

    def is_cut(self, vm: str) -> bool:
        return self.clock.now_s < self.cut_until_s.get(vm, 0.0)

    def request(self, vm: str, arrive: Callable[[], object]) -> None:
        """A request is sent; `arrive` is called when it is there, if ever."""
        weather = self._weather()
        if self.is_cut(vm) or self._happens(weather.lost_request):
            return
        self.clock.after(self._delay_s(weather.late_request, weather.late_s), arrive)

    def reply(self, vm: str, call: Call[T], reply: T) -> None:
        weather = self._weather()
        if self.is_cut(vm) or self._happens(weather.lost_reply):
            return
        # Nobody waits for longer than a request's deadline.
        self.clock.after(
            self._delay_s(weather.late_reply, min(weather.late_s, 4.0)), lambda: call.answer(reply)
        )

    def notice(self, vm: str, arrive: Callable[[], object]) -> None:
        """A notice is sent, which a poll that broke off may have lost, or may bring once more."""
        draw = self.notices.random
        times = 0 if draw() < NOTICE_LOST else 2 if draw() < NOTICE_REPEATED else 1
        for _ in range(times):
            span_s = NOTICE_LATE_S if draw() < NOTICE_LATE else QUICK_S[1]
            if not self.is_cut(vm):
                self.clock.after(QUICK_S[0] + span_s * draw(), arrive)

    def _weather(self) -> Weather:
        return self.weather if self.clock.now_s < self.weather.until_s else _FAIR

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self.dice.random() < chance

    def _delay_s(self, late: float, late_s: float) -> float:
        span_s = late_s if self._happens(late) else QUICK_S[1]
        return QUICK_S[0] + span_s * self.dice.random()


_FAIR = Weather()
