"""Callers without the extension in a pod to which a VM migrates: it is ready, and they ask, before the VM is in it."""

from dataclasses import replace

import pytest

from protocol.reasons import ReasonCode
from protocol.versions import PluginProtoVersion
from protocol.wire import AgentRequest, SlotResources
from scheduler.permits.core import events
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import EVERYWHERE, METRICS, World, codes, pod
from tests.unit.scheduler_core.test_published import hung_up, permitted, served


def arriving(world: World, want: SlotResources, *, at: float = 110.0, since: float = 110.0) -> events.Answer:
    """The answer to the caller in pod `new` on `n2`, to which the VM in pod `vm` migrates."""
    request = AgentRequest(PluginProtoVersion(2), pod("new"), want, METRICS)
    assert world.send(request, at=at) == events.LookNeeded(7, pod("new"))
    look = events.Look(found=True, arrival=events.Arrival(pod("vm"), "n2"))
    return world.send(request, at=at, look=look, since=since)


@pytest.mark.parametrize(("want", "permit"), [(3, 3), (5, 3), (2, 2)])
def test_the_pod_of_arrival_gets_what_the_vm_has_and_nothing_changes(want: int, permit: int) -> None:
    """Its agent's first request comes while the VM is in the pod that it leaves; any other answer would be its last."""
    world = served(cu(3))
    before = world.state()
    answer = arriving(world, SlotResources(want, want))
    assert permitted(answer) == (permit, permit)
    assert isinstance(answer, events.Decided)
    assert (answer.pod, answer.node, answer.changed) == (pod("new"), "n2", False)
    assert codes(answer) == ([ReasonCode.MIGRATING] if permit < want else [])
    assert world.state() == before
    assert world.record().told is None, "the agent of the pod that the VM is in was told nothing"


def test_what_a_vm_that_grows_may_have_counts_as_had_by_its_pod_of_arrival() -> None:
    world = served(cu(2))
    world.read("vm", cu(2), at=1.0, target=cu(4))
    assert permitted(arriving(world, SlotResources(4, 4))) == (4, 4)


def test_the_pod_of_arrival_is_served_where_its_node_allows_that() -> None:
    world = served(cu(3), config=replace(EVERYWHERE, published_agents=("n1",)))
    answer = arriving(world, SlotResources(3, 3))
    assert isinstance(answer, events.Refused)
    assert (answer.status, "n2" in answer.message) == (403, True)


def test_the_pod_of_arrival_of_a_vm_whose_use_is_not_known_is_held_and_then_closed() -> None:
    world = served(cu(3), is_new=False, config=replace(EVERYWHERE, started_s=100.0))
    assert arriving(world, SlotResources(3, 3)) == events.LookNeeded(7, pod("new"))
    assert "not known" in hung_up(arriving(world, SlotResources(3, 3), at=113.0))
    assert "zero" in hung_up(arriving(world, SlotResources(0, 0)))


def test_a_pod_of_arrival_whose_vm_is_not_known_is_held_and_then_closed() -> None:
    world = World(config=EVERYWHERE)
    assert arriving(world, SlotResources(3, 3)) == events.LookNeeded(7, pod("new"))
    assert "no VM" in hung_up(arriving(world, SlotResources(3, 3), at=113.0))
