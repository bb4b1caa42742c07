"""The operator's rules hold for every node and VM from then on, and for nothing that is granted already."""

import pytest

from protocol.reasons import ReasonCode
from protocol.values import ZERO, Resources
from scheduler.permits.core import decision, events
from scheduler.permits.core.ledger import Cause, OverCause
from scheduler.permits.core.model import NodeSpec
from scheduler.permits.core.rules import NodeOverride, Rules, Watermark
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import HERE, World, codes, pod, rules

STOPPED, ONLY = ReasonCode.STOPPED, ReasonCode.RECOMMEND_ONLY
ROOM, BOUNDS, NO_UNIT = ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS, ReasonCode.COMPUTE_UNIT
MIGRATING, POOL = ReasonCode.MIGRATING, ReasonCode.POOL


def world_of(*nodes: NodeSpec) -> World:
    """A world with these nodes, besides n1 of 10."""
    world = World()
    for node in nodes:
        world.apply(events.NodeSeen(node))
    return world


def asked(world: World, want: Resources, claim: Resources | None = None) -> events.Decided:
    """The answer to the agent of `vm`."""
    return world.decide(world.request("vm", want, claim=claim))


# ------------------------------------------------------------ nodes


@pytest.mark.parametrize(
    ("system", "watermark", "reservable", "mark"),
    [
        (cu(2, 1), 1.0, cu(8, 9), cu(8, 9)),
        (cu(2), 0.5, cu(8), cu(4)),  # the watermark is a share of what may be reserved
        (cu(11, 3), 1.0, cu(0, 7), cu(0, 7)),  # a share beyond the node leaves nothing, and never less
    ],
)
def test_the_system_share_is_taken_off_what_may_be_reserved(
    system: Resources, watermark: float, reservable: Resources, mark: Resources
) -> None:
    world = world_of()
    world.configure(rules(system=system, watermark=watermark))
    capacity = world.account().capacity
    assert (capacity.reservable, capacity.watermark) == (reservable, mark)


def test_a_nodes_own_values_go_first() -> None:
    own = NodeSpec("n2", cu(10), cu(2), ZERO)
    world = world_of(own, NodeSpec("n3", cu(10)))
    world.configure(rules(system=cu(9), stopped=True))
    world.configure(rules(system=cu(3), unit=cu(0.5)))  # rules replace each other whole
    world.apply(events.NodeSeen(NodeSpec("n4", cu(10))))
    capacities = {account.capacity.name: account.capacity for account in world.core.ledger.nodes()}
    assert (capacities["n2"].reservable, capacities["n2"].compute_unit) == (cu(10), cu(2))
    assert (capacities["n3"].reservable, capacities["n3"].compute_unit) == (cu(7), cu(0.5))
    assert (capacities["n1"].reservable, capacities["n1"].compute_unit) == (cu(7), UNIT)
    assert (capacities["n4"].reservable, capacities["n4"].compute_unit) == (cu(7), cu(0.5))
    world.vm("vm")
    assert codes(asked(world, cu(2))) == []


def test_overrides_hold_for_the_nodes_that_they_name() -> None:
    world = world_of(NodeSpec("big-1", cu(10)), NodeSpec("big-2", cu(10)))
    half = Watermark(500_000, 500_000)
    world.configure(
        rules(
            system=UNIT,
            overrides=(
                NodeOverride(("big-2",), compute_unit=cu(4)),
                NodeOverride(("big-*",), system=cu(4), watermark=half, compute_unit=cu(2)),
            ),
        )
    )
    capacities = {account.capacity.name: account.capacity for account in world.core.ledger.nodes()}
    assert [capacities[name].reservable for name in ("n1", "big-1", "big-2")] == [cu(9), cu(6), cu(6)]
    assert capacities["big-1"].watermark == cu(3)
    assert [capacities[name].compute_unit for name in ("big-1", "big-2")] == [cu(2), cu(4)]


def test_the_unit_of_the_rules_is_the_step_of_growth() -> None:
    world = world_of(NodeSpec("n2", cu(6)))
    world.vm("vm", cu(2), node="n2")
    assert codes(asked(world, cu(7), cu(2))) == [NO_UNIT]
    world.configure(rules(unit=cu(2.5)))
    answer = asked(world, cu(7), cu(2))
    assert (answer.permit, answer.unit.step) == (cu(5), cu(2.5))


# ------------------------------------------------------------ a node that shrinks


def test_a_shrinking_node_is_over_full_by_configuration_and_grants_decreases_only() -> None:
    world = world_of()
    world.vm("vm", cu(6))
    assert world.over() == set()
    world.configure(rules(system=cu(6)))
    assert world.over() == {OverCause.CONFIGURATION}
    assert asked(world, cu(7), cu(6)).permit == cu(6)
    assert asked(world, cu(6)).permit == cu(6)
    assert asked(world, cu(5), cu(6)).permit == cu(5)
    assert world.over() == {OverCause.CONFIGURATION}
    assert asked(world, cu(6), cu(5)).permit == cu(5)
    assert asked(world, cu(4), cu(5)).permit == cu(4)
    world.read("vm", cu(4), at=1.0)
    assert world.over() == set()
    world.other_pod("filler", cu(12))
    for harmless in (rules(system=cu(6)), rules(), rules(watermark=0.1), rules(stopped=True)):
        world.configure(harmless)
        assert world.over() == {OverCause.BYPASSED}, "rules that take nothing away are no cause"


# ------------------------------------------------------------ growth that is held back


@pytest.mark.parametrize(
    ("held_back", "code"),
    [
        (rules(stopped=True), STOPPED),
        (rules(recommend_only=True), ONLY),
        (rules(recommend_only_namespaces=("def*",)), ONLY),
        (rules(recommend_only_vms=("default/vm",)), ONLY),
    ],
)
def test_growth_is_refused_and_decreases_pass(held_back: Rules, code: ReasonCode) -> None:
    world = world_of()
    world.vm("vm", cu(3))
    world.configure(rules(recommend_only_namespaces=("prod",), recommend_only_vms=("default/other",)))
    assert (asked(world, cu(4)).permit, asked(world, cu(3)).permit) == (cu(4), cu(3))  # others are meant
    world.configure(held_back)
    answer = asked(world, cu(5), cu(3))
    assert (answer.permit, codes(answer)) == (cu(3), [code])
    mixed = asked(world, cu(2, 5), cu(3))
    assert (mixed.permit, codes(mixed)) == (cu(2, 3), [code])
    assert codes(asked(world, cu(2, 3))) == []
    assert asked(world, cu(1)).permit == UNIT
    world.configure(rules())
    assert asked(world, cu(5)).permit == cu(5)


@pytest.mark.parametrize(
    ("want", "others", "would"), [(cu(5), ZERO, "5 CPU / 5Gi"), (cu(8), cu(6), "4 CPU / 4Gi")]
)
def test_recommend_only_tells_what_would_be_permitted(want: Resources, others: Resources, would: str) -> None:
    world = world_of()
    world.vm("vm")
    world.other_pod("filler", others)
    world.configure(rules(recommend_only=True))
    (only, *_) = asked(world, want).reasons
    assert f"; {would} would be permitted" in only.message
    assert (world.state().reserved, world.account().pressure) == (UNIT, ZERO), "it is not reserved"


# ------------------------------------------------------------ the order of limits


def limited(
    held_back: Rules,
    want: Resources,
    *,
    most: Resources | None = None,
    free: Resources | None = None,
    migrating: bool = False,
    unit: Resources | None = UNIT,
) -> list[ReasonCode]:
    """Why a VM of 2 units does not get `want`; `free` is what the other holders leave of the node."""
    world = World(unit=unit)
    world.vm("vm", cu(2), most=most)
    world.other_pod("filler", cu(10) - (free or cu(10)))
    world.configure(held_back)
    if migrating:
        world.apply(events.MigrationStarted("uid-vm"))
    return codes(asked(world, want, cu(2)))


BOTH = rules(stopped=True, recommend_only=True)


def no_unit(found: Rules) -> Rules:
    return Rules(
        type(found.node)(found.node.system, found.node.watermark, None), found.overrides, found.growth
    )


def test_ties_go_to_the_earlier_limit() -> None:
    assert limited(BOTH, cu(5), free=cu(2), migrating=True) == [STOPPED, ONLY, MIGRATING, ROOM]
    assert limited(rules(recommend_only=True), cu(5), migrating=True) == [ONLY, MIGRATING]
    assert limited(rules(), cu(5), free=cu(2), migrating=True) == [MIGRATING, ROOM]


def test_the_smallest_binds_and_every_limit_below_the_request_is_listed() -> None:
    assert limited(rules(stopped=True), cu(9), free=cu(4)) == [STOPPED, ROOM, BOUNDS]
    assert limited(rules(), cu(9), free=cu(4)) == [ROOM, BOUNDS]
    assert limited(rules(), cu(9), free=cu(9)) == [BOUNDS]
    assert limited(rules(), cu(9), most=cu(3), free=cu(9)) == [BOUNDS]


@pytest.mark.parametrize(("free", "why"), [(cu(4), [ROOM, POOL, BOUNDS]), (cu(5), [POOL, ROOM, BOUNDS])])
def test_a_pool_comes_after_the_node_where_it_allows_no_less(free: Resources, why: list[ReasonCode]) -> None:
    world = world_of()
    world.vm("vm", cu(2), pool="blue")
    world.other_pod("filler", cu(10) - free)
    world.take(world.request("vm", cu(9), claim=cu(2)), 11)
    (answer,) = world.pool_says(11, events.PoolVerdict(4))
    assert codes(answer) == why
    if free != cu(4):
        return
    world.take(world.request("vm", cu(9), claim=cu(4)), 12)
    assert world.pool_says(12, events.PoolVerdict(4)) == ()  # nothing could grow, so the pool was not asked


@pytest.mark.parametrize("most", [cu(2), UNIT])
def test_switches_are_told_also_where_the_bounds_allow_nothing(most: Resources) -> None:
    assert limited(BOTH, cu(5), most=most) == [STOPPED, ONLY, BOUNDS]
    assert limited(rules(), cu(5), most=most) == [BOUNDS]
    assert limited(rules(), cu(5), most=most, migrating=True) == [BOUNDS]  # nothing is asked of later limits


def test_a_missing_unit_comes_behind_the_switches() -> None:
    assert limited(no_unit(BOTH), cu(5), unit=None) == [STOPPED, ONLY, NO_UNIT]
    assert limited(no_unit(rules()), cu(9), unit=None, migrating=True) == [MIGRATING, NO_UNIT, BOUNDS]
    assert limited(no_unit(rules()), cu(5), unit=None) == [NO_UNIT]


def test_an_unsettled_vm_keeps_what_it_claims_while_growth_is_stopped() -> None:
    world = world_of()
    world.vm("vm", cu(2), is_new=False)
    world.configure(rules(stopped=True))
    answer = world.decide(world.request("vm", cu(5), claim=cu(4), names=None))
    assert answer.permit == cu(4)
    assert ReasonCode.UNSETTLED in codes(answer)
    settling = world.send(world.request("vm", cu(5), claim=cu(4), names=HERE))
    assert isinstance(settling, events.Decided)
    assert (settling.permit, codes(settling)) == (cu(4), [STOPPED])


# ------------------------------------------------------------ bounds at run time


@pytest.mark.parametrize(
    ("most", "want", "permit"),
    [(cu(5), cu(6), cu(5)), (cu(2), cu(6), cu(3)), (cu(2), cu(3), cu(3)), (cu(2), cu(2.5), cu(2.5))],
)
def test_a_settled_vm_follows_bounds_up_and_down(most: Resources, want: Resources, permit: Resources) -> None:
    world = world_of()
    world.vm("vm", cu(3), most=cu(3))
    world.vm("vm", cu(3), most=most)
    assert world.state().reserved == cu(3), "nothing is taken or given by that"
    answer = asked(world, want, cu(3))
    assert (answer.permit, codes(answer)) == (permit, [] if permit == want else [BOUNDS])


def test_an_unsettled_vm_may_use_a_raised_maximum_already() -> None:
    """The former scheduler may have permitted it before this one saw the new bounds."""
    world = world_of()
    world.vm("vm", cu(2), most=cu(4), is_new=False)
    world.vm("vm", cu(2), most=cu(6, 3), is_new=False)
    assert world.floors() == [(Cause.START_UP, cu(6, 4))]
    assert world.over() == set()


def test_an_unsettled_vm_may_still_use_a_maximum_that_was_lowered() -> None:
    world = world_of()
    world.vm("vm", cu(2), most=cu(8), is_new=False)
    world.vm("vm", cu(2), most=cu(3), is_new=False)
    assert world.floors() == [(Cause.START_UP, cu(8))]
    assert world.permit(world.request("vm", cu(5), claim=cu(2))) == cu(3)


def test_other_floors_do_not_follow_the_bounds() -> None:
    world = world_of()
    world.vm("vm", cu(2), most=cu(3), is_new=False)
    world.read("vm", cu(2, 5), at=1.0)
    world.see("vm", None, at=2.0, bounds=type(world.record().spec.bounds)(UNIT, cu(4)))
    assert sorted(world.floors()) == [(Cause.OBSERVED, cu(2, 5)), (Cause.START_UP, cu(4))]


def test_a_slot_that_changes_is_the_one_that_is_told() -> None:
    world = world_of()
    world.vm("vm")
    world.vm("vm", slot=2 * GIB)
    answer = asked(world, cu(4))
    assert (decision.message(answer).permit.vcpu, decision.message(answer).permit.mem) == (4, 2)


def test_a_vms_own_unit_may_come_and_go() -> None:
    world = World(cu(5.5))
    world.vm("vm", unit=cu(2))
    assert asked(world, cu(8)).permit == cu(4)
    world.vm("vm", cu(4))
    assert asked(world, cu(8), cu(4)).permit == cu(5)
    assert world.core.vms.find(pod("vm")) is not None


def test_a_vm_keeps_its_size_while_no_valid_value_of_a_setting_is_known() -> None:
    world = world_of()
    world.vm("vm", cu(2))
    world.see("vm", None, at=0.0, unknown_settings=("parley.dev/bounds",))
    answer = asked(world, cu(3), cu(2))
    assert (answer.permit, codes(answer)) == (cu(2), [ReasonCode.VM_BOUNDS])
    assert "no valid value of parley.dev/bounds is known" in answer.reasons[0].message
    assert asked(world, cu(1)).permit == cu(1), "a decrease passes"
    world.see("vm", None, at=0.0, unknown_settings=())
    assert asked(world, cu(3)).permit == cu(3)
