"""Pools by exact amounts: what they hold, when their plugins are asked, and what a verdict leaves to each resource."""

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import events
from scheduler.permits.core.events import AmountLimit, PoolVerdict
from scheduler.permits.core.model import PoolSpec
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, codes

FULL = Reason(ReasonCode.POOL, "full")


def pooled(*uses: Resources, unit: Resources = UNIT, limits_amounts: bool = True) -> World:
    """A world whose VMs `a`, `b`, ... of these sizes belong to the pool `blue`."""
    world = World(cu(100))
    world.apply(events.PoolSeen(PoolSpec("blue", unit, limits_amounts=limits_amounts)))
    for name, use in zip("abcdef", uses, strict=False):
        world.vm(name, use, pool="blue", most=cu(16))
    return world


def amount(world: World) -> Resources:
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert world.core.audit() == []
    return account.amount


def asks(world: World, name: str, want: Resources, ticket: int, *, apart: bool = True) -> bool:
    """Whether the pool is asked about a growth; if not, all of that is granted."""
    *_, answer = world.take(world.request(name, want, apart=apart), ticket)
    if isinstance(answer, events.Decided):
        assert answer.permit == want
    return isinstance(answer, events.AdmissionCallNeeded)


def gets(world: World, ticket: int, total: int | None, **most: int) -> events.Decided:
    """The decision on a request that waits, if the pool may hold `total` units, `cpu` milli-CPU and `memory` bytes."""
    limits = tuple(AmountLimit(resource, each, FULL) for resource, each in most.items())
    (answer,) = world.pool_says(ticket, PoolVerdict(total, FULL, amounts=limits))
    assert isinstance(answer, events.Decided), answer
    return answer


# ---------------------------------------------------------------- what a pool holds


def test_a_pool_holds_the_exact_amounts_of_its_vms_and_not_what_is_pending() -> None:
    world = pooled(cu(1, 4), cu(2.5, 0.5))
    assert amount(world) == cu(3.5, 4.5)
    assert asks(world, "a", cu(3, 6), 1)
    assert amount(world) == cu(3.5, 4.5)
    gets(world, 1, None)
    assert amount(world) == cu(5.5, 6.5)
    world.read("a", cu(4, 6), at=1.0)
    assert amount(world) == cu(6.5, 6.5), "what is in use counts"
    world.see("b", None, at=1.0, pool=None)
    assert amount(world) == cu(4, 6)
    world.see_ended("a", at=2.0)
    assert amount(world) == ZERO


def test_what_is_given_back_is_counted_whole_unit_or_not() -> None:
    world = pooled(cu(2, 4), unit=cu(4))
    account = world.core.ledger.pool("blue")
    assert account is not None
    world.permit(world.request("a", cu(1, 4), apart=True))
    world.read("a", cu(1, 4), at=1.0)
    assert (account.frees, account.freed_units, world.core.ledger.frees) == (1, 0, 1)
    world.apply(events.PoolSeen(PoolSpec("blue", cu(8), generation=2)))
    assert (account.frees, account.freed_units) == (1, 0), "fewer units of another size are no room"


# ---------------------------------------------------------------- when its plugins are asked


@pytest.mark.parametrize(
    ("want", "by_units", "by_amounts"),
    [
        (cu(1, 4), False, False),
        (cu(1, 3), False, False),
        (cu(2, 4), False, True),
        (cu(4, 4), False, True),
        (cu(4, 2), False, True),
        (cu(5, 2), True, True),
        (cu(1, 4.5), True, True),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_growth_that_takes_no_more_units_is_asked_about_only_where_amounts_are_limited(
    want: Resources, by_units: bool, by_amounts: bool, apart: bool
) -> None:
    assert asks(pooled(cu(1, 4), limits_amounts=False), "a", want, 1, apart=apart) is by_units
    assert asks(pooled(cu(1, 4), limits_amounts=True), "a", want, 1, apart=apart) is by_amounts


# ---------------------------------------------------------------- what a verdict leaves


@pytest.mark.parametrize(
    ("apart", "total", "cpu", "memory", "permit", "resources"),
    [
        (True, None, 100, 100, cu(8, 8), []),
        (True, None, 100, 6, cu(8, 4), ["memory"]),
        (True, None, 5, 100, cu(3, 8), ["cpu"]),
        (True, None, 5, 6, cu(3, 4), ["cpu", "memory"]),
        (True, None, 3, 3, cu(1, 2), ["cpu", "memory"]),
        (True, 6, 100, 5, cu(4, 3), ["cpu", "memory"]),
        (False, None, 100, 6, cu(4, 4), ["memory"]),
        (False, None, 5, 6, cu(3, 3), ["cpu"]),
        (False, None, 3, 100, cu(1, 2), ["cpu"]),
    ],
)
def test_each_resource_is_limited_by_itself(
    apart: bool, total: int | None, cpu: int, memory: int, permit: Resources, resources: list[str]
) -> None:
    """`a` has 1 CPU and 2 GiB, the other VM 2 CPUs and 2 GiB; `a` wants 8 of each."""
    world = pooled(cu(1, 2), cu(2, 2))
    assert asks(world, "a", cu(8, 8), 1, apart=apart)
    answer = gets(world, 1, total, cpu=cpu * 1000, memory=memory * GIB)
    assert answer.permit == permit
    if apart:
        assert [reason.resource for reason in answer.reasons] == resources


def test_several_that_wait_share_one_total_in_their_order_and_births_count() -> None:
    world = pooled(cu(1, 2), cu(1, 2))
    assert asks(world, "a", cu(1, 5), 1)
    assert asks(world, "b", cu(4, 5), 2)
    assert gets(world, 1, None, cpu=5000, memory=8 * GIB).permit == cu(1, 5)
    world.vm("c", UNIT, pool="blue")
    second = gets(world, 2, None, cpu=5000, memory=8 * GIB)
    assert (second.permit, codes(second)) == (cu(3, 2), [ReasonCode.POOL] * 2)


def test_a_resource_of_which_births_have_lifted_the_pool_above_does_not_grow() -> None:
    world = pooled(cu(1, 2))
    world.read("a", cu(1, 4), at=0.0)
    assert asks(world, "a", cu(4, 4), 1)
    world.vm("b", cu(1, 8), pool="blue")
    assert gets(world, 1, None, cpu=9000, memory=6 * GIB).permit == cu(4, 2)


def test_units_that_were_refused_leave_what_takes_none() -> None:
    """The pool holds more units than its plugins admitted; CPUs within the VM's own take no more of them."""
    for limits_amounts, most in ((False, {}), (True, {"cpu": 9000, "memory": 99 * GIB})):
        world = pooled(cu(1, 4), cu(1, 4), limits_amounts=limits_amounts)
        assert asks(world, "a", cu(6, 8), 1)
        assert gets(world, 1, 7, **most).permit == cu(4, 4)


def test_a_verdict_without_amounts_lets_nothing_grow_where_they_are_limited() -> None:
    world = pooled(cu(1, 4))
    assert asks(world, "a", cu(2, 4), 1)
    answer = gets(world, 1, 0)
    assert (answer.permit, codes(answer)) == (cu(1, 4), [ReasonCode.POOL])


def test_where_others_leave_less_than_was_asked_for_an_admission_of_all_refuses_nothing() -> None:
    world = pooled(cu(1, 2))
    assert asks(world, "a", cu(2, 4), 1)
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=3, limits_amounts=True)))
    limits = tuple(AmountLimit(resource, most, FULL, is_all=True) for resource, most in cu(2, 4).named())
    (answer,) = world.pool_says(1, PoolVerdict(4, FULL, is_all=True, amounts=limits))
    assert isinstance(answer, events.Decided)
    assert answer.permit == cu(2, 3)
    assert [reason.message for reason in answer.reasons] == ["pool blue holds 2 of at most 3 units"]
