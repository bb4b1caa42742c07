"""The amount that a runner may use (held) follows the latest answer, is lowered by asking, and is leased."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.policies.remembered import DownWindow
from agent.core.policies.values import Goal, ResourceGoal
from protocol.values import ZERO, Resources
from tests.support.amounts import cu
from tests.unit.agent.driver import FULL, VM, grant, steady


def test_asking_for_less_lowers_held_before_the_answer() -> None:
    driver = steady(cu(4))
    driver.by_hand = {events.RequestPermit}
    driver.load(3).wait(11)
    assert driver.size == cu(3)
    assert (driver.request().resources, driver.request().claim) == (cu(3), cu(4))
    assert driver.held() == cu(3)


@pytest.mark.parametrize("units", [3, 2.5])
def test_a_partial_permit_is_used_even_in_fractions_and_more_is_asked_for_after_a_while(units: float) -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(request, cu(units), sent_s=driver.now_s, reasons=FULL)
    driver.load(4).wait(6)
    count = len(driver.requests())
    assert (driver.size, driver.held()) == (cu(units), cu(units))
    driver.wait(60)
    seconds_each = 60 / (len(driver.requests()) - count)
    assert driver.timing.denied_s * 0.9 <= seconds_each <= driver.timing.denied_s * 2


def test_less_than_was_denied_is_asked_at_once() -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(
        request, request.resources.min(cu(3)), sent_s=driver.now_s, reasons=FULL
    )
    driver.busy_cpus = 5.9
    driver.wait(5.5)
    assert driver.request().resources == cu(8)
    link = driver.state.metrics
    goal = Goal(ResourceGoal(4, "less"), ResourceGoal(4, "less"))
    goals = DownWindow().add(goal, driver.state.vm.unit, driver.now_s, 5.0)
    remembered = replace(link.remembered, goals=goals)
    driver.state = replace(driver.state, metrics=replace(link, remembered=remembered))
    driver.settle()
    assert driver.request().resources == cu(4)


@pytest.mark.parametrize(("permit", "goal"), [(ZERO, 5), (cu(1), 2)], ids=["of nothing", "below the use"])
def test_a_permit_that_is_too_small_stops_growth_and_shrinks_nothing_and_the_use_is_still_named(
    permit: Resources, goal: int
) -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(request, permit, sent_s=driver.now_s, reasons=FULL)
    driver.load(goal).wait(40)
    assert (driver.size, driver.held(), driver.resizes()) == (cu(2), permit, [])
    assert all(cu(2).fits_in(request.resources) for request in driver.requests())


def test_a_permit_above_the_request_is_refused_and_reported() -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(request, request.resources + cu(1), sent_s=driver.now_s)
    driver.busy_cpus = 2.9
    driver.wait(12)
    assert (driver.size, driver.resizes()) == (cu(2), [])
    assert "exceeds the request" in driver.state.scheduler.fault
    driver.scheduler = driver.grants
    assert driver.wait(6).size == cu(4)


def test_the_lease_counts_from_the_sending_of_the_attempt_that_was_answered() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    driver.wait(16)
    sent_s = driver.now_s
    driver._pass(sent_s + 3)
    driver.answer(lambda request: grant(request, sent_s=sent_s))
    assert driver.state.scheduler.lease_until_s == sent_s + driver.timing.hold_s


def test_a_tick_renews_the_lease_for_ever() -> None:
    driver = steady()
    for _ in range(20):
        driver.wait(10)
        assert driver.held() == cu(2)
    assert 200 / 15 - 1 <= len(driver.requests()) <= 200 / 15 + 1
    assert all(request.metrics is not None for request in driver.requests())


def test_an_answer_to_an_older_number_is_dropped() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    driver.busy_cpus = 2.9
    driver.wait(6)
    old = replace(driver.request(), number=driver.request().number - 1)
    driver.finish(events.RequestPermit, grant(old, cu(8), sent_s=driver.now_s))
    assert driver.held() == cu(2)


def test_an_echo_of_another_number_is_no_answer() -> None:
    driver = steady()
    driver.scheduler = lambda request: replace(
        grant(request, sent_s=driver.now_s), echoed_number=request.number + 1
    )
    driver.busy_cpus = 2.9
    assert driver.wait(6).size == cu(2)
    assert "the reply is to number" in driver.state.scheduler.fault


def test_requests_and_resizes_stay_within_the_bounds() -> None:
    driver = steady()
    driver.busy_cpus = 8  # of which the policy makes 11
    driver.wait(12).try_upscale(cpu=True, memory=True)
    assert driver.size == VM.bounds.max
    assert max(request.resources.vcpu_milli for request in driver.requests()) == VM.bounds.max.vcpu_milli
    driver.busy_cpus = 0
    assert driver.wait(60).size == VM.bounds.min
