"""Agents: the real steps of a runner (`agent/core/step.py`), driven by the virtual clock.

What was started is performed here, and every action ends as exactly one event. A process that is stopped hears nothing until it
goes on, also between a decision and the write that comes of it.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never
from uuid import UUID

from agent.core import events
from agent.core.condition import Condition, condition
from agent.core.model import Sample
from agent.core.plan import Plan
from agent.core.policies.combined import Combined, PluginPolicy
from agent.core.policies.peaks import NO_SURGES, NO_TAIL
from agent.core.policies.remembered import NO_ZONES
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import PluginAnswer
from agent.core.state import PermitRequest, RegistrationPhase, RunnerState
from agent.core.step import RunnerCore
from agent.core.timing import Rivalry, Timing
from agent.peers.scheduler import request_of
from protocol.codec import ErrorBody, ReadErrorBody
from protocol.sequence import Life as LifeId
from protocol.values import ZERO, Observation, Resources
from scheduler.permits.core.events import Decided, HungUp, Refused
from tests.simulation.clock import Timer
from tests.simulation.network import Call
from tests.simulation.schedulers import EPOCH_MS, Answer
from tests.simulation.vms import COMMAND_DEADLINE_S, Failure, Vm

if TYPE_CHECKING:
    from tests.simulation.world import World

TIMING: Final = Timing(command_deadline_s=COMMAND_DEADLINE_S, observe_busy_s=0.4, down_window_s=30.0)
POLICY: Final = Combined(
    (
        (
            "utilisation",
            Utilisation(
                750_000,
                750_000,
                cpu_zones=NO_ZONES,
                memory_zones=NO_ZONES,
                tail=NO_TAIL,
                surges=NO_SURGES,
                ahead_s=0.0,
            ),
        ),
    )
)
"""Without zones, so that a load says at once which size it needs."""
WITH_PLUGIN: Final = Combined(
    (*POLICY.policies, ("plugin:theirs", PluginPolicy("theirs", built_in=POLICY.policies[0][1])))
)
"""With a plugin that says the same, late or not at all."""
INFORMANT_DEADLINE_S: Final = 2.0
PLUGIN_DEADLINE_S: Final = 1.0

Outcome: TypeAlias = Callable[[events.Event], None]


class Life:
    """One life of one runner."""

    def __init__(
        self,
        world: "World",
        vm: Vm,
        ident: int,
        started_ms: int,
        rivalry: Rivalry,
        dice: random.Random,
    ) -> None:
        self.world = world
        self.vm = vm
        self.ident = ident
        self.is_over = False
        self.stops_at_write_s = 0.0
        """So long it will be stopped between its next decision to resize and the write."""
        self._clock = world.clock
        self._dice = dice
        self._stopped_until_s = 0.0
        self._inbox: list[events.Event] = []
        self._late: list[Callable[[], object]] = []
        self._wake: Timer | None = None
        self._lease: Timer | None = None
        self._generation = 0
        self._numbers = 0
        self._held = ZERO
        self._held_until_s = 0.0
        self.planned: Plan | None = None
        self.samples: deque[Sample] = deque(maxlen=3)
        self._plugin_dice = random.Random(f"{vm.name} {ident}")  # its own: other draws stay as they were
        policy = WITH_PLUGIN if vm.name.endswith("0") else POLICY
        self._core = RunnerCore(TIMING, policy, self._new_id)
        life = LifeId(self._new_id(), started_ms)
        self.state = RunnerState(vm.agent_vm, life, world.clock.now_s, rivalry=rivalry)
        self._step()

    def _new_id(self) -> UUID:
        return UUID(int=self._dice.getrandbits(128), version=4)

    # ------------------------------------------------------------ the process

    @property
    def is_stopped(self) -> bool:
        return self._clock.now_s < self._stopped_until_s

    def stop(self, span_s: float) -> None:
        """The process is stopped (SIGSTOP, a frozen machine) and goes on after `span_s`."""
        if self.is_over or self.is_stopped:
            return
        self.world.trace.add(self._clock.now_s, self.vm.name, f"life {self.ident} is stopped")
        self._stopped_until_s = self._clock.now_s + span_s
        self._clock.at(self._stopped_until_s, self._continue)

    def _continue(self) -> None:
        if self.is_over:
            return
        self.world.trace.add(self._clock.now_s, self.vm.name, f"life {self.ident} goes on")
        late, self._late = self._late, []
        for perform in late:  # what was decided before leaves first: its tasks were ready to run
            perform()
        inbox, self._inbox = self._inbox, []
        self._step(*inbox)

    def end(self) -> None:
        """The process is killed: what it held is nothing from now on, what it has sent may still arrive."""
        if self.is_over:
            return
        self.is_over = True
        for timer in (self._wake, self._lease):
            if timer is not None:
                timer.cancel()
        self._holds(ZERO)

    # ------------------------------------------------------------ the loop

    def hear(self, event: events.Event) -> None:
        if self.is_over:
            return
        if isinstance(event, events.MetricsRead):
            self.samples.append(event.sample)
        if self.is_stopped:
            self._inbox.append(event)
        else:
            self._step(event)

    def answers(self, registration: UUID) -> int | None:
        """The number of its answer to an informant."""
        if self.is_over:
            return None if self._dice.random() < 0.5 else 0  # its address may be another agent's by now
        if self.state.informant.registration != registration:
            return 0
        if self.is_stopped:
            return None
        self._numbers += 1
        return self._numbers

    def _step(self, *inbox: events.Event) -> None:
        now_s = self._clock.now_s
        step = self._core.step(self.state, inbox, now_s)
        self.state = step.state
        self._note_held(now_s)
        if self.state.superseded_at_ms is not None:
            self.world.superseded(self, self.state.superseded_at_ms)
            return
        self.planned = step.plan
        for started in step.started:
            self._take_up(started, now_s)
        if self._wake is not None:
            self._wake.cancel()
        # A stopped process hears nothing of its own timers either, until it goes on.
        self._wake = self._clock.at(max(step.plan.wake_at_s, now_s + 0.001), self._woken)

    def _woken(self) -> None:
        if not self.is_stopped:
            self._step()

    def _take_up(self, started: events.Started, now_s: float) -> None:
        """Perform what was started, once the process is not stopped any more."""
        action = started.action
        if isinstance(action, events.Resize):
            self.world.coverage.check_resize(self.vm, action.target, self.samples)
        if isinstance(action, events.Resize) and self.stops_at_write_s:
            span_s, self.stops_at_write_s = self.stops_at_write_s, 0.0
            self.world.trace.add(now_s, self.vm.name, f"life {self.ident} decides to write", action.target)
            self.stop(span_s)
        if self.is_stopped:
            self._late.append(lambda: self._perform(action, started.registration))
        else:
            self._perform(action, started.registration)

    # ------------------------------------------------------------ actions

    def _perform(self, action: events.Action, registration: UUID | None) -> None:
        informant = self.world.informants[self.vm.name]
        match action:
            case events.Fence():
                wait_s = TIMING.backend_deadline_s + TIMING.command_deadline_s
                done = self._once(events.FenceFailed("no answer", self._dice.random()), wait_s)
                self.vm.fence(lambda answer: done(self._fenced(answer)))
            case events.Observe(checks_fence):
                self._observe(checks_fence)
            case events.Resize():
                self._resize(action)
            case events.RequestPermit(request):
                self._request(request)
            case events.Register():
                assert registration is not None
                failed: events.Event = events.RegisterFailed("no answer", self._dice.random())
                informant.register(self, registration, self._once(failed, INFORMANT_DEADLINE_S))
            case events.AskDownscale(amount):
                informant.downscale(amount, self._calling())
            case events.AnnounceUpscale(amount):
                informant.upscale(amount, self._calling())
            case events.ReadMetrics():
                failed = events.MetricsFailed("no answer", False, self._dice.random())
                informant.metrics(self._once(failed, INFORMANT_DEADLINE_S))
            case events.AskPolicies():
                self._ask_plugin(action)
            case _:
                assert_never(action)

    def _ask_plugin(self, question: events.AskPolicies) -> None:
        """One time in five the plugin hangs, one time in ten it fails, else it answers in its time."""
        failed = events.PoliciesAnswered((PluginAnswer("theirs", None, "no answer"),))
        done, chance = self._once(failed, PLUGIN_DEADLINE_S), self._plugin_dice.random()
        if chance < 0.2:
            return
        goal = POLICY.goal(question.load, question.sizing)
        answer = failed if chance < 0.3 else events.PoliciesAnswered((PluginAnswer("theirs", goal),))
        self._clock.after(self._plugin_dice.random() * 0.9 * PLUGIN_DEADLINE_S, lambda: done(answer))

    def _once(self, failed: events.Event, wait_s: float) -> Outcome:
        """The receiver of an action's outcome; `failed` is the outcome if none comes in time."""
        call = Call[events.Event](self.hear)
        deadline = self._clock.after(wait_s, lambda: call.answer(failed))

        def done(event: events.Event) -> None:
            deadline.cancel()
            call.answer(event)

        return done

    def _calling(self) -> Outcome:
        failed = events.InformantFailed("no answer", False, self._dice.random())
        return self._once(failed, INFORMANT_DEADLINE_S)

    def _fenced(self, answer: int | Failure) -> events.Event:
        if isinstance(answer, Failure):
            return events.FenceFailed(answer.error, self._dice.random())
        self._generation = answer
        return events.Fenced()

    def _observe(self, checks_fence: bool) -> None:
        done = self._once(events.ObserveFailed("no answer", self._dice.random()), TIMING.backend_deadline_s)

        def seen(answer: Observation | Failure) -> None:
            if isinstance(answer, Failure):
                done(events.ObserveFailed(answer.error, self._dice.random()))
            elif not checks_fence:
                done(events.Observed(answer))
            else:
                again = events.Resize(
                    answer.target, answer.target, self._clock.now_s + TIMING.backend_deadline_s
                )
                self.vm.resize(again, self._generation, lambda failure: checked(answer, failure))

        def checked(seen: Observation, failure: Failure | None) -> None:
            is_fenced_off = failure is not None and failure.is_fenced_off
            done(events.FencedOff() if is_fenced_off else events.Observed(seen, is_fenced=failure is None))

        self.vm.observe(seen)

    def _resize(self, action: events.Resize) -> None:
        done = self._once(events.ResizeFailed("no answer", self._dice.random()), TIMING.backend_deadline_s)

        def answered(answer: Failure | None) -> None:
            if answer is None:
                done(events.ResizeAccepted())
            elif answer.is_fenced_off:
                done(events.FencedOff())
            else:
                done(events.ResizeFailed(answer.error, self._dice.random()))

        self.vm.resize(action, self._generation, answered)

    def _request(self, request: PermitRequest) -> None:
        world, sent_s = self.world, self._clock.now_s
        failed = events.PermitFailed(request.number, "no answer", self._dice.random())
        call = Call[events.Event](self._once(failed, TIMING.request_deadline_s))

        def reply(answer: Answer | None) -> None:
            event = permit_event(answer, request, sent_s, self._dice.random())
            world.network.reply(self.vm.name, call, event)

        def arrive() -> None:
            world.trace.add(
                self._clock.now_s, self.vm.name, "asks", request.resources, "and claims", request.claim
            )
            world.scheduler.receive(self.vm, request_of(self.vm.agent_vm, request), reply)

        world.network.request(self.vm.name, arrive)

    # ------------------------------------------------------------ what it may use

    def _note_held(self, now_s: float) -> None:
        """Tell the observer what this life may use, and end that with its lease, whatever becomes of the process."""
        held = self.state.held_at(now_s)
        until_s = self.state.scheduler.lease_until_s
        if held == self._held and (held == ZERO or until_s == self._held_until_s):
            return
        if self._lease is not None:
            self._lease.cancel()
        self._held_until_s = until_s
        self._lease = self._clock.at(until_s, lambda: self._holds(ZERO)) if held != ZERO else None
        self._holds(held)

    def _holds(self, held: Resources) -> None:
        if held == self._held:
            return
        self._held = held
        self.world.trace.add(self._clock.now_s, self.vm.name, f"life {self.ident} holds", held)
        self.vm.observer.held(self.vm.account, self.ident, ZERO if held == ZERO else held)

    # ------------------------------------------------------------ looking

    def condition(self) -> Condition:
        return condition(self.state, self.planned, self._clock.now_s, TIMING)

    @property
    def is_registered(self) -> bool:
        return self.state.informant.phase is RegistrationPhase.ACTIVE


def permit_event(answer: Answer | None, request: PermitRequest, sent_s: float, chance: float) -> events.Event:
    """The scheduler's answer as the link to it tells the runner; None where nobody listens."""
    match answer:
        case Decided():
            assert answer.echo is not None
            return events.PermitGranted(
                request.number,
                answer.permit,
                answer.unit,
                sent_s,
                answer.reasons,
                answer.echo.sequence_number,
                answer.echo.instance,
                answer.echo.epoch,
                answer.migrate,
                chance,
                answer.echo.token,
            )
        case Refused():
            last, started_ms = answer.last_sequence_number, answer.current_started_at_ms
            body = ReadErrorBody(ErrorBody(answer.message, answer.code, last, started_ms), None)
            return events.PermitRefused(request.number, answer.status, body, None, chance)
        case HungUp() | None:
            return events.PermitFailed(request.number, "refused", chance)


class Daemon:
    """The process that runs one VM's runner, life after life."""

    def __init__(self, world: "World", vm: Vm) -> None:
        self.world = world
        self.vm = vm
        self.is_dead = False
        self.life: Life | None = None
        self._not_before_ms = 0
        self._rivalry = Rivalry()
        self.start()

    def start(self) -> None:
        """Begin another life."""
        if self.is_dead:
            return
        started_ms = max(EPOCH_MS + int(self.world.clock.now_s * 1000), self._not_before_ms)
        ident = self.world.count()
        self.world.trace.add(self.world.clock.now_s, self.vm.name, f"life {ident} begins")
        self.life = Life(self.world, self.vm, ident, started_ms, self._rivalry, self.world.agents_dice)

    def superseded(self, named_ms: int) -> None:
        """Another life owns the VM: this one ends politely, and another one begins after a while."""
        life = self.life
        assert life is not None
        registration = life.state.informant.registration
        if registration is not None:
            self.world.informants[self.vm.name].unregister(registration)
        life.end()
        self.world.trace.add(self.world.clock.now_s, self.vm.name, f"life {life.ident} is superseded")
        self._not_before_ms = named_ms + 1
        lasted_s, now_s = self.world.clock.now_s - life.state.began_s, self.world.clock.now_s
        self._rivalry = self._rivalry.superseded(lasted_s, now_s, self.world.agents_dice.random())
        self.world.clock.at(self._rivalry.wait_until_s, self.start)

    def kill(self) -> None:
        self.is_dead = True
        if self.life is not None:
            self.life.end()
