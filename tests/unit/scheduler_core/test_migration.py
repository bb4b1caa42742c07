"""Pressure, and which VM leaves because of it: the published rule repaired, in exact arithmetic."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources
from protocol.wire import Metrics
from scheduler.permits.core import decision, events
from scheduler.permits.core.ledger import NodeAccount, NodeCapacity
from scheduler.permits.core.migration import is_under_pressure
from scheduler.permits.core.model import Holder, Kind, Migration
from scheduler.permits.core.rules import Rules
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import HERE, NEXT_AGENT, World, codes, pod, rules

ON = rules(watermark=0.7, migration=True)

# ------------------------------------------------------------ the rule

small = st.integers(0, 12)
amounts = st.builds(Resources, small, small)


def published(
    mark: Resources, reserved: Resources, buffer: Resources, pressure: Resources, accounted: Resources
) -> bool:
    """The published formula (reference/neon.md 2.4) per resource, both treated alike and memory accounted for, too."""
    columns = [amount.named() for amount in (mark, reserved, buffer, pressure, accounted)]
    if all(have <= limit for (_, limit), (_, have) in zip(columns[0], columns[1], strict=True)):
        return False
    for (_, limit), (_, have), (_, unused), (_, denied), (_, leaving) in zip(*columns, strict=True):
        logical = max(0, have - limit)
        slack = unused + max(0, limit - have)
        if logical + denied > leaving + slack:
            return True
    return False


@settings(max_examples=100, deadline=None)
@given(amounts, amounts, amounts, amounts, amounts)
def test_pressure_is_what_the_published_rule_says_repaired(
    mark: Resources, reserved: Resources, buffer: Resources, pressure: Resources, accounted: Resources
) -> None:
    account = NodeAccount(NodeCapacity("n1", cu(100), mark), reserved, buffer, pressure, accounted)
    assert is_under_pressure(account) == published(mark, reserved, buffer, pressure, accounted)


@pytest.mark.parametrize(
    ("reserved", "pressure", "accounted", "expected"),
    [
        (cu(7), cu(100), ZERO, False),  # at the watermark is not above it, in either resource
        (cu(7, 7.1), ZERO, ZERO, True),
        (cu(7.1, 7), ZERO, ZERO, True),
        (cu(9), ZERO, cu(2), False),  # what leaves is enough, exactly
        (cu(9), Resources(1, 0), cu(2), True),
        (cu(9), ZERO, cu(2, 1.9), True),  # memory counts as accounted for on its own
        (cu(9, 1), cu(0, 6), cu(2, 0), False),  # denied memory fits below the watermark
        (cu(9, 1), cu(0, 6.1), cu(2, 0), True),
    ],
)
def test_the_edges_of_pressure(
    reserved: Resources, pressure: Resources, accounted: Resources, expected: bool
) -> None:
    account = NodeAccount(NodeCapacity("n1", cu(10), cu(7)), reserved, ZERO, pressure, accounted)
    assert is_under_pressure(account) is expected


def test_what_is_kept_beyond_permits_is_no_pressure() -> None:
    """An unsettled VM is reserved at 8, of which 6 are expected to be unused."""
    world = World()
    world.configure(ON)
    world.vm("vm", cu(2), is_new=False)
    assert not is_under_pressure(world.account())


# ------------------------------------------------------------ what is denied


def denied(want: Resources, free: Resources, use: Resources = UNIT) -> World:
    """A VM of `use` that asked for `want` on a node where `free` is left beside it."""
    world = World()
    world.other_pod("filler", cu(10) - free - use)
    world.vm("vm", use)
    world.send(world.request("vm", want))
    return world


@pytest.mark.parametrize(
    ("want", "free", "pressure"),
    [
        (cu(6), cu(2), cu(3)),
        (cu(3), cu(2), ZERO),
        (cu(9), ZERO, cu(7)),
        (cu(5, 1), UNIT, cu(3, 0)),
        (cu(50), cu(2), cu(5)),  # the bounds allow 8, of which 3 are given
    ],
)
def test_what_is_denied_for_want_of_room_is_pressure(
    want: Resources, free: Resources, pressure: Resources
) -> None:
    assert denied(want, free).account().pressure == pressure


@pytest.mark.parametrize(
    ("held_back", "is_new", "names"),
    [
        (rules(stopped=True), True, HERE),
        (rules(recommend_only=True), True, HERE),
        (rules(), False, None),
    ],
    ids=["stopped", "recommend-only", "start-up"],
)
def test_what_configuration_and_start_up_deny_is_none(
    held_back: Rules, is_new: bool, names: UUID | None
) -> None:
    world = World()
    world.configure(held_back)
    world.vm("vm", UNIT, is_new=is_new)
    assert world.permit(world.request("vm", cu(6), names=names)) == UNIT
    assert world.account().pressure == ZERO


@pytest.mark.parametrize("want", [cu(3), cu(2), cu(3, 1)])
def test_an_equal_or_lower_request_clears_it(want: Resources) -> None:
    world = denied(cu(6), cu(2))
    world.permit(world.request("vm", want))
    assert (world.account().pressure, world.state().pressure) == (ZERO, ZERO)


def test_a_grant_clears_it_and_a_partial_one_lessens_it() -> None:
    world = denied(cu(6), cu(2))
    world.other_pod("filler", cu(5))
    world.permit(world.request("vm", cu(6)))
    assert world.account().pressure == UNIT
    world.other_pod("filler", cu(4))
    world.permit(world.request("vm", cu(6)))
    assert world.account().pressure == ZERO


def test_a_retry_counts_once() -> None:
    world = denied(cu(6), cu(2))
    world.send(world.request("vm", cu(6), seq=1))
    assert world.account().pressure == cu(3)


def test_what_was_denied_to_an_agent_that_is_heard_no_more_is_forgotten() -> None:
    world = denied(cu(4), cu(1))
    account = world.account()
    assert account.pressure != ZERO
    world.ticked(59.0)
    assert account.pressure != ZERO
    world.ticked(61.0)
    assert account.pressure == ZERO


def test_the_pressure_of_vms_adds_up_and_goes_with_them() -> None:
    world = denied(cu(6), cu(2))
    world.vm("other")  # bypassed: the node is over-full
    world.send(world.request("other", cu(3)))
    assert world.account().pressure == cu(3) + cu(2)
    world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0))
    assert world.account().pressure == cu(2)


# ------------------------------------------------------------ the victim


def crowd(**loads: float | None) -> World:
    """Settled VMs of 3 units with these loads (None: no metrics yet), watermark 7 of 10: three are too many."""
    world = World()
    world.configure(ON)
    for name, load in loads.items():
        world.vm(name, cu(3))
        if load is not None:
            world.permit(world.request(name, cu(3), metrics=Metrics(load, 0.0)))
    return world


def wanted(world: World, at: float = 1.0) -> list[str]:
    """The VMs that the clock wants to leave."""
    found = [out for out in world.ticked(at) if isinstance(out, events.MigrationWanted)]
    for out in found:
        assert (out.uid, out.node) == (f"uid-{out.pod.name}", world.record(out.pod.name).spec.node)
    return [out.pod.name for out in found]


AUTO, NEVER, ALWAYS = Migration.AUTO, Migration.NEVER, Migration.ALWAYS
VICTIMS: dict[str, tuple[dict[str, float | None], dict[str, Migration], list[str]]] = {
    "no pressure": ({"a": 1.0, "b": 1.0}, {}, []),
    "the lowest load": ({"a": 2.0, "b": 1.0, "c": 3.0}, {}, ["b"]),
    "a load of nothing": ({"a": 0.5, "b": 0.0, "c": None}, {}, ["b"]),
    "the only known load": ({"a": None, "b": 9.0, "c": None}, {}, ["b"]),
    "the first name": ({"b": 1.0, "a": 1.0, "c": 1.0}, {}, ["a"]),
    "the first name of unknown load": ({"c": None, "b": None, "a": None}, {}, ["a"]),
    "one must stay": ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": NEVER}, ["b"]),
    "all must stay": ({"a": 1.0, "b": 2.0, "c": 3.0}, dict.fromkeys("abc", NEVER), []),
    "one always leaves": ({"a": 1.0, "b": 2.0, "c": 3.0}, {"c": ALWAYS}, ["c"]),
    "one always leaves without pressure": ({"a": 1.0, "b": 2.0}, {"b": ALWAYS}, ["b"]),
    "one always leaves once its load is known": ({"a": None}, {"a": ALWAYS}, []),
}


@pytest.mark.parametrize(("loads", "modes", "victim"), VICTIMS.values(), ids=VICTIMS)
def test_who_leaves(loads: dict[str, float | None], modes: dict[str, Migration], victim: list[str]) -> None:
    world = crowd(**loads)
    for name, mode in modes.items():
        world.see(name, None, at=0.0, migration=mode)
    assert wanted(world) == victim


def test_it_never_happens_while_it_is_switched_off() -> None:
    world = crowd(a=1.0, b=1.0, c=1.0)
    world.see("a", None, at=0.0, migration=Migration.ALWAYS)
    for off in (rules(watermark=0.7), rules(watermark=0.01)):
        world.configure(off)
        assert all(wanted(world, at) == [] for at in (1.0, 2.0, 500.0))
    world.configure(ON)
    assert wanted(world, 501.0) == ["a"]


@pytest.mark.parametrize("migration", [Migration.AUTO, Migration.ALWAYS])
def test_a_vm_larger_than_the_watermark_fits_nowhere_better(migration: Migration) -> None:
    world = crowd(a=9.0)
    world.vm("b", cu(7, 7.5), most=cu(8))
    world.permit(world.request("b", cu(7, 7.5), metrics=Metrics(0.0, 0.0)))
    world.see("b", None, at=0.0, migration=migration)
    assert wanted(world) == ["a"]


def test_an_unsettled_vm_does_not_leave() -> None:
    world = crowd(a=5.0, b=6.0)
    world.vm("c", cu(3), is_new=False, most=cu(3))
    world.permit(world.request("c", cu(3), names=None, metrics=Metrics(0.0, 0.0)))
    assert wanted(world) == ["a"]


def test_other_pods_and_placements_never_leave() -> None:
    world = World()
    world.configure(ON)
    world.other_pod("filler", cu(6))
    world.assume(Holder(Kind.VM, "uid-new"), cu(4))
    world.apply(events.PlacementConfirmed(Holder(Kind.VM, "uid-new")))
    assert is_under_pressure(world.account())
    assert wanted(world) == []


def test_every_node_has_its_own_victim() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    world.node("n2", cu(4))
    world.vm("far", cu(2), node="n2")
    assert wanted(world) == ["a"]
    world.vm("too", cu(2), node="n2")
    assert wanted(world, 2.0) == ["far"]


# ------------------------------------------------------------ from wanted to gone


def leaving() -> World:
    """Three VMs of 3 units; the migration of `a` is under way, which accounts for the pressure."""
    world = crowd(a=1.0, b=2.0, c=3.0)
    assert wanted(world) == ["a"]
    assert world.apply(events.MigrationStarted("uid-a")) == ()
    return world


def test_one_at_a_time_and_a_migration_under_way_accounts_for_the_pressure() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    assert [wanted(world, at) for at in (1.0, 2.0, 3.0, 900.0)] == [["a"], [], [], []]
    assert world.account().accounted == ZERO
    world.apply(events.MigrationStarted("uid-a"))
    assert (world.account().accounted, wanted(world, 901.0)) == (cu(3), [])
    world.permit(world.request("a", cu(5)))  # what it was denied goes along
    assert (world.account().pressure, world.account().accounted) == (cu(2), cu(5))
    assert wanted(world, 902.0) == []
    world.apply(events.VmGone(pod("a"), "uid-a", 903.0))
    account = world.account()
    assert (account.reserved, account.pressure, account.accounted) == (cu(6), ZERO, ZERO)
    assert wanted(world, 904.0) == []


def test_the_next_leaves_only_if_that_is_not_enough() -> None:
    world = leaving()
    world.other_pod("filler", cu(2))  # bypassed: 11 of 10, 4 above the watermark
    assert wanted(world, 2.0) == ["b"]
    world.apply(events.MigrationStarted("uid-b"))
    assert world.account().accounted == cu(6)
    assert wanted(world, 3.0) == []


def test_a_leaving_vm_does_not_grow_and_is_told_that_it_leaves() -> None:
    world = leaving()
    answer = world.decide(world.request("a", cu(4)))
    assert (answer.permit, answer.migrate, codes(answer)) == (cu(3), True, [ReasonCode.MIGRATING])
    assert decision.message(answer).migrate is not None
    other = world.send(world.request("b", cu(3)))
    assert isinstance(other, events.Decided)
    assert not other.migrate
    assert decision.message(other).migrate is None


@pytest.mark.parametrize("want", [cu(2.123), cu(3, 1), cu(1, 2)])
def test_its_decreases_are_exact_and_move_the_sums(want: Resources) -> None:
    world = leaving()
    assert world.permit(world.request("a", want)) == want
    assert world.account().accounted == want
    assert world.account().buffer == cu(3) - want  # until a read shows it
    world.read("a", want, at=2.0)
    assert world.account().accounted == want
    assert world.state("a").migrating


def test_a_retry_of_an_older_answer_says_that_it_leaves_by_now() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    world.apply(events.MigrationStarted("uid-a"))
    answer = world.decide(world.request("a", cu(3), seq=1, metrics=Metrics(1.0, 0.0)))
    assert answer.migrate


ENDS: dict[str, tuple[bool, events.Input]] = {
    "not started": (False, events.MigrationFailed("uid-a", 31.0)),
    "given up": (True, events.MigrationEnded("uid-a", retry_at_s=31.0)),
}


@pytest.mark.parametrize(("is_started", "end"), ENDS.values(), ids=ENDS)
def test_after_a_migration_that_did_not_happen_its_node_is_left_alone_for_a_while(
    is_started: bool, end: events.Input
) -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    before = [row.state for row in world.core.ledger.rows()]
    assert wanted(world) == ["a"]
    if is_started:
        world.apply(events.MigrationStarted("uid-a"))
    world.apply(end)
    assert [row.state for row in world.core.ledger.rows()] == before
    assert world.account().accounted == ZERO
    assert world.permit(world.request("a", cu(4))) == cu(4), "it may grow again"
    assert (wanted(world, 30.9), wanted(world, 31.0)) == ([], ["a"])
    assert world.core.state.migrate_after_s == {}


def test_what_a_leaving_vm_keeps_beyond_its_permit_counts_once() -> None:
    world = leaving()
    world.other_pod("filler", cu(2))  # 11 reserved, 4 above the watermark
    world.permit(world.request("a", cu(1)))  # the last read still shows 3
    assert world.account().reserved == cu(11)
    assert wanted(world, 2.0) == ["b"]  # what `a` gives back is 3, whatever of it is buffer


def test_a_failed_start_keeps_other_nodes_free() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    world.node("n2", cu(4))
    world.vm("far", cu(2), node="n2")
    world.vm("too", cu(2), node="n2")
    assert wanted(world) == ["a", "far"]
    world.apply(events.MigrationFailed("uid-a", 100.0))
    world.apply(events.MigrationFailed("uid-far", 2.0))
    assert wanted(world, 2.0) == ["far"]


def test_a_vm_that_goes_while_its_migration_is_started_blocks_nobody() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0, d=4.0)
    assert wanted(world) == ["a"]
    world.apply(events.VmGone(pod("a"), "uid-a", 1.5))
    for event in (
        events.MigrationStarted("uid-a"),
        events.MigrationFailed("uid-a", 900.0),
        events.MigrationEnded("uid-a"),
    ):
        assert world.apply(event) == ()
    assert wanted(world, 2.0) == ["b"]


def test_a_later_life_of_the_agent_leaves_the_migration_as_it_is() -> None:
    world = leaving()
    world.permit(world.request("a", cu(1), agent=NEXT_AGENT, started=9000), at=2.0)
    assert world.state("a").migrating
    assert world.account().accounted + world.account().buffer == world.state("a").reserved == cu(3)


def test_a_victim_that_waits_for_a_pool_gets_no_more() -> None:
    world = crowd(a=1.0, b=2.0, c=3.0)
    world.see("a", None, at=0.0, pool="blue")
    world.take(world.request("a", cu(4)), 11, at=0.5)
    assert wanted(world) == ["a"]
    world.apply(events.MigrationStarted("uid-a"))
    assert (world.account().accounted, world.account().buffer) == (cu(3), UNIT)
    (answer,) = world.pool_says(11, events.PoolVerdict(), at=2.0)
    assert isinstance(answer, events.Decided)
    assert (answer.permit, answer.migrate) == (cu(3), True)
    assert (world.account().reserved, world.account().accounted) == (
        cu(9),
        cu(4),
    )  # the denied unit goes along
