"""The program in the guest: the real session table, wishes, guard and lookout, and a guest with a load.

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
from informant.core.report import Reading
from informant.core.sessions import Event, Phase, Resume, Session, Sessions, Suspend
from informant.core.shortage import ShortageDetector
from informant.core.wishes import Tell, Wishes
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

    def hear(self, event: events.Event) -> object:
        """An event of a call."""
        ...


@dataclass(slots=True)
class Load:
    """What the guest would use if it had it: CPUs, and bytes of memory."""

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
        """The workload changes."""
        self._account()
        self.load = load

    def read(self) -> Reading:
        """The machine now."""
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
        self._serial = 0
        self._approved: Resources | None = None
        self._due: Timer | None = None
        self._begin()

    def _begin(self) -> None:
        self._life += 1
        self.sessions = Sessions()
        self.wishes = Wishes()
        self.guard = Guard(size=self._approved)
        self._lookout = ShortageDetector()
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
                self._step(session, Event.FAILED)
                done(events.RegisterFailed("the check of /id failed", self._dice.random()))
                return
            self._step(session, Event.CHECKED)
            self._clock.after(WAY_S, lambda: done(events.Registered(registration, version, METRICS_PORT)))

        self._clock.after(WAY_S, arrive)

    def unregister(self, registration: UUID) -> None:
        """`DELETE /unregister`."""
        session = self.sessions.find(registration)
        if session is not None and not self._is_down():
            self._step(session, Event.LEFT)

    def downscale(self, amount: Resources, done: Callable[[events.Event], object]) -> None:
        """`PUT /downscale`."""

        def arrive() -> None:
            if self._is_refusing(done):
                return
            early = self.guard.holds(amount, self._clock.now_s)
            result = self.guard.judge(amount, self.guest.read())
            if early or not result.ok:
                done(events.DownscaleDenied(amount, early or result.status))
                return
            self.guard = self.guard.shrunk(amount)
            self._approved = amount
            done(events.DownscaleApproved(amount))

        self._clock.after(WAY_S, arrive)

    def upscale(self, amount: Resources, done: Callable[[events.Event], object]) -> None:
        """`PUT /upscale`."""

        def arrive() -> None:
            if self._is_refusing(done):
                return
            now_s = self._clock.now_s
            self.guard, more = self.guard.grown(amount)
            self._lookout = self._lookout.grown(more, now_s)
            self._approved = amount
            met = self.wishes.wanted().and_(more)
            self.wishes = self.wishes.arrived(more)
            self.guard = self.guard.met(met, now_s)
            done(events.UpscaleAnnounced(amount))
            self._select()

        self._clock.after(WAY_S, arrive)

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

    def _is_refusing(self, done: Callable[[events.Event], object]) -> bool:
        if self._is_down() or not self.sessions.all:
            done(events.InformantFailed(UNKNOWN, True, self._dice.random()))
            return True
        return False

    # ------------------------------------------------------------ looking

    def _look_again(self, life: int) -> None:
        if life != self._life:
            return
        now_s = self._clock.now_s
        reading = self.guest.read()
        self.guard = self.guard.seen(reading, now_s).elapsed(now_s)
        self._lookout, shortage = self._lookout.see(reading, None, now_s)
        more = shortage.more()
        if more.cpu or more.memory:
            self.wishes = self.wishes.short(more, now_s)
        self._select()
        self._clock.after(LOOK_S, lambda: self._look_again(life))

    # ------------------------------------------------------------ what agents are told

    def _check_health(self, life: int) -> None:
        if life != self._life:
            return
        for session in self.sessions.all:
            if session.phase is Phase.CHECKING:
                continue
            if self._ask(session):
                self._peers[session.serial].hear(events.InformantHeard(session.agent_id))
            else:
                self.sessions = self.sessions.missed(session.agent_id)
        self._select()
        self._clock.after(HEALTH_S, lambda: self._check_health(life))

    def _ask(self, session: Session) -> bool:
        """Call an agent; whether it gave a good answer."""
        number = self._peers[session.serial].answers(session.agent_id)
        if not number:
            return False
        known = self.sessions.find(session.agent_id)
        if known is None or known.serial != session.serial:
            return False
        order, gate = known.gate.judge(number)
        if order is AnswerOrder.FRESH:
            self.sessions = self.sessions.answered(session.agent_id, gate)
        return order is AnswerOrder.FRESH

    def _select(self) -> None:
        """Bring the newest agent into use, and tell it what cannot wait: the next call, unless one is under way."""
        now_s = self._clock.now_s
        self.wishes = self.wishes.elapsed(now_s)
        if self._is_calling or self._is_down():
            return
        action = self.sessions.next_action(now_s) or self.wishes.next_tell(self.sessions, now_s)
        match action:
            case Suspend(session):
                self._call(session, Event.SUSPEND_SENT, Event.SUSPENDED, events.Suspended(session.agent_id))
            case Resume(session):
                self._call(session, Event.RESUME_SENT, Event.RESUMED, events.Resumed(session.agent_id))
            case Tell():
                self._tell(action)
            case None:
                self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        times = [self.wishes.due_s() or 0.0]
        times += [at_s for each in self.sessions.all for at_s in (each.quiet_until_s, each.ask_from_s)]
        due_s = min((at_s for at_s in times if at_s > now_s), default=None)
        if self._due is not None:
            self._due.cancel()
        self._due = None if due_s is None else self._clock.at(due_s, self._select)

    def _call(self, session: Session, sent: Event, done: Event, event: events.Event) -> None:
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
                self._step(session, Event.FAILED)
            else:
                self._step(session, Event.UNANSWERED)
                self.sessions = self.sessions.missed(session.agent_id, self._clock.now_s + RETRY_S)
            self._select()

        self._clock.after(WAY_S if is_answered else CALL_DEADLINE_S, end)

    def _tell(self, tell: Tell) -> None:
        session, now_s = tell.session, self._clock.now_s
        self.sessions = self.sessions.telling(session.agent_id)
        is_over = self._peers[session.serial].answers(session.agent_id) == 0
        is_answered = not is_over and self._ask(session)
        if is_answered:
            self._peers[session.serial].hear(events.TryUpscaleReceived(session.agent_id, tell.more))
            self.sessions = self.sessions.told(session.agent_id, tell.more)
            self.wishes = self.wishes.told(tell, now_s)
        elif is_over:
            self._step(session, Event.FAILED)
        else:
            self.sessions = self.sessions.unheard(session.agent_id, now_s + RETRY_S)
        life = self._life
        self._clock.after(WAY_S, lambda: self._select() if life == self._life else None)

    def _step(self, session: Session, event: Event) -> None:
        known = self.sessions.find(session.agent_id)
        if known is not None and known.serial == session.serial:
            self.sessions = self.sessions.step(session.agent_id, event)
