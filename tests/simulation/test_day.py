"""A full node over hours: who gets how much, and how often anybody is asked to give room back."""

import math
from collections.abc import Callable
from typing import Final

import pytest

from agent.core.model import YieldMode
from tests.simulation.day import Day

HOUR_S: Final = 3600.0
TO_MINIMUM: Final = YieldMode.TO_MINIMUM


def wave(low: float, high: float, period_s: float, phase: float = 0.0) -> Callable[[float], float]:
    """A load that rises and falls, with a smaller unrest of some minutes on it."""

    def load(at_s: float) -> float:
        slow = math.sin(2 * math.pi * (at_s / period_s + phase))
        quick = math.sin(2 * math.pi * at_s / 420.0)
        return low + (high - low) * (0.5 + 0.45 * slow + 0.05 * quick)

    return load


def test_over_a_day_the_higher_priority_has_its_wish_and_nobody_is_asked_all_the_time() -> None:
    day = Day(10)
    load = wave(2.0, 8.0, 6 * HOUR_S)
    day.guest("high", 2, load, priority=100, yields=TO_MINIMUM)
    day.guest("low", 8, lambda _: 9.5, yields=TO_MINIMUM)
    met, looks = 0, 0
    for at_s in range(0, 24 * 3600, 10):
        day.run_until(float(at_s))
        looks += 1
        met += day.guests["high"].size.vcpu_milli >= 1000 * load(at_s)
    assert met / looks >= 0.95
    # Else the low one had given nothing, and the high one had what it wanted by chance.
    assert day.mean_cpus("low", HOUR_S, 24 * HOUR_S) < 7
    for guest in day.guests.values():
        assert 0 < guest.asked / 24 < 4, guest.vm.name


@pytest.mark.parametrize(
    ("of_a", "of_b", "yields"),
    [
        (lambda _: 9.5, lambda _: 9.5, TO_MINIMUM),
        (wave(4.0, 9.0, HOUR_S), wave(4.0, 9.0, HOUR_S, 0.5), TO_MINIMUM),
        (wave(4.0, 9.0, HOUR_S), wave(4.0, 9.0, HOUR_S, 0.5), YieldMode.SLACK),
    ],
    ids=["both need all", "in turn", "in turn, comfort only"],
)
def test_equal_priorities_share_a_node_evenly_over_an_hour(
    of_a: Callable[[float], float], of_b: Callable[[float], float], yields: YieldMode
) -> None:
    day = Day(10)
    day.guest("a", 8, of_a, yields=yields)
    day.guest("b", 2, of_b, yields=yields)
    day.run_until(2 * HOUR_S)
    shares = [day.mean_cpus(name, HOUR_S, 2 * HOUR_S) for name in ("a", "b")]
    assert max(shares) <= 1.1 * min(shares), shares
    assert all(guest.asked / 2 < 4 for guest in day.guests.values())
