"""What agents may still hold when a scheduler starts: permits of an earlier process outlive it for a hand-over."""

from dataclasses import replace
from uuid import UUID

import pytest

from protocol.reasons import ReasonCode
from protocol.values import Resources
from scheduler.core import events
from scheduler.core.ledger import Cause
from scheduler.core.model import PoolSpec
from scheduler.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import ELSEWHERE, HERE, World

UNIX_S = 1_790_000_000.0
CONFIG = SchedulerConfig(HERE, unix_offset_s=UNIX_S)
"""A process that may have had one before it; its clock begins at `UNIX_S`."""


def started_ms(at: float) -> int:
    """The start of a life that began at `at`, as its agent writes it."""
    return round((UNIX_S + at) * 1000)


def started(config: SchedulerConfig = CONFIG) -> World:
    """A process that serves since 100 s and found one VM of 2 units."""
    world = World(config=config)
    world.vm("vm", cu(2), is_new=False, at=99.0)
    world.tick(100.0)
    return world


def settled(world: World, *, began: float, knew: UUID | None, at: float = 101.0) -> World:
    """An agent whose life began at `began`, and that an earlier process answered or not, claims 2 units."""
    for names in (knew, HERE):
        first = world.request("vm", cu(2), names=names, claim=cu(2), started=started_ms(began))
        world.permit(first, at=at)
    assert world.record().settled
    return world


# ------------------------------------------------------------ a life that nobody here has heard


@pytest.mark.parametrize(
    ("began", "knew", "reserved"),
    [
        (90.0, None, cu(8)),
        (90.0, ELSEWHERE, cu(8)),
        (41.5, ELSEWHERE, cu(8)),
        (41.0, ELSEWHERE, cu(2)),
        (0.0, ELSEWHERE, cu(2)),
        (0.0, None, cu(8)),
    ],
)
def test_a_row_settled_by_a_young_life_keeps_what_the_one_before_it_may_hold(
    began: float, knew: UUID | None, reserved: Resources
) -> None:
    world = settled(started(), began=began, knew=knew)
    assert world.state().current == cu(2)
    assert world.state().reserved == reserved


def test_that_ends_with_the_time_in_which_an_earlier_process_can_have_permitted_anything() -> None:
    world = settled(started(), began=90.0, knew=None)
    world.tick(159.9)
    assert world.floors() == [(Cause.HANDOVER, cu(8))]
    world.tick(160.0)
    assert world.floors() == []


def test_it_lets_the_vm_itself_grow_and_nobody_else() -> None:
    world = settled(started(), began=90.0, knew=None)
    world.vm("other", UNIT, is_new=False, at=99.0, most=cu(3))
    for want, names, permit in ((UNIT, ELSEWHERE, UNIT), (cu(3), HERE, cu(2))):
        facts = world.request(
            "other", want, names=names, claim=UNIT, agent=UUID(int=20), started=started_ms(0.0)
        )
        assert world.permit(facts, at=103.0) == permit
    assert world.permit(world.request("vm", cu(6), claim=cu(2), started=started_ms(90.0)), at=103.0) == cu(6)


def test_a_row_that_is_settled_later_keeps_nothing_more() -> None:
    world = settled(started(), began=150.0, knew=None, at=161.0)
    assert world.floors() == []


def test_a_life_that_this_process_heard_needs_no_such_floor() -> None:
    """What the one before it had is known, and has a floor of its own."""
    world = settled(started(), began=0.0, knew=ELSEWHERE)
    later = world.request("vm", cu(2), claim=cu(2), agent=UUID(int=21), started=started_ms(105.0), names=None)
    world.permit(later, at=106.0)
    assert world.floors() == [(Cause.HANDOVER, cu(2))]


def test_where_nothing_ran_before_nothing_is_inherited() -> None:
    world = settled(started(replace(CONFIG, is_first_start=True)), began=90.0, knew=None)
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
    world = settled(started(), began=0.0, knew=ELSEWHERE)
    growth = world.request("vm", cu(6), claim=cu(2), started=started_ms(0.0))
    assert world.permit(growth, at=110.0) == cu(6)
    world.read("vm", cu(2), at=171.0)  # its agent was silent for a hand-over
    answer = world.decide(growth, at=172.0)
    assert (answer.permit, [reason.code for reason in answer.reasons]) == (cu(2), [ReasonCode.LOWERED])


# ------------------------------------------------------------ what refusals say of it


def test_a_refusal_of_the_node_says_for_how_long_an_earlier_agent_may_hold_its_room() -> None:
    world = settled(started(), began=90.0, knew=None)
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
    settled(world, began=90.0, knew=None)
    world.tick(at)
    growth = world.request("vm", cu(3), claim=cu(2), started=started_ms(90.0))
    answer = world.decide(growth, at=at)
    assert answer.permit == cu(2)
    assert says in answer.reasons[0].message
    assert ("are kept" in answer.reasons[0].message) is bool(says)
