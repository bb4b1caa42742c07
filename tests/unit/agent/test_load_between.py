"""The load that samples show: counters need one before, and the shares of a minute the oldest of it."""

import pytest

from agent.core.model import Sample, Stalls, load_between
from agent.core.policies.values import Psi


def sample(at_s: float, busy_s: float | None = None, **more: object) -> Sample:
    return Sample(at_s, 1.5, 2.5, busy_s, **more)  # type: ignore[arg-type]  # fields of any type


def test_busy_cpus_are_the_rise_of_the_counter_over_the_last_period() -> None:
    load = load_between((sample(0.0, 0.0), sample(10.0, 100.0)), sample(15.0, 110.0))
    assert (load.busy_micro, load.load1, load.load5) == (2_000_000, 1.5, 2.5)


@pytest.mark.parametrize(
    ("history", "now"),
    [
        ((), sample(15.0, 110.0)),
        ((sample(10.0, None),), sample(15.0, 110.0)),
        ((sample(10.0, 100.0),), sample(15.0, None)),
        ((sample(10.0, 100.0),), sample(10.0, 110.0)),
        ((sample(10.0, 100.0),), sample(15.0, 99.0)),
    ],
)
def test_without_a_usable_pair_only_the_load_averages_are_known(
    history: tuple[Sample, ...], now: Sample
) -> None:
    load = load_between(history, now)
    assert (load.busy_micro, load.load1) == (None, 1.5)


def test_a_guest_that_did_nothing_was_busy_for_nothing() -> None:
    assert load_between((sample(10.0, 5.0),), sample(15.0, 5.0)).busy_micro == 0


def test_memory_is_as_the_sample_says() -> None:
    load = load_between((), sample(1.0, memory_total=100, memory_available=30))
    assert load.memory_used() == 70


def test_stalls_are_shares_of_the_last_period_and_of_the_last_minute() -> None:
    history = (
        sample(0.0, cpu_stalls=Stalls(0.0, 0.0)),
        sample(55.0, cpu_stalls=Stalls(3.0, 0.0)),
    )
    load = load_between(history, sample(60.0, cpu_stalls=Stalls(6.0, 0.5)))
    assert load.cpu_psi == Psi(60.0, 10.0, 10.0, 0.5 / 60 * 100)
    assert load.memory_psi is None


@pytest.mark.parametrize("before", [None, Stalls(9.0), Stalls(7.0)])
def test_counters_that_fell_or_were_not_there_say_nothing(before: Stalls | None) -> None:
    load = load_between((sample(0.0, memory_stalls=before),), sample(5.0, memory_stalls=Stalls(6.0)))
    assert load.memory_psi == Psi(None, None, None, None)
