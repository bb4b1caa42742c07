"""Urgent wishes: how one begins, is told, is met, ends by time and is told anew."""

from uuid import UUID

import pytest

from informant.core.sessions import NOTHING, Session, SessionPhase, Sessions, TryUpscale, Wishes, WishTiming
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

CPU = MoreResources(cpu=True, memory=False)
MEMORY = MoreResources(cpu=False, memory=True)
BOTH = MoreResources(cpu=True, memory=True)

NONE = Wishes(timing=WishTiming(expires_s=10.0, calm_s=5.0))
V1_0, V1_1 = InformantProtoVersion.V1_0, InformantProtoVersion.V1_1


def agent(
    serial: int,
    phase: SessionPhase = SessionPhase.ACTIVE,
    *,
    version: InformantProtoVersion = V1_1,
    delivered: MoreResources = NOTHING,
    quiet_until_s: float = 0.0,
) -> Session:
    return Session(
        UUID(int=serial),
        "10.0.0.1:1",
        version,
        phase,
        serial=serial,
        delivered=delivered,
        quiet_until_s=quiet_until_s,
    )


def using(serial: int, delivered: MoreResources = NOTHING) -> Sessions:
    """A table with one agent, in use."""
    return Sessions((agent(serial, delivered=delivered),))


def due(wishes: Wishes, sessions: Sessions, at_s: float) -> TryUpscale:
    delivery = wishes.next_call(sessions, at_s)
    assert delivery is not None
    return delivery


def delivered(wishes: Wishes, serial: int, at_s: float) -> Wishes:
    """The wishes after that agent was told of them, within an instant."""
    return wishes.delivered(TryUpscale(agent(serial), wishes.resources(), at_s), at_s)


# ------------------------------------------------------------ how a wish begins


def test_nothing_is_wanted_at_first() -> None:
    assert Wishes().timing == WishTiming(expires_s=10.0, calm_s=5.0)
    assert NONE.resources() == NOTHING
    assert NONE.due_s() is None
    assert NONE.elapsed(1000.0) is NONE
    assert NONE.next_call(using(1), 0.0) is None


@pytest.mark.parametrize("resources", [CPU, MEMORY, BOTH])
def test_a_wish_begins_when_a_resource_is_seen_short(resources: MoreResources) -> None:
    wishes = NONE.seen_short(resources, 100.0)
    assert wishes.resources() == resources
    assert [wish is not None for wish in (wishes.cpu, wishes.memory)] == [resources.cpu, resources.memory]


# ------------------------------------------------------------ how it is told


def test_the_agent_in_use_is_told_at_once_and_once() -> None:
    wishes = NONE.seen_short(MEMORY, 100.0)
    sessions = using(1)
    delivery = due(wishes, sessions, 100.0)
    assert delivery == TryUpscale(sessions.all[0], MEMORY, 100.0)
    after = wishes.delivered(delivery, 100.5)
    assert after.resources() == MEMORY
    assert after.next_call(using(1, delivered=MEMORY), 100.5) is None
    assert after.seen_short(MEMORY, 101.0).next_call(using(1, delivered=MEMORY), 101.0) is None


@pytest.mark.parametrize(("first", "second"), [(CPU, MEMORY), (MEMORY, CPU)])
def test_a_second_wish_is_told_with_the_first_and_prolongs_only_itself(
    first: MoreResources, second: MoreResources
) -> None:
    wishes = delivered(NONE.seen_short(first, 100.0), 1, 100.0).seen_short(second, 103.0)
    delivery = due(wishes, using(1, delivered=first), 103.0)
    assert delivery.resources == BOTH
    after = wishes.delivered(delivery, 103.5)
    assert after.next_call(using(1, delivered=BOTH), 103.5) is None
    assert after.elapsed(105.0).resources() == second
    assert after.elapsed(108.5) == NONE


NOBODY = {
    "nobody is there": Sessions(),
    "nobody is in use": Sessions((agent(1, SessionPhase.WAITING), agent(2, SessionPhase.CHECKING))),
    "somebody is about to be": Sessions((agent(1, SessionPhase.RESUMING),)),
    "somebody is about to stop": Sessions((agent(1, SessionPhase.SUSPENDING),)),
    "it cannot understand": Sessions((agent(1, version=V1_0), agent(2, SessionPhase.WAITING))),
}


@pytest.mark.parametrize("sessions", NOBODY.values(), ids=NOBODY)
def test_a_wish_waits_while_there_is_nobody_to_tell(sessions: Sessions) -> None:
    assert NONE.seen_short(BOTH, 100.0).next_call(sessions, 100.0) is None


@pytest.mark.parametrize("wishes", [NONE, NONE.seen_short(CPU, 100.0)], ids=["nothing", "CPU"])
def test_an_agent_that_did_not_answer_is_left_in_peace_for_a_while(wishes: Wishes) -> None:
    sessions = using(1, delivered=CPU).undelivered(1, 103.0)
    assert wishes.next_call(sessions, 102.9) is None
    assert due(wishes, sessions, 103.0).resources == wishes.resources()


@pytest.mark.parametrize("before", [NOTHING, CPU])
def test_an_agent_that_may_or_may_not_have_heard_is_told_whatever_is_wanted_then(
    before: MoreResources,
) -> None:
    """Nothing included: it may have heard of a wish that was met since."""
    sessions = using(1, delivered=before).undelivered(1, 103.0)
    assert due(NONE, sessions, 103.0).resources == NOTHING
    assert due(delivered(NONE.seen_short(CPU, 100.0), 1, 100.0), sessions, 103.0).resources == CPU


def test_how_often_an_agent_did_not_hear_is_counted_until_it_does() -> None:
    def count(sessions: Sessions) -> list[int]:
        return [each.undelivered for each in sessions.all]

    sessions = Sessions((agent(1), agent(2, SessionPhase.WAITING)))
    silent = sessions.undelivered(1, 101.0).undelivered(1, 102.0)
    assert (count(sessions), count(silent)) == ([0, 0], [2, 0])
    assert count(silent.delivered(1, NOTHING)) == [0, 0]
    assert sessions.undelivered(3, 101.0) is sessions


# ------------------------------------------------------------ how it is met


@pytest.mark.parametrize("resources", [CPU, MEMORY, BOTH])
def test_a_wish_ends_when_more_arrives_and_the_agent_learns_of_it(resources: MoreResources) -> None:
    wishes = delivered(NONE.seen_short(resources, 100.0), 1, 100.0).arrived(resources)
    assert wishes == NONE
    assert due(wishes, using(1, delivered=resources), 103.0).resources == NOTHING
    assert wishes.next_call(using(1, delivered=NOTHING), 103.0) is None


def test_what_arrives_ends_no_other_wish() -> None:
    both = delivered(NONE.seen_short(BOTH, 100.0), 1, 100.0)
    assert both.arrived(NOTHING) == both
    assert both.arrived(MEMORY).resources() == CPU
    assert both.arrived(CPU).resources() == MEMORY
    assert due(both.arrived(CPU), using(1, delivered=BOTH), 101.0).resources == MEMORY


def test_a_wish_that_was_met_during_the_call_does_not_come_back() -> None:
    wishes = NONE.seen_short(CPU, 100.0)
    delivery = due(wishes, using(1), 100.0)
    after = wishes.arrived(CPU).delivered(delivery, 100.5)
    assert after == NONE
    assert due(after, using(1, delivered=CPU), 100.5).resources == NOTHING


@pytest.mark.parametrize("resources", [CPU, MEMORY, BOTH])
def test_a_wish_that_began_anew_during_the_call_is_told_again(resources: MoreResources) -> None:
    wishes = NONE.seen_short(resources, 100.0)
    delivery = due(wishes, using(1), 100.0)
    anew = wishes.arrived(resources).seen_short(resources, 100.25)
    after = anew.delivered(delivery, 100.5)
    assert after == anew
    assert due(after, using(1, delivered=resources), 100.5).resources == resources


# ------------------------------------------------------------ how it ends by time


def test_a_wish_that_was_told_ends_when_it_is_not_seen_for_a_while() -> None:
    wishes = delivered(NONE.seen_short(CPU, 100.0), 1, 100.0).seen_short(CPU, 102.0)
    assert wishes.elapsed(106.9) is wishes
    ended = wishes.elapsed(107.0)
    assert ended == NONE
    assert due(ended, using(1, delivered=CPU), 107.0).resources == NOTHING


def test_a_wish_that_is_told_late_counts_from_then() -> None:
    """The agent must have the time to heed it."""
    wishes = NONE.seen_short(CPU, 100.0)
    delivery = due(wishes, using(1), 140.0)
    after = wishes.delivered(delivery, 141.0)
    assert after.elapsed(145.9) is after
    assert after.elapsed(146.0) == NONE


def test_a_wish_is_told_anew_when_its_time_is_over_and_it_is_still_seen() -> None:
    wishes = delivered(NONE.seen_short(CPU, 100.0), 1, 100.0).seen_short(CPU, 104.0).seen_short(CPU, 108.0)
    assert wishes.elapsed(109.9) is wishes
    again = wishes.elapsed(110.0)
    assert again.resources() == CPU
    assert due(again, using(1, delivered=CPU), 110.0).resources == CPU


def test_a_wish_that_was_told_anew_has_its_time_anew() -> None:
    again = (
        delivered(NONE.seen_short(CPU, 100.0), 1, 100.0)
        .seen_short(CPU, 104.0)
        .seen_short(CPU, 108.0)
        .elapsed(110.0)
    )
    wishes = delivered(again, 1, 111.0)
    assert wishes.next_call(using(1, delivered=CPU), 111.0) is None
    assert wishes.elapsed(116.0) == NONE
    needed = wishes.seen_short(CPU, 115.0).seen_short(CPU, 119.0)
    assert needed.elapsed(120.9) is needed
    assert due(needed.elapsed(121.0), using(1, delivered=CPU), 121.0).resources == CPU


def test_a_wish_of_a_workload_that_has_ended_is_not_told_to_whoever_registers_next() -> None:
    wishes = NONE.seen_short(MEMORY, 100.0)
    assert wishes.elapsed(104.9) is wishes
    ended = wishes.elapsed(105.0)
    assert ended == NONE
    assert ended.next_call(using(1), 105.0) is None
    needed = wishes.seen_short(MEMORY, 104.0).seen_short(MEMORY, 108.0)  # it goes on
    assert due(needed.elapsed(112.9), using(1), 112.9).resources == MEMORY
    assert needed.elapsed(113.0) == NONE


def test_each_resource_has_its_own_time() -> None:
    for first, other in ((CPU, MEMORY), (MEMORY, CPU)):
        wishes = delivered(NONE.seen_short(first, 100.0), 1, 100.0).seen_short(other, 101.0)
        assert wishes.elapsed(105.0).resources() == other
        assert wishes.elapsed(106.0) == NONE


def test_what_comes_first_is_due() -> None:
    assert NONE.seen_short(CPU, 100.0).due_s() == 105.0
    assert NONE.seen_short(CPU, 100.0).seen_short(MEMORY, 99.0).due_s() == 104.0
    wishes = delivered(NONE.seen_short(CPU, 100.0), 1, 100.0)
    assert wishes.due_s() == wishes.seen_short(MEMORY, 101.0).due_s() == 105.0
    assert wishes.seen_short(CPU, 104.0).due_s() == 109.0  # it ends
    assert wishes.seen_short(CPU, 108.0).due_s() == 110.0  # it is told anew


# ------------------------------------------------------------ of several agents


def test_an_agent_that_takes_over_is_told_and_has_the_time_to_heed_it() -> None:
    wishes = delivered(NONE.seen_short(CPU, 100.0), 1, 100.0)
    delivery = due(wishes, using(2), 104.0)
    assert delivery.resources == CPU
    after = wishes.delivered(delivery, 104.5)
    assert after.next_call(using(2, delivered=CPU), 104.5) is None
    assert after.elapsed(109.4) is after
    assert after.elapsed(109.5) == NONE


def test_an_agent_that_comes_back_into_use_after_another_is_told_again() -> None:
    wishes = delivered(delivered(NONE.seen_short(CPU, 100.0), 1, 100.0), 2, 103.0)
    assert due(wishes, using(1, delivered=CPU), 104.0).resources == CPU


def test_to_be_told_anew_keeps_no_wish_alive() -> None:
    """Even where it is told anew more often than it would end by itself."""
    wishes, sessions, now_s, delivered = (
        Wishes(timing=WishTiming(3.0, 5.0)).seen_short(CPU, 100.0),
        using(1),
        100.0,
        0,
    )
    while wishes.resources() != NOTHING and delivered < 10:
        ask = wishes.next_call(sessions, now_s)
        if ask is not None:
            wishes, sessions, delivered = (
                wishes.delivered(ask, now_s),
                sessions.delivered(1, ask.resources),
                delivered + 1,
            )
        due_s = wishes.due_s()
        assert due_s is not None
        now_s = max(now_s, due_s)
        wishes = wishes.elapsed(now_s)
    assert (delivered, now_s) == (2, 105.0)
