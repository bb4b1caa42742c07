"""A look that was under way while a resize was answered may be older than it: the resize still counts."""

import math

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.state import RunnerState, SchedulerState
from agent.core.step import apply
from agent.core.timing import Timing
from protocol.values import Observation
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, LIFE, UTILISATION, VM


def after(deadline_s: float, *happened: tuple[float, events.Event]) -> RunnerState:
    """The state of a VM of 2 units whose agent may use 9, after some events with their times."""
    timing = Timing(command_deadline_s=deadline_s)
    state = RunnerState(VM, LIFE, scheduler=SchedulerState(held=cu(9), lease_until_s=math.inf))
    begun: tuple[tuple[float, events.Event], ...] = (
        (1.0, events.Started(events.Fence())),
        (2.0, events.Fenced()),
        (3.0, events.Started(events.Observe())),
        (3.0, events.Observed(Observation(cu(2), cu(2), 3.0))),
    )
    for now_s, event in (*begun, *happened):
        state = apply(state, event, now_s, timing, UTILISATION)
    return state


RESIZE = events.Started(events.Resize(cu(6), cu(2), 18.0))
LOOK = events.Started(events.Observe())


@pytest.mark.parametrize("began_s", [13.0, 13.001])
def test_a_look_that_began_before_the_answer_does_not_end_a_resize_that_dies_with_its_sender(
    began_s: float,
) -> None:
    state = after(
        0.0,
        (13.0, LOOK),
        (13.0, RESIZE),
        (13.2, events.ResizeAccepted()),
        (13.3, events.Observed(Observation(cu(2), cu(2), began_s))),
    )
    assert state.in_use() == cu(6)


def test_one_that_failed_counts_for_the_deadline_from_its_end_on() -> None:
    happened: tuple[tuple[float, events.Event], ...] = (
        (13.0, RESIZE),
        (18.0, events.ResizeFailed("no answer", CHANCE)),
    )
    old = after(5.0, *happened, (18.1, events.Observed(Observation(cu(2), cu(2), 18.0))))
    assert old.in_use() == cu(6), "it may have been sent later than it was started"
    late = after(5.0, *happened, (23.1, events.Observed(Observation(cu(2), cu(2), 23.0))))
    assert late.in_use() == cu(2)


def test_a_look_begun_after_the_answer_that_shows_another_target_ends_it_after_the_deadline() -> None:
    happened: tuple[tuple[float, events.Event], ...] = ((13.0, RESIZE), (13.2, events.ResizeAccepted()))
    soon = after(5.0, *happened, (13.4, events.Observed(Observation(cu(2), cu(2), 13.3))))
    assert soon.in_use() == cu(6)
    seen = after(5.0, *happened, (13.4, events.Observed(Observation(cu(2), cu(6), 13.3))))
    assert replace(seen.backend.sent or pytest.fail("it counts until it is reached"), until_s=0.0).is_seen
