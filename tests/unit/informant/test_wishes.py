"""Urgent wishes: how one begins, is told, is met, ends by time and is told anew."""

from uuid import UUID

import pytest

from informant.core.sessions import NOTHING, Phase, Session, Sessions
from informant.core.wishes import Tell, Wishes, WishTiming
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

CPU = MoreResources(cpu=True, memory=False)
MEMORY = MoreResources(cpu=False, memory=True)
BOTH = MoreResources(cpu=True, memory=True)

NONE = Wishes(timing=WishTiming(expires_s=10.0, calm_s=5.0))
V1_0, V1_1 = InformantProtoVersion.V1_0, InformantProtoVersion.V1_1


def agent(
    serial: int,
    phase: Phase = Phase.ACTIVE,
    *,
    version: InformantProtoVersion = V1_1,
    told: MoreResources = NOTHING,
    quiet_until_s: float = 0.0,
) -> Session:
    return Session(
        UUID(int=serial),
        "10.0.0.1:1",
        version,
        phase,
        serial=serial,
        told=told,
        quiet_until_s=quiet_until_s,
    )


def using(serial: int, told: MoreResources = NOTHING) -> Sessions:
    """A table with one agent, in use."""
    return Sessions((agent(serial, told=told),))


def telling(wishes: Wishes, sessions: Sessions, at_s: float) -> Tell:
    tell = wishes.next_tell(sessions, at_s)
    assert tell is not None
    return tell


def told(wishes: Wishes, serial: int, at_s: float) -> Wishes:
    """The wishes after that agent was told of them, within an instant."""
    return wishes.told(Tell(agent(serial), wishes.wanted(), at_s), at_s)


# ------------------------------------------------------------ how a wish begins


def test_nothing_is_wanted_at_first() -> None:
    assert Wishes().timing == WishTiming(expires_s=10.0, calm_s=5.0)
    assert NONE.wanted() == NOTHING
    assert NONE.due_s() is None
    assert NONE.elapsed(1000.0) is NONE
    assert NONE.next_tell(using(1), 0.0) is None


@pytest.mark.parametrize("more", [CPU, MEMORY, BOTH])
def test_a_wish_begins_when_a_resource_is_seen_short(more: MoreResources) -> None:
    wishes = NONE.short(more, 100.0)
    assert wishes.wanted() == more
    assert [wish is not None for wish in (wishes.cpu, wishes.memory)] == [more.cpu, more.memory]


def test_a_second_wish_leaves_the_first_one_as_it_is() -> None:
    first = NONE.short(CPU, 100.0)
    both = first.short(MEMORY, 101.0)
    assert (both.wanted(), both.cpu) == (BOTH, first.cpu)
    assert both.short(MEMORY, 102.0).cpu == first.cpu


def test_nothing_short_changes_nothing() -> None:
    assert NONE.short(NOTHING, 100.0) == NONE
    wishes = NONE.short(BOTH, 100.0)
    assert wishes.short(NOTHING, 101.0) == wishes


# ------------------------------------------------------------ how it is told


def test_the_agent_in_use_is_told_at_once_and_once() -> None:
    wishes = NONE.short(MEMORY, 100.0)
    sessions = using(1)
    tell = telling(wishes, sessions, 100.0)
    assert tell == Tell(sessions.all[0], MEMORY, 100.0)
    after = wishes.told(tell, 100.5)
    assert after.wanted() == MEMORY
    assert after.next_tell(using(1, told=MEMORY), 100.5) is None
    assert after.short(MEMORY, 101.0).next_tell(using(1, told=MEMORY), 101.0) is None


def test_both_resources_are_told_in_one_breath() -> None:
    wishes = NONE.short(BOTH, 100.0)
    assert telling(wishes, using(1), 100.0).more == BOTH
    assert told(wishes, 1, 100.0).next_tell(using(1, told=BOTH), 100.0) is None


@pytest.mark.parametrize(("first", "second"), [(CPU, MEMORY), (MEMORY, CPU)])
def test_a_second_wish_is_told_with_the_first_and_prolongs_only_itself(
    first: MoreResources, second: MoreResources
) -> None:
    wishes = told(NONE.short(first, 100.0), 1, 100.0).short(second, 103.0)
    tell = telling(wishes, using(1, told=first), 103.0)
    assert tell.more == BOTH
    after = wishes.told(tell, 103.5)
    assert after.next_tell(using(1, told=BOTH), 103.5) is None
    assert after.elapsed(105.0).wanted() == second
    assert after.elapsed(108.5) == NONE


NOBODY = {
    "nobody is there": Sessions(),
    "nobody is in use": Sessions((agent(1, Phase.WAITING), agent(2, Phase.CHECKING))),
    "somebody is about to be": Sessions((agent(1, Phase.RESUMING),)),
    "somebody is about to stop": Sessions((agent(1, Phase.SUSPENDING),)),
    "it cannot understand": Sessions((agent(1, version=V1_0), agent(2, Phase.WAITING))),
}


@pytest.mark.parametrize("sessions", NOBODY.values(), ids=NOBODY)
def test_a_wish_waits_while_there_is_nobody_to_tell(sessions: Sessions) -> None:
    assert NONE.short(BOTH, 100.0).next_tell(sessions, 100.0) is None


def test_an_agent_that_did_not_answer_is_left_in_peace_for_a_while() -> None:
    wishes = NONE.short(CPU, 100.0)
    sessions = using(1).unheard(UUID(int=1), 103.0)
    assert wishes.next_tell(sessions, 102.9) is None
    assert telling(wishes, sessions, 103.0).more == CPU


def test_nor_is_it_told_that_nothing_is_wanted_before_that() -> None:
    sessions = Sessions((agent(1, told=CPU, quiet_until_s=103.0),))
    assert NONE.next_tell(sessions, 102.9) is None
    assert telling(NONE, sessions, 103.0).more == NOTHING


@pytest.mark.parametrize("before", [NOTHING, CPU])
def test_an_agent_that_may_or_may_not_have_heard_is_told_whatever_is_wanted_then(
    before: MoreResources,
) -> None:
    """Nothing included: it may have heard of a wish that was met since."""
    sessions = using(1, told=before).unheard(UUID(int=1), 103.0)
    assert telling(NONE, sessions, 103.0).more == NOTHING
    assert telling(told(NONE.short(CPU, 100.0), 1, 100.0), sessions, 103.0).more == CPU


def test_how_often_an_agent_did_not_hear_is_counted_until_it_does() -> None:
    def count(sessions: Sessions) -> list[int]:
        return [each.unheard for each in sessions.all]

    sessions = Sessions((agent(1), agent(2, Phase.WAITING)))
    silent = sessions.unheard(UUID(int=1), 101.0).unheard(UUID(int=1), 102.0)
    assert (count(sessions), count(silent)) == ([0, 0], [2, 0])
    assert count(silent.told(UUID(int=1), NOTHING)) == [0, 0]
    assert sessions.unheard(UUID(int=3), 101.0) is sessions


def test_an_agent_that_is_told_is_remembered_to_know() -> None:
    sessions = Sessions((agent(1), agent(2, Phase.WAITING)))
    after = sessions.told(UUID(int=1), BOTH)
    assert [each.told for each in after.all] == [BOTH, NOTHING]
    assert sessions.told(UUID(int=3), BOTH) is sessions


# ------------------------------------------------------------ how it is met


@pytest.mark.parametrize("more", [CPU, MEMORY, BOTH])
def test_a_wish_ends_when_more_arrives_and_the_agent_learns_of_it(more: MoreResources) -> None:
    wishes = told(NONE.short(more, 100.0), 1, 100.0).arrived(more)
    assert wishes == NONE
    assert telling(wishes, using(1, told=more), 103.0).more == NOTHING
    assert wishes.next_tell(using(1, told=NOTHING), 103.0) is None


def test_what_arrives_ends_no_other_wish() -> None:
    both = told(NONE.short(BOTH, 100.0), 1, 100.0)
    assert both.arrived(NOTHING) == both
    assert both.arrived(MEMORY).wanted() == CPU
    assert both.arrived(CPU).wanted() == MEMORY
    assert telling(both.arrived(CPU), using(1, told=BOTH), 101.0).more == MEMORY


def test_a_wish_that_was_met_during_the_call_does_not_come_back() -> None:
    wishes = NONE.short(CPU, 100.0)
    tell = telling(wishes, using(1), 100.0)
    after = wishes.arrived(CPU).told(tell, 100.5)
    assert after == NONE
    assert telling(after, using(1, told=CPU), 100.5).more == NOTHING


@pytest.mark.parametrize("more", [CPU, MEMORY, BOTH])
def test_a_wish_that_began_anew_during_the_call_is_told_again(more: MoreResources) -> None:
    wishes = NONE.short(more, 100.0)
    tell = telling(wishes, using(1), 100.0)
    anew = wishes.arrived(more).short(more, 100.25)
    after = anew.told(tell, 100.5)
    assert after == anew
    assert telling(after, using(1, told=more), 100.5).more == more


@pytest.mark.parametrize(("first", "second"), [(CPU, MEMORY), (MEMORY, CPU)])
def test_a_wish_that_began_during_a_call_about_another_one_is_told_next(
    first: MoreResources, second: MoreResources
) -> None:
    wishes = NONE.short(first, 100.0)
    tell = telling(wishes, using(1), 100.0)
    after = wishes.short(second, 100.0).told(tell, 100.5)
    assert telling(after, using(1, told=first), 100.5).more == BOTH
    assert telling(after, using(1, told=BOTH), 100.5).more == BOTH  # whatever it was told before


def test_a_wish_that_began_while_the_agent_learnt_that_nothing_is_wanted_is_told_next() -> None:
    tell = telling(NONE, using(1, told=CPU), 100.0)
    after = NONE.short(CPU, 100.0).told(tell, 100.5)
    assert telling(after, using(1, told=NOTHING), 100.5).more == CPU


# ------------------------------------------------------------ how it ends by time


def test_a_wish_that_was_told_ends_when_it_is_not_seen_for_a_while() -> None:
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0).short(CPU, 102.0)
    assert wishes.elapsed(106.9) is wishes
    ended = wishes.elapsed(107.0)
    assert ended == NONE
    assert telling(ended, using(1, told=CPU), 107.0).more == NOTHING


def test_a_wish_that_is_told_late_counts_from_then() -> None:
    """The agent must have the time to heed it."""
    wishes = NONE.short(CPU, 100.0)
    tell = telling(wishes, using(1), 140.0)
    after = wishes.told(tell, 141.0)
    assert after.elapsed(145.9) is after
    assert after.elapsed(146.0) == NONE


def test_a_wish_is_told_anew_when_its_time_is_over_and_it_is_still_seen() -> None:
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0).short(CPU, 104.0).short(CPU, 108.0)
    assert wishes.elapsed(109.9) is wishes
    again = wishes.elapsed(110.0)
    assert again.wanted() == CPU
    assert telling(again, using(1, told=CPU), 110.0).more == CPU


def test_only_what_is_still_needed_is_told_anew() -> None:
    wishes = told(NONE.short(BOTH, 100.0), 1, 100.0).short(BOTH, 104.0).short(MEMORY, 108.0)
    assert wishes.elapsed(109.0).wanted() == MEMORY
    assert telling(wishes.elapsed(110.0), using(1, told=BOTH), 110.0).more == MEMORY


def test_a_wish_that_was_told_anew_has_its_time_anew() -> None:
    again = told(NONE.short(CPU, 100.0), 1, 100.0).short(CPU, 104.0).short(CPU, 108.0).elapsed(110.0)
    wishes = told(again, 1, 111.0)
    assert wishes.next_tell(using(1, told=CPU), 111.0) is None
    assert wishes.elapsed(116.0) == NONE
    needed = wishes.short(CPU, 115.0).short(CPU, 119.0)
    assert needed.elapsed(120.9) is needed
    assert telling(needed.elapsed(121.0), using(1, told=CPU), 121.0).more == CPU


def test_a_wish_that_is_to_be_told_anew_and_reaches_nobody_ends_when_it_is_not_seen_for_a_while() -> None:
    again = told(NONE.short(CPU, 100.0), 1, 100.0).short(CPU, 104.0).short(CPU, 108.0).elapsed(110.0)
    assert again.elapsed(112.9).wanted() == CPU
    assert again.elapsed(113.0) == NONE


def test_a_wish_of_a_workload_that_has_ended_is_not_told_to_whoever_registers_next() -> None:
    wishes = NONE.short(MEMORY, 100.0)
    assert wishes.elapsed(104.9) is wishes
    ended = wishes.elapsed(105.0)
    assert ended == NONE
    assert ended.next_tell(using(1), 105.0) is None
    needed = wishes.short(MEMORY, 104.0).short(MEMORY, 108.0)  # it goes on
    assert telling(needed.elapsed(112.9), using(1), 112.9).more == MEMORY
    assert needed.elapsed(113.0) == NONE


def test_each_resource_has_its_own_time() -> None:
    for told_more, other in ((CPU, MEMORY), (MEMORY, CPU)):
        wishes = told(NONE.short(told_more, 100.0), 1, 100.0).short(other, 101.0)
        assert wishes.elapsed(105.0).wanted() == other
        assert wishes.elapsed(106.0) == NONE


def test_what_comes_first_is_due() -> None:
    assert NONE.short(CPU, 100.0).due_s() == 105.0
    assert NONE.short(CPU, 100.0).short(MEMORY, 99.0).due_s() == 104.0
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0)
    assert wishes.due_s() == wishes.short(MEMORY, 101.0).due_s() == 105.0
    assert wishes.short(CPU, 104.0).due_s() == 109.0  # it ends
    assert wishes.short(CPU, 108.0).due_s() == 110.0  # it is told anew


def test_what_is_due_happens_then_and_not_before() -> None:
    wishes = told(NONE.short(BOTH, 100.0), 1, 100.0).short(CPU, 104.0).short(CPU, 109.0)
    while (due_s := wishes.due_s()) is not None:
        assert wishes.elapsed(due_s - 0.001) is wishes
        after = wishes.elapsed(due_s)
        assert after != wishes
        wishes = after
    assert wishes == NONE


# ------------------------------------------------------------ of several agents


def test_an_agent_that_takes_over_is_told_and_has_the_time_to_heed_it() -> None:
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0)
    tell = telling(wishes, using(2), 104.0)
    assert tell.more == CPU
    after = wishes.told(tell, 104.5)
    assert after.next_tell(using(2, told=CPU), 104.5) is None
    assert after.elapsed(109.4) is after
    assert after.elapsed(109.5) == NONE


def test_an_agent_that_comes_back_into_use_after_another_is_told_again() -> None:
    wishes = told(told(NONE.short(CPU, 100.0), 1, 100.0), 2, 103.0)
    assert telling(wishes, using(1, told=CPU), 104.0).more == CPU


def test_an_agent_that_registered_anew_is_told_again() -> None:
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0)
    assert telling(wishes, using(3), 101.0).more == CPU


def test_an_agent_is_not_told_again_for_having_been_out_of_use() -> None:
    """It keeps what it was told while it is suspended."""
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0)
    assert wishes.next_tell(Sessions((agent(1, Phase.WAITING, told=CPU),)), 101.0) is None
    assert wishes.next_tell(using(1, told=CPU), 102.0) is None


def test_an_agent_that_comes_into_use_and_still_believes_in_a_wish_is_told_that_nothing_is_wanted() -> None:
    sessions = Sessions((agent(1, Phase.WAITING, told=BOTH), agent(2)))
    assert NONE.next_tell(sessions, 100.0) is None
    tell = telling(NONE, using(1, told=BOTH), 101.0)
    assert tell.more == NOTHING
    assert NONE.told(tell, 101.5) == NONE


def test_an_agent_that_believes_in_more_than_is_wanted_is_told_what_is() -> None:
    wishes = told(NONE.short(CPU, 100.0), 1, 100.0)
    assert telling(wishes, using(1, told=BOTH), 101.0).more == CPU
    assert telling(wishes, using(1, told=MEMORY), 101.0).more == CPU


def test_a_wish_waits_for_an_agent_that_understands_it() -> None:
    wishes = NONE.short(MEMORY, 100.0)
    old, new = agent(1, version=V1_0), agent(2)
    assert wishes.next_tell(Sessions((old,)), 100.0) is None
    assert telling(wishes, Sessions((new,)), 150.0).session is new


def test_to_be_told_anew_keeps_no_wish_alive() -> None:
    """Even where it is told anew more often than it would end by itself."""
    wishes, sessions, now_s, told = (
        Wishes(timing=WishTiming(3.0, 5.0)).short(CPU, 100.0),
        using(1),
        100.0,
        0,
    )
    while wishes.wanted() != NOTHING and told < 10:
        ask = wishes.next_tell(sessions, now_s)
        if ask is not None:
            wishes, sessions, told = wishes.told(ask, now_s), sessions.told(UUID(int=1), ask.more), told + 1
        due_s = wishes.due_s()
        assert due_s is not None
        now_s = max(now_s, due_s)
        wishes = wishes.elapsed(now_s)
    assert (told, now_s) == (2, 105.0)
