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
    delay_s = backoff.delay_s(failures, random.Random(seed).random())
    assert math.isfinite(delay_s)
    assert backoff.base_s * (1 - backoff.jitter) <= delay_s <= backoff.cap_s


@given(backoffs(), FAILURES, st.integers())
def test_a_delay_never_falls_with_more_failures_but_for_its_jitter(
    backoff: Backoff, failures: int, seed: int
) -> None:
    plain = Backoff(backoff.base_s, backoff.factor, backoff.cap_s, 0)
    full, later = (plain.delay_s(count, 0.0) for count in (failures, failures + 1))
    assert full <= later
    share = 1 - backoff.jitter * random.Random(seed).random()
    assert backoff.delay_s(failures, random.Random(seed).random()) == pytest.approx(full * share)


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(base_s=0.5, cap_s=3.0, jitter=0)
    rng = random.Random(1)
    assert [backoff.delay_s(failures, rng.random()) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("base_s", value) for value in (0.0, -1.0, 31.0, math.nan)),
        *(("factor", value) for value in (0.5, math.nan)),
        *(("jitter", value) for value in (-0.1, 1.1, math.nan)),
    ],
)
def test_settings_that_make_no_back_off_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="not a back-off"):
        Backoff(**{name: value})
