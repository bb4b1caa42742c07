"""One VM's runner: takes events from its inbox, applies them, plans, and starts one task for each action.

Between asking for a plan, recording `Started` and starting the task nothing is awaited: that is the whole concurrency
story. A violated invariant ends the runner; its supervisor restarts it, and what it remembers is dumped first.
"""

import asyncio
import math
import random
import time
import uuid
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, assert_never

from agent.core import events
from agent.core.apply import apply, goal_of, lapse
from agent.core.condition import Condition, condition
from agent.core.model import Vm
from agent.core.plan import Plan, plan
from agent.core.policies.combined import Combined
from agent.core.policies.windows import WindowLimits
from agent.core.ports import BackendError, FencedOffError, Fencing, HeldLog, VmBackend
from agent.core.state import RegistrationPhase, RunnerState
from agent.core.timing import Timing
from agent.links.exporter import ExporterLink
from agent.links.informant import InformantLink
from agent.links.scheduler import SchedulerLink
from agent.runner.event_json import event_document
from hosting.logs import Logger
from hosting.metrics import Durations
from protocol.reasons import Reason, ReasonCode
from protocol.sequence import Life
from protocol.values import ZERO, Resources

INBOX: Final = 64
JOURNAL: Final = 64
SLACK_S: Final = 0.1
"""Waits of a second and more end at a multiple of this, so that the runners of a node wake up together: what one of them
has just done is done again at a fraction of the cost, and their renewals meet in one batch."""


@dataclass(slots=True)
class SeenEpoch:
    """The highest scheduler epoch that this process has seen: one for all its runners and their lives."""

    highest: int = 0


class Windows(Protocol):
    """Time windows of one VM, by the time of day in seconds since the epoch."""

    def at(self, at_s: float) -> WindowLimits:
        """What holds then."""
        ...

    def next_s(self, at_s: float) -> float | None:
        """When that changes; None for never."""
        ...


@dataclass(slots=True)
class Latencies:
    """How long growth takes, over all runners of a daemon."""

    metric_to_permit: Durations = field(default_factory=Durations)
    permit_to_size: Durations = field(default_factory=Durations)
    try_upscale_to_permit: Durations = field(default_factory=Durations)


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers of one runner."""

    backend: VmBackend
    scheduler: SchedulerLink
    informant: InformantLink
    exporter: ExporterLink
    seen_epoch: SeenEpoch = field(default_factory=SeenEpoch)
    latencies: Latencies = field(default_factory=Latencies)
    windows: Windows | None = None


@dataclass(slots=True)
class RunnerStats:
    """Counts of one runner over all its lives, for status and metrics."""

    ticks: int = 0
    """Ticks of its clock that it has come round to: what happens "within two ticks" can be counted."""
    permits: int = 0
    resizes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    actions: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _GrowthTimer:
    """When what began that is measured; None while nothing is."""

    metric_s: float | None = None
    wish_s: float | None = None
    permit_s: float | None = None
    size: Resources = ZERO
    """What the VM should reach."""

    def note(
        self, event: events.Event, before: RunnerState, after: RunnerState, now_s: float, found: Latencies
    ) -> None:
        """Take one event."""
        match event:
            case events.MetricsRead() if self.metric_s is None:
                goal = goal_of(after)
                if goal is not None and (after.vm.unit * goal.units).exceeds(after.held_at(now_s)):
                    self.metric_s = now_s
            case events.TryUpscaleReceived(more_resources=more) if (
                more.cpu or more.memory
            ) and self.wish_s is None:
                self.wish_s = now_s
            case events.PermitGranted():
                if after.held_at(now_s).exceeds(before.held_at(now_s)):
                    self._permitted(after, now_s, found)
                elif not event.permit.exceeds(before.in_use()):
                    self.metric_s = None  # nothing more is wanted, or it was refused
            case events.Observed():
                if self.permit_s is not None and self.size.fits_in(event.observation.size):
                    found.permit_to_size.observe(now_s - self.permit_s)
                    self.permit_s = None
            case _:
                pass

    def _permitted(self, after: RunnerState, now_s: float, found: Latencies) -> None:
        if self.wish_s is not None:
            found.try_upscale_to_permit.observe(now_s - self.wish_s)
        if self.metric_s is not None:
            found.metric_to_permit.observe(now_s - self.metric_s)
        self.metric_s = self.wish_s = None
        self.permit_s, self.size = now_s, after.scheduler.held


class Runner:
    """Runs one VM. `state` and `last_plan` may be read by anybody in the same loop."""

    def __init__(
        self,
        vm: Vm,
        peers: Peers,
        policy: Combined,
        timing: Timing,
        held_log: HeldLog,
        log: Logger,
        rng: random.Random,
    ) -> None:
        self.vm = vm
        self.stats = RunnerStats()
        self.last_plan: Plan | None = None
        self._peers = peers
        self._policy = policy
        self._timing = replace(timing, command_deadline_s=peers.backend.capabilities.command_deadline_s)
        self._held_log = held_log
        self._log = log.bind(vm=vm.name)
        self._rng = rng
        self._inbox: asyncio.Queue[events.Event | Exception] = asyncio.Queue(INBOX)
        self._journal: deque[tuple[float, events.Event]] = deque(maxlen=JOURNAL)
        self._fencing: Fencing | None = None
        self._logged_held: tuple[uuid.UUID, Resources] | None = None
        self._not_before_ms = 0
        self._next_tick_s = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._growth = _GrowthTimer()
        self.state = RunnerState(vm, self._new_life(), time.monotonic())

    def condition(self, now_s: float) -> Condition:
        """How it is doing."""
        return condition(self.state, self.last_plan, now_s, self._timing)

    def journal(self, now_s: float) -> list[tuple[float, events.Event]]:
        """What happened last, each with how many seconds ago, the latest last."""
        return [(now_s - at_s, event) for at_s, event in self._journal]

    def change(self, vm: Vm) -> None:
        """The VM is described otherwise from now on, for this life and later ones."""
        self.vm = vm
        self.offer(events.VmChanged(vm))  # where the inbox is full the next look at it finds the difference

    def offer(self, event: events.Event) -> bool:
        """Put an event of a peer's call into the inbox; False when it is full.

        That the informant was heard changes nothing that cannot wait until the runner is awake anyhow (a tick at most,
        well within the silence that it forgives).
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
                self.state = RunnerState(
                    self.vm, self._new_life(), time.monotonic(), rivalry=self.state.rivalry
                )
                while not self._inbox.empty():  # what happened to an earlier life, its faults included
                    self._inbox.get_nowait()
                await self._live()
                await self._step_back()
        except AssertionError:
            self._log.error(
                "invariant violated", journal=[event_document(event) for _, event in self._journal]
            )
            raise
        finally:
            await self._end_tasks()

    async def goodbye(self, deadline_s: float) -> None:
        """Unregister from the informant: the daemon is going."""
        registration = self.state.informant.registration
        if registration is not None:
            await self._peers.informant.unregister(registration, deadline_s)

    def _new_life(self) -> Life:
        return Life(
            uuid.UUID(int=self._rng.getrandbits(128), version=4),
            max(int(time.time() * 1000), self._not_before_ms),
        )

    async def _step_back(self) -> None:
        """Another agent owns the VM: leave it alone for a while."""
        named_ms, now_s = self.state.superseded_at_ms, time.monotonic()
        assert named_ms is not None
        self._not_before_ms = named_ms + 1
        rivalry = self.state.rivalry.superseded(now_s - self.state.began_s, now_s, self._rng.random())
        self.state = replace(self.state, rivalry=rivalry)
        wait_s = rivalry.wait_until_s - now_s
        self._log.warning(
            "superseded by another agent",
            named_start_ms=named_ms,
            times_in_a_row=rivalry.count,
            next_life_in_s=round(wait_s, 1),
        )
        await self._end_tasks()
        # Nothing is sent any more, so nothing is used any more; the lease might outlast the wait of others for it.
        link = replace(self.state.scheduler, held=ZERO, lease_until_s=0.0)
        self.state = replace(self.state, scheduler=link)
        self._log_held(time.monotonic())
        await self.goodbye(1.0)
        await asyncio.sleep(max(rivalry.wait_until_s - time.monotonic(), 0.0))

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _share_epoch(self) -> None:
        """Learn the highest epoch that any runner of this process has seen, and pass ours on."""
        link = self.state.scheduler
        seen = self._peers.seen_epoch
        highest = seen.highest = max(seen.highest, link.seen_epoch)
        if link.seen_epoch < highest:
            self.state = replace(self.state, scheduler=replace(link, seen_epoch=highest))

    # ---------------------------------------------------------------- the loop

    async def _live(self) -> None:
        while self.state.superseded_at_ms is None:
            if self.state.vm != self.vm:
                self._apply(events.VmChanged(self.vm))
            wake_s = self._look_at_windows()
            now_s = time.monotonic()
            if now_s >= self._next_tick_s:
                self.stats.ticks += 1
                self._next_tick_s = now_s + self._timing.tick_s
            self.state = lapse(self.state, now_s, self._timing)
            self._share_epoch()
            self._log_held(now_s)
            planned = plan(self.state, now_s, self._timing)
            self._note(planned)
            for action in planned.actions:
                self._take_up(action, now_s)
            await self._next_event(min(planned.wake_at_s - now_s, wake_s))

    def _look_at_windows(self) -> float:
        """Take up what holds at this time of day; in how many seconds that changes."""
        windows = self._peers.windows
        if windows is None:
            return math.inf
        at_s = time.time()
        limits = windows.at(at_s)
        if limits != self.state.limits:
            self._apply(events.WindowsMoved(limits))
        next_s = windows.next_s(at_s)
        return math.inf if next_s is None else max(next_s - at_s, 0.0) + 0.01

    async def _next_event(self, wait_s: float) -> None:
        """Apply what comes next, and all that is there already; return after `wait_s` when nothing comes."""
        if self._inbox.empty():
            if wait_s >= 1.0:
                now_s = time.monotonic()
                wait_s = math.ceil((now_s + wait_s) / SLACK_S) * SLACK_S - now_s
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(max(wait_s, 0.0), self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        while not self._inbox.empty():
            self._apply(self._inbox.get_nowait())

    def _apply(self, event: events.Event | Exception) -> None:
        if isinstance(event, Exception):
            raise event
        now_s = time.monotonic()
        self._journal.append((now_s, event))
        self._share_epoch()
        before = self.state
        self.state = apply(before, event, now_s, self._timing, self._policy)
        self._log_held(now_s)
        self._growth.note(event, before, self.state, now_s, self._peers.latencies)
        self._tell(event, before)

    def _take_up(self, action: events.Action, now_s: float) -> None:
        registration = None
        if isinstance(action, events.Register):
            registration = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        started = events.Started(action, registration)
        self._journal.append((now_s, started))
        self.state = apply(self.state, started, now_s, self._timing, self._policy)
        self._log_held(now_s)  # a request lowers what we hold before the scheduler is told
        self.stats.actions[type(action).__name__] += 1
        kind = f"{self.vm.name} {type(action).__name__}"
        task = asyncio.create_task(self._finish(started), name=kind)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, started: events.Started) -> None:
        outcome: events.Event | Exception
        try:
            outcome = await self._perform(started)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the runner fails with it, see `_apply`
            outcome = error
        await self._inbox.put(outcome)
        self._wake()

    async def _perform(self, started: events.Started) -> events.Event:
        """Do one action; every outcome is an event, only cancellation passes through."""
        match started.action:
            case events.Fence() | events.Observe() | events.Resize():
                return await self._on_backend(started.action)
            case events.RequestPermit(request):
                return await self._peers.scheduler.ask(self.vm, request)
            case events.Register():
                assert started.registration is not None
                return await self._peers.informant.register(started.registration)
            case events.AskDownscale(amount):
                return await self._peers.informant.ask_downscale(amount)
            case events.AnnounceUpscale(amount):
                return await self._peers.informant.announce_upscale(amount)
            case events.ReadMetrics(port):
                return await self._peers.exporter.read(port)
            case _:
                assert_never(started.action)

    async def _on_backend(self, action: events.Fence | events.Observe | events.Resize) -> events.Event:
        backend, deadline_s = self._peers.backend, self._timing.backend_deadline_s
        if isinstance(action, events.Fence):
            deadline_s += self._timing.command_deadline_s  # a fence may have to wait it out
        try:
            async with asyncio.timeout(deadline_s):
                match action:
                    case events.Fence():
                        self._fencing = await backend.fence(self.vm)
                        return events.Fenced()
                    case events.Observe():
                        return events.Observed(await backend.observe(self.vm))
                    case events.Resize(target, seen, not_after_s):
                        assert self._fencing is not None
                        await backend.resize(
                            self.vm, target, self._fencing, seen=seen, not_after_s=not_after_s
                        )
                        return events.ResizeAccepted()
                    case _:
                        assert_never(action)
        except FencedOffError:
            return events.FencedOff()
        except (BackendError, TimeoutError) as error:
            text, chance = str(error) or f"no answer within {deadline_s:g} s", self._rng.random()
        match action:
            case events.Fence():
                return events.FenceFailed(text, chance)
            case events.Observe():
                return events.ObserveFailed(text, chance)
            case events.Resize():
                return events.ResizeFailed(text, chance)
            case _:
                assert_never(action)

    # ---------------------------------------------------------------- telling

    def _log_held(self, now_s: float) -> None:
        """Write down what this life may use, whenever that changed."""
        life, held = self.state.life.agent_id, self.state.held_at(now_s)
        before = self._logged_held
        if before == (life, held):
            return
        if before is not None and before[0] != life:
            self._held_log.held(self.vm.name, str(before[0]), ZERO)
        if held != ZERO or before is not None:
            self._held_log.held(self.vm.name, str(life), held)
        self._logged_held = (life, held)

    def _note(self, planned: Plan) -> None:
        before = self.last_plan
        if before is None or before.desired != planned.desired:
            self._log.info("goal", desired=str(planned.desired), reason=planned.reason)
        self.last_plan = planned

    def _tell(self, event: events.Event, before: RunnerState) -> None:
        """Count an event, and log what a person would want to know."""
        match event:
            case events.PermitGranted():
                self.stats.permits += 1
                for reason in event.reasons:
                    self.stats.refusals[reason.code.value] += 1
                if self.state.scheduler.fault and not before.scheduler.fault:
                    self._log.warning("permit not usable", error=self.state.scheduler.fault)
                elif event.permit != before.scheduler.permit or _codes(event.reasons) != _codes(
                    before.scheduler.reasons
                ):
                    why = str(event.reasons[0]) if event.reasons else None
                    self._log.info("permit", seq=event.number, permit=str(event.permit), reason=why)
            case events.PermitRefused() | events.PermitFailed():
                code = "no-answer"
                if isinstance(event, events.PermitRefused):
                    code = event.body.body.code.value if event.body is not None else f"status-{event.status}"
                self.stats.refusals[code] += 1
                if before.scheduler.fault != self.state.scheduler.fault:
                    self._log.warning("no permit", seq=event.number, error=self.state.scheduler.fault)
            case events.ResizeAccepted():
                self.stats.resizes += 1
                sent = before.backend.sent
                self._log.info("resize", target=str(sent.target) if sent is not None else None)
            case events.DownscaleDenied():
                self.stats.refusals["downscale-denied"] += 1
                self._log.info(
                    "downscale refused by the guest", amount=str(event.amount), reason=event.status
                )
            case _:
                self._tell_of_trouble(before)

    def _tell_of_trouble(self, before: RunnerState) -> None:
        for link in ("backend", "informant", "metrics"):
            fault = getattr(self.state, link).fault
            if fault and fault != getattr(before, link).fault:
                self._log.warning("trouble", action=link, error=fault)
        fault = self.state.backend.resizing.fault
        if fault and fault != before.backend.resizing.fault:
            self._log.warning("trouble", action="resize", error=fault)
        phase = self.state.informant.phase
        if phase is not before.informant.phase and phase in (
            RegistrationPhase.ACTIVE,
            RegistrationPhase.SUSPENDED,
        ):
            self._log.info("informant", phase=phase.value)


def _codes(reasons: tuple[Reason, ...]) -> tuple[ReasonCode, ...]:
    """What is worth a line when it changes; messages hold numbers that change at each request."""
    return tuple(reason.code for reason in reasons)
