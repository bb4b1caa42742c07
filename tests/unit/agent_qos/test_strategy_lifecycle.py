"""The life of a strategy as a table: what happens, and what state that leads to."""

from typing import Final

import pytest

from agent.node.qos.core.lifecycle import (
    Disable,
    Drain,
    Enable,
    Lifecycle,
    LifecycleAction,
    LifecycleEvent,
    LifecycleTiming,
    RunEnded,
    SetUp,
    ThreadEnded,
    Tick,
    step,
)

TIMING: Final = LifecycleTiming(end_s=5.0, retry_base_s=1.0, retry_cap_s=8.0, healthy_after_s=60.0)
FAILED: Final = (RunEnded("boom"), ThreadEnded("boom", 0.0))
ENDED: Final = (RunEnded(), ThreadEnded("", 0.0))


def walked(*events: LifecycleEvent | float) -> tuple[Lifecycle, list[str]]:
    """The life after events, between which numbers let seconds pass, and its states and the actions in order."""
    life, now_s, trace = Lifecycle(), 0.0, []
    for event in events:
        now_s += event if isinstance(event, float) else 0.0
        before = life
        life, action = step(life, Tick() if isinstance(event, float) else event, now_s, TIMING)
        if life.state is not before.state:
            trace.append(str(life.state))
        if action is not None:
            trace.append(action.upper())
    return life, trace


@pytest.mark.parametrize(
    ("events", "trace"),
    [
        ((Disable(),), ""),
        ((Enable(), Enable()), "starting BEGIN"),
        ((Enable(), SetUp()), "starting BEGIN running"),
        ((Enable(), SetUp(), Disable(), *ENDED), "starting BEGIN running stopping ASK off"),
        ((Enable(), SetUp(), Drain(), *ENDED), "starting BEGIN running stopping ASK stopped"),
        ((Enable(), Disable(), SetUp(), *ENDED), "starting BEGIN stopping ASK off"),
        ((Enable(), ThreadEnded("no", 0.0), 1.0), "starting BEGIN backing-off starting BEGIN"),
        ((Enable(), SetUp(), *FAILED, 0.9), "starting BEGIN running stopping backing-off"),
        ((Enable(), SetUp(), *FAILED, 1.0), "starting BEGIN running stopping backing-off starting BEGIN"),
        ((Enable(), SetUp(), *FAILED, Disable(), 9.0), "starting BEGIN running stopping backing-off off"),
        ((Enable(), SetUp(), *ENDED, Enable(), 99.0), "starting BEGIN running stopping stopped"),
        (
            (Enable(), SetUp(), *ENDED, Disable(), Enable()),
            "starting BEGIN running stopping stopped off starting BEGIN",
        ),
        ((Enable(), SetUp(), Disable(), 5.0), "starting BEGIN running stopping ASK stuck"),
        ((Enable(), SetUp(), Disable(), 5.0, Enable()), "starting BEGIN running stopping ASK stuck"),
        (
            (Enable(), SetUp(), Disable(), 5.0, Enable(), *ENDED),
            "starting BEGIN running stopping ASK stuck stopping starting BEGIN",
        ),
        ((Enable(), SetUp(), Disable(), 4.9, RunEnded(), 4.9), "starting BEGIN running stopping ASK"),
        ((Enable(), SetUp(), Disable(), 4.9, RunEnded(), 5.0), "starting BEGIN running stopping ASK stuck"),
        ((Enable(), SetUp(), RunEnded("boom"), 5.0), "starting BEGIN running stopping stuck"),
        (
            (Enable(), SetUp(), RunEnded("boom"), 5.0, ThreadEnded("boom", 0.0)),
            "starting BEGIN running stopping stuck backing-off",
        ),
        (
            (Enable(), SetUp(), Disable(), Enable(), *ENDED),
            "starting BEGIN running stopping ASK starting BEGIN",
        ),
        ((Enable(), SetUp(), Disable(), *FAILED), "starting BEGIN running stopping ASK off"),
        ((Drain(),), ""),
    ],
)
def test_what_happens_to_a_strategy(events: tuple[LifecycleEvent | float, ...], trace: str) -> None:
    assert walked(*events)[1] == trace.split()


def test_the_wait_doubles_with_each_failure_in_a_row_up_to_its_cap() -> None:
    events: list[LifecycleEvent | float] = [Enable()]
    waits = []
    for _ in range(5):
        events += [SetUp(), *FAILED]
        life = walked(*events)[0]
        assert life.due_s is not None
        waits.append(life.due_s - life.since_s)
        events.append(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert walked(*events)[0].restarts == 5


@pytest.mark.parametrize(("ran_s", "failures"), [(59.0, 2), (60.0, 1)])
def test_a_failure_after_a_healthy_time_is_the_first_in_a_row_again(ran_s: float, failures: int) -> None:
    life, _ = walked(Enable(), SetUp(), *FAILED, 1.0, SetUp(), ran_s, *FAILED)
    assert (life.failures, life.last_error) == (failures, "boom")


def test_chance_takes_up_to_half_of_the_wait_away() -> None:
    life, action = step(Lifecycle(is_wanted=True), ThreadEnded("no", 1.0), 0.0, TIMING)
    assert (life.due_s, action) == (0.5, None)


def test_a_life_begins_with_its_own_action() -> None:
    assert step(Lifecycle(), Enable(), 0.0, TIMING)[1] is LifecycleAction.BEGIN
