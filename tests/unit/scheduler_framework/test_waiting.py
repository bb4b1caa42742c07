"""A pod's wait for its permit as a table machine: each event in each phase."""

from collections.abc import Callable

import pytest

from scheduler.placing.core.waiting import (
    PermitAllowed,
    PermitRejected,
    PermitTimedOut,
    PermitWait,
    Settled,
    WaitPhase,
    begin_wait,
)

Step = Callable[[PermitWait], PermitWait]
STEPS: dict[str, Step] = {
    "one": lambda wait: wait.allow("a"),
    "all": lambda wait: wait.allow(),
    "reject": lambda wait: wait.reject("no", "b"),
    "time": lambda wait: wait.time_over("b"),
    "collect": lambda wait: wait.collect(),
    "cancel": lambda wait: wait.cancel(),
}
ENDS: dict[str, tuple[WaitPhase, Settled]] = {
    "all": (WaitPhase.ALLOWED, PermitAllowed()),
    "reject": (WaitPhase.REJECTED, PermitRejected("no", "b")),
    "time": (WaitPhase.TIMED_OUT, PermitTimedOut("b", 2.0)),
}


def waiting() -> PermitWait:
    return begin_wait({"a": 1.0, "b": 2.0})


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", STEPS)
def test_the_first_signal_that_settles_the_wait_is_kept(first: str, second: str) -> None:
    settled = STEPS[first](waiting())
    assert (settled.phase, settled.outcome) == ENDS[first]
    after = STEPS[second](settled)
    assert after.outcome == ENDS[first][1]
    if second in {"collect", "cancel"}:
        assert after.phase is None
    else:
        assert after is settled, "nothing has changed"


@pytest.mark.parametrize("step", STEPS)
def test_nothing_changes_a_wait_that_is_over(step: str) -> None:
    over = waiting().cancel()
    assert (over.phase, over.outcome) == (None, None)
    assert STEPS[step](over) is over


def test_nothing_can_be_collected_while_the_pod_waits() -> None:
    wait = waiting()
    assert wait.collect() is wait


def test_a_plugin_that_allowed_the_pod_has_no_time_out_any_more() -> None:
    wait = waiting().allow("a")
    assert (wait.phase, dict(wait.pending)) == (WaitPhase.WAITING, {"b": 2.0})
    assert wait.time_over("a") is wait.allow("a") is wait.allow("stranger") is wait
    assert wait.allow("b").outcome == PermitAllowed()


def test_a_rejection_and_a_time_out_leave_the_plugins_that_were_waited_for() -> None:
    assert (
        dict(waiting().reject("no").pending) == dict(waiting().time_over("a").pending) == {"a": 1.0, "b": 2.0}
    )
