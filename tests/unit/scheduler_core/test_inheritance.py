"""Agents may still hold permits of an earlier process when a scheduler starts: these outlive it for a hand-over."""

from dataclasses import replace
from uuid import UUID

import pytest

from protocol.reasons import ReasonCode
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import PoolSpec
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import ELSEWHERE, HERE, World, pod

CONFIG = SchedulerConfig(HERE)
"""A process that may have had one before it."""


def started(config: SchedulerConfig = CONFIG) -> World:
    """A process that serves since 100 s and found one VM of 2 units."""
    world = World(config=config)
    world.vm("vm", cu(2), is_new=False, at=99.0)
    world.tick(100.0)
    return world


def settled(world: World, name: str = "vm", *, proves: bool, at: float = 101.0) -> World:
    """An agent claims what its VM uses, 2 units, and may prove that nobody else holds anything."""
    first = world.decide(world.request(name, cu(2), names=ELSEWHERE, claim=cu(2)), at=at)
    assert first.echo is not None
    token = first.echo.token if proves else None
    world.permit(world.request(name, cu(2), claim=cu(2), token=token), at=at)
    assert world.record(name).settled
    return world


# ------------------------------------------------------------ lives that nobody here has heard


@pytest.mark.parametrize(("proves", "reserved"), [(False, cu(8)), (True, cu(2))])
def test_a_row_keeps_what_another_life_may_hold_unless_the_life_that_settles_it_proves_that_there_is_none(
    proves: bool, reserved: Resources
) -> None:
    world = settled(started(), proves=proves)
    assert world.state().current == cu(2)
    assert world.state().reserved == reserved


@pytest.mark.parametrize("token", ["", "2", "another"])
def test_a_token_that_is_not_the_last_answers_proves_nothing(token: str) -> None:
    world = started()
    world.permit(world.request("vm", cu(2), names=ELSEWHERE, claim=cu(2)), at=101.0)
    world.permit(world.request("vm", cu(2), claim=cu(2), token=token or None), at=101.0)
    assert world.floors() == [(Cause.HANDOVER, cu(8))]


def test_a_token_of_an_earlier_answer_proves_nothing() -> None:
    """Another life may have been answered since."""
    world = started()
    old = world.decide(world.request("vm", cu(2), names=ELSEWHERE, claim=cu(2)), at=101.0)
    world.permit(world.request("vm", cu(2), names=ELSEWHERE, claim=cu(2)), at=102.0)
    assert old.echo is not None
    world.permit(world.request("vm", cu(2), claim=cu(2), token=old.echo.token), at=103.0)
    assert world.floors() == [(Cause.HANDOVER, cu(8))]


def test_a_token_of_a_vm_that_has_gone_proves_nothing_where_it_is_back() -> None:
    world = started()
    first = world.decide(world.request("vm", cu(2), names=ELSEWHERE, claim=cu(2)), at=101.0)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 102.0))
    world.vm("vm", cu(2), at=103.0)
    assert first.echo is not None
    world.permit(world.request("vm", cu(2), claim=cu(2), token=first.echo.token), at=104.0)
    assert world.floors() == [(Cause.HANDOVER, cu(8))]


def test_the_answers_of_a_settled_row_have_no_token() -> None:
    world = settled(started(), proves=True)
    answer = world.decide(world.request("vm", cu(2), claim=cu(2)), at=102.0)
    assert answer.echo is not None
    assert answer.echo.token is None


def test_that_ends_with_the_time_in_which_an_earlier_process_can_have_permitted_anything() -> None:
    world = settled(started(), proves=False)
    world.tick(159.9)
    assert world.floors() == [(Cause.HANDOVER, cu(8))]
    world.tick(160.0)
    assert world.floors() == []


def test_it_lets_the_vm_itself_grow_and_nobody_else() -> None:
    world = settled(started(), proves=False)
    world.vm("other", UNIT, is_new=False, at=99.0, most=cu(3))
    first = world.decide(world.request("other", UNIT, names=ELSEWHERE, claim=UNIT), at=103.0)
    assert first.echo is not None
    growth = world.request("other", cu(3), claim=UNIT, token=first.echo.token)
    assert world.permit(growth, at=103.0) == cu(2)
    assert world.permit(world.request("vm", cu(6), claim=cu(2)), at=103.0) == cu(6)


def test_a_row_that_is_settled_later_keeps_nothing_more() -> None:
    world = settled(started(), proves=False, at=161.0)
    assert world.floors() == []


def test_a_life_that_this_process_heard_needs_no_such_floor() -> None:
    """The permit of the earlier life is known, and has a floor of its own."""
    world = settled(started(), proves=True)
    later = world.request("vm", cu(2), claim=cu(2), agent=UUID(int=21), started=105_000, names=None)
    world.permit(later, at=106.0)
    assert world.floors() == [(Cause.HANDOVER, cu(2))]


def test_where_nothing_ran_before_nothing_is_inherited() -> None:
    world = settled(started(replace(CONFIG, is_first_start=True)), proves=False)
    assert world.floors() == []


# ------------------------------------------------------------ VMs that seem new


@pytest.mark.parametrize(("at", "is_settled"), [(100.5, False), (159.9, False), (160.0, True)])
def test_no_vm_is_new_right_after_a_start(at: float, is_settled: bool) -> None:
    """One that the list did not show may have been there before, and its agent hold a lease."""
    world = started()
    world.vm("back", UNIT, at=at)
    assert world.record("back").settled is is_settled
    assert world.state("back").reserved == (UNIT if is_settled else cu(8))


def test_none_is_new_before_everything_was_listed() -> None:
    world = World(config=CONFIG)
    world.vm("early", UNIT, at=500.0)
    assert not world.record("early").settled


# ------------------------------------------------------------ repeated requests


def test_a_repeated_request_that_gets_less_by_now_says_why() -> None:
    world = settled(started(), proves=True)
    growth = world.request("vm", cu(6), claim=cu(2))
    assert world.permit(growth, at=110.0) == cu(6)
    world.read("vm", cu(2), at=171.0)  # its agent was silent for a hand-over
    answer = world.decide(growth, at=172.0)
    assert (answer.permit, [reason.code for reason in answer.reasons]) == (cu(2), [ReasonCode.LOWERED])


# ------------------------------------------------------------ what refusals say of it


def test_a_refusal_of_the_node_says_for_how_long_an_earlier_agent_may_hold_its_room() -> None:
    world = settled(started(), proves=False)
    world.vm("other", UNIT, is_new=False, at=99.0, most=cu(3))
    first = world.request("other", UNIT, names=ELSEWHERE, claim=UNIT, agent=UUID(int=20), started=1)
    world.send(first, at=110.0)
    growth = world.request("other", cu(3), claim=UNIT, agent=UUID(int=20), started=1)
    answer = world.decide(growth, at=110.0)
    assert "vm 6 CPU (handover, what an earlier agent may still hold: 50 s more)" in answer.reasons[0].message


@pytest.mark.parametrize(("at", "says"), [(110.0, "6 of its 8 units are kept"), (161.0, "")])
def test_a_refusal_of_the_pool_says_how_much_of_it_is_kept(at: float, says: str) -> None:
    world = World(cu(40), config=CONFIG)
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=2)))
    world.vm("vm", cu(2), is_new=False, at=99.0)
    world.see("vm", None, at=99.0, pool="blue")
    world.tick(100.0)
    settled(world, proves=False)
    world.tick(at)
    growth = world.request("vm", cu(3), claim=cu(2))
    answer = world.decide(growth, at=at)
    assert answer.permit == cu(2)
    assert says in answer.reasons[0].message
    assert ("are kept" in answer.reasons[0].message) is bool(says)
