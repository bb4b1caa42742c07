"""Rows that a former scheduler left uncertain, and how a request that names this process settles them; claims."""

from uuid import UUID

import pytest

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources
from scheduler.core.ledger import Cause
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import ELSEWHERE, HERE, World, world_with_vm

TWO = cu(2)


def unsettled(use: Resources | None = TWO, *, most: Resources | None = None) -> World:
    """A VM that may still use up to its maximum of 8."""
    return world_with_vm(use, is_new=False, most=most)


def test_an_unsettled_vm_is_reserved_at_its_maximum() -> None:
    world = unsettled()
    assert (world.state().current, world.state().reserved) == (cu(2), cu(8))
    assert world.floors() == [(Cause.START_UP, cu(8))]


def test_an_unsettled_vm_above_its_maximum_is_reserved_at_its_use() -> None:
    assert unsettled(cu(2, 9)).state().reserved == cu(8, 9)


@pytest.mark.parametrize("names", [None, ELSEWHERE])
@pytest.mark.parametrize(
    ("want", "claim", "permit"),
    [
        (cu(5), cu(4), cu(4)),  # what it holds it keeps, growth is refused
        (cu(3), cu(4), cu(3)),
        (cu(5), cu(1), cu(2)),  # current is its use
        (cu(5), None, cu(2)),
        (cu(1), cu(4), cu(1)),
        (cu(5, 1), cu(3), cu(3, 1)),
    ],
)
def test_a_request_that_names_another_process_keeps_what_it_claims(
    names: UUID | None, want: Resources, claim: Resources | None, permit: Resources
) -> None:
    world = unsettled()
    answer = world.decide(world.request("vm", want, claim=claim, names=names))
    assert answer.permit == permit
    assert [reason.code for reason in answer.reasons] == [ReasonCode.UNSETTLED]
    assert answer.reasons[0].retry_after_s == 0.0
    assert not answer.changed
    assert not world.record().settled
    assert world.state().reserved == cu(8)


def test_a_request_that_names_this_process_settles_at_its_claim() -> None:
    world = unsettled()
    assert world.permit(world.request("vm", cu(4), claim=cu(4), names=HERE)) == cu(4)
    assert world.record().settled
    assert world.floors() == []
    assert world.node_reserved() == cu(4)


def test_settling_counts_the_use_where_it_is_above_the_claim() -> None:
    """The request is a decrease then, and what the read shows more than it is for the next read to free."""
    world = unsettled(cu(2, 6))
    world.permit(world.request("vm", cu(5), claim=cu(5, 1)))
    assert world.state().current == cu(5)


def test_growth_beyond_the_claim_is_judged_by_the_node() -> None:
    world = unsettled()
    world.other_pod("filler", cu(7))  # bypassed us: the node is over-full while the VM is unsettled
    assert world.permit(world.request("vm", cu(6), claim=cu(2))) == cu(3)
    assert world.node_reserved() == cu(10)


def test_a_claim_above_the_node_is_kept_when_the_row_settles() -> None:
    world = unsettled()
    world.other_pod("filler", cu(7))
    assert world.permit(world.request("vm", cu(6), claim=cu(5))) == cu(5)


def test_the_first_request_after_a_restart_may_already_shrink() -> None:
    world = unsettled()
    assert world.permit(world.request("vm", cu(2), claim=cu(6))) == cu(2)
    assert world.node_reserved() == cu(2)


def test_the_usual_two_steps_settle_a_vm() -> None:
    """The agent names the scheduler it knew, learns of this one, and asks again at once."""
    world = unsettled()
    assert world.permit(world.request("vm", cu(6), claim=cu(5), names=ELSEWHERE)) == cu(5)
    assert world.permit(world.request("vm", cu(6), claim=cu(5), names=HERE)) == cu(6)
    assert world.floors() == []


def test_without_sizes_a_claim_settles() -> None:
    world = unsettled(None)
    assert world.state().reserved == cu(8)
    assert world.permit(world.request("vm", cu(3), claim=cu(3))) == cu(3)
    assert world.node_reserved() == cu(3)


def test_without_sizes_a_request_without_a_claim_does_not_settle_at_nothing() -> None:
    """Neither the cluster nor the agent says what is in use; the start-up floor is all that is known."""
    world = unsettled(None)
    world.send(world.request("vm", cu(3), claim=None))
    assert world.state().reserved == cu(8)


def test_a_vm_born_settled_is_reserved_at_its_use() -> None:
    world = world_with_vm(cu(3), is_new=True)
    assert (world.record().settled, world.floors(), world.node_reserved()) == (True, [], cu(3))


def test_a_new_vm_of_unknown_size_is_not_settled() -> None:
    world = world_with_vm(None, is_new=True)
    assert (world.record().settled, world.state().reserved) == (False, cu(8))


def test_a_newer_life_of_an_unsettled_agent_leaves_the_uncertainty_reserved() -> None:
    """The old life may still hold what the former scheduler permitted."""
    world = unsettled()
    world.send(world.request("vm", cu(2), claim=cu(2), names=ELSEWHERE), at=0.0)
    from_next = world.request("vm", cu(2), claim=cu(2), names=HERE, started=5000, agent=ELSEWHERE)
    assert world.permit(from_next, at=1.0) == cu(2)
    assert world.state().reserved == cu(8)
    world.tick(61.0)
    assert world.state().reserved == cu(2)


# ------------------------------------------------------------ claims


def test_a_claim_above_current_makes_a_floor_that_the_next_claim_ends() -> None:
    """An external edit raised the VM to 5; only its agent sees that."""
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(8))
    assert world.permit(world.request("vm", cu(5), claim=cu(5))) == cu(2)
    assert world.floors() == [(Cause.CLAIMED, cu(5))]
    assert world.permit(world.request("vm", cu(2), claim=cu(2))) == cu(2)
    assert world.floors() == []


def test_a_claim_counts_up_to_the_request() -> None:
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(8))
    world.permit(world.request("vm", cu(3), claim=cu(7)))
    assert world.floors() == [(Cause.CLAIMED, cu(3))]


def test_a_claim_counts_only_where_it_is_above_current() -> None:
    world = world_with_vm(cu(2, 4))
    world.other_pod("filler", cu(8))
    world.permit(world.request("vm", cu(4), claim=cu(4, 3)))
    assert world.floor("vm", Cause.CLAIMED).amount == Resources(4000, 0)


def test_a_claim_gives_no_growth() -> None:
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(6))
    assert world.permit(world.request("vm", cu(6), claim=cu(6))) == cu(4)


def test_a_read_does_not_end_the_claim_of_a_living_agent() -> None:
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(8))
    world.permit(world.request("vm", cu(5), claim=cu(5)), at=0.0)
    world.read("vm", cu(2), at=59.0)
    assert world.state().reserved == cu(5)


def test_a_request_without_a_claim_ends_the_claimed_floor() -> None:
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(8))
    world.permit(world.request("vm", cu(5), claim=cu(5)))
    world.permit(world.request("vm", cu(2), claim=ZERO))
    assert world.floors() == []


def test_a_claim_of_an_unsettled_vm_above_its_maximum_is_kept() -> None:
    world = unsettled(most=cu(3))
    assert world.permit(world.request("vm", cu(5), claim=cu(5), names=ELSEWHERE)) == cu(5)
    assert world.state().reserved == cu(5)
