"""The permit formula: decreases are exact, growth goes in whole units, every limit says why."""

import pytest

from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Resources
from scheduler.permits.core import limits
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.scheduler_core.core_worlds import World

WIDE = cu(1000)


def limit(units: int, code: ReasonCode = ReasonCode.POOL) -> limits.Limit:
    return limits.Limit(units, Reason(code, f"at most {units}"))


def granted(
    current: Resources,
    request: Resources,
    *found: limits.Limit,
    unit: Resources | None = UNIT,
    bound: Resources = WIDE,
) -> limits.Grant:
    return limits.grant(
        limits.growth(current, request, None if unit is None else ComputeUnit(unit), bound), found
    )


def in_room(
    current: Resources,
    request: Resources,
    room: Resources,
    *,
    unit: Resources = UNIT,
    bound: Resources = WIDE,
) -> limits.Grant:
    """The grant when the other rows leave `room`."""
    way = limits.growth(current, request, ComputeUnit(unit), bound)
    return limits.grant(way, way.headroom(room))


def codes(grant: limits.Grant) -> list[ReasonCode]:
    return [reason.code for reason in grant.reasons]


# ------------------------------------------------------------ permit(n)


def test_a_decrease_is_exact_whatever_the_unit_and_the_room() -> None:
    request = Resources(1_234, 3 * GIB + 17)
    assert in_room(cu(8), request, cu(-5)) == limits.Grant(request)
    assert granted(cu(8), request, limit(0), unit=None) == limits.Grant(request)


@pytest.mark.parametrize(
    ("current", "request_", "units", "permit"),
    [
        (cu(1), cu(5), 3, cu(3)),
        (cu(1.5), cu(5), 3, cu(3)),
        (cu(2.5), cu(5), 2, cu(2.5)),  # two units are less than what there is already
        (cu(1), cu(2.7), 3, cu(2.7)),  # three units are more than was asked for
        (cu(3, 5), cu(4, 4), 4, cu(4, 4)),  # one resource up, the other down
        (cu(3, 5), cu(4, 4), 3, cu(3, 4)),
        (cu(3, 5), cu(5, 5), 4, cu(4, 5)),
        (cu(3, 5), cu(5, 5), 0, cu(3, 5)),
        (cu(1, 6), cu(4, 9), 5, cu(4, 6)),  # out of ratio: five units of memory are fewer than it has
        (cu(1, 6), cu(4, 9), 7, cu(4, 7)),
        (cu(2), cu(5), 0, cu(2)),
    ],
)
def test_permit_of_n_units_lies_between_current_and_request(
    current: Resources, request_: Resources, units: int, permit: Resources
) -> None:
    assert limits.Growth(current, request_, ComputeUnit(UNIT)).permit(units, units) == permit


# ------------------------------------------------------------ growth


ROOM, BOUNDS = ReasonCode.NODE_HEADROOM, ReasonCode.VM_BOUNDS


@pytest.mark.parametrize(
    ("current", "request_", "room", "bound", "permit", "why"),
    [
        (cu(3), cu(3), cu(-100), WIDE, cu(3), []),
        (cu(1), cu(4), cu(4), WIDE, cu(4), []),
        (cu(1), cu(5), cu(3.9), WIDE, cu(3), [ROOM]),
        (cu(1), cu(6), cu(6, 3), WIDE, cu(3), [ROOM]),  # units are of both resources together
        (cu(3, 5), cu(4, 4), cu(4, 1), WIDE, cu(4, 4), []),  # what shrinks frees and limits nothing
        (cu(3, 5), cu(4, 4), cu(3, 9), WIDE, cu(3, 4), [ROOM]),
        (cu(3, 5), cu(5, 5), cu(5, 0), WIDE, cu(5, 5), []),  # nor does what stays
        (cu(2.5), cu(5), cu(3.2), WIDE, cu(3), [ROOM]),  # the third unit fits, the fourth does not
        (cu(2.5), cu(3.2), cu(3.2), WIDE, cu(3.2), []),
        (cu(1), cu(9), WIDE, cu(3.5), cu(3.5), [BOUNDS]),
        (cu(4), cu(4), WIDE, cu(2), cu(4), []),  # bounds below current take nothing away
        (cu(4), cu(6), WIDE, cu(2), cu(4), [BOUNDS]),
        (cu(1), cu(6), WIDE, cu(2, 9), cu(2, 6), [BOUNDS]),
        (cu(1), cu(9), cu(3), cu(5), cu(3), [ROOM, BOUNDS]),
    ],
)
def test_growth_is_cut_to_the_room_in_whole_units_and_to_the_bounds(
    current: Resources,
    request_: Resources,
    room: Resources,
    bound: Resources,
    permit: Resources,
    why: list[ReasonCode],
) -> None:
    grant = in_room(current, request_, room, bound=bound)
    assert (grant.permit, codes(grant)) == (permit, why)


def test_the_scarcer_resource_is_named() -> None:
    assert [reason.resource for reason in in_room(cu(1), cu(6), cu(6, 3)).reasons] == ["memory"]


@pytest.mark.parametrize("room", [cu(0), cu(-7), Resources(-1, -1), cu(2), cu(2.999)])
def test_without_room_for_one_more_unit_current_is_kept(room: Resources) -> None:
    grant = in_room(cu(2), cu(5), room)
    assert grant.permit == cu(2)
    assert codes(grant) == [ReasonCode.NODE_HEADROOM]
    assert "-" not in grant.reasons[0].message


# ------------------------------------------------------------ resources that are apart

CPU, MEMORY = "cpu", "memory"


@pytest.mark.parametrize(
    ("current", "request_", "room", "bound", "permit", "why"),
    [
        (cu(1), cu(6), cu(6, 3), WIDE, cu(6, 3), [(ROOM, MEMORY)]),
        (cu(1), cu(6), cu(1, 6), WIDE, cu(1, 6), [(ROOM, CPU)]),
        (cu(1), cu(6), cu(3, 2.5), WIDE, cu(3, 2), [(ROOM, CPU), (ROOM, MEMORY)]),
        (cu(1), cu(6), cu(-5, 9), WIDE, cu(1, 6), [(ROOM, CPU)]),
        (cu(3, 5), cu(2, 9), cu(9, 7.5), WIDE, cu(2, 7), [(ROOM, MEMORY)]),  # one down, the other up
        (cu(0.3, 6), cu(0.9, 6.5), cu(9), WIDE, cu(0.9, 6.5), []),  # fractions that fit are granted whole
        (cu(0.3, 6), cu(2.9, 6.5), cu(2.8, 9), WIDE, cu(2, 6.5), [(ROOM, CPU)]),
        (cu(1), cu(9), cu(3, 20), cu(8, 5), cu(3, 5), [(ROOM, CPU), (BOUNDS, None)]),
        (cu(1), cu(9, 4), WIDE, cu(8, 5), cu(8, 4), [(BOUNDS, CPU)]),
        (cu(1), cu(4, 9), WIDE, cu(8, 5), cu(4, 5), [(BOUNDS, MEMORY)]),
    ],
)
def test_resources_that_are_apart_are_limited_each_by_itself(
    current: Resources,
    request_: Resources,
    room: Resources,
    bound: Resources,
    permit: Resources,
    why: list[tuple[ReasonCode, str | None]],
) -> None:
    way = limits.growth(current, request_, ComputeUnit(UNIT, is_apart=True), bound)
    grant = limits.grant(way, way.headroom(room))
    assert (grant.permit, [(each.code, each.resource) for each in grant.reasons]) == (permit, why)


def test_apart_each_resource_has_its_own_binding_limit_and_one_for_both_is_told_once() -> None:
    way = limits.growth(cu(1), cu(6), ComputeUnit(UNIT, is_apart=True), WIDE)
    stopped, pool = limit(0, ReasonCode.STOPPED), limit(3, ReasonCode.POOL)
    both = limits.grant(way, [stopped, *way.headroom(cu(2, 9))])
    assert (both.permit, both.cpu_bound, both.memory_bound) == (cu(1), ReasonCode.STOPPED, ReasonCode.STOPPED)
    assert codes(both) == [ReasonCode.STOPPED, ROOM]
    each = limits.grant(way, [*way.headroom(cu(2, 9)), pool])
    assert (each.permit, each.cpu_bound, each.memory_bound) == (cu(2, 3), ROOM, ReasonCode.POOL)
    assert codes(each) == [ROOM, ReasonCode.POOL]


# ------------------------------------------------------------ units and limits


@pytest.mark.parametrize("unit", [None, cu(0), Resources(1000, 0), Resources(0, GIB)])
def test_without_a_usable_unit_nothing_grows_and_decreases_pass(unit: Resources | None) -> None:
    for bound, why in ((WIDE, []), (cu(3.5), [BOUNDS])):
        grant = granted(cu(3, 5), cu(4, 4), unit=unit, bound=bound)
        assert grant.permit == cu(3, 4)
        assert codes(grant) == [ReasonCode.COMPUTE_UNIT, *why]


def test_the_smallest_limit_binds_ties_go_to_the_earlier_and_all_below_the_request_are_listed() -> None:
    units = {ReasonCode.STOPPED: 5, ROOM: 2, ReasonCode.MIGRATING: 6, ReasonCode.POOL: 2}
    found = [limit(most, code) for code, most in units.items()]
    grant = granted(cu(1), cu(6), *found)
    assert (grant.permit, codes(grant)) == (cu(2), [ROOM, ReasonCode.POOL, ReasonCode.STOPPED])
    assert granted(cu(4), cu(3), limit(0)) == limits.Grant(cu(3)), "nothing grows"


def test_a_limit_that_cuts_no_growth_is_not_listed() -> None:
    """Eight units of CPU are a decrease; the four units of memory that grow are allowed."""
    assert granted(cu(10, 2), cu(8, 4), limit(5)) == limits.Grant(cu(8, 4))


# ------------------------------------------------------------ the examples of reference/neon.md 2.3, by whole units


@pytest.mark.parametrize(
    ("others", "current", "request_", "permit"),
    [
        (cu(7), cu(1), cu(5), cu(3)),  # node.reserved 8 of 10, 1 → 5: 3, and the node is full
        (cu(10), cu(2), cu(3), cu(2)),  # node over-full at 12, 2 → 3: 2
        (cu(8), cu(4), cu(2), cu(2)),  # node over-full at 12, 4 → 2: 2, and it is full
    ],
)
def test_the_published_examples_hold(
    others: Resources, current: Resources, request_: Resources, permit: Resources
) -> None:
    world = World(cu(10))
    world.other_pod("filler", others)
    world.vm("vm", current)
    assert world.permit(world.request("vm", request_, claim=current)) == permit
    world.read("vm", permit, at=1.0)
    assert world.node_reserved() == others + permit


def test_an_unknown_node_grants_no_growth() -> None:
    world = World()
    world.vm("vm", cu(2), node="elsewhere", unit=UNIT)
    assert world.permit(world.request("vm", cu(3), claim=cu(2))) == cu(2)
    assert world.permit(world.request("vm", cu(1), claim=cu(2))) == cu(1)
