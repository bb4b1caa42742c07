"""The session table: every cell, and what `Sessions` makes of it."""

import itertools
from uuid import UUID

import pytest

from informant.core import sessions
from informant.core.sessions import TABLE, Resume, Session, SessionEvent, SessionPhase, Sessions, Suspend
from protocol.sequence import AnswerGate
from protocol.versions import InformantProtoVersion

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
GONE = None

# phase → what each event makes of it; every other event leaves it as it is.
CELLS: dict[SessionPhase, dict[SessionEvent, SessionPhase | None]] = {
    SessionPhase.CHECKING: {
        SessionEvent.CHECKED: SessionPhase.WAITING,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
    SessionPhase.WAITING: {
        SessionEvent.RESUME_SENT: SessionPhase.RESUMING,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
    SessionPhase.RESUMING: {
        SessionEvent.RESUMED: SessionPhase.ACTIVE,
        SessionEvent.UNANSWERED: SessionPhase.DOUBTFUL,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
    SessionPhase.ACTIVE: {
        SessionEvent.SUSPEND_SENT: SessionPhase.SUSPENDING,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
    SessionPhase.DOUBTFUL: {
        SessionEvent.RESUME_SENT: SessionPhase.RESUMING,
        SessionEvent.SUSPEND_SENT: SessionPhase.SUSPENDING,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
    SessionPhase.SUSPENDING: {
        SessionEvent.SUSPENDED: SessionPhase.WAITING,
        SessionEvent.UNANSWERED: SessionPhase.DOUBTFUL,
        SessionEvent.FAILED: GONE,
        SessionEvent.LEFT: GONE,
    },
}


def session(agent_id: UUID, phase: SessionPhase, failures: int = 0) -> Session:
    return Session(agent_id, "10.0.0.1:1", InformantProtoVersion.V1_1, phase, failures=failures)


def table(*phases: SessionPhase) -> Sessions:
    return Sessions(tuple(session(UUID(int=n), phase) for n, phase in enumerate(phases, 1)))


def phases(of: Sessions) -> list[tuple[int, SessionPhase]]:
    return [(each.agent_id.int, each.phase) for each in of.all]


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(SessionPhase, SessionEvent)))
def test_every_event_in_every_phase_does_what_the_table_says(
    phase: SessionPhase, event: SessionEvent
) -> None:
    before = table(SessionPhase.WAITING, phase, SessionPhase.WAITING)
    after = before.step(B, event)
    if event not in CELLS[phase]:
        assert after is before
        assert (phase, event) not in TABLE
        return
    wanted = CELLS[phase][event]
    assert TABLE[phase, event] is wanted
    middle = [] if wanted is None else [(2, wanted)]
    assert phases(after) == [(1, SessionPhase.WAITING), *middle, (3, SessionPhase.WAITING)]


def test_an_event_of_an_unknown_agent_changes_nothing() -> None:
    before = table(SessionPhase.ACTIVE)
    assert all(before.step(C, event) is before for event in SessionEvent)
    assert before.missed(C) is before
    assert before.answered(C, AnswerGate(5)) is before


NEXT = [
    ((), None),
    ((SessionPhase.CHECKING,), None),
    ((SessionPhase.WAITING,), (Resume, 1)),
    ((SessionPhase.ACTIVE,), None),
    ((SessionPhase.WAITING, SessionPhase.WAITING), (Resume, 2)),
    ((SessionPhase.ACTIVE, SessionPhase.WAITING), (Suspend, 1)),
    ((SessionPhase.WAITING, SessionPhase.ACTIVE), None),
    ((SessionPhase.ACTIVE, SessionPhase.CHECKING), None),
    ((SessionPhase.WAITING, SessionPhase.CHECKING), (Resume, 1)),
    ((SessionPhase.ACTIVE, SessionPhase.WAITING, SessionPhase.CHECKING), (Suspend, 1)),
    ((SessionPhase.WAITING, SessionPhase.ACTIVE, SessionPhase.WAITING), (Suspend, 2)),
    ((SessionPhase.RESUMING, SessionPhase.WAITING), None),
    ((SessionPhase.SUSPENDING, SessionPhase.WAITING), None),
    ((SessionPhase.WAITING, SessionPhase.RESUMING), None),
    ((SessionPhase.DOUBTFUL,), (Resume, 1)),
    ((SessionPhase.WAITING, SessionPhase.DOUBTFUL), (Resume, 2)),
    ((SessionPhase.DOUBTFUL, SessionPhase.WAITING), (Suspend, 1)),
]


@pytest.mark.parametrize(("now", "wanted"), NEXT)
def test_the_next_action_brings_the_newest_agent_into_use(
    now: tuple[SessionPhase, ...], wanted: tuple[type, int] | None
) -> None:
    action = table(*now).next_action()
    got = None if action is None else (type(action), action.session.agent_id.int)
    assert got == wanted


def test_an_agent_is_found_by_its_id_and_the_active_one_is_current() -> None:
    known = table(SessionPhase.WAITING, SessionPhase.ACTIVE)
    assert known.find(A) is known.all[0]
    assert known.find(C) is None
    assert known.current() is known.all[1]
    assert table(SessionPhase.RESUMING).current() is None


def test_an_agent_is_added_last_and_only_once() -> None:
    known = table(SessionPhase.ACTIVE).add(session(B, SessionPhase.CHECKING))
    assert phases(known) == [(1, SessionPhase.ACTIVE), (2, SessionPhase.CHECKING)]
    with pytest.raises(AssertionError):
        known.add(session(B, SessionPhase.CHECKING))


def test_no_more_agents_are_taken_than_there_is_room_for() -> None:
    known = table(*[SessionPhase.WAITING] * (sessions.MAX_SESSIONS - 1))
    assert not known.is_full()
    full = known.add(session(UUID(int=99), SessionPhase.CHECKING))
    assert full.is_full()
    with pytest.raises(AssertionError):
        full.add(session(UUID(int=100), SessionPhase.CHECKING))


def test_who_did_not_answer_is_asked_again_when_it_is_time() -> None:
    known = table(SessionPhase.RESUMING).step(A, SessionEvent.UNANSWERED).missed(A, 7.0)
    assert [(each.phase, each.failures) for each in known.all] == [(SessionPhase.DOUBTFUL, 1)]
    assert known.next_action(6.9) is None
    assert known.next_action(7.0) == Resume(known.all[0])


def test_who_has_just_registered_is_spared_for_a_moment() -> None:
    known = table(SessionPhase.WAITING).spared(A, 3.0)
    assert known.next_action(2.9) is None
    assert known.next_action(3.0) == Resume(known.all[0])
    assert known.spared(C, 9.0) is known


def test_the_third_missed_health_check_in_a_row_drops_an_agent() -> None:
    known = table(SessionPhase.ACTIVE).missed(A).missed(A)
    assert [each.failures for each in known.all] == [2]
    assert known.missed(A).all == ()


def test_a_miss_brings_no_call_nearer_that_was_put_off() -> None:
    known = table(SessionPhase.DOUBTFUL).missed(A, ask_from_s=5.0)
    for later in (known.missed(A), known.missed(A, ask_from_s=1.0)):
        assert later.next_action(4.9) is None
        assert later.next_action(5.0) is not None


def test_an_answer_forgets_earlier_misses_and_moves_the_gate() -> None:
    known = table(SessionPhase.ACTIVE).missed(A).missed(A).answered(A, AnswerGate(7))
    assert [(each.failures, each.gate) for each in known.all] == [(0, AnswerGate(7))]
    assert known.missed(A).missed(A).all != ()
