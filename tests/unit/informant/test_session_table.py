"""The session table: every cell, and what `Sessions` makes of it."""

import itertools
from uuid import UUID

import pytest

from informant.core import sessions
from informant.core.sessions import TABLE, Resume, Session, Sessions, Suspend
from informant.core.sessions import SessionEvent as Event
from informant.core.sessions import SessionPhase as Phase
from protocol.sequence import AnswerGate
from protocol.versions import InformantProtoVersion

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
GONE = None

CELLS: dict[tuple[Phase, Event], Phase | None] = {
    **{(phase, event): GONE for phase in Phase for event in (Event.FAILED, Event.LEFT)},
    (Phase.CHECKING, Event.CHECKED): Phase.WAITING,
    **{(at, Event.RESUME_SENT): Phase.RESUMING for at in (Phase.WAITING, Phase.DOUBTFUL)},
    **{(at, Event.SUSPEND_SENT): Phase.SUSPENDING for at in (Phase.ACTIVE, Phase.DOUBTFUL)},
    **{(at, Event.UNANSWERED): Phase.DOUBTFUL for at in (Phase.RESUMING, Phase.SUSPENDING)},
    (Phase.RESUMING, Event.RESUMED): Phase.ACTIVE,
    (Phase.SUSPENDING, Event.SUSPENDED): Phase.WAITING,
}
"""The next phase by phase and event; every other event leaves the phase as it is."""


def session(agent_id: UUID, phase: Phase, failures: int = 0) -> Session:
    return Session(
        agent_id, "10.0.0.1:1", InformantProtoVersion.V1_1, phase, failures=failures, serial=agent_id.int
    )


def table(*phases: Phase) -> Sessions:
    return Sessions(tuple(session(UUID(int=n), phase) for n, phase in enumerate(phases, 1)))


def phases(of: Sessions) -> list[tuple[int, Phase]]:
    return [(each.agent_id.int, each.phase) for each in of.all]


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_every_event_in_every_phase_does_what_the_table_says(phase: Phase, event: Event) -> None:
    before = table(Phase.WAITING, phase, Phase.WAITING)
    after = before.step(2, event)
    if (phase, event) not in CELLS:
        assert after is before
        assert (phase, event) not in TABLE
        return
    wanted = CELLS[phase, event]
    assert TABLE[phase, event] is wanted
    middle = [] if wanted is None else [(2, wanted)]
    assert phases(after) == [(1, Phase.WAITING), *middle, (3, Phase.WAITING)]


def test_an_event_of_an_unknown_agent_changes_nothing() -> None:
    before = table(Phase.ACTIVE)
    assert all(before.step(3, event) is before for event in Event)
    assert before.missed(3) is before
    assert before.answered(3, AnswerGate(5)) is before


NEXT = [
    ((), None),
    ((Phase.CHECKING,), None),
    ((Phase.WAITING,), (Resume, 1)),
    ((Phase.ACTIVE,), None),
    ((Phase.WAITING, Phase.WAITING), (Resume, 2)),
    ((Phase.ACTIVE, Phase.WAITING), (Suspend, 1)),
    ((Phase.WAITING, Phase.ACTIVE), None),
    ((Phase.ACTIVE, Phase.CHECKING), None),
    ((Phase.WAITING, Phase.CHECKING), (Resume, 1)),
    ((Phase.ACTIVE, Phase.WAITING, Phase.CHECKING), (Suspend, 1)),
    ((Phase.WAITING, Phase.ACTIVE, Phase.WAITING), (Suspend, 2)),
    ((Phase.RESUMING, Phase.WAITING), None),
    ((Phase.SUSPENDING, Phase.WAITING), None),
    ((Phase.WAITING, Phase.RESUMING), None),
    ((Phase.DOUBTFUL,), (Resume, 1)),
    ((Phase.WAITING, Phase.DOUBTFUL), (Resume, 2)),
    ((Phase.DOUBTFUL, Phase.WAITING), (Suspend, 1)),
]


@pytest.mark.parametrize(("now", "wanted"), NEXT)
def test_the_next_action_brings_the_newest_agent_into_use(
    now: tuple[Phase, ...], wanted: tuple[type, int] | None
) -> None:
    action = table(*now).next_action()
    got = None if action is None else (type(action), action.session.agent_id.int)
    assert got == wanted


def test_an_agent_is_found_by_its_id_and_the_active_one_is_current() -> None:
    known = table(Phase.WAITING, Phase.ACTIVE)
    assert known.find(A) is known.all[0]
    assert known.find(C) is None
    assert known.current() is known.all[1]
    assert table(Phase.RESUMING).current() is None


def test_an_agent_is_added_last_and_only_once() -> None:
    known = table(Phase.ACTIVE).add(session(B, Phase.CHECKING))
    assert phases(known) == [(1, Phase.ACTIVE), (2, Phase.CHECKING)]
    with pytest.raises(AssertionError):
        known.add(session(B, Phase.CHECKING))


def test_no_more_agents_are_taken_than_there_is_room_for() -> None:
    known = table(*[Phase.WAITING] * (sessions.MAX_SESSIONS - 1))
    assert not known.is_full()
    full = known.add(session(UUID(int=99), Phase.CHECKING))
    assert full.is_full()
    with pytest.raises(AssertionError):
        full.add(session(UUID(int=100), Phase.CHECKING))


def test_who_did_not_answer_is_asked_again_when_it_is_time() -> None:
    known = table(Phase.RESUMING).step(1, Event.UNANSWERED).missed(1, 7.0)
    assert [(each.phase, each.failures) for each in known.all] == [(Phase.DOUBTFUL, 1)]
    assert known.next_action(6.9) is None
    assert known.next_action(7.0) == Resume(known.all[0])


def test_who_has_just_registered_is_spared_for_a_moment() -> None:
    known = table(Phase.WAITING).spared(1, 3.0)
    assert known.next_action(2.9) is None
    assert known.next_action(3.0) == Resume(known.all[0])
    assert known.spared(3, 9.0) is known


def test_the_third_missed_health_check_in_a_row_drops_an_agent() -> None:
    known = table(Phase.ACTIVE).missed(1).missed(1)
    assert [each.failures for each in known.all] == [2]
    assert known.missed(1).all == ()


def test_a_miss_brings_no_call_nearer_that_was_put_off() -> None:
    known = table(Phase.DOUBTFUL).missed(1, ask_from_s=5.0)
    for later in (known.missed(1), known.missed(1, ask_from_s=1.0)):
        assert later.next_action(4.9) is None
        assert later.next_action(5.0) is not None


def test_an_answer_forgets_earlier_misses_and_moves_the_gate() -> None:
    known = table(Phase.ACTIVE).missed(1).missed(1).answered(1, AnswerGate(7))
    assert [(each.failures, each.gate) for each in known.all] == [(0, AnswerGate(7))]
    assert known.missed(1).missed(1).all != ()
