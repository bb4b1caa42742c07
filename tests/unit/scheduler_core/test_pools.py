"""Pools: what their VMs take of them, their own limits, and what a verdict's total leaves to each."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.reasons import ReasonCode
from protocol.values import Bounds, Resources
from protocol.wire import SlotResources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import POOL_LABEL, PoolSpec
from scheduler.permits.core.rules import DEFAULT_RULES as RULES
from scheduler.permits.core.rules import DefaultPool, Rules
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import ELSEWHERE, EVERYWHERE, HERE, World, codes

ALL = events.PoolVerdict()


def pool(world: World, name: str = "blue", unit: Resources = UNIT, **limits: Any) -> None:
    """The pool of that name is described like this from now on."""
    world.apply(events.PoolSeen(PoolSpec(name, unit, **limits)))


def member(world: World, name: str, use: Resources = UNIT, of: str | None = "blue", **vm: Any) -> None:
    world.vm(name, use, pool=of, **vm)


def label(world: World, name: str, to: str | None) -> None:
    """A VM belongs to that pool from now on."""
    world.see(name, None, at=0.0, pool=to)


def pooled(*uses: Resources, **limits: Any) -> World:
    """A world whose VMs `a`, `b`, ... of these sizes belong to the pool `blue`."""
    world = World(cu(40))
    pool(world, **limits)
    for index, use in enumerate(uses):
        member(world, "abcdef"[index], use)
    return world


def held(world: World, name: str = "blue") -> int:
    account = world.core.ledger.pool(name)
    return account.units if account is not None else 0


def waits(world: World, name: str, want: Resources, ticket: int) -> events.AdmissionCallNeeded:
    *_, needed = world.take(world.request(name, want), ticket)
    assert isinstance(needed, events.AdmissionCallNeeded), needed
    return needed


def gets(world: World, ticket: int, total: int | None, generation: int | None = None) -> events.Decided:
    """The decision on a request that waits, once its verdict is there."""
    (answer,) = world.pool_says(ticket, events.PoolVerdict(total, generation=generation))
    assert isinstance(answer, events.Decided), answer
    return answer


def refused(world: World, name: str, want: Resources) -> str:
    """The message with which a pool lets nothing grow, without anybody being asked."""
    current = world.state(name).current
    answer = world.decide(world.request(name, want))
    assert (answer.permit, codes(answer)) == (current, [ReasonCode.POOL])
    return answer.reasons[0].message


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(
    ("use", "unit", "units"),
    [
        (cu(1), cu(1), 1),
        (cu(1.5), cu(1), 2),
        (cu(4), cu(2), 2),
        (cu(4.001, 4), cu(2), 3),
        (cu(4), cu(0.5), 8),
        (cu(1, 6), cu(1), 6),
        (cu(6, 1), cu(1), 6),
        (cu(2, 6), cu(1, 4), 2),
        (cu(0), cu(1), 0),
    ],
)
def test_a_part_is_the_most_units_that_any_resource_takes(
    use: Resources, unit: Resources, units: int
) -> None:
    assert held(pooled(use, unit=unit)) == units


def test_parts_are_rounded_one_by_one() -> None:
    assert held(pooled(cu(1.5), cu(1.5))) == 4


def test_another_unit_counts_everybody_anew() -> None:
    world = pooled(cu(4), cu(3))
    pool(world, unit=cu(2), generation=2)
    assert held(world) == 4


def test_a_vm_counts_at_its_maximum_until_it_is_settled() -> None:
    world = pooled(max_units=13)
    member(world, "a", is_new=False)
    assert held(world) == 8
    world.see("a", None, at=0.0, bounds=Bounds(UNIT, cu(12)))
    member(world, "b")
    world.send(world.request("a", cu(2), claim=cu(2), names=ELSEWHERE))
    assert held(world) == 13
    assert refused(world, "b", cu(2)) == "pool blue holds 13 of at most 13 units"
    world.send(world.request("a", cu(2), claim=cu(2)))
    assert held(world) == 3
    waits(world, "b", cu(2), 1)


def test_what_is_in_use_counts_and_what_is_pending_does_not() -> None:
    world = pooled(UNIT)
    waits(world, "a", cu(4), 1)
    assert (held(world), world.causes("a")) == (1, {Cause.PENDING})
    world.read("a", cu(3), at=1.0)
    assert held(world) == 3


def test_a_vm_that_goes_takes_nothing() -> None:
    world = pooled(cu(2), cu(3))
    world.see_ended("b", at=1.0)
    assert held(world) == 2


# ---------------------------------------------------------------- births and labels


def test_nothing_grows_in_a_pool_that_births_have_lifted_above_its_maximum() -> None:
    world = pooled(cu(2), max_units=4)
    member(world, "b", cu(3))
    assert held(world) == 5
    assert (
        refused(world, "a", cu(3))
        == "pool blue holds 5 of at most 4 units; nothing grows until it is at or below"
    )
    world.permit(world.request("b", cu(2)))
    world.read("b", cu(2), at=1.0)
    assert refused(world, "a", cu(3)) == "pool blue holds 4 of at most 4 units"
    world.permit(world.request("b", UNIT))
    world.read("b", UNIT, at=2.0)
    waits(world, "a", cu(3), 1)
    assert gets(world, 1, 4).permit == cu(3)


def test_not_even_within_its_unit_does_a_vm_grow_in_a_pool_that_is_above_its_maximum() -> None:
    world = pooled(UNIT, cu(4), unit=cu(2), max_units=2)
    assert held(world) == 3
    refused(world, "a", cu(2))


@pytest.mark.parametrize(("born", "permit"), [(cu(2), cu(2)), (cu(4), UNIT)])
def test_a_birth_while_a_vm_waits_counts_when_the_verdict_comes(born: Resources, permit: Resources) -> None:
    world = pooled(UNIT)
    waits(world, "a", cu(4), 1)
    member(world, "b", born)
    answer = gets(world, 1, 4)
    assert (answer.permit, codes(answer)) == (permit, [ReasonCode.POOL])


def test_a_label_moves_the_part_of_a_vm_and_may_lift_a_pool_above_its_maximum() -> None:
    world = pooled(UNIT, max_units=3)
    pool(world, "red", cu(0.5))
    member(world, "b", cu(3), of="red")
    assert (held(world), held(world, "red")) == (1, 6)
    label(world, "b", "blue")
    assert (held(world), held(world, "red")) == (4, 0)
    above = "pool blue holds 4 of at most 3 units; nothing grows until it is at or below"
    assert refused(world, "a", cu(2)) == above
    label(world, "b", None)
    assert held(world) == 1
    waits(world, "a", cu(2), 1)


# ---------------------------------------------------------------- the pool's own limits


def test_the_maximum_of_a_pool_is_shared() -> None:
    world = pooled(cu(2), UNIT, max_units=5)
    assert waits(world, "b", cu(8), 1).wanted == cu(3)
    answer = gets(world, 1, None)
    assert (answer.permit, codes(answer)) == (cu(3), [ReasonCode.POOL])
    assert held(world) == 5


@pytest.mark.parametrize(
    ("unit", "per_vm", "permit"), [(cu(1), 3, cu(3)), (cu(0.5), 5, cu(2)), (cu(2), 2, cu(4))]
)
def test_a_vm_has_its_own_maximum(unit: Resources, per_vm: int, permit: Resources) -> None:
    world = pooled(UNIT, unit=unit, max_units_per_vm=per_vm)
    assert waits(world, "a", cu(8), 1).wanted == permit
    assert codes(gets(world, 1, None)) == [ReasonCode.POOL]


def test_a_vm_that_is_larger_than_one_may_be_does_not_grow() -> None:
    world = pooled(cu(4), max_units_per_vm=3)
    assert refused(world, "a", cu(5)) == "pool blue allows a VM 3 units"


def test_limits_that_fall_while_a_vm_waits_hold() -> None:
    world = pooled(UNIT, UNIT)
    waits(world, "a", cu(8), 1)
    pool(world, max_units=5, max_units_per_vm=6)
    assert gets(world, 1, None).permit == cu(4)


def test_growth_within_a_unit_that_is_counted_already_asks_nobody() -> None:
    world = pooled(UNIT, unit=cu(4))
    assert world.permit(world.request("a", cu(4))) == cu(4)
    assert held(world) == 1


def test_growth_of_one_resource_within_the_part_of_the_other_asks_nobody() -> None:
    world = pooled(cu(1, 4))
    assert world.permit(world.request("a", cu(4))) == cu(4)
    assert held(world) == 4


def test_what_a_floor_keeps_is_no_permit() -> None:
    world = pooled(UNIT)
    world.read("a", cu(4), at=0.0)
    assert (held(world), waits(world, "a", cu(4), 1).current) == (4, UNIT)


# ---------------------------------------------------------------- no such pool


def test_where_there_is_no_such_pool_nothing_grows_and_its_vms_keep_what_they_have() -> None:
    world = pooled(cu(3))
    world.apply(events.PoolGone("blue"))
    assert (held(world), world.state("a").current) == (0, cu(3))
    assert refused(world, "a", cu(4)) == "there is no pool blue"
    assert world.permit(world.request("a", cu(2))) == cu(2)
    pool(world)
    waits(world, "a", cu(4), 1)
    world.apply(events.PoolGone("blue"))
    label(world, "a", None)
    assert [account.name for account in world.core.ledger.pools()] == [], "nobody names or describes it"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_in_a_pool_that_is_being_deleted_nothing_grows(meanwhile: bool) -> None:
    world = pooled(UNIT)
    if meanwhile:
        waits(world, "a", cu(2), 1)
    pool(world, is_deleting=True)
    if not meanwhile:
        assert refused(world, "a", cu(2)) == "pool blue is being deleted"
    else:
        answer = gets(world, 1, None)
        assert (answer.permit, answer.reasons[0].message) == (UNIT, "pool blue is being deleted")


# ---------------------------------------------------------------- what changes while a VM waits


def labelled_red(world: World) -> None:
    pool(world, "red")
    label(world, "a", "red")
    assert (held(world), held(world, "red")) == (0, 1)


def labelled_red_and_pool_gone(world: World) -> None:
    labelled_red(world)
    world.apply(events.PoolGone("blue"))


def made_anew(world: World) -> None:
    world.apply(events.PoolGone("blue"))
    pool(world, unit=cu(2), generation=1)


CHANGES: dict[str, tuple[Callable[[World], None], int | None, int | None, bool]] = {
    "changed": (lambda world: pool(world, generation=2), None, 1, True),
    "changed before": (lambda world: pool(world, generation=2), None, 2, False),
    "changed, which is of no account": (lambda world: pool(world, generation=2), None, None, False),
    "left": (labelled_red, None, None, True),
    "left and gone": (labelled_red_and_pool_gone, None, 1, True),
    "left and gone, some admitted": (labelled_red_and_pool_gone, 4, 1, True),
    "left and gone, nothing admitted": (labelled_red_and_pool_gone, 0, 1, True),
    "made anew": (made_anew, 4, 1, True),
}


@pytest.mark.parametrize(("change", "total", "generation", "is_void"), CHANGES.values(), ids=CHANGES)
def test_a_verdict_for_what_the_pool_is_no_more_is_void(
    change: Callable[[World], None], total: int | None, generation: int | None, is_void: bool
) -> None:
    world = pooled(UNIT)
    waits(world, "a", cu(4), 1)
    change(world)
    answer = gets(world, 1, total, generation)
    assert answer.permit == (UNIT if is_void else cu(4))
    assert [(reason.code, reason.retry_after_s) for reason in answer.reasons] == (
        [(ReasonCode.POOL, 0.0)] if is_void else []
    )


@pytest.mark.parametrize("total", [4, 5])
def test_two_that_wait_are_served_in_order_by_one_total(total: int) -> None:
    world = pooled(UNIT, UNIT)
    waits(world, "a", cu(3), 1)
    waits(world, "b", cu(3), 2)
    first, second = gets(world, 1, total), gets(world, 2, total)
    assert (first.permit, second.permit) == (cu(3), cu(total - 3))
    assert (codes(first), codes(second), held(world)) == ([], [ReasonCode.POOL], total)


def test_what_another_member_gives_back_meanwhile_is_within_the_total() -> None:
    world = pooled(UNIT, cu(4))
    waits(world, "a", cu(4), 1)
    world.permit(world.request("b", cu(2)))
    world.read("b", cu(2), at=1.0)
    answer = gets(world, 1, 5)
    assert (answer.permit, held(world)) == (cu(3), 5)


def test_more_than_was_asked_for_is_not_granted_whatever_others_give_back() -> None:
    world = pooled(UNIT, cu(4))
    waits(world, "a", cu(2), 1)
    world.read("b", UNIT, at=1.0)
    world.permit(world.request("b", UNIT))
    assert gets(world, 1, 9).permit == cu(2)


def test_a_pool_that_holds_more_than_the_verdict_says_lets_nothing_grow() -> None:
    """Also not within what a floor of the VM's own keeps."""
    world = pooled(UNIT, UNIT)
    world.read("a", cu(4), at=0.0)
    waits(world, "a", cu(4), 1)
    assert gets(world, 1, 4).permit == UNIT
    waits(world, "a", cu(4), 2)
    assert gets(world, 2, 5).permit == cu(4)


def test_what_a_request_gives_back_is_anothers_while_it_waits() -> None:
    world = pooled(cu(4, 2), UNIT)
    waits(world, "a", cu(2, 6), 1)
    assert held(world) == 5
    world.read("a", cu(2), at=1.0)
    assert held(world) == 3
    waits(world, "b", cu(3), 2)
    assert gets(world, 2, 5).permit == cu(3)
    assert gets(world, 1, 5).permit == cu(2)


# ---------------------------------------------------------------- callers without the extension


def test_an_unsettled_vm_of_such_a_caller_counts_at_its_maximum_until_a_read_shows_less() -> None:
    world = World(cu(20), config=EVERYWHERE)
    member(world, "a", is_new=False)
    (answer,) = world.take_published("a", SlotResources(1, 1), 1)
    assert isinstance(answer, events.Decided)
    assert (world.causes("a"), held(world)) == ({Cause.TOLD}, 8)
    world.read("a", UNIT, at=5.0)
    assert held(world) == 1


# ---------------------------------------------------------------- another process


def test_after_a_restart_the_pool_is_counted_from_what_is_shown() -> None:
    """All at their maxima, until each has named the new process; a verdict for a former one's ticket finds nobody."""
    world = pooled(max_units=20)
    for name in ("a", "b"):
        world.vm(name, cu(2), is_new=False)
        label(world, name, "blue")
    assert held(world) == 16
    assert world.pool_says(1, ALL) == ()
    for name in ("a", "b"):
        world.permit(world.request(name, cu(3), claim=cu(3), names=HERE))
    assert held(world) == 6
    waits(world, "a", cu(5), 7)
    assert gets(world, 7, 8).permit == cu(5)


def test_fewer_units_of_another_size_are_no_room() -> None:
    world = World(cu(40))
    world.vm("a", cu(6))
    world.see("a", None, at=0.0, pool="blue")
    before = world.core.ledger.freed_units
    world.apply(events.PoolSeen(PoolSpec("blue", cu(3), 2)))
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.freed_units, world.core.ledger.freed_units) == (2, 0, before)


# ---------------------------------------------------------------- births beyond a limit


@pytest.mark.parametrize(
    ("is_first_start", "count", "units", "beyond"), [(True, 45, 45, 35), (False, 3, 24, 0)]
)
def test_who_comes_beyond_the_limit_is_counted_and_who_may_have_been_there_before_is_not(
    is_first_start: bool, count: int, units: int, beyond: int
) -> None:
    """VMs of one unit are born into a pool of 10: nobody can be asked, so each beyond is counted, and none grows.

    In the first minute of a process that is not the first one they may have been there before.
    """
    world = World(cu(100), config=SchedulerConfig(HERE, is_first_start=is_first_start))
    pool(world, max_units=10)
    world.tick(0.0)
    for number in range(count):
        world.vm(f"vm-{number}", at=1.0, pool="blue")
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.came_beyond) == (units, beyond)
    if beyond:
        refused(world, "vm-0", cu(2))
        refused(world, f"vm-{count - 1}", cu(2))
        world.vm("old", cu(3), is_new=False, pool="blue")
        assert (account.excess_units, account.came_beyond) == (account.units - 10, beyond)


# ---------------------------------------------------------------- pools of VMs that name none


def by_default(world: World, *defaults: DefaultPool) -> None:
    world.configure(Rules(RULES.node, default_pools=defaults))


def pool_of(world: World, name: str) -> str | None:
    """The pool in which a VM is counted."""
    record = world.record(name)
    assert record.spec.pool == record.row.pool
    return record.spec.pool


def test_a_vm_that_names_no_pool_belongs_to_that_of_its_namespace_or_labels() -> None:
    world = World(cu(40))
    pool(world, "red")
    by_default(world, DefaultPool("red", labels=(("team", "a"),)), DefaultPool("blue", ("d*",)))
    world.vm("a", cu(2))
    assert (pool_of(world, "a"), held(world)) == ("blue", 2)
    world.see("a", None, at=0.0, labels=(("team", "a"), ("x", "y")))
    assert (pool_of(world, "a"), held(world), held(world, "red")) == ("red", 0, 2)
    waits(world, "a", cu(3), 1)


@pytest.mark.parametrize(("own", "found"), [("red", "red"), ("", None)])
def test_the_own_label_of_a_vm_goes_before_the_configuration(own: str, found: str | None) -> None:
    world = World(cu(40))
    pool(world, "red")
    world.vm("a")
    world.see("a", None, at=0.0, pool=own or None, labels=((POOL_LABEL, own),))
    by_default(world, DefaultPool("blue", ("*",)))
    assert pool_of(world, "a") == found


def test_a_changed_configuration_moves_the_vms_that_name_no_pool() -> None:
    world = World(cu(40))
    pool(world, "red")
    world.vm("a", cu(2))
    member(world, "b", cu(3), "red")
    by_default(world, DefaultPool("blue", ("*",)))
    assert (held(world), held(world, "red")) == (2, 3)
    by_default(world, DefaultPool("red", ("*",)))
    assert (held(world), held(world, "red")) == (0, 5)
    by_default(world, DefaultPool("blue", ("elsewhere",)))
    assert (pool_of(world, "a"), pool_of(world, "b")) == (None, "red")


def test_a_word_for_the_pool_of_before_is_void_once_the_configuration_names_another_one() -> None:
    world = World(cu(40))
    pool(world, "red", max_units=3)
    by_default(world, DefaultPool("blue", ("*",)))
    world.vm("a", UNIT)
    waits(world, "a", cu(6), 1)
    by_default(world, DefaultPool("red", ("*",)))
    answer = gets(world, 1, 6)
    assert (answer.permit, set(codes(answer))) == (UNIT, {ReasonCode.POOL})
