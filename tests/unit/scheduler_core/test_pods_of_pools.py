"""Pods that are not scaled and belong to a pool: they count there, and are placed only as it allows."""

from dataclasses import replace

from protocol.reasons import ReasonCode
from scheduler.permits.core import events
from scheduler.permits.core.model import Holder, Kind, PodSpec, PoolSpec
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, codes, pod

SPEC = PodSpec(pod("x"), "uid-x", "n1", UNIT, pool="blue")


def units(world: World) -> int:
    """The units that the pool `blue` holds."""
    account = world.core.ledger.pool("blue")
    assert account is not None
    return account.units


def refusal(world: World, name: str, pool: str = "blue") -> str:
    """Why no room is kept for a pod of one unit; empty where it is."""
    output = world.assume(Holder(Kind.POD, f"uid-{name}"), UNIT, name=f"default/{name}", pool=pool)
    if isinstance(output, events.Placed):
        return ""
    assert isinstance(output, events.NotPlaced)
    assert output.reason.code is ReasonCode.POOL
    return output.reason.message


def test_they_count_in_their_pool_and_are_placed_only_as_it_allows() -> None:
    world, full = World(), "pool blue holds 3 of at most 3 units"
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=3)))
    world.vm("a", pool="blue")
    assert [refusal(world, name) for name in "xyz"] == ["", "", full]
    world.apply(events.PodSeen(SPEC))
    assert units(world) == 3, "what was assumed is counted once"
    answer = world.decide(world.request("a", cu(2)))
    assert (answer.permit, codes(answer), answer.reasons[0].message) == (UNIT, [ReasonCode.POOL], full)


def test_a_pod_that_bypassed_us_into_a_full_pool_came_beyond_its_limit() -> None:
    world = World()
    world.apply(events.PoolSeen(PoolSpec("blue", UNIT, max_units=1)))
    world.vm("a", pool="blue")
    world.tick(1.0)
    world.apply(events.PodSeen(SPEC))
    account = world.core.ledger.pool("blue")
    assert account is not None
    assert (account.units, account.came_beyond) == (2, 1)


def test_a_label_that_is_taken_off_and_a_pod_that_goes_take_nothing() -> None:
    world = World()
    world.apply(events.PodSeen(SPEC))
    assert units(world) == 1
    world.apply(events.PodSeen(replace(SPEC, pool=None)))
    assert units(world) == 0
    world.apply(events.PodSeen(SPEC))
    world.apply(events.PodGone(SPEC))
    assert units(world) == 0


def test_none_is_placed_for_a_pool_that_does_not_exist() -> None:
    assert refusal(World(), "x", "typo") == "there is no pool typo"
