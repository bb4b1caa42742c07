"""Laws of the choice of neighbours: few are asked, those of lower priority first, for no more than is lacking, and for enough or not at all."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from protocol.values import ZERO, ComputeUnit, Resources, amount_of
from scheduler.permits.core.limits import growth
from scheduler.permits.core.yields import Lacking, Neighbour, choose, fewest, reached

_amounts = st.builds(Resources, st.integers(0, 12), st.integers(0, 12))
_units = st.builds(
    ComputeUnit, st.builds(Resources, st.integers(1, 4), st.integers(1, 4)), is_apart=st.booleans()
)
_priorities = st.integers(0, 2)


@st.composite
def _neighbours(draw: st.DrawFn) -> list[Neighbour]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        spare, to_higher, kept = draw(_amounts), draw(_amounts), draw(_amounts)
        name = f"vm{number}"
        current = kept + spare.max(to_higher)
        found.append(
            Neighbour(name, name, draw(_priorities), current, draw(_units), spare, spare.max(to_higher))
        )
    return found


@st.composite
def _lacking(draw: st.DrawFn) -> Lacking:
    current = draw(_amounts)
    way = growth(current, current + draw(_amounts), draw(_units), Resources(100, 100))
    return Lacking(way, current + draw(_amounts), draw(_priorities))


@given(
    st.dictionaries(st.integers(0, 5), st.tuples(_priorities, st.integers(1, 9)), max_size=6),
    st.integers(-2, 40),
)
def test_the_fewest_are_chosen_and_of_them_those_of_lower_priority_first(
    drawn: dict[int, tuple[int, int]], lacking: int
) -> None:
    unit = ComputeUnit(Resources(1, 1))
    spares = {
        Neighbour(f"vm{number}", f"vm{number}", priority, ZERO, unit, ZERO): spare
        for number, (priority, spare) in drawn.items()
    }
    ordered = sorted(spares, key=lambda each: (each.priority, -spares[each], each.name))
    sets = (
        chosen
        for size in range(len(ordered) + 1)
        for chosen in itertools.combinations(ordered, size)
        if sum(spares[each] for each in chosen) >= lacking
    )
    assert fewest(spares, lacking) == list(next(sets, ()))


@given(_lacking(), _neighbours())
def test_enough_is_asked_for_or_nothing(waiter: Lacking, neighbours: list[Neighbour]) -> None:
    asked = choose(waiter, neighbours)
    now = reached(waiter.way, waiter.room)
    then = reached(waiter.way, waiter.room + sum(asked.values(), ZERO))
    assert then.exceeds(now) if asked else then == now
    comfort = sum((_whole(each, each.spare) for each in neighbours), ZERO)
    assert not reached(waiter.way, waiter.room + comfort).exceeds(then)


@given(_lacking(), _neighbours())
def test_nobody_is_asked_for_more_than_it_can_give_or_in_parts_of_its_step(
    waiter: Lacking, neighbours: list[Neighbour]
) -> None:
    for each, amount in choose(waiter, neighbours).items():
        most = each.spare
        if each.priority < waiter.priority:
            most = each.spare_to_higher
        elif each.priority == waiter.priority:
            more = (each.current - waiter.way.current).max(ZERO)
            most = most.max(each.spare_to_higher.min(Resources(more.vcpu_milli // 2, more.memory_bytes // 2)))
        assert amount.fits_in(most)
        assert amount == _whole(each, amount)
        assert amount != ZERO


@given(_lacking(), _neighbours())
def test_a_step_less_of_the_last_would_not_do(waiter: Lacking, neighbours: list[Neighbour]) -> None:
    """Of each resource that is lacking. The two of a neighbour that is tied come together."""
    asked = choose(waiter, neighbours)
    total = sum(asked.values(), ZERO)
    then = reached(waiter.way, waiter.room + total)
    for name in ("cpu", "memory"):
        givers = [each for each, amount in asked.items() if amount_of(amount, name)]
        if not givers or not all(each.unit.is_apart for each in asked):
            continue
        lacks = amount_of(then, name) - amount_of(waiter.room, name)
        assert lacks > 0
        assert any(amount_of(total - each.unit.step, name) < lacks for each in givers)


@given(_lacking(), _neighbours())
def test_the_order_of_the_rows_is_of_no_account(waiter: Lacking, neighbours: list[Neighbour]) -> None:
    assert choose(waiter, neighbours) == choose(waiter, neighbours[::-1])


def _whole(each: Neighbour, amount: Resources) -> Resources:
    """The largest amount in whole steps, of both resources alike if they are tied."""
    step = each.unit.step
    cpu, memory = amount.vcpu_milli // step.vcpu_milli, amount.memory_bytes // step.memory_bytes
    if not each.unit.is_apart:
        cpu = memory = min(cpu, memory)
    return Resources(cpu * step.vcpu_milli, memory * step.memory_bytes)
