"""One VM's runner: hands events to the core, and performs the actions that the core has started.

`RunnerCore.step` decides and records in one moment, and nothing is awaited in it; each action that it starts becomes
one task, which
ends as one event in the inbox. That is the whole concurrency story. A violated invariant ends the runner; its supervisor
restarts it, and its memory is dumped first.
"""

import asyncio
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Condition, condition, denial_reasons
from agent.core.model import Vm
from agent.core.owner_notices import AskedSizeChange, SizeWatch
from agent.core.plan import Plan
from agent.core.policies.combined import Combined
from agent.core.policies.remembered import NOTHING, Remembered
from agent.core.policies.saved import KnownLoad
from agent.core.policies.windows import WindowLimits
from agent.core.ports import HeldLog
from agent.core.state import MetricsState, RunnerState
from agent.core.step import RunnerCore
from agent.core.timing import Timing
from agent.runner.peers import Peers, Performer
from agent.runner.runner_log import HeldJournal, RunnerLog, event_document
from agent.runner.stats import GrowthTimer, Latencies, RunnerStats
from hosting.logs import Logger
from hosting.signed_link import SignedLink
from protocol.reasons import Reason
from protocol.sequence import Life
from protocol.values import ZERO

INBOX: Final = 64
JOURNAL: Final = 64
SIZE_CHANGES: Final = 64
GOODBYE_S: Final = 1.0
SLACK_S: Final = 0.1
"""Waits of a second and more end at a multiple of this, so that the runners of a node wake up together: work that was
just done is cheap to do again, and their renewals meet in one batch."""


@dataclass(slots=True)
class SeenEpoch:
    """The highest scheduler epoch that this process has seen: one for all its runners and their lives."""

    highest: int = 0


class Windows(Protocol):
    """Time windows of one VM, by the time of day in seconds since the epoch."""

    def at(self, at_s: float) -> WindowLimits:
        """The limits at that moment."""

    def next_s(self, at_s: float) -> float | None:
        """When that changes; None for never."""


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """The parts that all runners of a process share. `clock` gives monotonic seconds, that of the event loop."""

    held_log: HeldLog
    log: Logger
    rng: random.Random
    latencies: Latencies = field(default_factory=Latencies)
    seen_epoch: SeenEpoch = field(default_factory=SeenEpoch)
    clock: Callable[[], float] = time.monotonic

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)


class Runner:
    """Runs one VM. Others in the same loop may read `state` and `last_plan`."""

    def __init__(
        self,
        vm: Vm,
        peers: Peers,
        context: RunnerContext,
        policy: Combined,
        timing: Timing,
        windows: Windows | None = None,
        remembered: Remembered = NOTHING,
    ) -> None:
        """`remembered` is the memory of the VM's load from an earlier process."""
        self.vm = vm
        self.stats = RunnerStats()
        self.last_plan: Plan | None = None
        self._peers = peers
        self._context = context
        able = peers.backend.capabilities
        self.timing = replace(
            timing,
            command_deadline_s=able.command_deadline_s,
            observe_busy_s=max(timing.observe_busy_s, able.look_every_s),
            observe_rest_s=max(timing.observe_rest_s, able.look_at_rest_every_s),
        )
        self._windows = windows
        self._core = RunnerCore(self.timing, policy, context.new_id)
        self._performer = Performer(peers, self.timing, context.rng)
        self._now_s = context.clock
        self._log = context.log.bind(vm=vm.name)
        self._runner_log = RunnerLog(self._log)
        self._held_journal = HeldJournal(context.held_log)
        self._growth = GrowthTimer(context.latencies)
        self._inbox: asyncio.Queue[events.Event | Exception] = asyncio.Queue(INBOX)
        self._journal: deque[tuple[float, events.Event]] = deque(maxlen=JOURNAL)
        self._sizes = SizeWatch()
        self._size_changes: deque[AskedSizeChange] = deque(maxlen=SIZE_CHANGES)
        self._not_before_ms = 0
        self._next_tick_s = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = RunnerState(
            vm, self._new_life(), self._now_s(), metrics=MetricsState(remembered=remembered)
        )

    @property
    def signed(self) -> SignedLink | None:
        """The link by which calls of the VM's informant are checked; None if the VM has no secret."""
        return self._peers.signed

    def known_load(self) -> KnownLoad:
        return KnownLoad(self.vm, self.state.metrics.remembered, self._core.policy.remembering)

    def condition(self, now_s: float) -> Condition:
        return condition(self.state, self.last_plan, now_s, self.timing)

    def binding_reason(self, now_s: float) -> Reason | None:
        """The scheduler's first reason of a denied VM. None if another size than that is denied, or it names no reason."""
        if self.last_plan is None:
            return None
        return next(iter(denial_reasons(self.state, self.last_plan, now_s)), None)

    def journal(self, now_s: float) -> list[tuple[float, events.Event]]:
        """The last events, each with how many seconds ago, the latest last."""
        return [(now_s - at_s, event) for at_s, event in self._journal]

    def take_size_changes(self) -> list[AskedSizeChange]:
        """How the size has changed since the last call, as it was asked to; of very many the latest."""
        changes = list(self._size_changes)
        self._size_changes.clear()
        return changes

    def change(self, vm: Vm) -> None:
        """The VM is described otherwise from now on, for this life and later ones."""
        self.vm = vm
        self._wake()

    def look_now(self) -> None:
        """The back end has told that the VM has moved, or is out of reach."""
        self.offer(events.VmMoved())

    def offer(self, event: events.Event) -> bool:
        """Put an event of a peer's call into the inbox; False when it is full.

        `InformantHeard` alone does not wake the runner: the event can wait for the next step (a tick at most, well within
        the silence that an informant may keep).
        """
        try:
            self._inbox.put_nowait(event)
        except asyncio.QueueFull:
            return False
        if not isinstance(event, events.InformantHeard):
            self._wake()
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def run(self) -> None:
        """Run lives of this VM until cancelled; a superseded life is followed by a new one after a while."""
        try:
            while True:
                before = self.state
                self.state = RunnerState(
                    self.vm,
                    self._new_life(),
                    self._now_s(),
                    metrics=MetricsState(remembered=before.metrics.remembered),
                    rivalry=before.rivalry,
                )
                while not self._inbox.empty():  # events of an earlier life, its faults included
                    self._inbox.get_nowait()
                await self._live()
                await self._step_back()
        except AssertionError:
            journal = [event_document(event) for _, event in self._journal]
            self._log.error("invariant violated", journal=journal)
            raise
        finally:
            await self._end_tasks()
            self._drop_held()

    async def goodbye(self, deadline_s: float) -> None:
        """Unregister from the informant: the daemon is going."""
        registration = self.state.informant.registration
        if registration is not None:
            await self._peers.informant.unregister(registration, deadline_s)

    # ---------------------------------------------------------------- the loop

    async def _live(self) -> None:
        """Run one life until another agent owns the VM."""
        while True:
            now_s = self._now_s()
            windows_s = self._step(now_s)
            if self.state.superseded_at_ms is not None:
                return
            assert self.last_plan is not None
            await self._wait(min(self.last_plan.wake_at_s - now_s, windows_s))

    def _step(self, now_s: float) -> float:
        """Take one step and begin to perform the started actions; in how many seconds the time windows change."""
        inbox, windows_s = self._take_inbox()
        self._share_epoch()
        try:
            step = self._core.step(self.state, inbox, now_s)
        except AssertionError:
            self._journal.extend((now_s, event) for event in inbox)
            raise
        self.state = step.state
        self._share_epoch()
        self._held_journal.note(self.state, now_s)  # before it is used, and before anybody is told
        for transition in step.transitions:
            self._journal.append((now_s, transition.event))
            self.stats.note(transition)
            self._growth.note(transition, now_s)
            self._runner_log.happened(transition)
        self._sizes, changes = self._sizes.after(step)
        self._size_changes.extend(changes)
        if self.state.superseded_at_ms is not None:
            return math.inf
        if now_s >= self._next_tick_s:
            self.stats.ticks += 1
            self._next_tick_s = now_s + self.timing.tick_s
        self._runner_log.planned(self.last_plan, step.plan, self.state)
        self.last_plan = step.plan
        for started in step.started:
            name = f"{self.vm.name} {type(started.action).__name__}"
            task = asyncio.create_task(self._perform(started), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return windows_s

    def _take_inbox(self) -> tuple[list[events.Event], float]:
        """The events since the last step, and in how many seconds the time windows change.

        Raises the exception of a failed task.
        """
        inbox: list[events.Event] = []
        while not self._inbox.empty():
            event = self._inbox.get_nowait()
            if isinstance(event, Exception):
                raise event
            inbox.append(event)
        if self.state.vm != self.vm:
            inbox.append(events.VmChanged(self.vm))
        if self._windows is None:
            return inbox, math.inf
        at_s = time.time()
        limits, next_s = self._windows.at(at_s), self._windows.next_s(at_s)
        if limits != self.state.limits:
            inbox.append(events.WindowsMoved(limits))
        return inbox, math.inf if next_s is None else max(next_s - at_s, 0.0) + 0.01

    async def _wait(self, wait_s: float) -> None:
        """Wait until something is in the inbox that should not wait, or for `wait_s`."""
        if not self._inbox.empty():
            return
        if wait_s >= 1.0:
            now_s = self._now_s()
            wait_s = math.ceil((now_s + wait_s) / SLACK_S) * SLACK_S - now_s
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(max(wait_s, 0.0), self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def _perform(self, started: events.Started) -> None:
        outcome: events.Event | Exception
        try:
            outcome = await self._performer.perform(self.vm, started)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the runner fails with it, see `_take_inbox`
            outcome = error
        await self._inbox.put(outcome)
        self._wake()

    def _share_epoch(self) -> None:
        """Learn the highest epoch that any runner of this process has seen, and pass ours on."""
        link, seen = self.state.scheduler, self._context.seen_epoch
        seen.highest = max(seen.highest, link.seen_epoch)
        if link.seen_epoch < seen.highest:
            self.state = replace(self.state, scheduler=replace(link, seen_epoch=seen.highest))

    def _drop_held(self) -> None:
        """Nothing is sent any more, so nothing is used any more."""
        link = replace(self.state.scheduler, held=ZERO, lease_until_s=0.0)
        self.state = replace(self.state, scheduler=link)
        self._held_journal.note(self.state, self._now_s())

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---------------------------------------------------------------- lives

    def _new_life(self) -> Life:
        return Life(self._context.new_id(), max(int(time.time() * 1000), self._not_before_ms))

    async def _step_back(self) -> None:
        """Another agent owns the VM: leave it alone for a while."""
        named_ms, now_s = self.state.superseded_at_ms, self._now_s()
        assert named_ms is not None
        self._not_before_ms = named_ms + 1
        chance = self._context.rng.random()
        rivalry = self.state.rivalry.superseded(now_s - self.state.began_s, now_s, chance)
        self.state = replace(self.state, rivalry=rivalry)
        self._log.warning(
            "superseded by another agent",
            named_start_ms=named_ms,
            times_in_a_row=rivalry.count,
            next_life_in_s=round(rivalry.wait_until_s - now_s, 1),
        )
        await self._end_tasks()
        self._drop_held()  # the lease might outlast the wait of others for it
        await self.goodbye(GOODBYE_S)
        await asyncio.sleep(max(rivalry.wait_until_s - self._now_s(), 0.0))
