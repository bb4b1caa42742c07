"""Back-off as a value: laws over all settings."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.backoff import Backoff

SECONDS = st.floats(1e-3, 1e6)
SHARES = st.floats(0, 1)
FAILURES = st.integers(1, 10_000)


@st.composite
def backoffs(draw: st.DrawFn, jitter: st.SearchStrategy[float] = SHARES) -> Backoff:
    base_s = draw(SECONDS)
    return Backoff(base_s, draw(st.floats(1, 1e6)), base_s + draw(SECONDS), draw(jitter))


@given(backoffs(), FAILURES, st.integers())
def test_a_delay_lies_between_its_jittered_share_and_the_cap(
    backoff: Backoff, failures: int, seed: int
) -> None:
    delay_s = backoff.delay_s(failures, random.Random(seed))
    assert math.isfinite(delay_s)
    assert backoff.base_s * (1 - backoff.jitter) <= delay_s <= backoff.cap_s


@given(backoffs(jitter=st.just(0.0)), FAILURES)
def test_without_jitter_a_delay_never_falls_with_more_failures(backoff: Backoff, failures: int) -> None:
    rng = random.Random(1)
    assert backoff.delay_s(failures, rng) <= backoff.delay_s(failures + 1, rng)


@given(backoffs(), FAILURES, st.integers())
def test_jitter_takes_away_exactly_its_share_of_what_chance_says(
    backoff: Backoff, failures: int, seed: int
) -> None:
    full = Backoff(backoff.base_s, backoff.factor, backoff.cap_s, 0).delay_s(failures, random.Random(0))
    share = 1 - backoff.jitter * random.Random(seed).random()
    assert backoff.delay_s(failures, random.Random(seed)) == pytest.approx(full * share)


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_s=0.5, cap_s=3.0, jitter=0)
    rng = random.Random(1)
    assert [backoff.delay_s(failures, rng) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


WRONG = [
    {"base_s": 0.0},
    {"base_s": -1.0},
    {"base_s": 31.0},
    {"factor": 0.5},
    {"jitter": -0.1},
    {"jitter": 1.1},
    {"base_s": math.nan},
    {"factor": math.nan},
    {"jitter": math.nan},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_settings_that_make_no_back_off_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a back-off"):
        Backoff(**wrong)


def test_a_delay_after_no_failure_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        Backoff().delay_s(0, random.Random(1))
