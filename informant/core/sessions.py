"""Which agent is in use, a table machine over the registered agents; and the wishes: more of a resource that is asked of that agent.

The newest agent wins. An agent that is in use, or may believe so, is suspended before the newer one is resumed, so two are never
active at once. When the agent in use goes, the newest of the rest is resumed. `TABLE` has every transition; `step` ignores any
other event, and returns the same table. Source: reference/neon.md 4.1.

A wish begins when a resource is seen short and cannot wait for the agent's next look. It is delivered to the agent in use by
`/try-upscale`, and again every `expires_s` while the shortage lasts. It ends as soon as more arrives, or when the resource was not seen
short for `calm_s`, whether or not there was an agent to hear of it: an agent that registers later must not grow a VM for a workload that
has ended. The last delivery is kept with the agent's session, so that the agent also learns when nothing is wished for any more: a
published agent keeps a wish standing until it does. A published informant asks once and swallows every later need until it is granted.
Source: reference/neon.md 4.2.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from protocol.sequence import AnswerGate
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

MAX_SESSIONS: Final = 16
HEALTH_TOLERANCE: Final = 3
"""So many calls in a row without a good answer drop an agent, unless the settings say otherwise."""


NOTHING: Final = MoreResources(cpu=False, memory=False)
"""Nothing is wished for."""


class SessionPhase(enum.Enum):
    """How far an agent is. Leaving the table is no phase: the session is gone then."""

    CHECKING = "checking"
    """The agent asked to register, and its `/id` is being checked."""
    WAITING = "waiting"
    """Registered and not in use."""
    RESUMING = "resuming"
    ACTIVE = "active"
    DOUBTFUL = "doubtful"
    """The agent may or may not have heard the last `/resume` or `/suspend`: perhaps it believes that it is in use."""
    SUSPENDING = "suspending"


class SessionEvent(enum.Enum):
    CHECKED = "checked"
    RESUME_SENT = "resume-sent"
    RESUMED = "resumed"
    SUSPEND_SENT = "suspend-sent"
    SUSPENDED = "suspended"
    UNANSWERED = "unanswered"
    """The agent gave no answer to `/resume` or `/suspend`."""
    FAILED = "failed"
    """A check or a call failed for good."""
    LEFT = "left"
    """The agent unregistered."""


GONE: Final = None
TABLE: Final = MappingProxyType(
    {
        (SessionPhase.CHECKING, SessionEvent.CHECKED): SessionPhase.WAITING,
        (SessionPhase.WAITING, SessionEvent.RESUME_SENT): SessionPhase.RESUMING,
        (SessionPhase.RESUMING, SessionEvent.RESUMED): SessionPhase.ACTIVE,
        (SessionPhase.RESUMING, SessionEvent.UNANSWERED): SessionPhase.DOUBTFUL,
        (SessionPhase.ACTIVE, SessionEvent.SUSPEND_SENT): SessionPhase.SUSPENDING,
        (SessionPhase.DOUBTFUL, SessionEvent.RESUME_SENT): SessionPhase.RESUMING,
        (SessionPhase.DOUBTFUL, SessionEvent.SUSPEND_SENT): SessionPhase.SUSPENDING,
        (SessionPhase.SUSPENDING, SessionEvent.SUSPENDED): SessionPhase.WAITING,
        (SessionPhase.SUSPENDING, SessionEvent.UNANSWERED): SessionPhase.DOUBTFUL,
        **{
            (phase, event): GONE
            for phase in SessionPhase
            for event in (SessionEvent.FAILED, SessionEvent.LEFT)
        },
    }
)
"""The phase after an event. An agent may fail or leave at any time; no other event has a meaning elsewhere."""


@dataclass(frozen=True, slots=True)
class Session:
    """One agent: its address, the version agreed on, how far it is, and the order of its answers.

    `failures` are calls in a row without a good answer. `delivered` names the wishes that the agent knows, None if they are unknown.
    So many deliveries in a row were `undelivered`; the next one waits until `quiet_until_s`. The next `/suspend` or
    `/resume` waits until `ask_from_s`.
    """

    agent_id: UUID
    server_addr: str
    version: InformantProtoVersion
    phase: SessionPhase = SessionPhase.CHECKING
    gate: AnswerGate = field(default_factory=AnswerGate)
    failures: int = 0
    serial: int = 0
    """A number above 0 of its own for each registration, also under the same ID."""
    delivered: MoreResources | None = NOTHING
    undelivered: int = 0
    quiet_until_s: float = 0.0
    ask_from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Suspend:
    """`POST /suspend`: ask this agent to stand back."""

    session: Session


@dataclass(frozen=True, slots=True)
class Resume:
    """`POST /resume`: tell this agent that it is in use."""

    session: Session


SessionAction: TypeAlias = Suspend | Resume


@dataclass(frozen=True, slots=True)
class Sessions:
    """All agents, in the order in which they asked to register. An event of a registration that is over changes nothing.

    `has_lost_wishes` says that an agent has gone that may believe in a wish: any agent that registers later may be that one.
    """

    all: tuple[Session, ...] = ()
    tolerance: int = HEALTH_TOLERANCE
    has_lost_wishes: bool = False

    def find(self, agent_id: UUID) -> Session | None:
        return next((session for session in self.all if session.agent_id == agent_id), None)

    def known(self, serial: int) -> Session | None:
        """The registration of that number; None if it is over, whether or not its agent came anew."""
        return next((session for session in self.all if session.serial == serial), None)

    def current(self) -> Session | None:
        return next((session for session in self.all if session.phase is SessionPhase.ACTIVE), None)

    def add(self, session: Session) -> "Sessions":
        """The table with a new agent. Its ID must be new, and there must be room (`is_full`)."""
        assert self.find(session.agent_id) is None
        assert not self.is_full()
        if self.has_lost_wishes:
            session = replace(session, delivered=None)
        return replace(self, all=(*self.all, session))

    def is_full(self) -> bool:
        """A VM has one or two agents; more are a peer gone wrong."""
        return len(self.all) >= MAX_SESSIONS

    def step(self, serial: int, event: SessionEvent) -> "Sessions":
        """The table after `event` of one agent; the same table if the event has no meaning."""
        session = self.known(serial)
        if session is None or (session.phase, event) not in TABLE:
            return self
        phase = TABLE[session.phase, event]
        return self._changed(serial, lambda old: None if phase is GONE else replace(old, phase=phase))

    def answered(self, serial: int, gate: AnswerGate) -> "Sessions":
        """The table after an answer that its gate took; earlier failures are forgotten."""
        return self._changed(serial, lambda old: replace(old, gate=gate, failures=0))

    def missed(self, serial: int, ask_from_s: float = 0.0) -> "Sessions":
        """The table after a call without a good answer; too many in a row drop the agent.

        The next `/suspend` or `/resume` waits until `ask_from_s`.
        """

        def after(old: Session) -> Session | None:
            if old.failures + 1 >= self.tolerance:
                return None
            later_s = max(ask_from_s, old.ask_from_s)  # another miss brings nothing nearer
            return replace(old, failures=old.failures + 1, ask_from_s=later_s)

        return self._changed(serial, after)

    def spared(self, serial: int, ask_from_s: float) -> "Sessions":
        """The table with an agent that is not suspended or resumed before `ask_from_s`."""
        return self._changed(serial, lambda old: replace(old, ask_from_s=ask_from_s))

    def delivering(self, serial: int) -> "Sessions":
        """The table while wishes are being delivered to an agent: from here on the agent may know them."""
        return self._changed(serial, lambda old: replace(old, delivered=None))

    def delivered(self, serial: int, resources: MoreResources) -> "Sessions":
        """The table after an agent took note of the wishes."""
        return self._changed(serial, lambda old: replace(old, delivered=resources, undelivered=0))

    def undelivered(self, serial: int, quiet_until_s: float) -> "Sessions":
        """The table after a delivery without a good answer: the agent may or may not know the wishes.

        That alone drops nobody: a guest that starves is late itself, and its health checks decide.
        """
        return self._changed(
            serial,
            lambda old: replace(
                old, delivered=None, undelivered=old.undelivered + 1, quiet_until_s=quiet_until_s
            ),
        )

    def next_action(self, now_s: float = float("inf")) -> SessionAction | None:
        """The call at `now_s` that brings the newest agent into use; at most one call is under way at a time.

        Any other agent that may believe that it is in use is suspended first. An agent that had heard a repeated call says 400, and
        registers anew.
        """
        if any(session.phase in (SessionPhase.RESUMING, SessionPhase.SUSPENDING) for session in self.all):
            return None
        usable = [session for session in self.all if session.phase is not SessionPhase.CHECKING]
        if not usable or usable[-1].phase is SessionPhase.ACTIVE:
            return None
        others = (each for each in usable[:-1] if each.phase in (SessionPhase.ACTIVE, SessionPhase.DOUBTFUL))
        other = next(others, None)
        asked = usable[-1] if other is None else other
        if now_s < asked.ask_from_s:
            return None
        return Resume(asked) if other is None else Suspend(asked)

    def _changed(self, serial: int, after: Callable[[Session], Session | None]) -> "Sessions":
        old = self.known(serial)
        if old is None:
            return self
        new = after(old)
        changed = (new if session is old else session for session in self.all)
        return replace(
            self,
            all=tuple(session for session in changed if session is not None),
            has_lost_wishes=self.has_lost_wishes or (new is None and old.delivered != NOTHING),
        )


@dataclass(frozen=True, slots=True)
class WishTiming:
    """How long a wish holds, in seconds: until the next delivery, and without a shortage."""

    expires_s: float = 10.0
    calm_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Wish:
    """More of one resource is wished for.

    `delivered_to` is the serial of the session that knows, 0 if a delivery is due; `last_delivered_to` that of the last session
    that was told. The wish began at `since_s`. `needed_s` is when the resource was last seen short or, if that is later, when
    an agent first heard of the wish; `until_s` is when the next delivery is due.
    """

    since_s: float
    needed_s: float
    until_s: float = float("inf")
    delivered_to: int = 0
    last_delivered_to: int = 0


@dataclass(frozen=True, slots=True)
class TryUpscale:
    """`POST /try-upscale`: deliver to this agent the wishes at `at_s`; there may be none."""

    session: Session
    resources: MoreResources
    at_s: float


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes that stand, for either resource."""

    cpu: Wish | None = None
    memory: Wish | None = None
    timing: WishTiming = WishTiming()

    def resources(self) -> MoreResources:
        return MoreResources(cpu=self.cpu is not None, memory=self.memory is not None)

    def seen_short(self, resources: MoreResources, now_s: float) -> "Wishes":
        return replace(
            self,
            cpu=self._needed(self.cpu, now_s) if resources.cpu else self.cpu,
            memory=self._needed(self.memory, now_s) if resources.memory else self.memory,
        )

    @staticmethod
    def _needed(wish: Wish | None, now_s: float) -> Wish:
        return Wish(now_s, now_s) if wish is None else replace(wish, needed_s=now_s)

    def arrived(self, resources: MoreResources) -> "Wishes":
        return replace(
            self,
            cpu=None if resources.cpu else self.cpu,
            memory=None if resources.memory else self.memory,
        )

    def delivered(self, call: TryUpscale, now_s: float) -> "Wishes":
        """The wishes after an agent took note of `call`; a wish that was met or began anew meanwhile stays as it is."""
        until_s, serial = now_s + self.timing.expires_s, call.session.serial

        def after(wish: Wish | None, is_named: bool) -> Wish | None:
            if wish is None or not is_named or wish.delivered_to == serial or wish.since_s > call.at_s:
                return wish
            # An agent that hears of it first has the time to heed it; a repetition makes it no more needed.
            needed_s = wish.needed_s if wish.last_delivered_to == serial else now_s
            return replace(
                wish, delivered_to=serial, last_delivered_to=serial, needed_s=needed_s, until_s=until_s
            )

        named = call.resources
        return replace(self, cpu=after(self.cpu, named.cpu), memory=after(self.memory, named.memory))

    def elapsed(self, now_s: float) -> "Wishes":
        """The wishes now: without a shortage a wish ends, and one whose delivery has expired is to be delivered again."""
        cpu, memory = self._after(self.cpu, now_s), self._after(self.memory, now_s)
        return self if cpu is self.cpu and memory is self.memory else replace(self, cpu=cpu, memory=memory)

    def _after(self, wish: Wish | None, now_s: float) -> Wish | None:
        if wish is None or now_s < self._end_s(wish):
            return wish
        if now_s < wish.needed_s + self.timing.calm_s:
            return replace(wish, delivered_to=0, until_s=float("inf"))
        return None

    def _end_s(self, wish: Wish) -> float:
        return min(wish.until_s, wish.needed_s + self.timing.calm_s)

    def due_s(self) -> float | None:
        """When time alone changes the first of the wishes."""
        ends = (self._end_s(wish) for wish in (self.cpu, self.memory) if wish is not None)
        return min(ends, default=None)

    def next_call(self, sessions: Sessions, now_s: float) -> TryUpscale | None:
        """The next delivery to the agent in use; None while that agent knows, cannot understand it, or is left in peace."""
        current = sessions.current()
        if current is None or not current.version.has_try_upscale() or now_s < current.quiet_until_s:
            return None
        resources, wishes = self.resources(), (self.cpu, self.memory)
        is_news = any(wish is not None and wish.delivered_to != current.serial for wish in wishes)
        is_due = is_news or current.delivered != resources
        return TryUpscale(current, resources, now_s) if is_due else None
