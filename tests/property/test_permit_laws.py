"""What holds of the permit formula whatever the amounts, units, bounds and other rows are."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.reasons import Reason, ReasonCode
from protocol.values import ComputeUnit, Resources
from scheduler.core import limits
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


def granted(case: Case) -> limits.Grant:
    current, request, unit, room, bound = case
    way = limits.growth(current, request, ComputeUnit(unit), bound)
    return limits.grant(way, way.headroom(room))


def per_resource(case: Case, permit: Resources) -> list[tuple[Pair, int]]:
    """Each resource of the case, (current, request, unit, room, bound), with its permit."""
    cpu = tuple(amount.vcpu_milli for amount in case)
    memory = tuple(amount.memory_bytes for amount in case)
    return [(_five(cpu), permit.vcpu_milli), (_five(memory), permit.memory_bytes)]


def _five(figures: tuple[int, ...]) -> Pair:
    one, two, three, four, five = figures
    return one, two, three, four, five


@given(cases)
def test_of_each_resource_as_much_is_permitted_as_wish_room_and_bounds_allow(case: Case) -> None:
    """A decrease is exact. What grew is whole units or all that was wanted; bounds take nothing away."""
    for (current, request, unit, room, bound), permit in per_resource(case, granted(case).permit):
        assert min(current, request) <= permit <= max(current, request)
        assert request > current or permit == request
        assert permit <= current or permit <= room
        assert permit <= max(current, bound)
        assert permit <= current or permit % unit == 0 or permit == min(request, max(current, bound))


@given(cases)
def test_no_larger_number_of_units_would_have_fitted(case: Case) -> None:
    """One unit more takes at least one resource that grows beyond its room."""
    current, request, unit, room, bound = case
    permit = granted(case).permit
    way = limits.growth(current, request, ComputeUnit(unit), bound)
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
def test_what_is_cut_has_a_reason_and_what_is_not_has_none(case: Case) -> None:
    grant = granted(case)
    assert bool(grant.reasons) == (grant.permit != case[1])


@given(cases)
def test_asking_again_for_what_was_granted_gives_it_and_for_the_same_gains_nothing(case: Case) -> None:
    current, request, unit, room, bound = case
    permit = granted(case).permit
    assert granted((permit, permit, unit, room, bound)) == limits.Grant(permit)
    assert granted((current, permit, unit, room, bound)).permit == permit
    assert granted((permit, request, unit, room, bound)).permit == permit


@given(cases, st.integers(0, 50), st.integers(0, 50))
def test_more_units_never_mean_less(case: Case, one: int, other: int) -> None:
    current, request, unit, *_ = case
    low, high = sorted((one, other))
    way = limits.Growth(current, request, ComputeUnit(unit))
    assert way.permit(low, low).fits_in(way.permit(high, high))


@given(cases, _small)
def test_more_room_never_means_less(case: Case, extra: Resources) -> None:
    current, request, unit, room, bound = case
    assert granted(case).permit.fits_in(granted((current, request, unit, room + extra, bound)).permit)


@given(cases, st.lists(st.integers(0, 45), max_size=4))
def test_the_smallest_limit_binds_and_comes_first(case: Case, units: list[int]) -> None:
    current, request, unit, _, bound = case
    found = tuple(limits.Limit(n, Reason(ReasonCode.POOL, str(n))) for n in units)
    way = limits.growth(current, request, ComputeUnit(unit), bound)
    grant = limits.grant(way, found)
    named = [int(reason.message) for reason in grant.reasons if reason.code is ReasonCode.POOL]
    assert named == sorted(named)
    if named:
        assert named[0] == min(units)
        assert grant.permit == way.permit(min(units), min(units))


# ------------------------------------------------------------ the sum on one node

_asks = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 9_000), st.integers(1, 9_000), st.booleans()), max_size=40
)


@given(st.integers(1, 5), _asks)
def test_settled_vms_never_overfill_their_node(vms: int, asks: list[tuple[int, int, int, bool]]) -> None:
    """Requests in any order, with and without claims at the permit, on a node of 10 that starts with room."""
    world = World(cu(10))
    size = Resources(1_000, 1_000)
    for index in range(vms):
        world.vm(f"vm{index}", size, most=cu(12), unit=Resources(700, 900), slot=1)
    world.node("n1", Resources(10_000, 10_000))
    for chosen, vcpu, memory, claims in asks:
        name = f"vm{chosen % vms}"
        had = world.state(name).current
        world.permit(world.request(name, Resources(vcpu, memory), claim=had if claims else None))
        total = Resources(0, 0)
        for index in range(vms):
            total += world.state(f"vm{index}").reserved
        assert total == world.node_reserved()
        assert total.fits_in(Resources(10_000, 10_000))
