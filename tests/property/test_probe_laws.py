"""What holds of the search for what a chain admits, over all small ranges."""

import itertools
from collections.abc import Callable, Iterator

import pytest

from scheduler.pools.core import probe
from scheduler.pools.core.errors import (
    new_insufficient_resources,
)
from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
from scheduler.pools.core.values import ADMITTED, Admission

MAX_DELTA = 64
OFFSETS = (0, 1, 7, 1000)
INSUFFICIENT = ProbeResultKind.INSUFFICIENT_RESOURCES
FULL = new_insufficient_resources("full")

Say = Callable[[int], Admission]


def most_calls(delta: int) -> int:
    """1 + ceil(log2 delta), in whole numbers."""
    return 1 + (delta - 1).bit_length()


def asked_of(say: Say, current: int, candidate: int) -> ProbeResult:
    searching = probe.search(current, candidate)
    try:
        asked = next(searching)
        while True:
            asked = searching.send(say(asked))
    except StopIteration as stop:
        found: ProbeResult = stop.value
        return found


def refusing(limit: int) -> Say:
    no = Admission(error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def capping(limit: int) -> Say:
    answer = Admission(admitted=max(limit, 0))
    return lambda _: answer


def capping_with_an_error(limit: int) -> Say:
    no = Admission(admitted=max(limit, 0), error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def capping_too_high(limit: int) -> Say:
    """Another plugin states a cap that is one above what this one admits."""
    no = Admission(admitted=max(limit, 0) + 1, error=FULL)
    return lambda asked: ADMITTED if asked <= limit else no


def ranges() -> Iterator[tuple[int, int, int]]:
    """Every current, candidate and limit, from below the one to above the other."""
    for offset, delta in itertools.product(OFFSETS, range(1, MAX_DELTA + 1)):
        for limit in range(offset - 1, offset + delta + 2):
            yield offset, offset + delta, limit


@pytest.mark.parametrize(
    ("plugin", "more"), [(refusing, 0), (capping, 1), (capping_with_an_error, 1), (capping_too_high, 1)]
)
def test_the_largest_admitted_number_is_found_within_the_bound_on_calls(
    plugin: Callable[[int], Say], more: int
) -> None:
    for current, candidate, limit in ranges():
        case = (current, candidate, limit)
        found = asked_of(plugin(limit), current, candidate)
        expected = max((n for n in range(current + 1, candidate + 1) if n <= limit), default=current)
        assert found.accepted == expected, case
        assert found.calls <= most_calls(candidate - current) + more, case
        assert found.is_complete, case
        if expected == candidate:
            assert (found.kind, found.error, found.refused) == (ProbeResultKind.OK, None, None), case
        else:
            assert (found.kind, found.refused) == (INSUFFICIENT, expected + 1), case
            assert found.error is not None, case


def test_a_stated_cap_costs_one_call_more_and_no_search() -> None:
    for current, candidate, limit in ranges():
        found = asked_of(capping(limit), current, candidate)
        assert found.calls == 1 + (current < limit < candidate), (current, candidate, limit)
