"""Laws of the permit formula, whatever the amounts, units, bounds and other rows are, tied and apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Resources
from scheduler.permits.core import limits
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import World

# Small numbers in odd steps: ties, exact multiples and everything between are frequent.
_figures = st.one_of(st.integers(0, 40), st.integers(0, 10**6), st.integers(0, 2**62))
_some = st.builds(Resources, _figures, _figures)
_positive = st.builds(Resources, _figures.map(lambda n: n + 1), _figures.map(lambda n: n + 1))
_rooms = st.builds(Resources, st.integers(-50, 60), st.integers(-50, 60)) | _some
_small = st.builds(Resources, st.integers(0, 40), st.integers(0, 40))
_units = st.builds(Resources, st.integers(1, 7), st.integers(1, 7))
_near = st.tuples(_small, _small, _units, _rooms, _small.map(lambda bound: bound + Resources(1, 1)))
_far = st.tuples(_some, _some, _positive, _rooms, _positive)
cases = st.one_of(_near, _far)
Case = tuple[Resources, Resources, Resources, Resources, Resources]
Pair = tuple[int, int, int, int, int]


both_kinds = pytest.mark.parametrize("apart", [False, True], ids=["tied", "apart"])


def way_of(case: Case, *, apart: bool) -> limits.Growth:
    current, request, unit, _, bound = case
    return limits.growth(current, request, ComputeUnit(unit, apart), bound)


def granted(case: Case, *, apart: bool) -> limits.Grant:
    way = way_of(case, apart=apart)
    return limits.grant(way, way.headroom(case[3]))


def per_resource(case: Case, permit: Resources) -> list[tuple[Pair, int]]:
    """Each resource of the case, (current, request, unit, room, bound), with its permit."""
    cpu = tuple(amount.vcpu_milli for amount in case)
    memory = tuple(amount.memory_bytes for amount in case)
    return [(_five(cpu), permit.vcpu_milli), (_five(memory), permit.memory_bytes)]


def _five(figures: tuple[int, ...]) -> Pair:
    one, two, three, four, five = figures
    return one, two, three, four, five


@both_kinds
@given(cases)
def test_of_each_resource_as_much_is_permitted_as_wish_room_and_bounds_allow(apart: bool, case: Case) -> None:
    """A decrease is exact. What grew is whole units or all that was wanted; bounds take nothing away."""
    for (current, request, unit, room, bound), permit in per_resource(
        case, granted(case, apart=apart).permit
    ):
        assert min(current, request) <= permit <= max(current, request)
        assert request > current or permit == request
        assert permit <= current or permit <= room
        assert permit <= max(current, bound)
        assert permit <= current or permit % unit == 0 or permit == min(request, max(current, bound))


@given(cases)
def test_no_larger_number_of_units_would_have_fitted(case: Case) -> None:
    """One unit more takes at least one resource that grows beyond its room."""
    current, _, unit, room, _ = case
    permit = granted(case, apart=False).permit
    way = way_of(case, apart=False)
    wanted = way.wanted
    if permit == wanted:
        return
    base = permit.min(wanted)
    steps = [
        have // step + 1
        for have, want, step in zip(_pair(base), _pair(wanted), _pair(unit), strict=True)
        if want > have
    ]
    more = way.permit(min(steps), min(steps))
    assert more != permit
    assert any(
        after > free and after > before
        for after, before, free in zip(_pair(more), _pair(current), _pair(room), strict=True)
    )


def _pair(amount: Resources) -> tuple[int, int]:
    return amount.vcpu_milli, amount.memory_bytes


@given(cases)
def test_apart_each_resource_gets_what_it_would_get_alone(case: Case) -> None:
    """By the tied formula, in a request that leaves the other resource as it is: so the other's room cuts nothing."""
    current, request, *rest = case
    permit = granted(case, apart=True).permit
    for alone, of in (
        (Resources(request.vcpu_milli, current.memory_bytes), "vcpu_milli"),
        (Resources(current.vcpu_milli, request.memory_bytes), "memory_bytes"),
    ):
        unit, room, bound = rest
        assert getattr(permit, of) == getattr(
            granted((current, alone, unit, room, bound), apart=False).permit, of
        )


@given(cases)
def test_apart_is_never_below_tied(case: Case) -> None:
    tied, apart = granted(case, apart=False), granted(case, apart=True)
    assert tied.permit.fits_in(apart.permit)
    way = way_of(case, apart=False)
    if (way.wanted.vcpu_milli > case[0].vcpu_milli) != (way.wanted.memory_bytes > case[0].memory_bytes):
        assert tied.permit == apart.permit, "where one resource grows, its number is the number of both"


@both_kinds
@given(cases)
def test_what_is_cut_has_a_reason_and_what_is_not_has_none(apart: bool, case: Case) -> None:
    """Apart, each resource that is cut has a reason of its own, or one that names no resource."""
    grant = granted(case, apart=apart)
    assert bool(grant.reasons) == (grant.permit != case[1])
    if apart:
        cut = {
            name
            for (name, got), (_, asked) in zip(grant.permit.named(), case[1].named(), strict=True)
            if got != asked
        }
        named = {reason.resource for reason in grant.reasons}
        assert cut <= named or None in named
        assert named - {None} <= cut


@both_kinds
@given(cases)
def test_asking_again_for_what_was_granted_gives_it_and_for_the_same_gains_nothing(
    apart: bool, case: Case
) -> None:
    current, request, unit, room, bound = case
    permit = granted(case, apart=apart).permit
    assert granted((permit, permit, unit, room, bound), apart=apart) == limits.Grant(permit)
    assert granted((current, permit, unit, room, bound), apart=apart).permit == permit
    assert granted((permit, request, unit, room, bound), apart=apart).permit == permit


@given(cases, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_more_units_never_mean_less(case: Case, one: int, other: int, two: int, another: int) -> None:
    way = way_of(case, apart=True)
    (cpu, more_cpu), (memory, more_memory) = sorted((one, other)), sorted((two, another))
    assert way.permit(cpu, memory).fits_in(way.permit(more_cpu, more_memory))


@both_kinds
@given(cases, _small)
def test_more_room_never_means_less(apart: bool, case: Case, extra: Resources) -> None:
    current, request, unit, room, bound = case
    before = granted(case, apart=apart).permit
    after = granted((current, request, unit, room + extra, bound), apart=apart).permit
    assert before.fits_in(after)


_resources = st.sampled_from([None, "cpu", "memory"])


@both_kinds
@given(cases, st.lists(st.tuples(st.integers(0, 45), _resources), max_size=5))
def test_the_smallest_limit_binds_and_comes_first(
    apart: bool, case: Case, told: list[tuple[int, str | None]]
) -> None:
    """Of both resources where they are tied; of each where they are apart, by the limits that concern it.

    Apart, what limits both leaves nothing of either.
    """
    way = way_of(case, apart=apart)
    if apart:
        found = [(units if resource else 0, resource) for units, resource in told]
    else:
        found = [(units, None) for units, _ in told]
    grant = limits.grant(way, [_limit(units, resource) for units, resource in found])
    reasons = [reason for reason in grant.reasons if reason.code is ReasonCode.POOL]
    assert bool(reasons) == (grant.cpu_bound is not None or grant.memory_bound is not None)
    bound = {}
    for name, code in (("cpu", grant.cpu_bound), ("memory", grant.memory_bound)):
        bound[name] = 2**62
        if code is not None:
            bound[name] = min(units for units, resource in found if resource in (None, name))
            first = next(reason for reason in reasons if reason.resource in (None, name))
            assert first.message == str(bound[name])
    assert grant.permit == way.permit(bound["cpu"], bound["memory"])
    if not apart:
        assert [reason.message for reason in reasons] == [
            str(units) for units in sorted(units for units, _ in found) if units < _needed(way)
        ]


def _limit(units: int, resource: str | None) -> limits.Limit:
    return limits.Limit(units, Reason(ReasonCode.POOL, str(units)), resource)


def _needed(way: limits.Growth) -> int:
    return max(way.cpu_units, way.memory_units)


# ------------------------------------------------------------ the sum on one node

_asks = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 9_000), st.integers(1, 9_000), st.booleans(), st.booleans()),
    max_size=40,
)


@given(st.integers(1, 5), _asks)
def test_settled_vms_never_overfill_their_node(
    vms: int, asks: list[tuple[int, int, int, bool, bool]]
) -> None:
    """Requests of both kinds in any order, with and without claims at the permit, on a node of 10 that starts with room."""
    world = World(cu(10))
    size = Resources(1_000, 1_000)
    for index in range(vms):
        world.vm(f"vm{index}", size, most=cu(12), unit=Resources(700, 900), slot=1)
    world.node("n1", Resources(10_000, 10_000))
    for chosen, vcpu, memory, claims, apart in asks:
        name = f"vm{chosen % vms}"
        had = world.state(name).current
        claim = had if claims else None
        world.permit(world.request(name, Resources(vcpu, memory), claim=claim, apart=apart))
        total = Resources(0, 0)
        for index in range(vms):
            total += world.state(f"vm{index}").reserved
        assert total == world.node_reserved()
        assert total.fits_in(Resources(10_000, 10_000))
