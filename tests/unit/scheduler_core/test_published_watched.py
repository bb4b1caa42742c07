"""A watch is enough for a caller without the extension if no permit by it can be below the VM's use."""

import pytest

from protocol.values import Observation, Resources
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core import events
from scheduler.permits.core.ledger import Cause
from scheduler.permits.core.model import PoolSpec
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, METRICS, World, pod
from tests.unit.scheduler_core.test_published import permitted, served

LOOK_FIRST = events.LookNeeded(7, pod("vm"))


def watched(world: World, want: int, use: Resources, *, at: float) -> events.Answer:
    """The first pass of a request, with what a watch has shown of the VM by now."""
    request = AgentRequest(PluginProtoVersion(2), pod("vm"), SlotResources(want, want), METRICS)
    look = events.Look(found=True, reading=Observation(use, use, 1.0), is_watched=True)
    return world.send(request, at=at, look=look)


def full(use: int) -> World:
    """A VM whose caller was told what it uses, and a node that leaves it nothing."""
    world = served(cu(use))
    permitted(world.published("vm", SlotResources(use, use), use=cu(use), at=10.0))
    world.other_pod("filler", cu(10 - use))
    return world


@pytest.mark.parametrize(("want", "permit"), [(2, 2), (1, 1), (5, 2)])
def test_a_caller_that_was_told_no_more_than_is_in_use_needs_no_read(want: int, permit: int) -> None:
    assert permitted(watched(full(2), want, cu(2), at=11.0)) == (permit, permit)


def test_the_first_request_of_a_caller_needs_one() -> None:
    world = served(cu(2))
    assert watched(world, 2, cu(2), at=10.0) == LOOK_FIRST
    world = served(cu(2), is_new=False)
    assert watched(world, 2, cu(2), at=10.0) == LOOK_FIRST
    nobody = World(config=EVERYWHERE)
    assert watched(nobody, 2, cu(2), at=10.0) == LOOK_FIRST


def test_what_was_told_and_not_read_since_may_be_in_use() -> None:
    """It was told 4, and then 2: until a read begun a command deadline later shows less, it may have 4, or set it again."""
    world = served(cu(2))
    permitted(world.published("vm", SlotResources(4, 4), use=cu(2), at=10.0))
    permitted(world.published("vm", SlotResources(2, 2), use=cu(2), at=11.0))
    world.other_pod("filler", cu(7))
    assert world.causes() == {Cause.TOLD}
    assert watched(world, 4, cu(2), at=12.0) == LOOK_FIRST
    assert permitted(watched(world, 2, cu(2), at=12.0)) == (2, 2), "whatever it uses, it asks for no more"

    world.read("vm", cu(2), at=16.1)
    assert world.causes() == set()
    assert permitted(watched(world, 4, cu(2), at=17.0)) == (3, 3)


def test_a_permit_that_covers_all_that_was_told_needs_no_read_though_growth_is_denied() -> None:
    world = served(cu(2))
    permitted(world.published("vm", SlotResources(4, 4), use=cu(2), at=10.0))
    world.other_pod("filler", cu(6))
    assert permitted(watched(world, 6, cu(2), at=11.0)) == (4, 4)


def test_where_a_pool_has_a_say_what_is_used_must_be_known_first() -> None:
    world = World(config=EVERYWHERE)
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=4)))
    world.vm("vm", cu(2), pool="blue")
    (begun,) = world.take_published("vm", SlotResources(4, 4), 1, at=10.0, use=cu(2))
    assert isinstance(begun, events.AdmissionCallNeeded)
    world.pool_says(1, events.PoolVerdict(), at=10.0)
    permitted(world.published("vm", SlotResources(2, 2), use=cu(2), at=11.0))
    assert watched(world, 3, cu(2), at=12.0) == LOOK_FIRST
    world.read("vm", cu(2), at=16.1)
    assert isinstance(watched(world, 3, cu(2), at=17.0), events.AdmissionCallNeeded)


def test_a_vm_that_cannot_be_served_by_what_the_watch_shows_is_looked_at() -> None:
    world = full(2)
    world.see("vm", None, at=11.0, compute_unit=Resources(250, UNIT.memory_bytes))
    assert watched(world, 2, cu(2), at=12.0) == LOOK_FIRST


def test_a_bystander_needs_a_read_where_it_was_told_more() -> None:
    world = served(cu(2))
    permitted(world.published("vm", SlotResources(4, 4), use=cu(2), at=10.0))
    world.send(world.request("vm", cu(2), claim=cu(2)), at=11.0)
    assert permitted(watched(world, 2, cu(2), at=12.0)) == (2, 2)
    assert watched(world, 4, cu(2), at=12.0) == LOOK_FIRST
