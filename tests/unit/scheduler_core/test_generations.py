"""Generations tell a reader of a node that something there has changed, and a queue that room became free."""

from collections.abc import Callable

import pytest

from protocol.values import Bounds
from scheduler.permits.core import events
from scheduler.permits.core.model import Holder, Kind, NodeSpec, PoolSpec
from tests.support.amounts import UNIT, cu
from tests.unit.scheduler_core.core_worlds import World, rules

Act = Callable[[World], object]

ACTS: dict[str, tuple[Act, set[str], set[str]]] = {
    # what happens, the nodes that are changed, and those where room becomes free
    "a pod comes": (lambda world: world.other_pod("new", UNIT), {"n1"}, set()),
    "a pod is seen again": (lambda world: world.other_pod("filler", cu(2)), set(), set()),
    "a pod takes more": (lambda world: world.other_pod("filler", cu(3)), {"n1"}, set()),
    "a pod takes less of one resource": (lambda world: world.other_pod("filler", cu(3, 1)), {"n1"}, {"n1"}),
    "a pod moves": (lambda world: world.other_pod("filler", cu(2), node="n2"), {"n1", "n2"}, {"n1"}),
    "a pod goes": (
        lambda world: world.apply(events.PodGone(world.other_pod("filler", cu(2)))),
        {"n1"},
        {"n1"},
    ),
    "a VM grows": (lambda world: world.permit(world.request("vm", cu(3))), {"n1"}, set()),
    "a VM asks for what it has": (lambda world: world.permit(world.request("vm", UNIT)), set(), set()),
    "a VM's bounds change": (
        lambda world: world.see("vm", None, at=1.0, bounds=Bounds(UNIT, cu(2))),
        {"n1"},
        set(),
    ),
    "a VM joins a pool": (lambda world: world.see("vm", None, at=1.0, pool="blue"), {"n1"}, set()),
    "a pool is described otherwise": (
        lambda world: world.apply(events.PoolSeen(PoolSpec("blue", cu(2)))),
        set(),
        set(),
    ),
    "a node is larger": (lambda world: world.node("n2", cu(12)), {"n2"}, {"n2"}),
    "a node is seen again": (lambda world: world.node("n2", cu(10)), set(), set()),
    "another watermark": (lambda world: world.apply(events.Configured(rules())), set(), set()),
    "a node comes": (lambda world: world.apply(events.NodeSeen(NodeSpec("n3", cu(1)))), {"n3"}, {"n3"}),
    "a placement is refused": (
        lambda world: world.assume(Holder(Kind.POD, "uid-new"), cu(50)),
        set(),
        set(),
    ),
}


def generations(world: World) -> dict[str, int]:
    return {account.capacity.name: account.generation for account in world.core.ledger.nodes()}


@pytest.mark.parametrize(("act", "changed", "freed"), ACTS.values(), ids=ACTS)
def test_a_node_that_changes_gets_the_newest_generation_and_room_that_became_free_is_counted(
    act: Act, changed: set[str], freed: set[str]
) -> None:
    world = World()
    world.node("n2", cu(10))
    world.vm("vm")
    world.other_pod("filler", cu(2))
    ledger, before = world.core.ledger, generations(world)
    newest, frees = ledger.generation, ledger.room_frees
    act(world)
    after = generations(world)
    assert {name for name, generation in after.items() if generation != before.get(name)} == changed
    assert all(newest < after[name] <= ledger.generation for name in changed)
    assert (ledger.generation > newest, ledger.room_frees > frees) == (bool(changed), bool(freed))


def test_a_node_that_comes_back_is_newer_than_it_was() -> None:
    world = World()
    before = world.core.ledger.generation
    world.apply(events.NodeGone("n1"))
    assert world.core.ledger.generation == before + 1
    world.apply(events.NodeGone("n1"))
    assert world.core.ledger.generation == before + 1
    world.node("n1", cu(10))
    assert generations(world) == {"n1": before + 2}
