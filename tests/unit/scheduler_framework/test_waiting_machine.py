"""Pods that wait, beside a simple model: signals, time, cancellation and one UID twice, in any order."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from protocol.wire import PodName
from scheduler.placing.core.handle import WaitingPod
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.waiting import PermitAllowed, PermitRejected, PermitTimedOut, Settled
from scheduler.placing.cycle.context import WaitingEntry, WaitingPods
from tests.support.virtual_time import VirtualLoop, turns

T = TypeVar("T")
CEILING_S = 900.0
WAITS_S = st.dictionaries(
    st.sampled_from("abc"), st.sampled_from([-1.0, 0.0, 1.0, 2.0, 5.0, 2000.0]), min_size=1
)
PLUGINS = st.none() | st.sampled_from("abcz")
"""The one that allows: everybody, a plugin, or a stranger."""
NUMBERS = st.integers(0, 20)
"""Which of the pods so far."""


@dataclass(eq=False)
class Waiter:
    """The model of a pod. `outcomes` are those that are possible: several if times are over together."""

    uid: str
    entry: WaitingEntry
    pending_s: dict[str, float]
    """The plugins that have not allowed the pod, and how long each lets it wait."""
    since_s: float
    outcomes: tuple[Settled, ...] = ()
    has_ended: bool = False
    task: asyncio.Task[Settled] | None = None

    def hears(self) -> bool:
        """Whether a signal can change the outcome."""
        return not self.has_ended and not self.outcomes

    def allow(self, plugin: str | None) -> bool:
        """Whether it changes anything that `plugin` allows the pod."""
        if not self.hears() or (plugin is not None and plugin not in self.pending_s):
            return False
        self.pending_s = {
            name: wait_s for name, wait_s in self.pending_s.items() if plugin not in {None, name}
        }
        if not self.pending_s:
            self.outcomes = (PermitAllowed(),)
        return True

    def reject(self, message: str, plugin: str) -> bool:
        """Whether it changes anything that the pod is rejected."""
        heard = self.hears()
        if heard:
            self.outcomes = (PermitRejected(message, plugin),)
        return heard

    def time_is(self, now_s: float) -> None:
        """The first times that are over, of all that are by now."""
        first_s = min(self.pending_s.values(), default=0.0)
        if self.hears() and self.since_s + first_s <= now_s:
            over = (name for name, wait_s in self.pending_s.items() if wait_s == first_s)
            self.outcomes = tuple(PermitTimedOut(name, first_s) for name in over)


class WaitingPodsMachine(RuleBasedStateMachine):
    """The map of waiting pods on a virtual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.pods = WaitingPods()
        self.waiters: list[Waiter] = []
        self.found: dict[str, Waiter] = {}

    def teardown(self) -> None:
        for waiter in self.waiters:
            self.do(waiter.task.cancel if waiter.task is not None else self.discarding(waiter))
        self.nobody_else_is_found()
        assert self.found == {}
        self.loop.close()

    def discarding(self, waiter: Waiter) -> Callable[[], None]:
        def discard() -> None:
            self.pods.discard(waiter.entry)
            waiter.has_ended = True

        return discard

    def do(self, step: Callable[[], T], wait_s: float = 0.0) -> T:
        """Do something inside the loop and let time go on; then everything happens that can."""

        async def run() -> T:
            answer = step()
            await asyncio.sleep(wait_s)
            await turns()
            return answer

        answer = self.loop.run_until_complete(run())
        for waiter in self.waiters:
            waiter.time_is(self.loop.time())
            waiter.has_ended = waiter.has_ended or (waiter.task is not None and waiter.task.done())
            if waiter.has_ended and self.found.get(waiter.uid) is waiter:
                del self.found[waiter.uid]
        return answer

    def pick(self, number: int) -> Waiter:
        return self.waiters[number % len(self.waiters)]

    # ------------------------------------------------------------ what may happen

    @rule(uid=st.sampled_from("xy"), waits_s=WAITS_S)
    def a_pod_begins_to_wait(self, uid: str, waits_s: dict[str, float]) -> None:
        pending_s = {name: min(wait_s, CEILING_S) for name, wait_s in waits_s.items()}

        def add() -> None:
            entry = self.pods.add(PodInfo(PodName(namespace="ns", name=uid), uid), waits_s)
            self.found[uid] = Waiter(uid, entry, pending_s, self.loop.time())
            self.waiters.append(self.found[uid])

        self.do(add)

    @precondition(lambda self: self.waiters)
    @rule(number=NUMBERS)
    def a_run_waits(self, number: int) -> None:
        waiter = self.pick(number)

        def wait() -> None:
            if waiter.task is None and not waiter.has_ended:
                waiter.task = asyncio.create_task(self.pods.wait(waiter.entry))

        self.do(wait)

    @precondition(lambda self: self.waiters)
    @rule(number=NUMBERS, plugin=PLUGINS)
    def allow(self, number: int, plugin: str | None) -> None:
        waiter = self.pick(number)
        assert self.do(lambda: waiter.entry.allow(plugin) is waiter.allow(plugin))

    @precondition(lambda self: self.waiters)
    @rule(number=NUMBERS, message=st.sampled_from(["no", "later"]), plugin=st.sampled_from(["", "a", "z"]))
    def reject(self, number: int, message: str, plugin: str) -> None:
        waiter = self.pick(number)
        assert self.do(lambda: waiter.entry.reject(message, plugin) is waiter.reject(message, plugin))

    @rule(wait_s=st.sampled_from([0.5, 1.0, 3.0, 900.0]))
    def time_goes_on(self, wait_s: float) -> None:
        self.do(lambda: None, wait_s)

    @precondition(lambda self: self.waiters)
    @rule(number=NUMBERS)
    def the_run_is_cancelled_or_never_comes(self, number: int) -> None:
        waiter = self.pick(number)
        self.do(waiter.task.cancel if waiter.task is not None else self.discarding(waiter))

    # ------------------------------------------------------------ what must hold

    @invariant()
    def nobody_else_is_found(self) -> None:
        seen: list[WaitingPod] = []
        self.pods.iterate(seen.append)
        assert {id(each) for each in seen} == {id(waiter.entry) for waiter in self.found.values()}
        for uid in "xy":
            expected = self.found.get(uid)
            assert self.pods.get(uid) is (None if expected is None else expected.entry)

    @invariant()
    def every_wait_ends_as_the_model_says(self) -> None:
        for waiter in self.waiters:
            assert waiter.entry.pending_plugins() == tuple(sorted(waiter.pending_s))
            if waiter.task is not None and waiter.task.done() and not waiter.task.cancelled():
                assert waiter.task.result() in waiter.outcomes
            if waiter.outcomes and waiter.task is not None:
                assert waiter.task.done()

    @invariant()
    def no_timer_runs_for_nothing(self) -> None:
        pending = sum(len(waiter.pending_s) for waiter in self.waiters if waiter.hears())
        timers = [timer for timer in self.loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined] # of asyncio
        assert len(timers) == pending


TestWaitingPods = WaitingPodsMachine.TestCase
TestWaitingPods.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
