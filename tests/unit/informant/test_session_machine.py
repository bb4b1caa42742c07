"""Any order of registrations, answers, misses, calls and departures: never two agents in use, the newest one wins."""

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from informant.core.sessions import (
    HEALTH_TOLERANCE,
    MAX_SESSIONS,
    Action,
    Event,
    Phase,
    Resume,
    Session,
    Sessions,
)
from protocol.sequence import AnswerGate
from protocol.versions import InformantProtoVersion

IN_USE = (Phase.ACTIVE, Phase.RESUMING, Phase.SUSPENDING)
USABLE = (*IN_USE, Phase.WAITING)
IDS = st.integers(1, 6).map(lambda number: UUID(int=number))


def sent_and_done(action: Action) -> tuple[Event, Event]:
    if isinstance(action, Resume):
        return Event.RESUME_SENT, Event.RESUMED
    return Event.SUSPEND_SENT, Event.SUSPENDED


class SessionMachine(RuleBasedStateMachine):
    """The shell's side of the table: one call at a time, everything else in any order between."""

    agents = Bundle("agents")

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions()
        self.order: list[UUID] = []
        self.calling: Action | None = None

    def _follow(self) -> None:
        """Forget whom the table forgot."""
        self.order = [agent_id for agent_id in self.order if self.sessions.find(agent_id) is not None]

    @rule(target=agents, agent_id=IDS)
    def register(self, agent_id: UUID) -> UUID:
        if self.sessions.find(agent_id) is None and not self.sessions.is_full():
            self.sessions = self.sessions.add(Session(agent_id, "10.0.0.1:1", InformantProtoVersion.V1_1))
            self.order.append(agent_id)
        return agent_id

    @rule(agent_id=agents, passed=st.booleans())
    def check_ends(self, agent_id: UUID, passed: bool) -> None:
        found = self.sessions.find(agent_id)
        if found is not None and found.phase is Phase.CHECKING:
            self.sessions = self.sessions.step(agent_id, Event.CHECKED if passed else Event.FAILED)
            assert (self.sessions.find(agent_id) is not None) == passed
            self._follow()

    @rule(agent_id=agents)
    def leave(self, agent_id: UUID) -> None:
        self.sessions = self.sessions.step(agent_id, Event.LEFT)
        assert self.sessions.find(agent_id) is None
        self._follow()

    @rule(agent_id=agents, number=st.integers(1, 100))
    def answer(self, agent_id: UUID, number: int) -> None:
        before = self.sessions.find(agent_id)
        self.sessions = self.sessions.answered(agent_id, AnswerGate(number))
        after = self.sessions.find(agent_id)
        assert (after is None) == (before is None)
        assert after is None or (after.failures, after.gate.last) == (0, number)

    @rule(agent_id=agents)
    def miss(self, agent_id: UUID) -> None:
        before = self.sessions.find(agent_id)
        self.sessions = self.sessions.missed(agent_id)
        if before is not None:
            dropped = self.sessions.find(agent_id) is None
            assert dropped == (before.failures + 1 == HEALTH_TOLERANCE)
        self._follow()

    @rule(agent_id=agents, event=st.sampled_from([Event.CHECKED, Event.RESUMED, Event.SUSPENDED]))
    def an_answer_that_nobody_waits_for(self, agent_id: UUID, event: Event) -> None:
        """An event that has no meaning in the phase changes nothing."""
        found = self.sessions.find(agent_id)
        expected = {
            Event.CHECKED: Phase.CHECKING,
            Event.RESUMED: Phase.RESUMING,
            Event.SUSPENDED: Phase.SUSPENDING,
        }
        if found is None or found.phase is not expected[event]:
            assert self.sessions.step(agent_id, event) is self.sessions

    @rule()
    def call_begins(self) -> None:
        action = self.sessions.next_action()
        if self.calling is None and action is not None:
            self.sessions = self.sessions.step(action.session.agent_id, sent_and_done(action)[0])
            self.calling = action

    @rule(succeeds=st.booleans())
    def call_ends(self, succeeds: bool) -> None:
        if self.calling is not None:
            done = sent_and_done(self.calling)[1] if succeeds else Event.FAILED
            self.sessions = self.sessions.step(self.calling.session.agent_id, done)
            self.calling = None
            self._follow()

    @invariant()
    def at_most_one_agent_is_in_use_or_about_to_be(self) -> None:
        assert sum(each.phase in IN_USE for each in self.sessions.all) <= 1

    @invariant()
    def gone_agents_leave_no_trace_and_the_others_keep_their_order(self) -> None:
        assert [each.agent_id for each in self.sessions.all] == self.order
        assert len(self.order) <= MAX_SESSIONS

    @invariant()
    def nothing_else_is_asked_while_a_call_is_under_way(self) -> None:
        if any(each.phase in (Phase.RESUMING, Phase.SUSPENDING) for each in self.sessions.all):
            assert self.calling is not None
            assert self.sessions.next_action() is None

    @invariant()
    def the_newest_usable_agent_is_in_use_once_nothing_fails_any_more(self) -> None:
        settled, calls = self.sessions, 0
        if self.calling is not None:
            settled = settled.step(self.calling.session.agent_id, sent_and_done(self.calling)[1])
        while (action := settled.next_action()) is not None:
            calls += 1
            assert calls <= 2, "one suspend and one resume suffice"
            for event in sent_and_done(action):
                settled = settled.step(action.session.agent_id, event)
        usable = [each.agent_id for each in settled.all if each.phase in USABLE]
        current = settled.current()
        assert (current.agent_id if current is not None else None) == (usable[-1] if usable else None)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
