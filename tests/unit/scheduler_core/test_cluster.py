"""The core follows the cluster: rows come, follow, fall and go, and one that comes back is known again."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.reasons import ErrorCode
from protocol.values import ZERO, Observation, Resources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import Amounts, Holder, Kind, PodSpec, pod_holds
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import (
    ELSEWHERE,
    EVERYWHERE,
    HERE,
    NEXT_AGENT,
    World,
    pod,
    world_with_vm,
)

# ------------------------------------------------------------ pods that are no VMs


@pytest.mark.parametrize(
    ("requests", "limits", "holds"),
    [
        (Amounts(500, GIB), Amounts(), Resources(500, GIB)),
        (Amounts(), Amounts(500, GIB), Resources(500, GIB)),
        (Amounts(500), Amounts(900, GIB), Resources(500, GIB)),
        (Amounts(None, GIB), Amounts(900, 2 * GIB), Resources(900, GIB)),
        (Amounts(0, 0), Amounts(900, GIB), ZERO),  # a request of nothing is a request
        (Amounts(), Amounts(), ZERO),
    ],
)
def test_a_pod_holds_its_requests_else_its_limits(
    requests: Amounts, limits: Amounts, holds: Resources
) -> None:
    assert pod_holds(requests, limits) == holds


def test_a_pod_holds_its_requests_until_it_has_ended() -> None:
    world = World()
    spec = world.other_pod("job", cu(3, 5))
    assert world.node_reserved() == cu(3, 5)
    world.other_pod("job", UNIT)
    assert world.node_reserved() == UNIT
    for last in (events.PodSeen(replace(spec, terminal=True)), events.PodGone(spec)):
        world.other_pod("job", cu(2))
        for _ in range(2):
            world.apply(last)
            assert (world.node_reserved(), list(world.core.ledger.rows())) == (ZERO, [])


# ------------------------------------------------------------ VMs come and go


GOES: dict[str, Callable[[World], object]] = {
    "gone": lambda world: world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0)),
    "ended": lambda world: world.see_ended("vm", at=1.0),
}


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "first seen"])
@pytest.mark.parametrize("go", GOES.values(), ids=GOES)
def test_a_vm_that_has_gone_or_ended_holds_nothing_and_is_not_found(
    go: Callable[[World], object], is_known: bool
) -> None:
    world = World()
    if is_known:
        world.vm("vm", cu(3), is_new=False)
    for _ in range(2):
        go(world)
        assert (world.node_reserved(), list(world.core.ledger.rows()), len(world.core.vms)) == (ZERO, [], 0)
    assert world.core.vms.find(pod("vm")) is None
    assert isinstance(world.send(world.request("vm", UNIT)), events.LookNeeded)
    assert world.ticked(500.0) == ()


def test_another_uid_under_the_same_name_is_another_vm() -> None:
    world = world_with_vm()
    world.permit(world.request("vm", cu(6), seq=7))
    world.vm("vm", cu(2), uid="second", at=1.0)
    assert (world.node_reserved(), world.record().settled) == (cu(2), True)
    for uid in ("uid-vm", "uid-of-an-older-life"):  # the end of an older one is not its end
        world.apply(events.VmGone(pod("vm"), uid, 1.0))
    assert world.permit(world.request("vm", cu(3), uid="second", seq=1, started=1)) == cu(3)
    refused = world.send(world.request("vm", UNIT, seq=8), look=events.Look(found=True))
    assert isinstance(refused, events.Refused)
    assert refused.code is ErrorCode.WRONG_POD_UID


@pytest.mark.parametrize("is_new", [True, False])
def test_a_vm_that_moves_loses_nothing_of_its_reservation_and_is_not_new(is_new: bool) -> None:
    """The list that held it under the same UID knew it; what its agent holds is not in the cluster."""
    world = world_with_vm()
    world.node("n2", cu(10))
    world.permit(world.request("vm", cu(6)))
    world.vm("vm", UNIT, node="n2", is_new=is_new, at=1.0)
    assert (world.node_reserved("n1"), world.node_reserved("n2")) == (ZERO, cu(6))


def test_a_known_vm_listed_as_new_keeps_its_row() -> None:
    world = world_with_vm(is_new=False)
    world.vm("vm", UNIT, is_new=True)
    assert (world.state().reserved, world.record().settled) == (cu(8), False)


# ------------------------------------------------------------ what comes back


@pytest.mark.parametrize("is_ticked", [True, False], ids=["ticked", "not ticked"])
@pytest.mark.parametrize("back_s", [2.0, 60.9, 61.0])
@pytest.mark.parametrize("go", GOES.values(), ids=GOES)
def test_a_vm_that_comes_back_within_the_hand_over_is_not_new_and_keeps_its_gate(
    go: Callable[[World], object], back_s: float, is_ticked: bool
) -> None:
    """Its agent may still hold what it was permitted. What holds goes by time, also where no tick came between."""
    world = world_with_vm()
    packets = [world.request("vm", cu(want), seq=seq, claim=UNIT) for seq, want in ((6, 1), (7, 5))]
    for packet in packets:
        world.permit(packet)
    go(world)  # at 1 s
    if is_ticked:
        world.ticked(back_s)
    world.vm("vm", UNIT, at=back_s)
    if back_s == 61.0:
        assert (world.record().settled, world.floors(), world.core.vms.retired()) == (True, [], {})
        assert world.permit(world.request("vm", cu(2), seq=1), at=back_s) == cu(2)
        return
    codes = (ErrorCode.SEQUENCE_STALE, ErrorCode.SEQUENCE_REUSED)
    for packet, code in zip(
        packets, codes, strict=True
    ):  # judged anew, a claim of theirs would settle the row
        refused = world.refusal(packet, at=back_s)
        assert (refused.code, refused.last_sequence_number) == (code, 7)
    refused = world.refusal(world.request("vm", UNIT, agent=NEXT_AGENT, started=500), at=back_s)
    assert refused.code is ErrorCode.AGENT_SUPERSEDED
    assert (world.record().settled, world.floors()) == (False, [(Cause.START_UP, cu(8))])
    assert world.permit(world.request("vm", cu(5), seq=8, claim=cu(5)), at=back_s) == cu(5)


def test_a_vm_that_comes_back_and_goes_again_is_kept_anew() -> None:
    world = world_with_vm()
    world.permit(world.request("vm", cu(5), seq=7), at=0.0)
    for gone_s, back_s in ((10.0, 40.0), (50.0, 109.0)):
        world.apply(events.VmGone(pod("vm"), "uid-vm", gone_s))
        world.ticked(back_s)
        world.vm("vm", UNIT, at=back_s)
    assert not world.record().settled
    assert world.refusal(world.request("vm", UNIT, seq=3), at=109.0).last_sequence_number == 7


def test_what_went_in_turn_is_forgotten_in_turn() -> None:
    world = World(cu(30))
    for number, name in enumerate("abc"):
        world.vm(name)
        world.apply(events.VmGone(pod(name), f"uid-{name}", number * 10.0))
    for at, left in ((59.9, 3), (60.0, 2), (79.9, 1), (80.0, 0)):
        world.ticked(at)
        assert len(world.core.vms.retired()) == left


def test_rows_count_again_when_their_node_comes_back() -> None:
    world = world_with_vm(cu(3))
    world.vm("going", cu(2))
    world.other_pod("filler", cu(3))
    world.assume(Holder(Kind.POD, "uid-new"), UNIT)
    for _ in range(2):
        world.apply(events.NodeGone("n1"))
    assert world.permit(world.request("vm", cu(2), claim=cu(3))) == cu(2)
    assert world.permit(world.request("vm", cu(4), claim=cu(2), unit=UNIT)) == cu(2)
    world.vm("other", UNIT)
    world.other_pod("filler", cu(2))
    world.apply(events.VmGone(pod("going"), "uid-going", 0.0))
    world.read("vm", cu(2), at=1.0)
    world.node("n1", cu(10))
    # The VMs' 2 and 1, the pod's 2, the placement, and the 2 more for which the VM waits.
    assert world.node_reserved() == cu(8)
    assert world.permit(world.request("vm", cu(9), claim=cu(2))) == cu(6)


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


def test_the_target_counts_as_the_size_does_and_leaves_less_to_others() -> None:
    world = world_with_vm()
    world.vm("other")
    world.read("vm", cu(1, 7), at=1.0, target=cu(7, 1))
    assert world.state().reserved == cu(7)
    assert world.permit(world.request("other", cu(8))) == cu(3)


@pytest.mark.parametrize(
    "later", [Observation(UNIT, UNIT, 9.0), None], ids=["a read that began before", "no sizes"]
)
def test_what_is_no_later_read_ends_nothing(later: Observation | None) -> None:
    world = world_with_vm()
    world.read("vm", cu(5), at=10.0)
    world.see("vm", later, at=11.0)
    assert world.state().reserved == cu(5)


# ------------------------------------------------------------ silence


def silent(*, config: SchedulerConfig | None = None) -> World:
    """An agent was answered at 10 s with 6 units and never heard again; the VM uses 1."""
    world = world_with_vm(config=config)
    world.permit(world.request("vm", cu(6)), at=10.0)
    return world


@pytest.mark.parametrize(
    ("begun", "use", "target", "current"),
    [
        (69.9, UNIT, UNIT, cu(6)),
        (70.0, UNIT, UNIT, UNIT),
        (100.0, UNIT, cu(2), cu(6)),  # in the middle of a resize
        (100.0, cu(8, 2), cu(8, 2), cu(6, 2)),  # only where the read shows less
    ],
)
def test_a_silent_agents_row_falls_by_a_read_begun_after_the_hand_over(
    begun: float, use: Resources, target: Resources, current: Resources
) -> None:
    world = silent()
    world.tick(1000.0)
    assert world.state().current == cu(6), "the clock alone takes nothing"
    world.read("vm", use, at=begun, target=target)
    assert world.state().current == current
    if begun == 70.0:
        assert (world.node_reserved(), world.tick(1500.0)) == (UNIT, []), "no read could end anything more"


def test_where_published_agents_may_serve_a_silent_agents_row_stays_and_no_read_is_asked_for() -> None:
    world = silent(config=EVERYWHERE)
    assert world.tick(500.0) == []
    world.read("vm", UNIT, at=500.0)
    assert world.node_reserved() == cu(6)


@pytest.mark.parametrize("config", [SchedulerConfig(HERE, is_first_start=True), EVERYWHERE])
def test_the_claim_of_a_silent_agent_ends_by_a_read(config: SchedulerConfig) -> None:
    world = world_with_vm(config=config)
    world.other_pod("filler", cu(9))
    world.permit(world.request("vm", cu(5), claim=cu(5)), at=0.0)
    assert world.causes() == {Cause.CLAIMED}
    world.read("vm", UNIT, at=100.0)
    assert world.floors() == []


@pytest.mark.parametrize("heard_s", [None, 50.0])
def test_an_unsettled_row_settles_by_a_read_a_hand_over_after_its_agent_was_heard(
    heard_s: float | None,
) -> None:
    world = world_with_vm(cu(2), is_new=False)
    if heard_s is not None:
        world.permit(world.request("vm", cu(2), names=None), at=heard_s)
    due_s = 60.0 + (heard_s or 0.0)
    assert (world.tick(due_s - 1.0), world.tick(due_s)) == ([], ["vm"])
    for begun_s, is_settled in ((due_s - 1.0, False), (due_s, True)):
        world.read("vm", cu(2), at=begun_s)
        assert world.record().settled is is_settled
    assert (world.floors(), world.node_reserved()) == ([], cu(2))


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


# ------------------------------------------------------------ nodes and other pods


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
