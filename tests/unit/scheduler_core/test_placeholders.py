"""Which placeholders there should be, by what is denied where, and what stands."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from protocol.values import ZERO, Resources
from scheduler.permits.core.placeholders import (
    EVERY_S,
    PLACED_REST_S,
    SETTLING_S,
    DeniedVm,
    NodePool,
    Placeholder,
    PlaceholderPlan,
    PlaceholderRules,
    PlaceholderState,
    PoolNode,
    StandingPlaceholder,
    denied_vms,
    plan,
)
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import World

RULES = PlaceholderRules(30, ("pool",), "low", 2, cu(8), Resources(500, GIB))
BLUE, RED, GREEN = (NodePool("pool", name) for name in ("blue", "red", "green"))
GPU, DISK, ARM = (("gpu", "", "NoSchedule"), ("disk", "ssd", "NoExecute"), ("arch", "arm", "NoSchedule"))
NODES = {
    "b1": PoolNode(BLUE, cu(16), frozenset({GPU, DISK})),
    "b2": PoolNode(BLUE, cu(8), frozenset({DISK, ARM})),
    "r1": PoolNode(RED, cu(16)),
    "g1": PoolNode(GREEN, cu(16)),
    "u1": PoolNode(NodePool(), cu(16)),
}


def vm(node: str, amount: Resources, uid: str = "") -> DeniedVm:
    return DeniedVm(uid or f"on-{node}", node, amount)


def standing(placeholder: Placeholder, **more: Any) -> StandingPlaceholder:
    return replace(
        StandingPlaceholder(placeholder.name, f"uid-{placeholder.name}", placeholder.fingerprint), **more
    )


class Looks:
    """Looks in a row; `there` are the placeholders that stand, as the plans have left them."""

    def __init__(
        self,
        nodes: Mapping[str, PoolNode] = NODES,
        rules: PlaceholderRules | None = RULES,
        began_s: float = -1e6,
    ) -> None:
        self.nodes, self.rules = nodes, rules
        self.state = PlaceholderState(began_s)
        self.there: list[StandingPlaceholder] = []

    def look(self, at_s: float, *denied: DeniedVm) -> PlaceholderPlan:
        found = plan(self.state, denied, self.nodes, self.rules, self.there, at_s)
        self.state = found.state
        self.there = [each for each in self.there if each not in found.delete]
        self.there += map(standing, found.create)
        assert len({each.name for each in self.there}) == len(self.there)
        return found

    def made(self, at_s: float, *denied: DeniedVm) -> Collection[Placeholder]:
        """The placeholders for denials that last until then."""
        self.look(at_s - RULES.after_s, *denied)
        return self.look(at_s, *denied).create


def test_a_denial_that_lasts_has_a_placeholder_until_it_ends() -> None:
    looks = Looks()
    assert not looks.look(0, vm("r1", cu(2))).create
    assert not looks.look(29, vm("r1", cu(2))).create
    (made,) = looks.look(30, vm("r1", cu(2))).create
    assert (made.pool, made.amount, made.taints) == (RED, cu(2), ())
    assert looks.look(31, vm("r1", cu(2))).create == ()
    over = looks.look(32)
    assert (over.delete, over.create) == ((standing(made),), ())


def test_a_break_in_the_denial_begins_the_wait_anew() -> None:
    looks = Looks()
    looks.look(0, vm("r1", cu(2)))
    looks.look(20)
    looks.look(21, vm("r1", cu(2)))
    assert not looks.look(50, vm("r1", cu(2))).create
    assert looks.look(51, vm("r1", cu(2))).create


def test_a_pool_has_one_for_the_sum_of_its_nodes_tolerating_what_all_of_them_have() -> None:
    (made,) = Looks().made(30, vm("b1", cu(1)), vm("b2", Resources(1000, 0)), vm("b1", cu(1), "second"))
    assert (made.pool, made.amount, made.taints) == (BLUE, Resources(3000, 2 * GIB), (DISK,))


def test_the_pools_where_most_is_denied_have_one_within_the_number_that_is_set() -> None:
    denied = vm("b1", cu(1)), vm("r1", Resources(2000, 0)), vm("g1", Resources(2000, GIB)), vm("u1", cu(1))
    assert [each.pool for each in Looks().made(30, *denied)] == [GREEN, RED]
    all_of_them = Looks(rules=replace(RULES, most_pods=9)).made(30, *denied)
    assert [each.pool for each in all_of_them] == [GREEN, RED, NodePool(), BLUE]
    assert len({each.name for each in all_of_them}) == 4


@pytest.mark.parametrize(
    ("denied", "amount"),
    [
        (Resources(1, 1), Resources(500, GIB)),
        (Resources(501, 0), Resources(1000, 0)),
        (Resources(0, GIB + 1), Resources(0, 2 * GIB)),
        (cu(9), Resources(6000, 6 * GIB)),  # three quarters of the largest node
    ],
)
def test_requests_are_whole_steps_and_not_more_than_a_node_can_have(
    denied: Resources, amount: Resources
) -> None:
    nodes = {"b1": PoolNode(BLUE, cu(4)), "b2": PoolNode(BLUE, cu(8))}
    (made,) = Looks(nodes).made(30, vm("b1", denied))
    assert made.amount == amount


def test_requests_are_at_most_what_is_set() -> None:
    (made,) = Looks().made(30, vm("r1", cu(9)))
    assert made.amount == cu(8)


@pytest.mark.parametrize("denied", [vm("gone", cu(2)), vm("zero", cu(2))])
def test_a_node_that_is_not_known_or_has_nothing_gives_no_reason_for_one(denied: DeniedVm) -> None:
    assert not Looks({**NODES, "zero": PoolNode(NodePool("pool", "zero"), ZERO)}).made(30, denied)


def test_it_is_made_anew_if_the_number_of_steps_changes_but_not_at_once() -> None:
    looks = Looks()
    (first,) = looks.made(30, vm("r1", cu(2)))
    assert looks.look(31, vm("r1", Resources(1999, 2 * GIB))).delete == ()
    early = looks.look(30 + EVERY_S - 1, vm("r1", cu(3)))
    assert (early.delete, early.create) == ((), ())
    later = looks.look(30 + EVERY_S, vm("r1", cu(3)))
    assert later.delete == (standing(first),)
    (second,) = later.create
    assert (second.name, second.amount) == (first.name, cu(3))
    assert second.fingerprint != first.fingerprint


@pytest.mark.parametrize(
    "change", [{"template": {"spec": {"a": 1}}}, {"priority_class": "lower"}, {"most": cu(1)}]
)
def test_it_is_made_anew_if_the_settings_of_it_change(change: dict[str, Any]) -> None:
    looks = Looks()
    looks.made(30, vm("r1", cu(2)))
    looks.rules = replace(RULES, **change)
    found = looks.look(100, vm("r1", cu(2)))
    assert (len(found.delete), len(found.create)) == (1, 1)


def test_without_settings_there_are_none() -> None:
    looks = Looks()
    (made,) = looks.made(30, vm("r1", cu(2)))
    looks.rules = None
    found = looks.look(31, vm("r1", cu(2)))
    assert (found.delete, found.create) == ((standing(made),), ())


def test_one_that_got_a_node_goes_and_its_pool_rests() -> None:
    looks = Looks()
    (made,) = looks.made(30, vm("r1", cu(2)))
    looks.there = [standing(made, is_placed=True)]
    assert looks.look(40, vm("r1", cu(2)), vm("b1", cu(1))).delete == (standing(made, is_placed=True),)
    assert [each.pool for each in looks.look(80, vm("r1", cu(2)), vm("b1", cu(1))).create] == [BLUE]
    assert not looks.look(40 + PLACED_REST_S - 1, vm("r1", cu(2))).create
    assert [each.pool for each in looks.look(40 + PLACED_REST_S, vm("r1", cu(2))).create] == [RED]


def test_one_that_got_the_room_that_the_pod_gave_back_is_no_reason_to_rest() -> None:
    looks = Looks()
    (made,) = looks.made(30, vm("r1", cu(2)))
    looks.there = [standing(made, is_placed=True)]
    assert looks.look(40).delete == (standing(made, is_placed=True),)
    assert looks.made(90, vm("r1", cu(2)))


def test_one_on_its_way_out_is_neither_deleted_again_nor_made_before_it_has_gone() -> None:
    looks = Looks()
    (made,) = looks.made(30, vm("r1", cu(2)))
    looks.there = [standing(made, is_going=True)]
    for denied in ((), (vm("r1", cu(3)),), (vm("r1", cu(2)),)):
        found = looks.look(100, *denied)
        assert (found.delete, found.create) == ((), ())


def test_a_new_leader_takes_over_what_stands_and_deletes_it_once_it_knows_better() -> None:
    earlier = Looks()
    (right,) = earlier.made(30, vm("r1", cu(2)))
    (stray,) = earlier.made(100, vm("b1", cu(2)))
    looks = Looks(began_s=1000)
    looks.there = [
        standing(right),
        standing(stray),
        StandingPlaceholder("other", "uid-other", "", is_placed=True),
    ]
    assert [each.name for each in looks.look(1000).delete] == ["other"], "its work is done"
    looks.look(1001, vm("r1", cu(2)))
    assert not looks.look(1000 + RULES.after_s + SETTLING_S - 1, vm("r1", cu(2))).delete
    found = looks.look(1000 + RULES.after_s + SETTLING_S, vm("r1", cu(2)))
    assert (found.delete, found.create) == ((standing(stray),), ())


def test_a_new_leader_deletes_at_once_what_it_has_wanted_itself() -> None:
    looks = Looks(began_s=1000)
    (made,) = looks.made(1030, vm("r1", cu(2)))
    assert looks.look(1031).delete == (standing(made),)


def test_what_is_denied_is_what_no_room_was_left_for() -> None:
    world = World(cu(5))
    world.vm("vm", cu(4))
    world.vm("content", UNIT)
    world.permit(world.request("vm", cu(6)))
    world.permit(world.request("content", UNIT))
    assert list(denied_vms(world.core.state)) == [DeniedVm("uid-vm", "n1", cu(2))]
    world.permit(world.request("vm", cu(4)))
    assert list(denied_vms(world.core.state)) == []
