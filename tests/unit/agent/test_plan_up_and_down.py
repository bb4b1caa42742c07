"""The guest and the scheduler hear of a change when it was seen, and growing or shrinking may turn round in the middle.

The order of each is told in tests/scenarios/test_agent_stories.py."""

import pytest

from agent.core import events
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, Driver, steady


def _goal(driver: Driver, units: int) -> Driver:
    """A goal of `units` now, and the older ones forgotten."""
    return driver.load(units).wait(10.1)


def test_the_guest_is_told_of_growth_and_the_scheduler_of_a_shrink_when_it_was_seen() -> None:
    driver = steady()
    driver.obeys = False
    driver.load(4).wait(8)
    assert (driver.resizes(), driver.of(events.AnnounceUpscale)) == ([cu(4)], [])
    driver.size = driver.target
    driver.wait(1)
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(4))]
    driver.forget()
    _goal(driver, 3)
    assert driver.resizes() == [cu(3)]
    assert {request.resources for request in driver.requests()} <= {cu(4)}
    assert driver.held() == cu(4)
    driver.size = driver.target
    driver.wait(1)
    assert driver.request().resources == cu(3)


def test_up_turns_to_down_while_the_permit_is_under_way() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    _goal(driver.load(4).wait(5), 2)
    driver.by_hand.clear()
    driver.answer(driver.grants)
    driver.wait(5)
    assert (driver.size, driver.resizes(), driver.held()) == (cu(2), [], cu(2))


def test_down_turns_to_up_after_the_guest_agreed() -> None:
    driver = steady(cu(3))
    driver.by_hand = {events.Resize}
    _goal(driver, 2)
    driver.finish(events.Resize, events.ResizeFailed("busy", CHANCE))
    driver.by_hand.clear()
    driver.forget()
    _goal(driver, 3)
    assert driver.size == cu(3)
    assert driver.of(events.AnnounceUpscale)[-1:] == [events.AnnounceUpscale(cu(3))]
    assert _goal(driver, 4).size == cu(4)


def test_down_turns_to_up_while_the_guest_is_asked() -> None:
    driver = steady(cu(3))
    driver.by_hand = {events.AskDownscale}
    _goal(driver, 2)
    _goal(driver, 4)
    assert driver.size == cu(4)
    driver.by_hand.clear()
    driver.finish(events.AskDownscale, events.DownscaleApproved(cu(2)))
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(4))]
    assert driver.wait(1).size == cu(4)


def test_cpu_may_grow_while_memory_shrinks() -> None:
    driver = Driver(cu(2, 4))
    driver.load(3).wait(30)
    assert driver.size == cu(3)
    assert events.AskDownscale(cu(2, 3)) in driver.log


def test_an_approval_whose_answer_was_lost_does_not_leave_the_guest_throttled() -> None:
    driver = steady(cu(3))
    driver.by_hand = {events.AskDownscale}
    _goal(driver, 2)  # the guest approves and lives with 2 from now on; we never learn of it
    _goal(driver, 3)
    driver.forget()
    driver.finish(events.AskDownscale, events.InformantFailed("no answer", False, CHANCE)).wait(6)
    assert driver.size == cu(3)
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(3))]


def test_an_approval_ends_when_growth_is_being_announced() -> None:
    driver = steady(cu(3))
    driver.by_hand = {events.Resize}
    _goal(driver, 2)
    driver.finish(events.Resize, events.ResizeFailed("busy", CHANCE))
    driver.by_hand = {events.AnnounceUpscale}
    _goal(driver, 3)
    assert driver.is_flying(events.AnnounceUpscale)  # the guest may count on 3 again
    driver.forget()
    _goal(driver, 2)
    assert driver.resizes() == []


def test_a_shrink_that_the_vm_never_finishes_does_not_stop_growth() -> None:
    driver = steady(cu(3))
    driver.obeys = False  # memory that the guest does not give back, say
    _goal(driver, 2)
    assert (driver.size, driver.target) == (cu(3), cu(2))
    driver.obeys = True
    _goal(driver, 4)
    driver.wait(30)
    assert driver.size == cu(4)


def test_somebody_elses_resize_is_let_end() -> None:
    driver = steady()
    driver.target = cu(3)
    driver.wait(11).forget()
    driver.wait(3)
    assert driver.resizes() == []
    driver.size = cu(3)
    driver.wait(10)
    assert driver.size == cu(2)


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        (events.Resize, events.ResizeFailed("busy", CHANCE)),
        (events.Observe, events.ObserveFailed("later", CHANCE)),
    ],
)
def test_a_resize_or_a_look_that_failed_does_not_end_the_other(
    kind: type[object], failure: events.Event
) -> None:
    driver = steady()
    driver.by_hand = {events.Observe}
    driver.wait(10.5)
    driver.by_hand = {events.Observe, events.Resize}
    driver.try_upscale(cpu=True, memory=True)
    driver.finish(kind, failure)
    driver.by_hand -= {events.Observe} if kind is events.Observe else set()
    driver.wait(6)  # asserts that what is under way is not started again
    assert driver.resizes() == [cu(3)]
