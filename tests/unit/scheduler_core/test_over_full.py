"""Over-full nodes: each documented cause, for as long as it applies; what stands in the way, named; and no grant."""

import random
from collections.abc import Callable
from uuid import UUID

import pytest

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import SlotResources
from scheduler.permits.core import events
from scheduler.permits.core.decision import Obstacle, obstacles
from scheduler.permits.core.ledger import Cause, OverCause
from scheduler.permits.core.model import Holder, Kind
from scheduler.permits.core.state import SchedulerConfig
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import (
    ELSEWHERE,
    EVERYWHERE,
    HERE,
    NEXT_AGENT,
    World,
    codes,
    pod,
    rules,
)


def full(others: Resources | None = None, *, config: SchedulerConfig | None = None) -> World:
    """A node of 10 of which another pod holds 8 (`others`)."""
    world = World(config=config)
    world.other_pod("filler", others or cu(8))
    return world


# ------------------------------------------------------------ each cause

Step = Callable[[World], object]
BYPASSED, CONFIGURATION, OBSERVED = OverCause.BYPASSED, OverCause.CONFIGURATION, OverCause.OBSERVED


def _unsettled(name: str = "vm", most: Resources | None = None) -> Step:
    return lambda world: world.vm(name, UNIT, most=most, is_new=False)


def _claims(amount: Resources, names: UUID | None = HERE) -> Step:
    return lambda world: world.permit(world.request("vm", amount, claim=amount, names=names))


def _pod(amount: Resources, name: str = "filler") -> Step:
    return lambda world: world.other_pod(name, amount)


def _born(use: Resources, most: Resources | None = None, node: str = "n1") -> Step:
    return lambda world: world.vm("vm", use, most=most, node=node)


def _read(use: Resources, at: float = 1.0) -> Step:
    return lambda world: world.read("vm", use, at=at)


def _configured(system: Resources) -> Step:
    return lambda world: world.configure(rules(system=system))


def _shown_node(reservable: Resources, name: str = "n1") -> Step:
    return lambda world: world.node(name, reservable)


def _node_goes(world: World) -> None:
    world.apply(events.NodeGone("n1"))


def _vm_goes(world: World) -> None:
    world.apply(events.VmGone(pod("vm"), "uid-vm", 1.0))


def _moves_here(world: World) -> None:
    world.see("vm", None, at=1.0, node="n1")
    assert world.over("n2") == set()


def _published_uses_4(world: World) -> None:
    world.published("vm", SlotResources(4, 4), use=cu(4))
    assert world.state().current == cu(4)


def _superseded(world: World) -> None:
    """A later life has 1 where the one before had 2."""
    world.permit(world.request("vm", UNIT, agent=NEXT_AGENT, started=2000, claim=UNIT))
    assert world.floors() == [(Cause.HANDOVER, cu(2))]


HAPPENINGS: dict[str, tuple[list[Step], set[OverCause], list[Step]]] = {
    "nothing": ([_pod(cu(10)), _pod(cu(10, 9))], set(), []),
    "a pod that bypassed us, in CPU": ([_pod(cu(10.001, 1), "more")], {BYPASSED}, []),
    "a pod that bypassed us, in memory": ([_pod(Resources(1, 10 * GIB + 1), "more")], {BYPASSED}, []),
    "a pod that grows without asking": ([_pod(cu(11))], {BYPASSED}, [_pod(cu(10))]),
    "a VM born on a full node": ([_born(cu(3))], {BYPASSED}, [_vm_goes]),
    "a VM that moves to a full node": (
        [_shown_node(cu(10), "n2"), _born(cu(3), node="n2"), _moves_here],
        {BYPASSED},
        [],
    ),
    "a start": ([_unsettled()], {OverCause.SETTLING}, [_claims(cu(2))]),
    "a pod that fits as soon as the VMs are settled": (
        [_unsettled(), _pod(UNIT, "of a daemon set")],
        {OverCause.SETTLING},
        [_claims(UNIT)],
    ),
    "a pod that would not fit then, either": (
        [_unsettled(), _pod(cu(2), "of a daemon set")],
        {OverCause.SETTLING, BYPASSED},
        [],
    ),
    "a VM that settles at what does not fit": (
        [_unsettled(), _pod(UNIT, "of a daemon set"), _claims(cu(4))],
        {OverCause.SETTLING, OverCause.CLAIM},
        [],
    ),
    "uses that do not fit, after a restart": (
        [_unsettled(), _pod(cu(10))],
        {OverCause.SETTLING, BYPASSED},
        [],
    ),
    "a node that is heard of after its VMs": (
        [_node_goes, _unsettled(), _shown_node(cu(10))],
        {OverCause.SETTLING},
        [_claims(UNIT)],
    ),
    "a pod that comes while an earlier life may hold something": (
        [_born(UNIT), _claims(cu(2)), _superseded, _pod(UNIT, "of a daemon set")],
        {OverCause.SETTLING},
        [lambda world: world.tick(60.0)],
    ),
    "a claim above the start-up floor": (
        [_unsettled(most=cu(2)), _claims(cu(5), ELSEWHERE)],
        {OverCause.CLAIM},
        [_claims(cu(2))],
    ),
    "a claim that settles": ([_unsettled(most=cu(2)), _claims(cu(5))], {OverCause.CLAIM}, []),
    "a larger share of the system": ([_configured(cu(3))], {CONFIGURATION}, [_configured(cu(2))]),
    "a node that shrinks": ([_shown_node(cu(7))], {CONFIGURATION}, []),
    "a node that comes back to more": ([_node_goes, _born(cu(3)), _shown_node(cu(10))], {CONFIGURATION}, []),
    "bounds raised on an unsettled VM": (
        [_unsettled(most=cu(2)), _unsettled(most=cu(3))],
        {OverCause.BOUNDS},
        [],
    ),
    "bounds raised on a settled VM": ([_born(cu(2), cu(2)), _born(cu(2), cu(9))], set(), []),
    "an edit that was observed": ([_born(UNIT), _read(cu(4))], {OBSERVED}, [_read(cu(2), 2.0)]),
    "an edit that fits": ([_born(UNIT), _read(cu(2))], set(), []),
    "what a published caller uses already": ([_born(UNIT), _published_uses_4], {OBSERVED}, []),
}


@pytest.mark.parametrize(("steps", "causes", "end"), HAPPENINGS.values(), ids=HAPPENINGS)
def test_each_cause_stands_until_the_node_is_within_its_bounds(
    steps: list[Step], causes: set[OverCause], end: list[Step]
) -> None:
    world = full(config=EVERYWHERE)
    assert world.over() == set()
    for step in steps:
        step(world)
    assert (world.over(), world.account().is_over_full) == (causes, bool(causes))
    for step in end:
        step(world)
        assert world.over() == set()


# ------------------------------------------------------------ exactly when they apply


def over_by_start_up() -> World:
    """A node of 10 with 16 reserved: 8 by a pod, 8 by an unsettled VM that uses 2."""
    world = full()
    world.vm("vm", cu(2), is_new=False)
    return world


def test_two_causes_stand_beside_each_other_until_the_node_is_within_its_bounds() -> None:
    world = over_by_start_up()
    world.other_pod("filler", cu(9))
    assert world.over() == {OverCause.SETTLING, OverCause.BYPASSED}
    world.permit(world.request("vm", cu(2), claim=cu(2)))
    assert world.over() == {OverCause.SETTLING, OverCause.BYPASSED}
    world.permit(world.request("vm", UNIT))
    world.read("vm", UNIT, at=1.0)
    assert world.over() == set()


def test_words_that_add_nothing_add_no_cause() -> None:
    """Nodes are shown every few seconds; that one is over-full by start-up is not to be lost in them."""
    world = over_by_start_up()
    world.node("n1", cu(10))
    world.node("n1", cu(11))
    world.other_pod("filler", cu(8))
    world.other_pod("filler", cu(7))
    world.other_pod("nothing", ZERO)
    world.configure(rules())
    world.vm("vm", cu(2), is_new=False)
    world.read("vm", cu(2), at=1.0)
    world.vm("vm", cu(2), most=cu(7), is_new=False)
    assert world.over() == {OverCause.SETTLING}


def test_a_cause_is_one_only_in_the_resource_that_is_over_full() -> None:
    """The CPUs are over-full by start-up; of memory there is enough for everything else that comes."""
    world = full(cu(8, 2))
    world.vm("vm", cu(2, 1), most=cu(8, 2), is_new=False)
    world.other_pod("memory", cu(0, 3))
    world.read("vm", cu(2, 4), at=1.0)
    world.configure(rules(system=cu(0, 1)))
    assert world.over() == {OverCause.SETTLING}


def test_a_lower_node_that_was_over_full_already_adds_its_cause() -> None:
    world = over_by_start_up()
    world.node("n1", cu(9))
    assert world.over() == {OverCause.SETTLING, OverCause.CONFIGURATION}
    world.other_pod("more", UNIT)
    assert world.over() == {OverCause.SETTLING, OverCause.CONFIGURATION, OverCause.BYPASSED}


def test_the_audit_finds_an_over_full_node_without_a_cause() -> None:
    world = over_by_start_up()
    world.account().over.clear()
    (fault,) = world.core.audit()
    assert "no cause is recorded" in fault


# ------------------------------------------------------------ no grant while over-full


@pytest.mark.parametrize("want", [cu(3), cu(1, 2.5), cu(2.001, 1)])
def test_nothing_is_granted_while_over_full(want: Resources) -> None:
    world = full()
    world.vm("vm", cu(2))
    world.node("n1", cu(9))
    answer = world.decide(world.request("vm", want))
    assert answer.permit == want.min(cu(2))
    assert codes(answer) == [ReasonCode.NODE_HEADROOM]
    assert isinstance(world.assume(Holder(Kind.POD, "p"), UNIT), events.NotPlaced)


def test_growth_in_the_resource_that_has_room_is_granted() -> None:
    world = full(cu(11, 2))
    world.vm("vm", cu(1))
    assert world.permit(world.request("vm", cu(1, 8))) == cu(1, 8)


def test_a_vms_own_uncertainty_does_not_stop_it() -> None:
    """The node is over-full by what this very VM observed; the others leave it 8."""
    world = World()
    world.vm("vm", cu(2))
    world.other_pod("filler", cu(2))
    world.read("vm", cu(9), at=1.0)
    assert world.over() == {OverCause.OBSERVED}
    assert world.permit(world.request("vm", cu(9))) == cu(8)
    assert world.node_reserved() == cu(11)


@pytest.mark.parametrize("seed", range(8))
def test_while_over_full_the_sum_rises_only_by_what_is_documented(seed: int) -> None:
    """Requests, verdicts of pools, the clock and placements never raise an over-full resource."""
    dice, world, now_s = random.Random(seed), World(), 0.0
    for name in "abc":
        world.vm(name, cu(dice.randint(1, 3)), is_new=dice.random() < 0.5)
    world.see("a", None, at=0.0, pool="blue")
    for ticket in range(120):
        now_s += dice.choice((0.0, 1.0, 6.0, 30.0))
        name = dice.choice("abc")
        before, reservable = world.node_reserved(), world.account().capacity.reservable
        match dice.randrange(8):
            case 0:
                world.other_pod("filler", cu(dice.randint(0, 7)))
                continue
            case 1:
                world.node("n1", cu(dice.choice((6, 10, 12))))
                continue
            case 2:
                world.read(name, cu(dice.randint(1, 4)), at=now_s)
                continue
            case 3:
                world.ticked(now_s)
            case 4:
                waiting = next(iter(world.core.state.admission_calls), 0)
                world.pool_says(waiting, events.PoolVerdict(dice.choice((None, 0, 3))), at=now_s)
            case 5:
                world.assume(Holder(Kind.POD, "p"), cu(dice.randint(0, 4)), until=now_s + 10, at=now_s)
            case _:
                want = cu(dice.randint(1, 6), dice.randint(1, 6))
                world.take(world.request(name, want), ticket, at=now_s)  # no claim above what is current
        after = world.node_reserved()
        for (_, was), (_, is_), (_, limit) in zip(
            before.named(), after.named(), reservable.named(), strict=True
        ):
            assert is_ <= max(was, limit)


# ------------------------------------------------------------ obstacles


def obstructed() -> World:
    """Around `vm`: a pod of 2, an unsettled VM that uses 1 of its maximum of 4, one observed at 3 with 1 permitted."""
    world = World()
    world.vm("vm", UNIT)
    world.other_pod("filler", cu(2))
    world.vm("late", UNIT, most=cu(4), is_new=False, at=5.0)
    world.vm("edited", UNIT)
    world.read("edited", cu(3), at=6.0)
    return world


def test_obstacles_are_the_permits_and_floors_of_the_others_the_largest_first() -> None:
    found = obstacles(obstructed().core.ledger, "n1", Holder(Kind.VM, "uid-vm"), "cpu")
    assert found == [
        Obstacle("default/late", Cause.START_UP, 3000, 5.0),
        Obstacle("default/edited", Cause.OBSERVED, 2000),
        Obstacle("default/filler", None, 2000),
        Obstacle("default/edited", None, 1000),
        Obstacle("default/late", None, 1000),
    ]


def test_obstacles_are_of_one_resource_and_one_node() -> None:
    world = World()
    world.other_pod("filler", cu(2, 0))
    ledger = world.core.ledger
    assert obstacles(ledger, "n1", Holder(Kind.VM, "x"), "memory") == []
    assert obstacles(ledger, "n9", Holder(Kind.VM, "x"), "cpu") == []
    assert len(obstacles(ledger, "n1", Holder(Kind.VM, "x"), "cpu")) == 1
    assert obstacles(ledger, "n1", Holder(Kind.POD, "uid-filler"), "cpu") == []


def test_of_a_row_the_largest_floor_counts() -> None:
    world = obstructed()
    world.read("late", cu(3), at=6.0)
    found = obstacles(world.core.ledger, "n1", Holder(Kind.VM, "uid-vm"), "cpu")
    assert [each.cause for each in found if each.name == "default/late"] == [Cause.START_UP, None]


def refusal(world: World, at: float) -> str:
    """Why `vm` does not grow."""
    answer = world.decide(world.request("vm", cu(8)), at=at)
    (reason, *_) = [each for each in answer.reasons if each.code is ReasonCode.NODE_HEADROOM]
    return reason.message


def test_a_refusal_names_the_floors_in_the_way_and_vms_that_stay_unsettled() -> None:
    kept = "kept beyond what is permitted: default/late 3 CPU (start-up{}), default/edited 2 CPU (observed)"
    assert refusal(obstructed(), 124.9).endswith(kept.format(""))
    assert refusal(obstructed(), 125.0).endswith(kept.format(", unsettled for 120 s"))


def test_a_vm_that_is_unsettled_for_long_is_named_behind_larger_floors_too() -> None:
    world = World(cu(30))
    world.vm("vm", UNIT)
    for number in range(4):
        world.vm(f"edited-{number}", UNIT)
        world.read(f"edited-{number}", cu(6), at=1.0)
    world.vm("late", UNIT, most=cu(2), is_new=False)
    message = refusal(world, 130.0)
    assert "and 2 more" in message
    assert message.endswith("; unsettled too: default/late")


def test_neither_permits_nor_a_vms_own_floors_are_named() -> None:
    world = full(cu(8))
    world.vm("vm", UNIT)
    assert "kept" not in refusal(world, 200.0)
    world.see("vm", None, at=0.0, bounds=Bounds(UNIT, cu(9)))
    world.read("vm", cu(2), at=1.0)
    assert "kept" not in refusal(world, 201.0)


def test_a_message_stays_short_whatever_the_names() -> None:
    world = World(cu(40))
    world.vm("vm", UNIT)
    for number in range(9):
        world.vm("x" * 253 + str(number), UNIT, most=cu(5), is_new=False)
    assert len(refusal(world, 500.0)) <= 1024
