"""The machine over sessions and wishes keeps these models of agents, calls and needs, and makes these moves."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import UUID

from hypothesis import strategies as st

from informant.core.sessions import (
    NOTHING,
    Resume,
    SessionAction,
    SessionEvent,
    SessionPhase,
    Sessions,
    TryUpscale,
    Wishes,
    WishTiming,
)
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

TIMING = WishTiming(expires_s=6.0, calm_s=4.0)
INSTANT_S = 1 / 1024
CALL_STEP_S = 1.0
"""Time passes in small steps while a call is under way: calls have deadlines."""
QUIET_S = 2.5
"""So long an agent is not told again that did not answer."""

IN_USE = (SessionPhase.ACTIVE, SessionPhase.RESUMING, SessionPhase.DOUBTFUL, SessionPhase.SUSPENDING)
USABLE = (*IN_USE, SessionPhase.WAITING)
Ask: TypeAlias = SessionAction | TryUpscale
Answer: TypeAlias = Literal["fresh", "old", "zero", "none"]
Outcome: TypeAlias = Literal["well", "lost", "refused"]


@dataclass(slots=True)
class Agent:
    """One agent: what it believes, and what we gave it to believe.

    `serial` is the registration that it believes in, 0 for none. `told` is what we know it to know.
    """

    serial: int
    version: InformantProtoVersion
    is_active: bool = False
    believes: MoreResources = NOTHING
    number: int = 0
    misses: int = 0
    quiet_until_s: float = 0.0
    delivered: MoreResources | None = None


@dataclass(slots=True)
class Call:
    ask: Ask
    has_arrived: bool = False
    is_refused: bool = False
    is_again: bool = False


@dataclass(slots=True)
class Need:
    """One resource that is wanted. `told_s` is when which registration was told of it last."""

    began_s: float
    short_s: float
    delivered_s: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentMove:
    """An agent registers, answers, does not, or goes."""

    agent_id: UUID
    version: InformantProtoVersion
    answer: Answer
    is_going: bool


@dataclass(frozen=True, slots=True)
class GuestMove:
    """Time passes; then resources are seen short, or more of them arrives."""

    seconds: float
    what: Literal["nothing", "short", "arrives", "arrives and is cleared"]
    resources: MoreResources


@dataclass(frozen=True, slots=True)
class CallMove:
    """The call under way, or else the next one, comes so far."""

    step: Outcome | Literal["begins", "arrives"]


CPU, MEMORY, BOTH = (MoreResources(*each) for each in ((True, False), (False, True), (True, True)))
V1_0, V1_1 = InformantProtoVersion.V1_0, InformantProtoVersion.V1_1
VERSIONS = [V1_1, V1_1, V1_1, V1_0]
# Few draws: what went wrong is to be found in little time, too.
CALL_MOVES = st.sampled_from(
    [CallMove(step) for step in ("well", "well", "well", "begins", "arrives", "lost", "refused")]
)
GUEST_MOVES = st.sampled_from(
    [
        GuestMove(seconds, what, resources)
        for seconds in (0.0, 0.0, 0.25, 2.0, 3.0, 3.0, 5.0, 20.0)
        for what in ("nothing", "short", "short", "arrives", "arrives and is cleared")
        for resources in (CPU, MEMORY, BOTH)
    ]
)
AGENT_MOVES = st.sampled_from(
    [
        AgentMove(UUID(int=number), version, answer, is_going)
        for number in range(1, 4)
        for version in VERSIONS
        for answer in ("fresh", "fresh", "fresh", "fresh", "old", "zero", "none")
        for is_going in (False, False, False, True)
    ]
)
MOVES = CALL_MOVES | CALL_MOVES | GUEST_MOVES | AGENT_MOVES


def names(resources: MoreResources) -> tuple[str, ...]:
    return tuple(name for name in ("cpu", "memory") if getattr(resources, name))


def sent_and_done(action: SessionAction) -> tuple[SessionEvent, SessionEvent]:
    if isinstance(action, Resume):
        return SessionEvent.RESUME_SENT, SessionEvent.RESUMED
    return SessionEvent.SUSPEND_SENT, SessionEvent.SUSPENDED


def begun(sessions: Sessions, ask: Ask) -> Sessions:
    serial = ask.session.serial
    if isinstance(ask, TryUpscale):
        return sessions.delivering(serial)
    return sessions.step(serial, sent_and_done(ask)[0])


def ended_well(sessions: Sessions, wishes: Wishes, ask: Ask, now_s: float) -> tuple[Sessions, Wishes]:
    serial = ask.session.serial
    if sessions.known(serial) is None:
        return sessions, wishes
    if isinstance(ask, TryUpscale):
        return sessions.delivered(serial, ask.resources), wishes.delivered(ask, now_s)
    return sessions.step(serial, sent_and_done(ask)[1]), wishes
