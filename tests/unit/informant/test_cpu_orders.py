"""Which CPUs are switched for an order, in which sequence, and whose order stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from informant.core.cpu_orders import CpuOrders, CpuSwitch, GuestCpus
from protocol.informant_pages import MachineOrder


def switches(
    wanted: int | None, present: set[int], online: set[int], refused: frozenset[int] = frozenset()
) -> tuple[list[tuple[int, bool]], set[int]]:
    """All switches of one order, with those that the kernel refuses, and what is online at the end."""
    orders, online, found = CpuOrders().taken(MachineOrder(1, wanted)), set(online), []
    while switch := orders.next_switch(GuestCpus(frozenset(present), frozenset(online))):
        orders = orders.trying(switch)
        found.append((switch.number, switch.is_on))
        if switch.number not in refused:
            online ^= {switch.number}
    return found, online


@pytest.mark.parametrize(
    ("wanted", "present", "online", "expected"),
    [
        (3, {0, 1, 2, 3}, {0}, [(1, True), (2, True)]),
        (4, {0, 1, 5, 7}, {0, 5}, [(1, True), (7, True)]),
        (2, {0, 1, 2, 3}, {0, 1, 2, 3}, [(3, False), (2, False)]),
        (1, {0, 1, 5}, {0, 1, 5}, [(5, False), (1, False)]),
        (2, {0, 1, 2}, {0, 2}, []),
        (9, {0, 1}, {0}, [(1, True)]),
        (1, {1, 2}, {1, 2}, [(2, False)]),
        (None, {0, 1}, {0}, []),
    ],
    ids=["grow", "with gaps", "shrink", "to CPU 0", "met", "more than present", "without CPU 0", "no number"],
)
def test_the_lowest_come_online_first_and_the_highest_go_first(
    wanted: int | None, present: set[int], online: set[int], expected: list[tuple[int, bool]]
) -> None:
    assert switches(wanted, present, online)[0] == expected


@given(
    st.sets(st.integers(1, 12)),
    st.sets(st.integers(1, 12)),
    st.integers(1, 14),
    st.frozensets(st.integers(0, 12)),
)
def test_an_order_ends_whatever_the_kernel_refuses(
    more: set[int], some: set[int], wanted: int, refused: frozenset[int]
) -> None:
    present, online = {0} | more, {0} | (more & some)
    found, after = switches(wanted, present, online, refused)
    numbers = [number for number, _ in found]
    assert len(set(numbers)) == len(numbers)
    assert 0 in after
    assert 0 not in numbers
    assert {is_on for _, is_on in found} <= {len(online) < wanted}
    free = (present - online if len(online) < wanted else online - {0}) - refused
    assert len(after) == wanted or not free - set(numbers), "what could be done was done"


def test_a_cpu_that_is_refused_is_passed_over_and_tried_again_for_the_next_order() -> None:
    assert switches(1, {0, 1, 2}, {0, 1, 2}, frozenset({2})) == ([(2, False), (1, False)], {0, 2})
    orders = CpuOrders().trying(CpuSwitch(2, is_on=False)).taken(MachineOrder(0, 1))
    assert orders.next_switch(GuestCpus(frozenset({0, 2}), frozenset({0, 2}))) == CpuSwitch(2, is_on=False)


def test_a_newer_order_of_the_same_or_a_later_life_replaces_the_one_that_stands() -> None:
    orders = CpuOrders().taken(MachineOrder(7, 4))
    assert orders.taken(MachineOrder(7, 2)) == CpuOrders(7, 2)
    assert orders.taken(MachineOrder(8, 3)) == CpuOrders(8, 3)


def test_a_later_life_ends_what_an_earlier_one_ordered_even_without_a_number() -> None:
    orders = CpuOrders().taken(MachineOrder(7, 4))
    assert orders.taken(MachineOrder(7)) == orders
    assert orders.taken(MachineOrder(8)) == CpuOrders(8)
    assert [CpuOrders(8).is_outdated(MachineOrder(each, 2)) for each in (7, 8, 9)] == [True, False, False]


def test_an_order_that_was_overtaken_by_a_newer_one_of_its_life_is_outdated() -> None:
    orders = CpuOrders().taken(MachineOrder(7, 4, 2)).taken(MachineOrder(7, None, 3)).done()
    assert orders.is_outdated(MachineOrder(7, 4, 2))
    assert not orders.is_outdated(MachineOrder(7, 4, 3)), "the same one, sent again"
    assert not orders.is_outdated(MachineOrder(8, 4, 1)), "each life counts anew"
    assert orders.taken(MachineOrder(8, 4, 1)) == CpuOrders(8, 4, sequence_number=1)


def test_an_order_that_is_done_leaves_its_generation() -> None:
    assert CpuOrders(7, 4, frozenset({1})).done() == CpuOrders(7)
