"""A pool's verdict leaves to a VM the most that fits, whoever else is in the pool: compared with plain counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import ComputeUnit, Resources
from scheduler.permits.core import events
from scheduler.permits.core.limits import Growth
from scheduler.permits.core.model import PoolSpec
from tests.support.amounts import cu
from tests.unit.scheduler_core.core_worlds import World

_figures = st.integers(1, 12)
_amounts = st.builds(Resources, _figures, _figures)
_units = st.builds(Resources, st.integers(1, 4), st.integers(1, 4))
_totals = st.none() | st.integers(0, 40)
_limits = st.none() | st.integers(1, 40)
both_kinds = pytest.mark.parametrize("apart", [False, True], ids=["tied", "apart"])


def part(amount: Resources, unit: Resources) -> int:
    """The smallest number of units that covers an amount, found by counting."""
    return next(n for n in range(200) if amount.fits_in(unit * n))


def world_of(members: list[Resources], pool_unit: Resources, unit: Resources) -> World:
    """VMs m0, m1, ... of these sizes in one pool, on a node with room for everything."""
    world = World(cu(1))
    world.apply(events.PoolSeen(PoolSpec("blue", pool_unit)))
    for index, size in enumerate(members):
        world.vm(f"m{index}", size, unit=unit, slot=1)
        world.see(f"m{index}", None, at=0.0, pool="blue")
    return world


def held(world: World) -> int:
    """The ledger's count of what the pool holds."""
    account = world.core.ledger.pool("blue")
    assert account is not None
    return account.units


@both_kinds
@given(
    st.lists(_amounts, min_size=1, max_size=4), _amounts, _units, _units, st.tuples(_totals, _limits, _limits)
)
def test_a_grant_is_the_largest_number_of_steps_whose_part_fits(
    apart: bool,
    members: list[Resources],
    want: Resources,
    unit: Resources,
    pool_unit: Resources,
    bounds: tuple[int | None, int | None, int | None],
) -> None:
    total, max_units, per_vm = bounds
    world = world_of(members, pool_unit, unit)
    world.apply(events.PoolSeen(PoolSpec("blue", pool_unit, max_units=max_units, max_units_per_vm=per_vm)))
    (answer,) = world.take(world.request("m0", want, apart=apart), 1)
    if isinstance(answer, events.AdmissionCallNeeded):
        (answer,) = world.pool_says(1, events.PoolVerdict(total))
        members = [members[0].min(want), *members[1:]]  # what it gives back counts before the verdict
    else:
        total = None  # nobody was asked
    assert isinstance(answer, events.Decided)
    current = members[0]
    mosts = [_left(members, pool_unit, max_units), _left(members, pool_unit, total, keeps_own=apart), per_vm]
    assert answer.permit == _oracle(current, want, ComputeUnit(unit, apart), pool_unit, mosts)
    if part(answer.permit, pool_unit) > part(current, pool_unit):
        assert all(most is None or held(world) <= most for most in (total, max_units))


def _pair(amount: Resources) -> tuple[int, int]:
    return amount.vcpu_milli, amount.memory_bytes


def _left(
    members: list[Resources], pool_unit: Resources, most: int | None, *, keeps_own: bool = False
) -> int | None:
    """The units that a pool of `most` units leaves to the first VM. If it holds more, nothing; or what the VM takes anyway."""
    if most is None:
        return None
    own, *others = (part(size, pool_unit) for size in members)
    if own + sum(others) <= most:
        return most - sum(others)
    return own if keeps_own else -1


def _oracle(
    current: Resources, want: Resources, unit: ComputeUnit, pool_unit: Resources, mosts: list[int | None]
) -> Resources:
    """The permit of the largest n that fits, else the one of none: tried one by one; apart, for each resource alone."""
    if unit.is_apart:
        cpu = Resources(want.vcpu_milli, current.memory_bytes)
        memory = Resources(current.vcpu_milli, want.memory_bytes)
        return Resources(
            _oracle(current, cpu, unit.tied(), pool_unit, mosts).vcpu_milli,
            _oracle(current, memory, unit.tied(), pool_unit, mosts).memory_bytes,
        )

    def fits(permit: Resources) -> bool:
        grown = [
            (new, step)
            for new, old, step in zip(_pair(permit), _pair(current), _pair(pool_unit), strict=True)
            if new > old
        ]
        return all(most is None or all(new <= most * step for new, step in grown) for most in mosts)

    way = Growth(current, want, unit)
    return [permit for permit in (way.permit(n, n) for n in range(40)) if fits(permit)][-1]


@given(
    st.lists(_amounts, min_size=2, max_size=5),
    st.lists(st.tuples(_amounts, st.booleans()), min_size=5, max_size=5),
    _units,
    st.integers(0, 60),
)
def test_all_who_wait_are_served_by_one_total(
    members: list[Resources], asks: list[tuple[Resources, bool]], pool_unit: Resources, total: int
) -> None:
    """However many wait, the pool never grows beyond the total; and where that covers everything, all get all."""
    world = world_of(members, pool_unit, Resources(1, 1))
    waiting, wants = [], [want for want, _ in asks]
    for index in range(len(members)):
        outputs = world.take(world.request(f"m{index}", wants[index], apart=asks[index][1]), index + 1)
        if isinstance(outputs[0], events.AdmissionCallNeeded):
            waiting.append(index)
    before = held(world)
    needed = before + sum(
        max(part(wants[index].max(members[index]), pool_unit) - part(members[index], pool_unit), 0)
        for index in waiting
    )
    for index in waiting:
        (answer,) = world.pool_says(index + 1, events.PoolVerdict(total))
        assert isinstance(answer, events.Decided)
        assert held(world) <= max(before, total)
        if total >= needed:
            assert answer.permit == wants[index]


@given(
    st.lists(_amounts, min_size=1, max_size=4),
    _units,
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["blue", "red", None]), _amounts), max_size=12),
)
def test_the_sums_are_the_parts_of_whoever_belongs(
    members: list[Resources], pool_unit: Resources, moves: list[tuple[int, str | None, Resources]]
) -> None:
    """Labels and sizes change in any order."""
    world = world_of(members, pool_unit, Resources(1, 1))
    world.apply(events.PoolSeen(PoolSpec("red", Resources(2, 3))))
    units = {"blue": pool_unit, "red": Resources(2, 3)}
    belongs: dict[int, str | None] = dict.fromkeys(range(len(members)), "blue")
    sizes = dict(enumerate(members))
    for at, (chosen, name, size) in enumerate(moves):
        index = chosen % len(members)
        world.see(f"m{index}", None, at=0.0, pool=name)
        belongs[index] = name
        world.read(f"m{index}", size, at=float(at))
        sizes[index] = members[index].max(size)  # its permit stays what it was
    for name, unit in units.items():
        account = world.core.ledger.pool(name)
        assert account is not None
        assert account.units == sum(
            part(sizes[index], unit) for index in range(len(members)) if belongs[index] == name
        )
