"""A denial for want of room that lasts says whether another node has room: never first, and never for nothing."""

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from scheduler.permits.core import events
from scheduler.permits.core.elsewhere import LASTING_S, LOOK_S
from scheduler.permits.core.model import NodeSpec, PoolSpec
from scheduler.permits.core.snapshots import restore, snapshot_of
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World

FULL, ELSEWHERE = ReasonCode.NODE_HEADROOM, ReasonCode.ROOM_ELSEWHERE


def crowded() -> World:
    """A VM that has 4 of the 5 units of its node, of which a pod has the fifth."""
    world = World(cu(5))
    world.other_pod("other", cu(1))
    world.vm("vm", cu(4))
    world.permit(world.request("vm", cu(4)))
    return world


def ask(world: World, units: int, at: float) -> tuple[ReasonCode, ...]:
    return tuple(each.code for each in world.decide(world.request("vm", cu(units)), at=at).reasons)


def test_room_elsewhere_is_told_last_and_only_of_a_denial_that_lasts() -> None:
    world = crowded()
    world.node("n2", cu(6))
    assert ask(world, 6, 100) == (FULL,)
    assert ask(world, 6, 100 + LASTING_S - 1) == (FULL,)
    answer = world.decide(world.request("vm", cu(6)), at=100 + LASTING_S)
    assert answer.reasons[1:] == (Reason(ELSEWHERE, f"node n2 has room for {cu(6)}"),)
    assert answer.permit == cu(4)


def test_a_denial_that_was_over_begins_anew() -> None:
    world = crowded()
    world.node("n2", cu(6))
    ask(world, 6, 100)
    ask(world, 4, 110)
    assert ask(world, 6, 100 + LASTING_S) == (FULL,)
    assert ask(world, 6, 100 + 2 * LASTING_S) == (FULL, ELSEWHERE)


@pytest.mark.parametrize(
    ("spec", "is_told"),
    [
        (NodeSpec("n2", cu(6)), True),
        (NodeSpec("n2", cu(6) - Resources(1, 0)), False),
        (NodeSpec("n2", cu(6) - Resources(0, 1)), False),
        (NodeSpec("n2", cu(6), taints=("gpu=:NoSchedule",)), True),  # the VM's own node has that
        (NodeSpec("n2", cu(6), taints=("control-plane=:NoSchedule", "gpu=:NoSchedule")), False),
    ],
)
def test_another_node_counts_if_all_of_the_wish_fits_and_it_takes_the_vm(
    spec: NodeSpec, is_told: bool
) -> None:
    world = crowded()
    world.apply(events.NodeSeen(NodeSpec("n1", cu(5), UNIT, taints=("gpu=:NoSchedule", "x=:NoExecute"))))
    world.apply(events.NodeSeen(spec))
    ask(world, 6, 0)
    assert (ELSEWHERE in ask(world, 6, LASTING_S)) == is_told


def test_what_others_hold_there_is_no_room_and_the_vms_own_node_is_none() -> None:
    """The VM's node would have room for it if that were counted without what the VM has there."""
    world = World(cu(12))
    world.other_pod("other", cu(6))
    world.vm("vm", cu(4))
    world.node("n2", cu(9))
    world.other_pod("there", cu(3), node="n2")
    assert ask(world, 7, 0) == (FULL,)
    assert ask(world, 7, LASTING_S) == (FULL,)
    assert ask(world, 5, LASTING_S + 1) == ()


def test_the_wish_counts_within_the_bounds_of_the_vm() -> None:
    world = crowded()
    world.node("n2", cu(8))
    ask(world, 9, 0)
    assert ask(world, 9, LASTING_S)[-1] is ELSEWHERE


def test_the_nodes_are_looked_through_now_and_then() -> None:
    world = crowded()
    ask(world, 6, 0)
    assert ask(world, 6, LASTING_S) == (FULL,)
    world.node("n2", cu(6))
    assert ask(world, 6, LASTING_S + LOOK_S - 1) == (FULL,)
    assert ask(world, 6, LASTING_S + LOOK_S) == (FULL, ELSEWHERE)
    world.apply(events.NodeGone("n2"))
    assert ask(world, 6, LASTING_S + 2 * LOOK_S - 1) == (FULL, ELSEWHERE)
    assert ask(world, 6, LASTING_S + 2 * LOOK_S) == (FULL,)


def test_a_vm_that_migrates_has_its_place_already() -> None:
    world = crowded()
    world.node("n2", cu(6))
    ask(world, 6, 0)
    world.apply(events.MigrationStarted("uid-vm"))
    assert ELSEWHERE not in ask(world, 6, LASTING_S)


def test_bounds_and_pools_are_no_matter_of_nodes() -> None:
    world = World(cu(10))
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=4)))
    world.vm("vm", cu(4), most=cu(4))
    world.vm("member", cu(4), pool="blue")
    world.node("n2", cu(10))
    for at in (0.0, 2 * LASTING_S):
        assert ask(world, 6, at) == (ReasonCode.VM_BOUNDS,)
        reasons = world.decide(world.request("member", cu(7)), at=at).reasons
        assert {each.code for each in reasons} == {FULL, ReasonCode.POOL}
        assert reasons[0].code is ReasonCode.POOL


def test_a_snapshot_has_what_is_known_of_other_nodes() -> None:
    world = crowded()
    world.node("n2", cu(6))
    ask(world, 6, 0)
    ask(world, 6, LASTING_S)
    found = restore(snapshot_of(world.core)).vms.by_uid("uid-vm")
    assert found is not None
    assert found.elsewhere == world.record("vm").elsewhere
    assert found.elsewhere is not None
    assert found.elsewhere.found == "n2"
