"""The life of a strategy as a table: what happens, and what state that leads to."""

from typing import Final

import pytest

from agent.node.qos.core.lifecycle import (
    Lifecycle,
    LifecycleAction,
    LifecycleEvent,
    LifecycleSignal,
    LifecycleTiming,
    RunEnded,
    ThreadEnded,
    step,
)

TIMING: Final = LifecycleTiming(end_s=5.0, retry_base_s=1.0, retry_cap_s=8.0, healthy_after_s=60.0)
S = LifecycleSignal
FAILED: Final = (RunEnded("boom"), ThreadEnded("boom", 0.0))
ENDED: Final = (RunEnded(), ThreadEnded("", 0.0))


def walked(*events: LifecycleEvent | float) -> tuple[Lifecycle, list[str]]:
    """The life after events, between which numbers let seconds pass, and its states and the actions in order."""
    life, now_s, trace = Lifecycle(), 0.0, []
    for event in events:
        now_s += event if isinstance(event, float) else 0.0
        before = life
        life, action = step(life, S.TICK if isinstance(event, float) else event, now_s, TIMING)
        if life.state is not before.state:
            trace.append(str(life.state))
        if action is not None:
            trace.append(action.upper())
    return life, trace


@pytest.mark.parametrize(
    ("events", "trace"),
    [
        ((S.DISABLE,), ""),
        ((S.ENABLE, S.ENABLE), "starting BEGIN"),
        ((S.ENABLE, S.SET_UP), "starting BEGIN running"),
        ((S.ENABLE, S.SET_UP, S.DISABLE, *ENDED), "starting BEGIN running stopping ASK off"),
        ((S.ENABLE, S.SET_UP, S.DRAIN, *ENDED), "starting BEGIN running stopping ASK stopped"),
        ((S.ENABLE, S.DISABLE, S.SET_UP, *ENDED), "starting BEGIN stopping ASK off"),
        ((S.ENABLE, ThreadEnded("no", 0.0), 1.0), "starting BEGIN backing-off starting BEGIN"),
        ((S.ENABLE, S.SET_UP, *FAILED, 0.9), "starting BEGIN running stopping backing-off"),
        ((S.ENABLE, S.SET_UP, *FAILED, 1.0), "starting BEGIN running stopping backing-off starting BEGIN"),
        ((S.ENABLE, S.SET_UP, *FAILED, S.DISABLE, 9.0), "starting BEGIN running stopping backing-off off"),
        ((S.ENABLE, S.SET_UP, *ENDED, S.ENABLE, 99.0), "starting BEGIN running stopping stopped"),
        (
            (S.ENABLE, S.SET_UP, *ENDED, S.DISABLE, S.ENABLE),
            "starting BEGIN running stopping stopped off starting BEGIN",
        ),
        ((S.ENABLE, S.SET_UP, S.DISABLE, 5.0), "starting BEGIN running stopping ASK stuck"),
        ((S.ENABLE, S.SET_UP, S.DISABLE, 5.0, S.ENABLE), "starting BEGIN running stopping ASK stuck"),
        (
            (S.ENABLE, S.SET_UP, S.DISABLE, 5.0, S.ENABLE, *ENDED),
            "starting BEGIN running stopping ASK stuck stopping starting BEGIN",
        ),
        ((S.ENABLE, S.SET_UP, S.DISABLE, 4.9, RunEnded(), 4.9), "starting BEGIN running stopping ASK"),
        ((S.ENABLE, S.SET_UP, S.DISABLE, 4.9, RunEnded(), 5.0), "starting BEGIN running stopping ASK stuck"),
        ((S.ENABLE, S.SET_UP, RunEnded("boom"), 5.0), "starting BEGIN running stopping stuck"),
        (
            (S.ENABLE, S.SET_UP, RunEnded("boom"), 5.0, ThreadEnded("boom", 0.0)),
            "starting BEGIN running stopping stuck backing-off",
        ),
        (
            (S.ENABLE, S.SET_UP, S.DISABLE, S.ENABLE, *ENDED),
            "starting BEGIN running stopping ASK starting BEGIN",
        ),
        ((S.ENABLE, S.SET_UP, S.DISABLE, *FAILED), "starting BEGIN running stopping ASK off"),
        ((S.DRAIN,), ""),
    ],
)
def test_what_happens_to_a_strategy(events: tuple[LifecycleEvent | float, ...], trace: str) -> None:
    assert walked(*events)[1] == trace.split()


def test_the_wait_doubles_with_each_failure_in_a_row_up_to_its_cap() -> None:
    events: list[LifecycleEvent | float] = [S.ENABLE]
    waits = []
    for _ in range(5):
        events += [S.SET_UP, *FAILED]
        life = walked(*events)[0]
        assert life.due_s is not None
        waits.append(life.due_s - life.since_s)
        events.append(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert walked(*events)[0].restarts == 5


@pytest.mark.parametrize(("ran_s", "failures"), [(59.0, 2), (60.0, 1)])
def test_a_failure_after_a_healthy_time_is_the_first_in_a_row_again(ran_s: float, failures: int) -> None:
    life, _ = walked(S.ENABLE, S.SET_UP, *FAILED, 1.0, S.SET_UP, ran_s, *FAILED)
    assert (life.failures, life.last_error) == (failures, "boom")


def test_chance_takes_up_to_half_of_the_wait_away() -> None:
    life, action = step(Lifecycle(is_wanted=True), ThreadEnded("no", 1.0), 0.0, TIMING)
    assert (life.due_s, action) == (0.5, None)


def test_a_life_begins_with_its_own_action() -> None:
    assert step(Lifecycle(), S.ENABLE, 0.0, TIMING)[1] is LifecycleAction.BEGIN
