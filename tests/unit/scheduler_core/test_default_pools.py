"""Pools that the configuration names for VMs that name none, and VMs that come beyond a pool's limit."""

import pytest

from protocol.reasons import ReasonCode
from scheduler.core.model import POOL_LABEL
from scheduler.core.rules import DEFAULT_RULES as RULES
from scheduler.core.rules import DefaultPool, Rules
from scheduler.core.state import SchedulerConfig
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import HERE, World, codes
from tests.unit.scheduler_core.test_pools import gets, held, member, pool, refused, waits


def test_who_comes_beyond_the_limit_is_counted_and_who_was_there_at_the_start_is_not() -> None:
    """45 VMs of one unit are born into a pool of 10: nobody can be asked, so each beyond is counted, and none grows."""
    world = World(cu(100))
    world.configure(Rules(RULES.node, default_pools=(DefaultPool("blue", ("*",)),)))
    pool(world, max_units=10)
    for number in range(45):
        world.vm(f"vm-{number}")
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.excess_units, account.came_beyond) == (45, 35, 35)
    refused(world, "vm-0", cu(2))
    refused(world, "vm-44", cu(2))
    world.vm("old", cu(3), is_new=False)
    assert account.came_beyond == 35


def test_a_vm_that_comes_in_the_first_minute_may_have_been_there_before() -> None:
    world = World(cu(100), config=SchedulerConfig(HERE))
    world.configure(Rules(RULES.node, default_pools=(DefaultPool("blue", ("*",)),)))
    pool(world, max_units=10)
    world.tick(0.0)
    for number in range(3):
        world.vm(f"vm-{number}", at=1.0)
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.came_beyond) == (24, 0)


# ---------------------------------------------------------------- pools of VMs that name none


def by_default(world: World, *defaults: DefaultPool) -> None:
    """The configuration names these pools."""
    world.configure(Rules(RULES.node, default_pools=defaults))


def pool_of(world: World, name: str) -> str | None:
    """Where a VM is counted."""
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
