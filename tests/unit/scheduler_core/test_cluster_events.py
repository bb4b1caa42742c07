"""What the cluster shows and what the clock says: rows come, follow, fall and go."""

import pytest

from protocol.values import Observation, Resources
from scheduler.core import events
from scheduler.core.ledger import Cause
from scheduler.core.model import Holder, Kind, PodSpec
from scheduler.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import (
    ELSEWHERE,
    EVERYWHERE,
    HERE,
    NEXT_AGENT,
    World,
    pod,
    world_with_vm,
)

# ------------------------------------------------------------ VMs come and go


def test_a_vm_that_has_gone_frees_everything() -> None:
    world = world_with_vm(is_new=False)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 0.0))
    assert world.node_reserved() == cu(0)
    assert world.core.vms.find(pod("vm")) is None
    assert len(world.core.vms) == 0
    assert list(world.core.ledger.rows()) == []


def test_the_end_of_an_older_uid_is_not_the_end_of_the_vm() -> None:
    world = world_with_vm()
    world.apply(events.VmGone(pod("vm"), "uid-of-an-older-life", 0.0))
    world.apply(events.VmGone(pod("nobody"), "uid", 0.0))
    assert world.node_reserved() == UNIT


def test_another_uid_under_the_same_name_is_another_vm() -> None:
    world = world_with_vm()
    world.permit(world.request("vm", cu(6), seq=7))
    world.vm("vm", cu(2), uid="second", is_new=True)
    assert world.node_reserved() == cu(2)
    assert world.permit(world.request("vm", cu(3), uid="second", seq=1)) == cu(3)
    assert isinstance(world.send(world.request("vm", cu(3))), events.LookNeeded)


def test_a_vm_that_moves_to_another_node_loses_nothing_of_its_reservation() -> None:
    world = world_with_vm()
    world.node("n2", cu(10))
    world.permit(world.request("vm", cu(6)))
    world.see("vm", Observation(UNIT, UNIT, 1.0), at=1.0, node="n2")
    assert world.node_reserved("n1") == cu(0)
    assert cu(6).fits_in(world.node_reserved("n2"))


def test_a_vm_that_moved_is_not_new() -> None:
    """The list that held it under the same UID knew it; what its agent holds is not in the cluster."""
    world = world_with_vm()
    world.node("n2", cu(10))
    world.permit(world.request("vm", cu(6)))
    world.vm("vm", UNIT, node="n2", is_new=True, at=1.0)
    assert cu(6).fits_in(world.node_reserved("n2"))


def test_a_known_vm_listed_as_new_keeps_its_row() -> None:
    world = world_with_vm(is_new=False)
    world.vm("vm", UNIT, is_new=True)
    assert world.state().reserved == cu(8)
    assert not world.record().settled


def test_new_bounds_cut_growth_from_then_on() -> None:
    world = world_with_vm()
    assert world.permit(world.request("vm", cu(4))) == cu(4)
    world.vm("vm", cu(4), most=cu(2))
    assert world.permit(world.request("vm", cu(5))) == cu(4)
    assert world.permit(world.request("vm", cu(3))) == cu(3)
    assert world.permit(world.request("vm", cu(4))) == cu(3)


# ------------------------------------------------------------ what a read shows


def test_more_than_is_current_is_observed_until_a_later_read_shows_less() -> None:
    world = world_with_vm()
    world.read("vm", cu(5), at=1.0)
    assert (world.state().current, world.floors()) == (UNIT, [(Cause.OBSERVED, cu(5))])
    world.read("vm", cu(3), at=2.0)
    assert world.floors() == [(Cause.OBSERVED, cu(3))]
    world.tick(500.0)
    assert world.state().reserved == cu(3)
    world.read("vm", UNIT, at=501.0)
    assert world.floors() == []


def test_the_target_counts_as_the_size_does() -> None:
    world = world_with_vm()
    world.read("vm", cu(1, 3), at=1.0, target=cu(3, 1))
    assert world.state().reserved == cu(3)


def test_a_read_that_began_before_the_last_one_is_no_later_word() -> None:
    world = world_with_vm()
    world.read("vm", cu(5), at=10.0)
    world.read("vm", UNIT, at=9.0)
    assert world.state().reserved == cu(5)


def test_a_word_without_sizes_ends_nothing() -> None:
    world = world_with_vm()
    world.read("vm", cu(5), at=1.0)
    world.see("vm", None, at=2.0)
    assert world.state().reserved == cu(5)


def test_what_is_observed_leaves_less_to_others() -> None:
    world = world_with_vm()
    world.vm("other")
    world.read("vm", cu(7), at=1.0)
    assert world.permit(world.request("other", cu(8))) == cu(3)


def test_a_living_agents_row_does_not_follow_a_read() -> None:
    world = world_with_vm()
    world.permit(world.request("vm", cu(6)), at=0.0)
    world.read("vm", UNIT, at=59.9)
    assert world.state().current == cu(6)


# ------------------------------------------------------------ silence


def silent(*, config: SchedulerConfig | None = None) -> World:
    """An agent was answered at 10 s with 6 units and never heard again; the VM uses 1."""
    world = world_with_vm(config=config)
    world.permit(world.request("vm", cu(6)), at=10.0)
    return world


@pytest.mark.parametrize(("begun", "reserved"), [(69.9, cu(6)), (70.0, cu(1))])
def test_a_silent_agents_row_falls_by_a_read_begun_later(begun: float, reserved: Resources) -> None:
    world = silent()
    world.read("vm", UNIT, at=begun)
    assert world.node_reserved() == reserved


def test_the_clock_alone_takes_nothing_from_a_silent_agent() -> None:
    world = silent()
    world.tick(1000.0)
    assert world.node_reserved() == cu(6)


def test_a_read_during_a_resize_takes_nothing() -> None:
    world = silent()
    world.read("vm", UNIT, at=100.0, target=cu(2))
    assert world.node_reserved() == cu(6)


def test_a_row_falls_only_where_the_read_shows_less() -> None:
    world = silent()
    world.read("vm", cu(8, 2), at=100.0)
    assert world.state().current == cu(6, 2)
    assert world.state().reserved == cu(8, 2)


def test_where_published_agents_may_serve_a_silent_agents_row_stays() -> None:
    world = silent(config=EVERYWHERE)
    world.read("vm", UNIT, at=500.0)
    assert world.node_reserved() == cu(6)


def test_where_published_agents_may_serve_no_read_is_asked_for_that_could_end_nothing() -> None:
    assert silent(config=EVERYWHERE).tick(500.0) == []


@pytest.mark.parametrize("config", [SchedulerConfig(HERE, is_first_start=True), EVERYWHERE])
def test_the_claim_of_a_silent_agent_ends_by_a_read(config: SchedulerConfig) -> None:
    world = world_with_vm(config=config)
    world.other_pod("filler", cu(9))
    world.permit(world.request("vm", cu(5), claim=cu(5)), at=0.0)
    assert world.causes() == {Cause.CLAIMED}
    world.read("vm", UNIT, at=100.0)
    assert world.floors() == []


def test_an_unsettled_row_settles_by_a_read_after_the_hand_over() -> None:
    world = world_with_vm(cu(2), is_new=False)
    world.read("vm", cu(2), at=59.0)
    assert not world.record().settled
    world.read("vm", cu(2), at=60.0)
    assert world.record().settled
    assert (world.floors(), world.node_reserved()) == ([], cu(2))


def test_an_unsettled_row_waits_for_an_agent_that_was_heard() -> None:
    world = world_with_vm(cu(2), is_new=False)
    world.permit(world.request("vm", cu(2), names=None), at=50.0)
    world.read("vm", cu(2), at=100.0)
    assert not world.record().settled
    world.read("vm", cu(2), at=110.0)
    assert world.record().settled


def test_without_sizes_an_unsettled_row_stays() -> None:
    world = world_with_vm(None, is_new=False)
    assert world.tick(1000.0) == []
    world.see("vm", None, at=1001.0)
    assert world.state().reserved == cu(8)


def test_an_agent_that_comes_back_is_judged_from_what_it_uses() -> None:
    world = silent()
    world.read("vm", UNIT, at=70.0)
    world.other_pod("filler", cu(7))
    assert world.permit(world.request("vm", cu(6), claim=UNIT), at=80.0) == cu(3)


def test_a_late_packet_from_before_the_restart_frees_nothing_that_a_read_shows_in_use() -> None:
    """The row settled by a read, so no sequence gate knows the packet for old; it does not name this process."""
    world = world_with_vm(cu(4), is_new=False)
    world.read("vm", cu(4), at=60.0)
    world.permit(world.request("vm", cu(2), claim=cu(2), names=ELSEWHERE), at=61.0)
    assert world.state().reserved == cu(4)


def test_a_hand_over_outlasts_a_fall_of_the_row() -> None:
    world = silent()
    world.permit(world.request("vm", cu(6), agent=NEXT_AGENT, started=2000), at=20.0)
    world.read("vm", UNIT, at=90.0)
    assert world.node_reserved() == cu(6)
    world.tick(90.0)
    assert world.node_reserved() == cu(1)


# ------------------------------------------------------------ reads that the core asks for


def test_a_read_is_asked_for_when_an_agent_fell_silent_and_once_per_command_deadline() -> None:
    world = silent()
    assert world.tick(69.9) == []
    assert [world.tick(at) for at in (70.0, 71.0, 74.9, 75.0)] == [["vm"], [], [], ["vm"]]


def test_no_read_is_asked_for_once_the_row_fell() -> None:
    world = silent()
    world.read("vm", UNIT, at=70.0)
    assert world.tick(500.0) == []


def test_an_unsettled_vm_is_read_after_the_hand_over() -> None:
    world = world_with_vm(cu(2), is_new=False)
    assert (world.tick(59.0), world.tick(60.0)) == ([], ["vm"])


def test_a_settled_vm_at_its_use_is_left_alone() -> None:
    assert world_with_vm().tick(500.0) == []


# ------------------------------------------------------------ nodes and other pods


def test_a_smaller_node_is_over_full_and_grants_decreases_only() -> None:
    world = world_with_vm(cu(6))
    world.node("n1", cu(4))
    assert world.permit(world.request("vm", cu(7), claim=cu(6))) == cu(6)
    assert world.permit(world.request("vm", cu(5), claim=cu(6))) == cu(5)
    assert world.permit(world.request("vm", cu(6), claim=cu(5))) == cu(5)
    world.node("n1", cu(7))
    assert world.permit(world.request("vm", cu(8), claim=cu(5))) == cu(7)


def test_rows_count_again_when_their_node_comes_back() -> None:
    world = world_with_vm(cu(3))
    world.apply(events.NodeGone("n1"))
    assert world.permit(world.request("vm", cu(2), claim=cu(3))) == cu(2)
    assert world.permit(world.request("vm", cu(4), claim=cu(2), unit=UNIT)) == cu(2)
    world.vm("other", cu(1))
    world.read("vm", cu(2), at=1.0)
    world.node("n1", cu(10))
    assert world.node_reserved() == cu(3)
    assert world.permit(world.request("vm", cu(4), claim=cu(2))) == cu(4)


def test_a_vm_may_go_while_its_node_is_away() -> None:
    world = world_with_vm(cu(3))
    world.apply(events.NodeGone("n1"))
    world.apply(events.NodeGone("n1"))
    world.apply(events.VmGone(pod("vm"), "uid-vm", 0.0))
    world.node("n1", cu(10))
    assert world.node_reserved() == cu(0)


def test_a_vm_may_come_before_its_node() -> None:
    world = World()
    world.vm("vm", cu(2), node="n2")
    world.node("n2", cu(5))
    assert world.node_reserved("n2") == cu(2)


def test_other_pods_hold_what_they_request() -> None:
    world = World()
    spec = world.other_pod("filler", cu(3, 5))
    assert world.node_reserved() == cu(3, 5)
    world.other_pod("filler", cu(1))
    assert world.node_reserved() == cu(1)
    world.apply(events.PodGone(spec))
    world.apply(events.PodGone(spec))
    assert world.node_reserved() == cu(0)


def test_a_pod_that_bypassed_us_may_overfill_a_node_and_stops_growth_only() -> None:
    world = world_with_vm(cu(3))
    world.other_pod("filler", cu(50))
    assert world.permit(world.request("vm", cu(4), claim=cu(3))) == cu(3)
    assert world.permit(world.request("vm", cu(2), claim=cu(3))) == cu(2)


def test_a_pod_and_a_vm_of_one_uid_are_two_holders() -> None:
    world = world_with_vm(cu(3))
    world.apply(events.PodSeen(PodSpec(pod("double"), "uid-vm", "n1", cu(2))))
    assert world.node_reserved() == cu(5)
    world.apply(events.PodGone(PodSpec(pod("double"), "uid-vm", "n1", cu(2))))
    assert world.core.ledger.row(Holder(Kind.VM, "uid-vm")) is not None
    assert world.node_reserved() == cu(3)


def test_one_uid_under_two_names_never_stops_the_scheduler() -> None:
    """No cluster should show that; one malformed object is not to take the others down."""
    world = world_with_vm(cu(3))
    world.vm("twin", cu(2), uid="uid-vm")
    world.apply(events.VmGone(pod("vm"), "uid-vm", 0.0))
    world.tick(1.0)
    world.vm("twin", cu(2), uid="uid-vm", at=2.0)
    world.send(world.request("twin", cu(2), uid="uid-vm"), at=3.0)


def test_the_audit_finds_a_sum_that_is_wrong() -> None:
    world = world_with_vm(cu(3))
    account = world.core.ledger.node("n1")
    assert account is not None
    account.reserved += UNIT
    assert len(world.core.audit()) == 1
    assert account.capacity.reservable == cu(10)
