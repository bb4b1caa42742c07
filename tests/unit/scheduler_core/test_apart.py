"""VMs whose resources are apart, in the whole core: who decides the kind, pressure by resource, retries, published callers."""

import pytest
from msgspec.structs import replace

from protocol.reasons import ReasonCode
from protocol.values import ComputeUnit, Resources
from scheduler.permits.core import events
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, decided


def full_of_cpu() -> World:
    """A node of 10 whose CPUs others hold but for 2, and the memory but for 8."""
    world = World(cu(10))
    world.other_pod("filler", cu(8, 2))
    world.vm("vm", UNIT)
    return world


def answer(
    world: World, want: Resources, *, apart: bool = True, unit: Resources | None = None
) -> events.Decided:
    return world.decide(world.request("vm", want, claim=world.state("vm").current, apart=apart, unit=unit))


def test_a_node_full_of_cpu_still_gives_memory() -> None:
    world = full_of_cpu()
    found = answer(world, cu(5))
    assert found.permit == cu(2, 5)
    assert [(each.code, each.resource) for each in found.reasons] == [(ReasonCode.NODE_HEADROOM, "cpu")]
    assert world.state("vm").pressure == cu(3, 0), "of CPU alone: memory is there"
    assert found.unit == ComputeUnit(UNIT, is_apart=True)


@pytest.mark.parametrize(
    ("asks_apart", "is_tied", "permit"),
    [(True, False, cu(2, 5)), (False, False, cu(2)), (True, True, cu(2)), (False, True, cu(2))],
)
def test_resources_are_apart_where_the_agent_asks_for_it_and_the_vm_is_not_tied(
    asks_apart: bool, is_tied: bool, permit: Resources
) -> None:
    world = full_of_cpu()
    world.see("vm", None, at=0.0, is_tied=is_tied)
    found = answer(world, cu(5), apart=asks_apart)
    assert (found.permit, found.unit.is_apart) == (permit, asks_apart and not is_tied)


@pytest.mark.parametrize("of_request", [None, Resources(250, 2**30)])
def test_the_steps_come_from_vm_request_or_node_whoever_says_apart(of_request: Resources | None) -> None:
    world = full_of_cpu()
    found = answer(world, Resources(2_100, 2**32), unit=of_request)
    step = of_request if of_request is not None else UNIT
    assert found.unit == ComputeUnit(step, is_apart=True)
    assert found.permit == Resources(2_000, 2**32)


def test_the_kind_may_change_with_any_request_and_a_retry_keeps_its_own() -> None:
    world = full_of_cpu()
    request = world.request("vm", cu(5), claim=UNIT, apart=True)
    first = world.decide(request)
    assert world.decide(request) == replace(first, before=first.permit, changed=False), "a retry"
    assert answer(world, cu(2, 6), apart=False).permit == cu(2, 6), (
        "CPU does not grow: memory alone is one number"
    )
    assert answer(world, cu(3, 8), apart=False).permit == cu(2, 6)
    assert answer(world, cu(3, 8)).permit == cu(2, 8)


def waiting_for_its_pool(size: Resources, free: Resources) -> tuple[World, events.AdmissionCallNeeded]:
    """A VM of `size` that asked for 4 of both where a node of 10 has `free` left: its pool is asked for what fits."""
    world = World(cu(10))
    world.other_pod("filler", cu(10) - size - free)
    world.vm("vm", size, pool="blue")
    (call,) = world.take(world.request("vm", cu(4), claim=size, apart=True), 1)
    assert isinstance(call, events.AdmissionCallNeeded)
    return world, call


def test_what_was_asked_for_of_one_resource_does_not_end_the_refusal_of_the_other() -> None:
    """VMs are born into the pool while it is asked: it is above what was admitted, and nothing takes more units in it."""
    world, call = waiting_for_its_pool(cu(0.5, 1), cu(0, 6))
    assert call.wanted == cu(0.5, 4)
    world.other_pod("filler", cu(1, 2))
    world.vm("born", cu(2, 4), pool="blue")
    found = decided(world.pool_says(1, events.PoolVerdict(4, is_all=True)))
    assert found.permit == cu(0.5, 1)
    refused = {each.resource for each in found.reasons if each.message == "the VM's pool admits no more"}
    assert refused == {"memory"}, "the CPUs are within the unit that it is counted with"


def test_each_resource_that_is_cut_has_a_reason_though_one_was_only_not_asked_for() -> None:
    world, call = waiting_for_its_pool(cu(1), cu(1, 0))
    assert call.wanted == cu(2, 1)
    world.other_pod("filler", cu(8, 1))
    found = decided(world.pool_says(1, events.PoolVerdict(10)))
    assert found.permit == cu(2, 1)
    assert {each.resource for each in found.reasons} == {"cpu", "memory"}
