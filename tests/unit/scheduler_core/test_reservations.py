"""Room that is kept for pods which are still to come: when it is kept, who takes it, and when it comes back."""

from dataclasses import dataclass
from typing import Any

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause, Floor, OverCause, RowState
from scheduler.permits.core.model import Holder, Kind, PodSpec, ReservationSpec
from scheduler.permits.core.state import CoreState
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, pod

PLACED = events.Placed(1)
ROW = Holder(Kind.RESERVATION, "r1")
POD = Holder(Kind.POD, "uid-new")
VM = Holder(Kind.VM, "uid-new")


def kept(world: World) -> Resources | None:
    """The amount that the reservation's row keeps; None without a row."""
    row = world.core.ledger.row(ROW)
    return row.reserved if row is not None else None


@dataclass(frozen=True, slots=True)
class ReservationUse:
    """A reservation as it is now: what pods have taken of it (`allocated`), what its row keeps, and why that is not all
    (`reason`). One that is not `is_open` serves nobody any more."""

    spec: ReservationSpec
    allocated: Resources
    kept: Resources
    is_open: bool
    reason: Reason | None = None


def reservations_of(core: CoreState, node: str) -> tuple[ReservationUse, ...]:
    found = []
    for account in core.reservations:
        if account.spec is not None and account.spec.node == node:
            row = core.ledger.row(account.holder)
            kept = row.reserved if row is not None else ZERO
            found.append(
                ReservationUse(account.spec, account.allocated, kept, account.is_open, account.reason)
            )
    return tuple(found)


def use(world: World, node: str = "n1") -> ReservationUse:
    """The reservation as plugins are shown it."""
    (found,) = reservations_of(world.core.state, node)
    return found


def reserved(amount: Resources | None = None, **more: Any) -> World:
    """A world of 10 units, of which a reservation keeps 4 (`amount`)."""
    world = World()
    world.reserve(amount or cu(4), **more)
    return world


def refusal(output: events.Output) -> str:
    """Why a placement was refused."""
    assert isinstance(output, events.NotPlaced), output
    assert output.reason.code is ReasonCode.NODE_HEADROOM
    return output.reason.message


# ------------------------------------------------------------ the row


@pytest.mark.parametrize(
    ("filled", "node", "more", "expected", "reason"),
    [
        (cu(6), "n1", {}, cu(4), ""),
        (cu(6.001, 1), "n1", {}, None, "the other holders leave 3999m CPU of the node"),
        (cu(1, 7), "n1", {}, None, "the other holders leave 3Gi of the node"),
        (ZERO, "n9", {}, None, "there is no node n9"),
        (ZERO, "", {}, None, ""),
        (ZERO, "n1", {"has_ended": True}, None, ""),
    ],
)
def test_it_is_kept_whole_where_it_fits(
    filled: Resources, node: str, more: dict[str, Any], expected: Resources | None, reason: str
) -> None:
    world = World()
    world.other_pod("filler", filled)
    world.reserve(cu(4), node=node, **more)
    assert kept(world) == expected
    found = use(world, node)
    assert (found.kept, found.allocated) == (expected or ZERO, ZERO)
    assert found.is_open is (bool(node) and not more)
    assert (found.reason.message if found.reason is not None else "") == reason
    assert world.over() == set()


def test_what_did_not_fit_is_tried_again_with_each_read_of_the_cluster() -> None:
    world = World()
    filler = world.other_pod("filler", cu(8))
    world.reserve(cu(4))
    world.apply(events.ClusterRead(1.0))
    assert kept(world) is None
    world.apply(events.PodGone(filler))
    world.apply(events.ClusterRead(2.0))
    assert (kept(world), use(world).reason) == (cu(4), None)


def test_one_that_is_pre_allocated_keeps_what_is_free_and_never_more() -> None:
    """It gives nothing back before it has all, and is no less protected than any other one."""
    world = World()
    fillers = [world.other_pod(name, cu(4)) for name in ("a", "b")]
    world.reserve(cu(8), is_pre_allocated=True)
    assert (kept(world), use(world).reason is not None) == (cu(2), True)
    for number, (filler, expected) in enumerate(zip(fillers, (cu(6), cu(8)), strict=True)):
        world.apply(events.PodGone(filler))
        world.apply(events.ClusterRead(float(number)))
        assert kept(world) == expected
        assert world.over() == set()
    assert use(world).reason is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"allocatable": cu(2)}, cu(2)),
        ({"allocatable": cu(7)}, cu(7)),
        ({"allocatable": cu(11)}, cu(4)),  # what it has it keeps
        ({"node": "n2"}, cu(4)),
        ({"node": "n3"}, None),
        ({"node": ""}, None),
        ({"has_ended": True}, None),
    ],
)
def test_its_row_follows_its_description(change: dict[str, Any], expected: Resources | None) -> None:
    world = reserved()
    world.node("n2", cu(10))
    world.node("n3", cu(3))
    described: dict[str, Any] = {
        "uid": "r1",
        "name": "default/r1",
        "node": "n1",
        "allocatable": cu(4),
    } | change
    world.apply(events.ReservationSeen(ReservationSpec(**described)))
    assert kept(world) == expected
    world.apply(events.ReservationGone("r1"))
    world.apply(events.ReservationGone("r1"))
    assert (kept(world), list(world.core.state.reservations)) == (None, [])


def test_growth_does_not_take_what_is_reserved() -> None:
    world = reserved()
    world.vm("vm")
    assert world.permit(world.request("vm", cu(8))) == cu(6)


@pytest.mark.parametrize("end", ["seen", "gone", "forgotten"])
def test_one_that_was_placed_by_us_takes_its_room_over(end: str) -> None:
    world = World()
    world.reserve(cu(4), node="")
    assert world.assume(ROW, cu(4)) == PLACED
    world.reserve(cu(4), node="")
    assert kept(world) == cu(4), "it is not bound yet"
    if end == "seen":
        world.other_pod("filler", cu(50))
        world.reserve(cu(4))
        assert world.core.ledger.require(ROW).state == RowState(cu(4))
        world.passed(10.0)
        assert world.assume(ROW, cu(4)) == PLACED
    else:
        world.apply(events.ReservationGone("r1") if end == "gone" else events.PlacementForgotten(ROW))
    assert kept(world) == (cu(4) if end == "seen" else None)


# ------------------------------------------------------------ users


@pytest.mark.parametrize(
    ("amount", "filled", "is_placed", "left"),
    [
        (cu(3), cu(6), True, cu(1)),
        (cu(4), cu(6), True, ZERO),
        (cu(5), cu(5), True, ZERO),
        (cu(5), cu(6), False, cu(4)),
        (cu(3, 5), cu(4, 5), True, cu(1, 0)),
        (cu(3, 5), cu(4, 6), False, cu(4)),
    ],
)
@pytest.mark.parametrize("once", [True, False])
def test_a_pod_takes_the_room_of_its_reservation_first(
    amount: Resources, filled: Resources, is_placed: bool, left: Resources, once: bool
) -> None:
    world = reserved(allocate_once=once)
    world.other_pod("filler", filled)
    answer = world.assume(POD, amount, reservation="r1")
    assert (answer == PLACED) is is_placed
    assert kept(world) == left
    assert use(world).allocated == (amount.min(cu(4)) if is_placed else ZERO)
    assert world.over() == set()


def test_on_an_over_full_node_a_pod_gets_what_is_reserved_for_it_and_no_more() -> None:
    world = reserved()
    world.other_pod("filler", cu(20))
    assert "leave 4 CPU" in refusal(world.assume(POD, cu(5), reservation="r1"))
    before = world.node_reserved()
    assert world.assume(POD, cu(3), reservation="r1") == PLACED
    assert (world.node_reserved(), world.over()) == (before, {OverCause.BYPASSED})


@pytest.mark.parametrize(
    ("uid", "message"),
    [
        ("r9", "node n1 has no reservation r9 that can be used"),
        ("elsewhere", "node n1 has no reservation elsewhere that can be used"),
        ("ended", "node n1 has no reservation ended that can be used"),
        ("taken", "reservation default/taken serves another pod"),
    ],
)
def test_a_reservation_that_cannot_be_used_refuses(uid: str, message: str) -> None:
    world = World()
    world.node("n2", cu(10))
    world.reserve(UNIT, uid="elsewhere", node="n2")
    world.reserve(UNIT, uid="ended", has_ended=True)
    world.reserve(cu(3), uid="taken")
    world.assume(Holder(Kind.POD, "uid-first"), UNIT, reservation="taken")
    before = world.node_reserved()
    assert refusal(world.assume(POD, UNIT, reservation=uid)) == message
    assert world.node_reserved() == before


@pytest.mark.parametrize(
    "end", ["forgotten", "not seen in time", "asked again without it", "asked elsewhere"]
)
@pytest.mark.parametrize("once", [True, False])
def test_a_placement_that_ends_gives_back_what_it_took(end: str, once: bool) -> None:
    world = reserved(allocate_once=once)
    world.node("n2", cu(10))
    world.assume(POD, cu(3), reservation="r1")
    match end:
        case "forgotten":
            world.apply(events.PlacementForgotten(POD))
        case "not seen in time":
            world.passed(10.0)
        case "asked again without it":
            assert world.assume(POD, cu(3)) == PLACED
        case _:
            assert world.assume(POD, cu(3), node="n2") == PLACED
    assert (kept(world), use(world).allocated) == (cu(4), ZERO)


def test_asked_again_it_takes_what_it_needs_now() -> None:
    world = reserved()
    world.other_pod("filler", cu(5))
    for amount, left in ((cu(3), cu(1)), (cu(1), cu(3)), (cu(5), ZERO), (cu(2), cu(2))):
        assert world.assume(POD, amount, reservation="r1") == PLACED
        assert (kept(world), use(world).allocated) == (left, amount.min(cu(4)))
    refusal(world.assume(POD, cu(6), reservation="r1"))
    assert (kept(world), world.state("new").reserved) == (cu(2), cu(2))


def show(world: World, kind: Kind, amount: Resources, reservation: str | None) -> None:
    if kind is Kind.VM:
        world.vm("new", amount, reservation=reservation)
    else:
        world.other_pod("new", amount, reservation=reservation)


def end(world: World, kind: Kind) -> None:
    if kind is Kind.VM:
        world.apply(events.VmGone(pod("new"), "uid-new", 5.0))
    else:
        world.apply(events.PodGone(PodSpec(pod("new"), "uid-new", "n1", UNIT)))


KINDS = pytest.mark.parametrize("kind", [Kind.POD, Kind.VM])


@KINDS
@pytest.mark.parametrize("assumed", [POD, VM], ids=["assumed as a pod", "assumed as a VM"])
@pytest.mark.parametrize("named", [None, "r1"], ids=["its pod does not name it", "its pod names it"])
@pytest.mark.parametrize("seen", [cu(2), cu(3), cu(4), cu(5)], ids=str)
def test_a_pod_that_is_seen_keeps_what_it_took_of_what_it_has(
    seen: Resources, named: str | None, assumed: Holder, kind: Kind
) -> None:
    world = reserved(allocate_once=False)
    world.assume(assumed, cu(3), reservation="r1")
    show(world, kind, seen, named)
    taken = seen.min(cu(4))
    assert (use(world).allocated, kept(world)) == (taken, cu(4) - taken)
    assert world.node_reserved() == cu(4).max(seen)
    assert world.core.state.placements == {}
    end(world, kind)
    assert (kept(world), world.node_reserved()) == (cu(4), cu(4))


@KINDS
def test_one_for_one_pod_is_used_up_when_that_is_seen(kind: Kind) -> None:
    world = reserved()
    world.assume(POD, cu(3), reservation="r1")
    assert kept(world) == cu(1)
    show(world, kind, cu(3), "r1")
    assert (kept(world), use(world).is_open, use(world).allocated) == (None, False, cu(3))
    refusal(world.assume(Holder(Kind.POD, "uid-other"), UNIT, reservation="r1"))
    world.reserve(cu(4))
    end(world, kind)
    world.reserve(cu(4))
    assert (kept(world), world.node_reserved()) == (None, ZERO)


@KINDS
def test_what_ended_meanwhile_gets_nothing_back(kind: Kind) -> None:
    world = reserved(allocate_once=False)
    show(world, kind, cu(3), "r1")
    world.reserve(cu(4), allocate_once=False, has_ended=True)
    assert (kept(world), world.node_reserved()) == (None, cu(3))
    end(world, kind)
    assert world.node_reserved() == ZERO


@KINDS
@pytest.mark.parametrize("is_first", [True, False], ids=["the pod is seen first", "the reservation is"])
@pytest.mark.parametrize("once", [True, False])
def test_a_process_that_starts_learns_what_is_allocated(kind: Kind, is_first: bool, once: bool) -> None:
    world = World()
    for step in ("pod", "reservation") if is_first else ("reservation", "pod"):
        if step == "pod":
            show(world, kind, cu(3), "r1")
        else:
            world.reserve(cu(4), allocate_once=once)
    assert (kept(world), use(world).allocated) == (None if once else cu(1), cu(3))
    assert world.over() == set()


def test_a_pod_on_another_node_takes_nothing() -> None:
    world = reserved()
    world.node("n2", cu(10))
    world.assume(POD, cu(3), reservation="r1")
    world.other_pod("new", cu(3), node="n2", reservation="r1")
    assert (kept(world), use(world).allocated, use(world).is_open) == (cu(4), ZERO, True)


def test_what_a_pod_gives_back_is_not_taken_from_those_who_got_it_meanwhile() -> None:
    world = reserved(allocate_once=False)
    world.vm("new", cu(3), reservation="r1")
    world.permit(world.request("new", UNIT))
    world.other_pod("filler", cu(8))
    world.apply(events.VmGone(pod("new"), "uid-new", 5.0))
    assert (kept(world), world.node_reserved(), world.over()) == (cu(1), cu(9), set())
    assert use(world).reason is not None


def test_what_is_assumed_is_no_current_permit_of_a_reservation_that_nobody_shows() -> None:
    """Room that another program assumed under a reservation's UID is that of a placement, and users take none of it."""
    world = World()
    world.assume(ROW, cu(4))
    assert "no reservation r1" in refusal(world.assume(POD, UNIT, reservation="r1"))
    world.other_pod("new", UNIT, reservation="r1")
    assert world.core.ledger.require(ROW).state == RowState(ZERO, (Floor(Cause.ASSUMED, cu(4), 10.0),))
