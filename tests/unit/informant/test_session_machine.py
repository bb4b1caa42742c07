"""Agents, wishes and time in any order: what each agent believes, beside what the table says of it.

Driven as `informant.service.agents` drives them: one call at a time is under way, everything else happens in between.
The agents of the model are published ones. An agent is in use from the `/resume` that reaches it to the next
`/suspend`; it keeps the wish that it was told last, through suspensions and registrations, until it is told otherwise.

What may be claimed where answers are lost: an agent that was dropped because it was silent may well go on in the belief
that it is in use, and nobody can tell it otherwise. So never two *of those that were not given up* are in use; given up
is who missed `tolerance` calls in a row, and nobody else. Who left, or refused a call (as it does when it is resumed or
suspended a second time), ended that registration itself. A call reaches only the registration that it was made for.
"""

from typing import assert_never
from uuid import UUID

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from informant.core.sessions import (
    NOTHING,
    Resume,
    Session,
    SessionEvent,
    SessionPhase,
    Sessions,
    Suspend,
    TryUpscale,
    Wishes,
)
from protocol.sequence import AnswerOrder
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources
from tests.unit.informant.session_models import (
    CALL_STEP_S,
    IN_USE,
    INSTANT_S,
    MOVES,
    QUIET_S,
    TIMING,
    USABLE,
    VERSIONS,
    Agent,
    AgentMove,
    Answer,
    Ask,
    Call,
    CallMove,
    GuestMove,
    Need,
    Outcome,
    begun,
    ended_well,
    names,
)


def is_due(need: Need, delivery: TryUpscale) -> bool:
    """Whether the need is a reason for that: another agent was told last, or nobody, or this one long ago."""
    serial = delivery.session.serial
    return (
        next(reversed(need.delivered_s), 0) != serial
        or delivery.at_s >= need.delivered_s[serial] + TIMING.expires_s
    )


class SessionMachine(RuleBasedStateMachine):
    """The informant's side (`sessions`, `wishes`, `call`), and what is known of the agents and of the guest."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        self.sessions = Sessions()
        self.wishes = Wishes(timing=TIMING)
        self.call: Call | None = None
        self.serial = 0
        self.agents: dict[UUID, Agent] = {}
        self.order: list[int] = []
        self.needs: dict[str, Need] = {}

    @initialize(tolerance=st.integers(1, 3), versions=st.lists(st.sampled_from(VERSIONS), max_size=2))
    def begin(self, tolerance: int, versions: list[InformantProtoVersion]) -> None:
        """Some agents are registered already, and the newest of them is in use."""
        self.sessions = Sessions(tolerance=tolerance)
        for number, version in enumerate(versions, 1):
            self._register(UUID(int=number), version)
            self._check_ends(self.sessions.all[-1], "fresh")
        if versions:
            self._call_begins()
            self._call_ends("well")

    # ------------------------------------------------------------ what the shell does

    def _next(self) -> Ask | None:
        return self.sessions.next_action() or self.wishes.next_call(self.sessions, self.now_s)

    def _wake(self) -> None:
        """The loop goes round whenever something changes or is due, unless it waits for a call."""
        if self.call is None:
            self.wishes = self.wishes.elapsed(self.now_s)
            for name in set(self.needs) - set(names(self.wishes.resources())):
                need = self.needs.pop(name)
                assert self.now_s >= need.short_s + TIMING.calm_s, "it ends while it is needed"

    def _fail(self, session: Session) -> None:
        self.sessions = self.sessions.step(session.serial, SessionEvent.FAILED)
        if session.serial in self.order:
            self.order.remove(session.serial)

    def _miss(self, session: Session) -> None:
        self.sessions = self.sessions.missed(session.serial)
        if session.serial not in self.order:
            return
        agent = self.agents[session.agent_id]
        agent.misses += 1
        if agent.misses >= self.sessions.tolerance:
            self.order.remove(session.serial)

    def _hear(self, session: Session, answer: Answer) -> bool:
        """An answer comes, or does not; whether it is a good one."""
        known = self.sessions.known(session.serial)
        if answer == "none" or known is None:
            return False
        agent = self.agents[session.agent_id]
        if answer == "fresh":
            agent.number += 1
        number = {"fresh": agent.number, "old": known.gate.last, "zero": 0}[answer]
        order, gate = known.gate.check(number)
        assert (order is AnswerOrder.FRESH) == (answer == "fresh")
        if order is AnswerOrder.FRESH:
            self.sessions = self.sessions.answered(session.serial, gate)
            agent.misses = 0
            assert [each.gate.last for each in self.sessions.all if each.serial == session.serial] == [number]
        return order is AnswerOrder.FRESH

    @rule(move=MOVES)
    def something_happens(self, move: AgentMove | GuestMove | CallMove) -> None:
        """One rule for all: of several, each run would leave some out, and here they need each other."""
        match move:
            case AgentMove():
                self._agent_moves(move)
            case GuestMove():
                self._pass(move.seconds)
                if move.what == "short":
                    self._short(move.resources)
                elif move.what != "nothing":
                    self._arrives(move.resources, are_cleared=move.what == "arrives and is cleared")
            case CallMove():
                self._call_moves(move)
            case _:
                assert_never(move)

    # ------------------------------------------------------------ agents come, answer and go

    def _agent_moves(self, move: AgentMove) -> None:
        """One that is not there registers, any other one leaves or is asked for its ID."""
        agent_id, answer = move.agent_id, move.answer
        session = self.sessions.find(agent_id)
        if session is None:
            self._register(agent_id, move.version)
            if not move.is_going:
                self._check_ends(self.sessions.all[-1], answer)
        elif move.is_going:
            self._leave(session)
        elif session.phase is SessionPhase.CHECKING:
            self._check_ends(session, answer)
        elif not self._hear(session, answer):
            self._miss(session)

    def _register(self, agent_id: UUID, version: InformantProtoVersion) -> None:
        known = self.agents.get(agent_id)
        believes = known.believes if known is not None else NOTHING
        version = known.version if known is not None else version
        self.serial += 1
        self.agents[agent_id] = Agent(self.serial, version, believes=believes)
        self.order.append(self.serial)
        self.sessions = self.sessions.add(Session(agent_id, "10.0.0.1:1", version, serial=self.serial))

    def _check_ends(self, session: Session, answer: Answer) -> None:
        if self._hear(session, answer):
            self.sessions = self.sessions.step(session.serial, SessionEvent.CHECKED)
            assert session.serial in [
                each.serial for each in self.sessions.all if each.phase is SessionPhase.WAITING
            ]
        else:
            self._fail(session)
            self.agents[session.agent_id].serial = 0  # it is told that it is not registered

    def _leave(self, session: Session) -> None:
        self.sessions = self.sessions.step(session.serial, SessionEvent.LEFT)
        self.order.remove(session.serial)
        agent = self.agents[session.agent_id]
        agent.serial, agent.is_active = 0, False

    # ------------------------------------------------------------ what the guest wants, and time

    def _short(self, resources: MoreResources) -> None:
        self.wishes = self.wishes.seen_short(resources, self.now_s)
        for name in names(resources):
            self.needs.setdefault(name, Need(self.now_s, self.now_s)).short_s = self.now_s
        assert names(self.wishes.resources().and_(resources)) == names(resources)

    def _arrives(self, resources: MoreResources, *, are_cleared: bool) -> None:
        self.wishes = self.wishes.arrived(resources)
        for name in names(resources):
            self.needs.pop(name, None)
        current = self.sessions.current()
        if are_cleared and current is not None:  # by the agent that made the VM larger
            agent = self.agents[current.agent_id]
            agent.believes = agent.believes.and_(resources.not_())
        assert self.wishes.resources().and_(resources) == NOTHING

    def _pass(self, seconds: float) -> None:
        until_s = self.now_s + (seconds if self.call is None else min(seconds, CALL_STEP_S))
        while self.call is None and (due_s := self.wishes.due_s()) is not None and due_s <= until_s:
            self.now_s, before = max(self.now_s, due_s), self.wishes
            self._wake()
            assert self.wishes != before, "nothing happens when it is due"
        self.now_s = until_s

    # ------------------------------------------------------------ calls

    def _call_moves(self, move: CallMove) -> None:
        if self.call is None:
            if self._next() is None:
                return
            self._call_begins()
        assert self.call is not None
        if move.step == "arrives":
            self._call_arrives(self.call)
        elif move.step != "begins":
            self._call_ends(move.step)

    def _call_begins(self) -> None:
        ask = self._next()
        assert ask is not None
        if isinstance(ask, TryUpscale):
            self._has_a_reason(ask)
        self.call = Call(ask, is_again=ask.session.phase is SessionPhase.DOUBTFUL)
        self.sessions = begun(self.sessions, ask)
        self.now_s += INSTANT_S  # the clock is finer than anything that happens

    def _has_a_reason(self, delivery: TryUpscale) -> None:
        """Nobody is told twice what it knows before it is time."""
        agent = self.agents[delivery.session.agent_id]
        is_news = any(is_due(need, delivery) for need in self.needs.values())
        assert is_news or agent.delivered != delivery.resources

    def _call_arrives(self, call: Call) -> None:
        """The agent does as it is asked; we do not know it yet."""
        session = call.ask.session
        agent = self.agents[session.agent_id]
        if call.has_arrived or call.is_refused:
            return
        if agent.serial != session.serial or (
            not isinstance(call.ask, TryUpscale) and agent.is_active is isinstance(call.ask, Resume)
        ):
            assert agent.serial != session.serial or call.is_again, "it is told what it knows to be so"
            self._refuses(call, agent)
            return
        call.has_arrived = True
        match call.ask:
            case Suspend():
                agent.is_active = False
            case Resume():
                agent.is_active = True
            case TryUpscale(resources=resources):
                assert agent.is_active, "an agent is told that is not in use"
                assert agent.version.has_try_upscale(), "an agent is told that cannot understand it"
                agent.believes = resources

    def _call_ends(self, outcome: Outcome) -> None:
        assert self.call is not None
        call, self.call = self.call, None
        session = call.ask.session
        agent = self.agents[session.agent_id]
        if outcome == "well":
            self._call_arrives(call)
        if outcome == "well" and call.has_arrived and self._hear(session, "fresh"):
            self.sessions, self.wishes = ended_well(self.sessions, self.wishes, call.ask, self.now_s)
            if isinstance(call.ask, TryUpscale):
                self._delivered(call.ask, agent)
        else:
            if outcome == "refused" and not call.has_arrived:
                self._refuses(call, agent)
            if call.is_refused and outcome != "lost":
                self._fail(session)
            else:
                self._unanswered(call, agent)
        self._wake()

    @staticmethod
    def _refuses(call: Call, agent: Agent) -> None:
        """It ends that registration, or does not know it."""
        call.is_refused = True
        if agent.serial == call.ask.session.serial:
            agent.serial, agent.is_active = 0, False

    def _unanswered(self, call: Call, agent: Agent) -> None:
        session = call.ask.session
        if isinstance(call.ask, TryUpscale):
            self.sessions = self.sessions.undelivered(session.serial, self.now_s + QUIET_S)
            if session.serial in self.order:
                agent.quiet_until_s, agent.delivered = self.now_s + QUIET_S, None
        else:
            self.sessions = self.sessions.step(session.serial, SessionEvent.UNANSWERED)
            self._miss(session)

    def _delivered(self, delivery: TryUpscale, agent: Agent) -> None:
        agent.delivered = delivery.resources
        for name in names(delivery.resources):
            need = self.needs.get(name)
            if need is not None and need.began_s <= delivery.at_s and is_due(need, delivery):
                need.delivered_s.pop(delivery.session.serial, None)  # the last one told comes last
                need.delivered_s[delivery.session.serial] = self.now_s

    # ------------------------------------------------------------ what must hold

    @invariant()
    def never_two_agents_are_in_use(self) -> None:
        """By what they believe; of those that were not given up."""
        active = [agent for agent in self.agents.values() if agent.is_active and agent.serial in self.order]
        assert len(active) <= 1
        for agent in self.agents.values():
            assert not agent.is_active or agent.serial, "it left, and is in use all the same"
        in_use = [each.serial for each in self.sessions.all if each.phase in IN_USE]
        assert len(in_use) <= 1
        assert [agent.serial for agent in active if agent.serial not in in_use] == []

    @invariant()
    def who_is_in_use_by_the_table_believes_so(self) -> None:
        current = self.sessions.current()
        assert current is None or self.agents[current.agent_id].is_active

    @invariant()
    def the_table_holds_who_neither_left_nor_failed_nor_was_silent_in_their_order(self) -> None:
        assert [each.serial for each in self.sessions.all] == self.order
        for each in self.sessions.all:
            agent = self.agents[each.agent_id]
            assert each.version is agent.version
            assert agent.serial in (each.serial, 0), "it holds an earlier registration"
            assert each.failures == agent.misses < self.sessions.tolerance
            assert each.gate.last <= agent.number

    @invariant()
    def an_answer_that_nobody_waits_for_changes_nothing(self) -> None:
        waiting = {
            SessionEvent.CHECKED: SessionPhase.CHECKING,
            SessionEvent.RESUMED: SessionPhase.RESUMING,
            SessionEvent.SUSPENDED: SessionPhase.SUSPENDING,
        }
        for each in self.sessions.all:
            for event, phase in waiting.items():
                after = self.sessions.step(each.serial, event)
                assert (after is self.sessions) == (each.phase is not phase)

    @invariant()
    def nothing_else_is_asked_while_a_call_is_under_way(self) -> None:
        if any(each.phase in (SessionPhase.RESUMING, SessionPhase.SUSPENDING) for each in self.sessions.all):
            assert self.call is not None
            assert self._next() is None

    @invariant()
    def the_newest_usable_agent_is_in_use_and_told_once_nothing_fails_any_more(self) -> None:
        sessions, wishes, asked = self.sessions, self.wishes, 0
        if self.call is not None:
            sessions, wishes = ended_well(sessions, wishes, self.call.ask, self.now_s)
        while ask := sessions.next_action() or wishes.next_call(sessions, self.now_s):
            asked += 1
            assert asked <= 3, "a suspend, a resume and a wish suffice"
            sessions, wishes = ended_well(begun(sessions, ask), wishes, ask, self.now_s + INSTANT_S)
        usable = [each.serial for each in sessions.all if each.phase in USABLE]
        current = sessions.current()
        assert (current.serial if current is not None else None) == (usable[-1] if usable else None)

    def _listening(self) -> Agent | None:
        """The agent in use where it should know what is wanted: it understands, may be asked now, and stays in use."""
        current = self.sessions.current()
        if self.call is not None or current is None or self.sessions.next_action() is not None:
            return None
        agent = self.agents[current.agent_id]
        return agent if agent.version.has_try_upscale() and self.now_s >= agent.quiet_until_s else None

    @invariant()
    def no_wish_is_lost(self) -> None:
        """Told since it began, to this registration, and not too long ago; or it is told next."""
        assert set(names(self.wishes.resources())) == set(self.needs)
        agent, ask = self._listening(), self._next()
        if agent is None:
            return
        for name, need in self.needs.items():
            delivered_s = need.delivered_s.get(agent.serial)
            if isinstance(ask, TryUpscale) and name in names(ask.resources):
                continue
            assert delivered_s is not None, "it was not told"
            assert self.now_s < delivered_s + TIMING.expires_s, "it is not told again"
            assert self.now_s < max(delivered_s, need.short_s) + TIMING.calm_s, "it does not end"

    @invariant()
    def an_agent_believes_in_what_is_wanted_or_is_told_next(self) -> None:
        """Nothing wanted included: every agent in use that still believes in a wish is told so."""
        agent, wanted = self._listening(), self.wishes.resources()
        if agent is not None and agent.believes != wanted:
            ask = self._next()
            assert isinstance(ask, TryUpscale)
            assert ask.resources == wanted

    @invariant()
    def a_wish_that_nobody_sees_any_more_ends(self) -> None:
        for need in self.needs.values() if self.call is None else ():
            delivered_s = max(need.delivered_s.values(), default=need.began_s)
            assert self.now_s < max(need.short_s, delivered_s) + TIMING.calm_s


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    # What goes wrong is shortened, and not explained besides: that takes minutes.
    phases=[each for each in hypothesis.Phase if each is not hypothesis.Phase.explain],
)
