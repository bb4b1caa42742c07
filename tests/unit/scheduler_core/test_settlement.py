"""Rows that a former scheduler left uncertain, and how a request that names this process settles them; claims."""

from uuid import UUID

import pytest

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core.ledger import Cause
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import ELSEWHERE, HERE, World, world_with_vm

TWO = cu(2)


def unsettled(use: Resources | None = TWO, *, most: Resources | None = None) -> World:
    """A VM that may still use up to its maximum of 8."""
    return world_with_vm(use, is_new=False, most=most)


@pytest.mark.parametrize(
    ("use", "is_new", "reserved"),
    [
        (TWO, False, cu(8)),
        (cu(2, 9), False, cu(8, 9)),
        (None, False, cu(8)),
        (None, True, cu(8)),
        (cu(3), True, cu(3)),
    ],
)
def test_a_vm_is_reserved_at_its_maximum_unless_it_is_born_at_a_known_size(
    use: Resources | None, is_new: bool, reserved: Resources
) -> None:
    world = world_with_vm(use, is_new=is_new)
    is_settled = is_new and use is not None
    assert (world.record().settled, world.state().current) == (is_settled, use or ZERO)
    assert world.floors() == ([] if is_settled else [(Cause.START_UP, reserved)])
    assert world.node_reserved() == reserved


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


@pytest.mark.parametrize(
    ("use", "others", "want", "claim", "permit"),
    [
        (TWO, ZERO, cu(4), cu(4), cu(4)),
        (TWO, ZERO, cu(2), cu(6), cu(2)),  # it may already shrink
        (TWO, cu(7), cu(6), cu(2), cu(3)),  # growth beyond the claim is judged by the node
        (TWO, cu(7), cu(6), cu(5), cu(5)),  # a claim above the node is kept
        (cu(2, 6), cu(5, 6), cu(5), cu(5, 1), cu(5)),  # the use counts where it is above the claim
        (None, ZERO, cu(3), cu(3), cu(3)),
    ],
)
def test_a_request_that_names_this_process_settles_at_its_claim_or_use(
    use: Resources | None, others: Resources, want: Resources, claim: Resources, permit: Resources
) -> None:
    world = unsettled(use)
    world.other_pod("filler", others)
    assert world.permit(world.request("vm", want, claim=claim, names=HERE)) == permit
    assert (world.record().settled, world.state().current) == (True, permit)
    world.read("vm", permit, at=1.0)
    assert (world.floors(), world.node_reserved()) == ([], others + permit)


def test_without_sizes_a_request_without_a_claim_does_not_settle_at_nothing() -> None:
    """Neither the cluster nor the agent says what is in use; the start-up floor is all that is known."""
    world = unsettled(None)
    world.send(world.request("vm", cu(3), claim=None))
    assert world.state().reserved == cu(8)


def test_the_usual_two_steps_settle_a_vm() -> None:
    """The agent names the scheduler it knew, learns of this one, and asks again at once."""
    world = unsettled()
    assert world.permit(world.request("vm", cu(6), claim=cu(5), names=ELSEWHERE)) == cu(5)
    assert world.permit(world.request("vm", cu(6), claim=cu(5), names=HERE)) == cu(6)
    assert world.floors() == []


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


@pytest.mark.parametrize(
    ("use", "others", "want", "claim", "permit", "kept"),
    [
        (
            TWO,
            cu(8),
            cu(5),
            cu(5),
            cu(2),
            cu(5),
        ),  # an external edit raised the VM to 5; only its agent sees that
        (TWO, cu(8), cu(3), cu(7), cu(2), cu(3)),  # up to the request
        (cu(2, 4), cu(8), cu(4), cu(4, 3), cu(2, 4), cu(4, 0)),  # only where it is above current
        (TWO, cu(6), cu(6), cu(6), cu(4), cu(6)),  # it gives no growth
    ],
)
@pytest.mark.parametrize("next_claim", [TWO, ZERO], ids=["claim", "no claim"])
def test_a_claim_above_current_is_kept_until_the_next_one(
    use: Resources,
    others: Resources,
    want: Resources,
    claim: Resources,
    permit: Resources,
    kept: Resources,
    next_claim: Resources,
) -> None:
    world = world_with_vm(use)
    world.other_pod("filler", others)
    assert world.permit(world.request("vm", want, claim=claim)) == permit
    assert world.floors() == [(Cause.CLAIMED, kept)]
    world.permit(world.request("vm", use, claim=next_claim))
    assert world.floors() == []


def test_a_read_does_not_end_the_claim_of_a_living_agent() -> None:
    world = world_with_vm(cu(2))
    world.other_pod("filler", cu(8))
    world.permit(world.request("vm", cu(5), claim=cu(5)), at=0.0)
    world.read("vm", cu(2), at=59.0)
    assert world.state().reserved == cu(5)


def test_a_claim_of_an_unsettled_vm_above_its_maximum_is_kept() -> None:
    world = unsettled(most=cu(3))
    assert world.permit(world.request("vm", cu(5), claim=cu(5), names=ELSEWHERE)) == cu(5)
    assert world.state().reserved == cu(5)
