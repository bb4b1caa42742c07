"""The breaker and the budget of retries: every state, and what a call's end may say."""

from dataclasses import replace

import pytest

from scheduler.pools.core.breaker import (
    Breaker,
    BreakerEvent,
    BreakerRules,
    BreakerState,
    Pass,
    RetryBudget,
)

RULES = BreakerRules(failures=3, open_s=10.0, probes=2)


def told(breaker: Breaker, *events: BreakerEvent, now_s: float = 0.0) -> Breaker:
    """The breaker after calls, one after the other, that end so."""
    for event in events:
        breaker, entry = breaker.ask(now_s)
        assert entry is not None
        breaker = breaker.tell(entry, event, now_s)
    return breaker


def opened(now_s: float = 0.0) -> Breaker:
    return told(Breaker(RULES), *[BreakerEvent.FAILED] * 3, now_s=now_s)


def test_failures_in_a_row_open_it() -> None:
    two = told(Breaker(RULES), BreakerEvent.FAILED, BreakerEvent.FAILED)
    assert (two.state, two.failures) == (BreakerState.CLOSED, 2)
    three = told(two, BreakerEvent.FAILED, now_s=7.0)
    assert (three.state, three.failures, three.opened_s) == (BreakerState.OPEN, 3, 7.0)


def test_a_success_ends_the_row_and_an_abandoned_call_does_not() -> None:
    assert (
        told(Breaker(RULES), BreakerEvent.FAILED, BreakerEvent.FAILED, BreakerEvent.SUCCEEDED).failures == 0
    )
    assert (
        told(Breaker(RULES), BreakerEvent.FAILED, BreakerEvent.FAILED, BreakerEvent.ABANDONED).failures == 2
    )


def test_while_it_is_open_no_call_goes_through() -> None:
    breaker = opened(100.0)
    assert breaker.ask(109.9) == (breaker, None)
    assert breaker.wait_s(104.0) == 6.0
    assert breaker.wait_s(200.0) == 0.0
    assert Breaker(RULES).wait_s(0.0) == 0.0


def test_after_the_pause_one_probe_goes_through_and_no_other_beside_it() -> None:
    probing, entry = opened().ask(10.0)
    assert entry is not None
    assert (probing.state, probing.is_probing) == (BreakerState.HALF_OPEN, True)
    assert probing.ask(10.0) == (probing, None)
    assert probing.ask(1e6) == (probing, None)


def test_enough_probes_close_it() -> None:
    one = told(opened(), BreakerEvent.SUCCEEDED, now_s=10.0)
    assert (one.state, one.proofs, one.is_probing) == (BreakerState.HALF_OPEN, 1, False)
    two = told(one, BreakerEvent.SUCCEEDED, now_s=11.0)
    assert (two.state, two.failures) == (BreakerState.CLOSED, 0)
    assert told(two, BreakerEvent.FAILED, BreakerEvent.FAILED).state is BreakerState.CLOSED


def test_a_probe_that_fails_opens_it_for_a_whole_pause() -> None:
    again = told(opened(), BreakerEvent.SUCCEEDED, BreakerEvent.FAILED, now_s=10.0)
    assert (again.state, again.failures, again.opened_s, again.proofs) == (BreakerState.OPEN, 4, 10.0, 0)
    assert again.ask(19.9)[1] is None
    assert again.ask(20.0)[1] is not None


def test_a_probe_that_is_abandoned_makes_room_for_the_next() -> None:
    breaker = told(opened(), BreakerEvent.SUCCEEDED, BreakerEvent.ABANDONED, now_s=10.0)
    assert (breaker.state, breaker.proofs, breaker.is_probing) == (BreakerState.HALF_OPEN, 1, False)
    assert told(breaker, BreakerEvent.SUCCEEDED, now_s=10.0).state is BreakerState.CLOSED


@pytest.mark.parametrize("event", [BreakerEvent.SUCCEEDED, BreakerEvent.FAILED, BreakerEvent.ABANDONED])
def test_the_end_of_a_call_from_an_earlier_era_says_nothing(event: BreakerEvent) -> None:
    fresh = Breaker(RULES)
    late = Pass(fresh.era)
    breaker = opened()
    assert breaker.tell(late, event, 1.0) is breaker
    probing, _ = breaker.ask(10.0)
    assert probing.tell(late, event, 10.0) is probing
    closed = told(breaker, BreakerEvent.SUCCEEDED, BreakerEvent.SUCCEEDED, now_s=10.0)
    assert closed.tell(late, event, 11.0) is closed


@pytest.mark.parametrize("event", BreakerEvent)
def test_a_pass_of_an_open_breaker_does_not_exist_and_says_nothing(event: BreakerEvent) -> None:
    breaker = opened()
    assert breaker.tell(Pass(breaker.era), event, 1.0) is breaker


@pytest.mark.parametrize(
    "wrong",
    [{"failures": 0}, {"probes": 0}, {"open_s": 0.0}, {"open_s": float("inf")}, {"open_s": float("nan")}],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not the rules of a breaker"):
        replace(RULES, **wrong)  # type: ignore[arg-type]  # what is wrong is the point


def test_a_budget_is_spent_and_earned_in_shares() -> None:
    budget = RetryBudget.full(1, 0.4)
    assert budget.retries == 1
    assert budget.answered() is budget
    empty = budget.spent()
    assert empty is not None
    assert empty.spent() is None
    assert empty.answered().answered().spent() is None
    third = empty.answered().answered().answered()
    assert (third.left, third.retries) == (1000, 1)  # not above the most


def test_a_budget_of_nothing_allows_nothing() -> None:
    assert RetryBudget.full(0, 1.0).answered().spent() is None


@pytest.mark.parametrize("wrong", [(-1, 5, 0), (6, 5, 0), (0, 5, -1)])
def test_a_budget_that_makes_no_sense_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not a budget"):
        RetryBudget(*wrong)
