"""Room for what is not there yet: assumed, then confirmed or forgotten, and taken over by what the cluster shows."""

from typing import Any

import pytest

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause, OverCause
from scheduler.permits.core.model import Holder, Kind, PodSpec, PoolSpec
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, codes, pod, world_with_vm

KINDS = list(Kind)
PLACED = events.Placed(1)


def holder(kind: Kind = Kind.POD, name: str = "new") -> Holder:
    """Whose row it is."""
    return Holder(kind, f"uid-{name}")


def placed(kind: Kind = Kind.POD, amount: Resources | None = None, *, until: float = 10.0) -> World:
    """A world where 3 units (`amount`) are kept for `new`."""
    world = World()
    assert world.assume(holder(kind), amount or cu(3), until=until) == PLACED
    return world


def confirmed(kind: Kind = Kind.POD) -> World:
    """A world where 3 units are kept for good."""
    world = placed(kind)
    assert world.apply(events.PlacementConfirmed(holder(kind))) == ()
    return world


def refusal(output: events.Output) -> events.NotPlaced:
    assert isinstance(output, events.NotPlaced), output
    return output


# ------------------------------------------------------------ all or nothing


@pytest.mark.parametrize("kind", KINDS)
def test_what_fits_is_kept(kind: Kind) -> None:
    world = World()
    assert world.assume(holder(kind), cu(10)) == PLACED
    assert (world.node_reserved(), world.floors("new")) == (cu(10), [(Cause.ASSUMED, cu(10))])
    assert world.over() == set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("amount", "resource"), [(cu(8, 1), "cpu"), (cu(1, 8), "memory"), (cu(8), "cpu"), (cu(7.001, 7), "cpu")]
)
def test_what_does_not_fit_whole_keeps_nothing(kind: Kind, amount: Resources, resource: str) -> None:
    world = World()
    world.other_pod("filler", cu(3))
    refused = refusal(world.assume(holder(kind), amount))
    assert (refused.reason.code, refused.reason.resource) == (ReasonCode.NODE_HEADROOM, resource)
    assert ("7 CPU" if resource == "cpu" else "7Gi") in refused.reason.message
    assert world.node_reserved() == cu(3)
    assert world.core.ledger.row(holder(kind)) is None
    assert world.passed(100.0) == ()


def test_a_refusal_names_the_floors_in_the_way_and_an_over_full_node_leaves_nothing_and_not_less() -> None:
    world = world_with_vm(cu(2), is_new=False)
    for at, late in ((119.0, ""), (120.0, ", unsettled for 120 s")):
        refused = refusal(world.assume(holder(), cu(3), at=at))
        assert f"default/vm 6 CPU (start-up{late})" in refused.reason.message
    world.other_pod("filler", cu(50))
    refused = refusal(world.assume(holder(), UNIT))
    assert "leave 0 CPU" in refused.reason.message
    assert world.node_reserved() == cu(58)


@pytest.mark.parametrize("amount", [ZERO, Resources(0, 2 * GIB)])
def test_nothing_at_all_of_a_resource_fits_wherever_that_is_used_up(amount: Resources) -> None:
    """A pod without requests is not kept off a node whose CPUs are over-full."""
    world = World()
    world.other_pod("filler", cu(50, 5))
    assert world.assume(holder(), amount) == PLACED
    assert world.node_reserved() == cu(50, 5) + amount


@pytest.mark.parametrize("kind", KINDS)
def test_growth_sees_what_is_assumed(kind: Kind) -> None:
    world = placed(kind, cu(6))
    world.vm("vm")
    answer = world.decide(world.request("vm", cu(8)))
    assert (answer.permit, codes(answer)) == (cu(4), [ReasonCode.NODE_HEADROOM])
    assert "default/placed 6 CPU (assumed)" in answer.reasons[0].message


def test_placement_sees_what_growth_waits_for() -> None:
    world = World()
    world.vm("vm")
    world.see("vm", None, at=0.0, pool="blue")
    world.take(world.request("vm", cu(8)), 11)
    assert "default/vm 7 CPU (pending)" in refusal(world.assume(holder(), cu(3))).reason.message
    world.pool_says(11, events.PoolVerdict(0))
    assert world.assume(holder(), cu(3)) == PLACED


# ------------------------------------------------------------ again


@pytest.mark.parametrize(
    ("amount", "node", "n1", "n2"),
    [
        (cu(3), "n1", cu(3), ZERO),  # the same again
        (cu(5), "n1", cu(5), ZERO),
        (UNIT, "n1", UNIT, ZERO),
        (cu(3), "n2", ZERO, cu(3)),  # another node moves it whole
        (cu(11), "n1", None, None),
        (cu(4), "n2", None, None),
        (cu(3), "n9", None, None),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_asked_again_it_takes_another_amount_or_node_and_time_where_that_fits(
    kind: Kind, amount: Resources, node: str, n1: Resources | None, n2: Resources | None
) -> None:
    world = placed(kind)
    world.node("n2", cu(3))
    output = world.assume(holder(kind), amount, node=node, until=20.0, at=9.0)
    if n1 is None:
        assert (node in refusal(output).reason.message) is (node == "n9"), "no such node"
    else:
        assert output == PLACED
    kept = (world.node_reserved("n1"), world.node_reserved("n2"))
    assert kept == ((n1, n2) if n1 is not None else (cu(3), ZERO))
    world.passed(10.0)
    assert (world.node_reserved("n1"), world.node_reserved("n2")) == (
        kept if n1 is not None else (ZERO, ZERO)
    )
    world.passed(20.0)
    assert list(world.core.ledger.rows()) == []


def test_a_repeat_finds_its_room_also_where_the_node_is_over_full_by_now() -> None:
    """Else a lost reply would be followed by "nothing is kept", while the room is."""
    world = placed()
    world.other_pod("filler", cu(50))
    assert world.assume(holder(), cu(3)) == PLACED
    assert world.assume(holder(), cu(2)) == PLACED
    assert world.node_reserved() == cu(52)
    refusal(world.assume(holder(), cu(2.5)))
    assert world.node_reserved() == cu(52)


# ------------------------------------------------------------ the end


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_forgotten_when_a_read_begun_after_its_time_does_not_show_it(kind: Kind) -> None:
    world = placed(kind)
    world.passed(9.999)
    assert world.node_reserved() == cu(3)
    world.passed(10.0)
    assert (world.node_reserved(), world.core.state.placements) == (ZERO, {})
    for late in (events.PlacementConfirmed(holder(kind)), events.PlacementForgotten(holder(kind))):
        assert world.apply(late) == (), "what nobody assumes any more is none of our business"
        assert list(world.core.ledger.rows()) == []


def test_neither_the_clock_nor_an_older_read_ends_it() -> None:
    """A scheduler that was stopped for a minute is told late of the pod that has come meanwhile."""
    world = placed()
    world.ticked(70.0)
    world.apply(events.ClusterRead(9.0))
    assert world.node_reserved() == cu(3)
    world.other_pod("new", cu(3))
    world.passed(71.0)
    assert world.node_reserved() == cu(3)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_confirmed_stays(kind: Kind) -> None:
    world = confirmed(kind)
    assert (world.state("new").current, world.floors("new")) == (cu(3), [])
    world.apply(events.PlacementConfirmed(holder(kind)))
    assert world.assume(holder(kind), cu(3), until=20.0, at=5.0) == PLACED, "a late repeat"
    world.passed(1000.0)
    assert world.node_reserved() == cu(3)


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_it_may_be_forgotten_before_and_after_it_is_confirmed(is_confirmed: bool) -> None:
    world = confirmed() if is_confirmed else placed()
    world.apply(events.PlacementForgotten(holder()))
    world.apply(events.PlacementForgotten(holder()))
    assert (world.node_reserved(), world.core.state.placements) == (ZERO, {})
    world.apply(events.PlacementConfirmed(holder()))
    assert list(world.core.ledger.rows()) == []


def test_it_survives_its_node() -> None:
    world = placed()
    world.apply(events.NodeGone("n1"))
    world.passed(5.0)
    world.node("n1", cu(10))
    assert world.node_reserved() == cu(3)
    world.apply(events.NodeGone("n1"))
    world.passed(10.0)
    world.node("n1", cu(10))
    assert world.node_reserved() == ZERO


# ------------------------------------------------------------ what the cluster shows


def test_what_the_cluster_shows_is_the_clusters_to_end() -> None:
    world = World()
    world.other_pod("new", cu(2))
    world.vm("vm", cu(2))
    for known in (holder(), Holder(Kind.VM, "uid-vm")):
        world.apply(events.PlacementForgotten(known))
        world.apply(events.PlacementConfirmed(known))
        assert world.assume(known, cu(9)) == PLACED
    world.passed(100.0)
    assert world.node_reserved() == cu(4)
    assert world.core.state.placements == {}


def test_a_holder_that_the_cluster_shows_elsewhere_is_told_so() -> None:
    world = World()
    world.node("n2", cu(10))
    world.other_pod("new", cu(2))
    refused = refusal(world.assume(holder(), cu(2), node="n2"))
    assert refused.reason.code is ReasonCode.PLACED_ELSEWHERE
    assert "n1" in refused.reason.message


@pytest.mark.parametrize("amount", [cu(2), cu(3)], ids=["less", "exactly that"])
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_pod_takes_its_row_over(is_confirmed: bool, amount: Resources) -> None:
    world = confirmed() if is_confirmed else placed()
    world.other_pod("new", amount)
    assert (world.state("new").current, world.floors("new")) == (amount, [])
    world.passed(10.0)
    world.apply(events.PlacementForgotten(holder()))
    assert world.node_reserved() == amount


@pytest.mark.parametrize("is_confirmed", [False, True])
@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("kind", [Kind.POD, Kind.VM])
def test_what_ended_before_it_was_seen_frees_its_room(
    kind: Kind, is_listed: bool, is_confirmed: bool
) -> None:
    world = confirmed(kind) if is_confirmed else placed(kind)
    spec = PodSpec(pod("new"), "uid-new", "n1", cu(3), terminal=True)
    if kind is Kind.POD:
        world.apply(events.PodSeen(spec) if is_listed else events.PodGone(spec))
    elif is_listed:
        world.see_ended("new", at=1.0)
    else:
        world.apply(events.VmGone(spec.pod, spec.uid, 1.0))
    assert (world.node_reserved(), world.core.state.placements) == (ZERO, {})
    assert world.passed(10.0) == ()
    world.apply(events.PlacementConfirmed(holder(kind)))
    world.apply(events.PlacementForgotten(holder(kind)))
    assert list(world.core.ledger.rows()) == []


def test_a_pod_that_went_elsewhere_takes_its_row_along() -> None:
    world = placed()
    world.node("n2", UNIT)
    world.other_pod("new", cu(3), node="n2")
    assert (world.node_reserved("n1"), world.node_reserved("n2")) == (ZERO, cu(3))
    assert world.over("n2") == {OverCause.BYPASSED}


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_vm_born_settled_takes_its_row_over(is_confirmed: bool) -> None:
    world = confirmed(Kind.VM) if is_confirmed else placed(Kind.VM)
    world.vm("new", cu(2))
    world.passed(10.0)
    assert (world.node_reserved(), world.record("new").settled) == (cu(2), True)
    assert world.permit(world.request("new", cu(10))) == cu(8)


def test_an_unsettled_vm_takes_its_row_over_at_its_maximum() -> None:
    world = placed(Kind.VM)
    world.vm("new", cu(2), is_new=False)
    assert world.floors("new") == [(Cause.START_UP, cu(8))]
    assert world.core.state.placements == {}


# ------------------------------------------------------------ names


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_named_as_their_placement_says(kind: Kind) -> None:
    row = placed(kind).core.ledger.require(holder(kind))
    assert (row.name, row.node, row.holder) == ("default/placed", "n1", holder(kind))


def test_a_reservation_has_nothing_to_do_with_a_pod_of_its_uid() -> None:
    world = placed(Kind.RESERVATION)
    assert world.assume(holder(), cu(2)) == PLACED
    assert world.node_reserved() == cu(5)
    world.apply(events.PlacementForgotten(holder(Kind.RESERVATION)))
    assert world.node_reserved() == cu(2)


# ------------------------------------------------------------ a pod that becomes a VM, or ceases to be one

EITHER = pytest.mark.parametrize(
    ("before", "after"), [(Kind.POD, Kind.VM), (Kind.VM, Kind.POD)], ids=["becomes a VM", "is none any more"]
)


def show(world: World, kind: Kind, node: str = "n1") -> None:
    """The cluster shows the pod, with 2 units."""
    if kind is Kind.VM:
        world.vm("new", cu(2), node=node)
    else:
        world.other_pod("new", cu(2), node=node)


@EITHER
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_pod_that_is_seen_as_the_other_kind_leaves_no_row_behind(
    before: Kind, after: Kind, node: str
) -> None:
    world = placed(before)
    world.node("n2", cu(10))
    show(world, after, node)
    assert [row.holder for row in world.core.ledger.rows()] == [holder(after)]
    assert world.node_reserved(node) == cu(2)
    world.apply(events.PlacementForgotten(holder(before)))
    assert world.node_reserved(node) == cu(2)


@EITHER
@pytest.mark.parametrize("most", [4, 5])
def test_assumed_anew_as_the_other_kind_it_takes_the_room_that_it_has(
    before: Kind, after: Kind, most: int
) -> None:
    world = placed(before)
    world.other_pod("filler", cu(6))
    answer = world.assume(holder(after), cu(most))
    assert (answer == PLACED) is (most == 4)
    (row,) = [row for row in world.core.ledger.rows() if row.holder.uid == "uid-new"]
    assert (row.holder.kind, row.reserved) == ((after, cu(4)) if most == 4 else (before, cu(3)))


@EITHER
def test_what_is_shown_as_the_other_kind_is_placed_already(before: Kind, after: Kind) -> None:
    world = World()
    world.node("n2", cu(10))
    show(world, before)
    assert world.assume(holder(after), cu(9)) == PLACED
    assert refusal(world.assume(holder(after), UNIT, node="n2")).reason.code is ReasonCode.PLACED_ELSEWHERE
    assert world.node_reserved() == cu(2)


@EITHER
@pytest.mark.parametrize("end", ["forgotten", "gone"])
def test_its_end_under_the_other_kind_ends_it(before: Kind, after: Kind, end: str) -> None:
    world = placed(before)
    if end == "forgotten":
        world.apply(events.PlacementForgotten(holder(after)))
    elif after is Kind.VM:
        world.apply(events.VmGone(pod("new"), "uid-new", 1.0))
    else:
        world.apply(events.PodGone(PodSpec(pod("new"), "uid-new", "n1", UNIT)))
    assert list(world.core.ledger.rows()) == []


# ------------------------------------------------------------ pools

VM = holder(Kind.VM)


def pooled(**limits: Any) -> World:
    """A world whose pool `blue`, of units of 2, holds a VM of 3: 2 units."""
    world = World()
    world.apply(events.PoolSeen(PoolSpec("blue", cu(2), 2, **limits)))
    world.vm("first", cu(3), pool="blue")
    return world


def units(world: World, pool: str = "blue") -> int:
    account = world.core.ledger.pool(pool)
    return account.units if account is not None else 0


@pytest.mark.parametrize(
    ("limits", "amount", "message"),
    [
        ({}, cu(7), ""),
        ({"max_units": 5}, cu(6), ""),
        ({"max_units": 5}, cu(6.001), "pool blue holds 2 of at most 5 units"),
        ({"max_units": 5}, cu(1, 6.5), "pool blue holds 2 of at most 5 units"),
        ({"max_units": 1}, UNIT, "holds 2 of at most 1 unit; nothing grows until it is at or below"),
        ({"max_units": 0}, UNIT, "pool blue is frozen"),
        ({"max_units": 0}, ZERO, ""),
        ({"max_units_per_vm": 2}, cu(4), ""),
        ({"max_units_per_vm": 2}, cu(5), "pool blue allows a VM 2 units"),
        ({"is_deleting": True}, UNIT, "pool blue is being deleted"),
    ],
)
def test_a_placement_needs_room_in_its_pool_too_and_counts_there_at_once(
    limits: dict[str, Any], amount: Resources, message: str
) -> None:
    world = pooled(**limits)
    before, frees = world.node_reserved(), world.core.ledger.frees
    answer = world.assume(VM, amount, pool="blue")
    if not message:
        assert answer == PLACED
        assert units(world) == 2 + amount.units(cu(2))
        assert world.node_reserved() == before + amount
        return
    reason = refusal(answer).reason
    assert (reason.code, message in reason.message) == (ReasonCode.POOL, True)
    assert (units(world), world.node_reserved(), world.core.ledger.frees) == (2, before, frees)


def test_nothing_is_placed_into_a_pool_that_is_not_there() -> None:
    world = World()
    assert refusal(world.assume(VM, UNIT, pool="red")).reason.message == "there is no pool red"
    assert world.core.ledger.pool("red") is None


def test_what_a_pool_counts_already_it_does_not_refuse() -> None:
    world = pooled()
    world.assume(VM, cu(4), pool="blue")
    world.apply(events.PoolSeen(PoolSpec("blue", cu(2), 3, 1)))
    assert world.assume(VM, cu(4), pool="blue") == PLACED
    assert world.assume(VM, cu(3), pool="blue") == PLACED
    refusal(world.assume(VM, cu(5), pool="blue"))
    world.apply(events.PoolGone("blue"))
    assert world.assume(VM, cu(3), pool="blue") == PLACED
    refusal(world.assume(VM, cu(3.5), pool="blue"))
    assert units(world) == 0
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT)))
    assert units(world) == 6


def test_growth_finds_what_is_assumed_in_its_pool() -> None:
    world = pooled(max_units=5)
    world.assume(VM, cu(4), pool="blue")
    answer = world.take(world.request("first", cu(8)), 11)[0]
    assert isinstance(answer, events.AdmissionCallNeeded)
    assert answer.wanted == cu(6)


@pytest.mark.parametrize("pool", ["blue", "red", None])
def test_a_vm_that_was_assumed_is_counted_once_in_the_pool_that_it_names(pool: str | None) -> None:
    world = pooled(max_units=4)
    world.apply(events.PoolSeen(PoolSpec("red", cu(2), max_units=0)))
    world.assume(VM, cu(4), pool="blue")
    world.vm("new", cu(4), pool=pool)
    assert (units(world), units(world, "red")) == {"blue": (4, 0), "red": (2, 2), None: (2, 0)}[pool]
    beyond = {account.name: account.came_beyond for account in world.core.ledger.pools()}
    assert beyond == {"blue": 0, "red": int(pool == "red")}


def test_a_vm_that_nobody_assumed_still_comes_beyond() -> None:
    world = pooled(max_units=2)
    world.vm("new", UNIT, pool="blue")
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.came_beyond) == (3, 1)


@pytest.mark.parametrize("end", ["forgotten", "not seen in time", "seen as a pod that is no VM"])
def test_a_pool_gets_back_what_was_assumed(end: str) -> None:
    world = pooled()
    frees = world.core.ledger.frees
    world.assume(VM, cu(4), pool="blue")
    assert units(world) == 4
    if end == "forgotten":
        world.apply(events.PlacementForgotten(VM))
    elif end == "not seen in time":
        world.passed(10.0)
    else:
        world.other_pod("new", cu(4))
    assert (units(world), world.core.ledger.frees) == (2, frees + 1)


def test_another_pool_is_moved_to_whole_or_not_at_all() -> None:
    world = pooled()
    world.assume(VM, cu(4), pool="blue")
    world.apply(events.PoolSeen(PoolSpec("red", UNIT, max_units=3)))
    refusal(world.assume(VM, cu(4), pool="red"))
    assert (units(world), units(world, "red")) == (4, 0)
    assert world.assume(VM, cu(3), pool="red") == PLACED
    assert (units(world), units(world, "red")) == (2, 3)
