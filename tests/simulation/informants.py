"""The program in the guest: the real session table, wishes, and plan of sizes and limits, and a guest with a load.

As `informant.service` drives them: one call to an agent at a time, health checks now and then, a look every few seconds.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from agent.core import events
from agent.core.model import Sample
from informant.core.guard import Guard
from informant.core.limits import Write
from informant.core.plan import apply, plan
from informant.core.report import Reading
from informant.core.sessions import (
    Resume,
    Session,
    SessionEvent,
    SessionPhase,
    Sessions,
    Suspend,
    TryUpscale,
    Wishes,
)
from informant.core.state import (
    AdoptSize,
    AnswerRequest,
    Done,
    GuestAction,
    GuestEvent,
    GuestRead,
    GuestSampled,
    GuestState,
    ReadGuest,
    ReportShortage,
    SizeAdopted,
    SizeRequested,
)
from protocol.sequence import AnswerOrder
from protocol.values import Resources
from protocol.versions import InformantProtoVersion
from tests.simulation.clock import Clock, Timer
from tests.simulation.vms import Vm

LOOK_S: Final = 5.0
HEALTH_S: Final = 10.0
CALL_DEADLINE_S: Final = 0.5
RETRY_S: Final = 1.0
WAY_S: Final = 0.003
METRICS_PORT: Final = 9100
UNKNOWN: Final = "status 404"


class Peer(Protocol):
    """An agent's life, as its informant calls it."""

    def answers(self, registration: UUID) -> int | None:
        """The number of its answer; None where it does not answer, 0 where it says that this registration is over."""
        ...

    def hear(self, event: events.Event) -> object: ...


@dataclass(slots=True)
class Load:
    """The resources that the guest would use if it had them: CPUs, and bytes of memory."""

    cpus: float
    memory_bytes: int


class Guest:
    """The machine as its own kernel shows it."""

    def __init__(self, vm: Vm, clock: Clock) -> None:
        self.load = Load(0.5, 2**28)
        self._vm = vm
        self._clock = clock
        self._busy_s = 0.0
        self._until_s = clock.now_s

    def set_load(self, load: Load) -> None:
        self._account()
        self.load = load

    def read(self) -> Reading:
        self._account()
        size = self._vm.size
        used = min(self.load.memory_bytes, size.memory_bytes)
        cpus = self.load.cpus
        return Reading(
            cpus,
            cpus,
            cpus,
            self._busy_s,
            math.ceil(size.vcpu_milli / 1000),
            size.memory_bytes,
            size.memory_bytes - used,
        )

    def _account(self) -> None:
        span_s = self._clock.now_s - self._until_s
        self._busy_s += span_s * min(self.load.cpus, self._vm.size.vcpu_milli / 1000)
        self._until_s = self._clock.now_s


class Informant:
    """One informant. A restart forgets agents and wishes; what was approved is kept in a file."""

    def __init__(self, vm: Vm, guest: Guest, clock: Clock, dice: random.Random) -> None:
        self._vm = vm
        self.guest = guest
        self._clock = clock
        self._dice = dice
        self._down_until_s = 0.0
        self._life = 0
        self._serial = self._number = 0
        self._approved: Resources | None = None
        self._due: Timer | None = None
        self._begin()

    def _begin(self) -> None:
        self._life += 1
        self.sessions = Sessions()
        self.wishes = Wishes()
        self.state = GuestState(Guard(size=self._approved))
        self._answers: dict[int, Callable[[AnswerRequest], object]] = {}
        self._peers: dict[int, Peer] = {}
        self._is_calling = False
        life = self._life
        self._clock.after(LOOK_S * self._dice.random(), lambda: self._look_again(life))
        self._clock.after(HEALTH_S, lambda: self._check_health(life))

    def restart(self, down_s: float) -> None:
        """It is killed and comes back."""
        self._life += 1
        self._down_until_s = self._clock.now_s + down_s
        self._clock.after(down_s, self._begin)

    def _is_down(self) -> bool:
        return self._clock.now_s < self._down_until_s

    # ------------------------------------------------------------ what agents ask

    def register(self, peer: Peer, registration: UUID, done: Callable[[events.Event], object]) -> None:
        """`POST /register`, with the check of `/id`."""

        def arrive() -> None:
            if self._is_down() or self.sessions.is_full():
                done(events.RegisterFailed("not there", self._dice.random()))
                return
            self._serial += 1
            version = InformantProtoVersion.V1_1
            session = Session(registration, "agent", version, serial=self._serial)
            self._peers[session.serial] = peer
            self.sessions = self.sessions.add(session)
            if not self._ask(session):
                self._step(session, SessionEvent.FAILED)
                done(events.RegisterFailed("the check of /id failed", self._dice.random()))
                return
            self._step(session, SessionEvent.CHECKED)
            self._clock.after(WAY_S, lambda: done(events.Registered(registration, version, METRICS_PORT)))

        self._clock.after(WAY_S, arrive)

    def unregister(self, registration: UUID) -> None:
        """`DELETE /unregister`."""
        session = self.sessions.find(registration)
        if session is not None and not self._is_down():
            self._step(session, SessionEvent.LEFT)

    def downscale(self, amount: Resources, done: Callable[[events.Event], object]) -> None:
        """`PUT /downscale`."""

        def answered(answer: AnswerRequest) -> None:
            status = answer.error or answer.result.status
            is_ok = answer.result.ok
            done(events.DownscaleApproved(amount) if is_ok else events.DownscaleDenied(amount, status))

        self._clock.after(WAY_S, lambda: self._decide(amount, done, answered, is_upscale=False))

    def upscale(self, amount: Resources, done: Callable[[events.Event], object]) -> None:
        """`PUT /upscale`."""

        def answered(_: AnswerRequest) -> None:
            done(events.UpscaleAnnounced(amount))

        self._clock.after(WAY_S, lambda: self._decide(amount, done, answered, is_upscale=True))

    def _decide(
        self,
        amount: Resources,
        done: Callable[[events.Event], object],
        answered: Callable[[AnswerRequest], object],
        *,
        is_upscale: bool,
    ) -> None:
        if self._is_down() or not self.sessions.all:
            done(events.InformantFailed(UNKNOWN, True, self._dice.random()))
            return
        self._number += 1
        self._answers[self._number] = answered
        self._take(SizeRequested(self._number, amount, is_upscale))
        if is_upscale:
            self._select()

    def _take(self, event: GuestEvent) -> None:
        """Apply an event and perform what is planned: without a group nothing is written, and nothing waits."""
        now_s = self._clock.now_s
        self.state = apply(self.state, event, now_s)
        while actions := plan(self.state, now_s).actions:
            for action in actions:
                self.state = apply(self.state, self._perform(action), now_s)

    def _perform(self, action: GuestAction) -> GuestEvent:
        match action:
            case ReadGuest():
                return GuestRead(self.guest.read())
            case AdoptSize(size, _, grown):
                self._approved, met = size, self.wishes.resources().and_(grown)
                self.wishes = self.wishes.arrived(grown)
                return SizeAdopted(met)
            case ReportShortage(shortage):
                self.wishes = self.wishes.seen_short(shortage.resources(), self._clock.now_s)
                return Done(action)
            case AnswerRequest():
                self._answers.pop(action.request.number)(action)
                return Done(action)
            case Write():
                raise AssertionError("there is no group to write to")

    def metrics(self, done: Callable[[events.Event], object]) -> None:
        """`GET /metrics`."""

        def arrive() -> None:
            if self._is_down():
                done(events.MetricsFailed("nothing listens there", True, self._dice.random()))
                return
            seen = self.guest.read()
            sample = Sample(
                self._clock.now_s,
                seen.load1,
                seen.load5,
                seen.cpu_busy_s,
                seen.memory_total_bytes,
                seen.memory_available_bytes,
            )
            done(events.MetricsRead(sample))

        self._clock.after(WAY_S, arrive)

    # ------------------------------------------------------------ looking

    def _look_again(self, life: int) -> None:
        if life != self._life:
            return
        self._take(GuestSampled(self.guest.read()))
        self._select()
        self._clock.after(LOOK_S, lambda: self._look_again(life))

    # ------------------------------------------------------------ what agents are told

    def _check_health(self, life: int) -> None:
        if life != self._life:
            return
        for session in self.sessions.all:
            if session.phase is SessionPhase.CHECKING:
                continue
            if self._ask(session):
                self._peers[session.serial].hear(events.InformantHeard(session.agent_id))
            else:
                self.sessions = self.sessions.missed(session.serial)
        self._select()
        self._clock.after(HEALTH_S, lambda: self._check_health(life))

    def _ask(self, session: Session) -> bool:
        """Call an agent; whether it gave a good answer."""
        number = self._peers[session.serial].answers(session.agent_id)
        if not number:
            return False
        known = self.sessions.known(session.serial)
        if known is None:
            return False
        order, gate = known.gate.check(number)
        if order is AnswerOrder.FRESH:
            self.sessions = self.sessions.answered(session.serial, gate)
        return order is AnswerOrder.FRESH

    def _select(self) -> None:
        """Bring the newest agent into use, and tell it what cannot wait: the next call, unless one is under way."""
        now_s = self._clock.now_s
        self.wishes = self.wishes.elapsed(now_s)
        if self._is_calling or self._is_down():
            return
        action = self.sessions.next_action(now_s) or self.wishes.next_call(self.sessions, now_s)
        match action:
            case Suspend(session):
                self._call(
                    session,
                    SessionEvent.SUSPEND_SENT,
                    SessionEvent.SUSPENDED,
                    events.Suspended(session.agent_id),
                )
            case Resume(session):
                self._call(
                    session, SessionEvent.RESUME_SENT, SessionEvent.RESUMED, events.Resumed(session.agent_id)
                )
            case TryUpscale():
                self._deliver(action)
            case None:
                self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        times = [self.wishes.due_s() or 0.0]
        times += [at_s for each in self.sessions.all for at_s in (each.quiet_until_s, each.ask_from_s)]
        due_s = min((at_s for at_s in times if at_s > now_s), default=None)
        if self._due is not None:
            self._due.cancel()
        self._due = None if due_s is None else self._clock.at(due_s, self._select)

    def _call(self, session: Session, sent: SessionEvent, done: SessionEvent, event: events.Event) -> None:
        self._step(session, sent)
        self._is_calling = True
        life, is_over = self._life, self._peers[session.serial].answers(session.agent_id) == 0
        is_answered = not is_over and self._ask(session)
        if not is_over:
            self._peers[session.serial].hear(event)  # one that is stopped hears it when it goes on

        def end() -> None:
            if life != self._life:
                return
            self._is_calling = False
            if is_answered:
                self._step(session, done)
            elif is_over:
                self._step(session, SessionEvent.FAILED)
            else:
                self._step(session, SessionEvent.UNANSWERED)
                self.sessions = self.sessions.missed(session.serial, self._clock.now_s + RETRY_S)
            self._select()

        self._clock.after(WAY_S if is_answered else CALL_DEADLINE_S, end)

    def _deliver(self, call: TryUpscale) -> None:
        session, now_s = call.session, self._clock.now_s
        self.sessions = self.sessions.delivering(session.serial)
        is_over = self._peers[session.serial].answers(session.agent_id) == 0
        is_answered = not is_over and self._ask(session)
        if is_answered:
            self._peers[session.serial].hear(events.TryUpscaleReceived(session.agent_id, call.resources))
            self.sessions = self.sessions.delivered(session.serial, call.resources)
            self.wishes = self.wishes.delivered(call, now_s)
        elif is_over:
            self._step(session, SessionEvent.FAILED)
        else:
            self.sessions = self.sessions.undelivered(session.serial, now_s + RETRY_S)
        life = self._life
        self._clock.after(WAY_S, lambda: self._select() if life == self._life else None)

    def _step(self, session: Session, event: SessionEvent) -> None:
        self.sessions = self.sessions.step(session.serial, event)
