"""Resizes on conditions: nothing is written blind, nothing late, and without a lease a target is lowered only."""

from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Condition, Health, condition
from protocol.values import Observation
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, FULL, TIMING, Driver, grant, steady
from tests.unit.agent.test_looks_beside_resizes import LOOK, RESIZE, after


def cut_off(driver: Driver) -> Driver:
    """The scheduler has been away for so long that nothing is held any more."""
    driver.scheduler = lambda request: events.PermitFailed(request.number, "no answer", CHANCE)
    driver.wait(TIMING.hold_s + TIMING.tick_s)
    assert driver.held() == cu(0)
    return driver.forget()


def test_a_shrink_does_not_undo_what_an_operator_has_lowered_since_the_last_look() -> None:
    """Two VMs of 5 on a node of 10: one is cut off and lowered to 2 by hand, the other is granted 7. A target of 4, decided
    on what the last look showed, would make 11 of 10."""
    driver = cut_off(steady(cu(5)))
    driver.by_hand = {events.Observe}
    driver.wait(TIMING.observe_idle_s)
    driver.size = driver.target = cu(2)
    driver.load(4)
    driver.wait(TIMING.down_window_s + TIMING.metrics_s)
    assert (driver.of(events.Resize)[0].target, driver.of(events.Resize)[0].seen) == (cu(4), cu(5))
    assert driver.target == cu(2), "written over an edit"
    driver.by_hand = set()
    driver.finish(events.Observe, events.Observed(driver.observation()))
    driver.wait(30)
    assert driver.target == cu(2)


def test_without_a_lease_no_target_is_raised_not_even_back_to_the_size() -> None:
    """A guest that keeps its memory has a size above its target; what it gives back meanwhile may be somebody else's."""
    driver = cut_off(steady(cu(5)))
    driver.size, driver.target = cu(5), cu(3)
    driver.load(6)
    driver.wait(3 * TIMING.stall_s)
    assert all(target.fits_in(cu(3)) for target in driver.resizes())


def test_growth_is_written_as_long_as_its_lease_lasts_and_a_shrink_as_long_as_a_call_may_take() -> None:
    driver = steady(cu(2))
    link = driver.state.scheduler
    driver.state = replace(
        driver.state, scheduler=replace(link, held=cu(4), lease_until_s=driver.now_s + 1.5)
    )
    driver.by_hand = {events.Resize}
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    lease_until_s = driver.state.scheduler.lease_until_s
    (growth,) = driver.of(events.Resize)
    assert (growth.target, growth.not_after_s) == (cu(4), min(lease_until_s, growth.not_after_s))
    shrinking = steady(cu(4))
    shrinking.by_hand = {events.Resize}
    shrinking.busy_cpus = 0.5
    shrinking.wait(2 * TIMING.down_window_s)
    (shrink,) = shrinking.of(events.Resize)
    sent = shrinking.state.backend.sent
    assert sent is not None
    assert shrink.not_after_s == sent.sent_s + TIMING.backend_deadline_s
    assert sent.until_s == shrink.not_after_s + TIMING.command_deadline_s


def test_a_target_is_seen_by_a_look_begun_after_the_sending_only() -> None:
    early = after(
        5.0,
        (12.0, LOOK),
        (13.0, RESIZE),
        (13.2, events.ResizeAccepted()),
        (13.3, events.Observed(Observation(cu(6), cu(6), 12.0))),
        (13.4, LOOK),
        (13.5, events.Observed(Observation(cu(2), cu(2), 13.4))),
    )
    assert early.in_use() == cu(6), "what was there before is not its doing, so it may still come"


def growing(*by_hand: type[object]) -> Driver:
    """A VM of 2 units whose load is one for 5."""
    driver = steady().load(5)
    driver.by_hand = set(by_hand)
    return driver


def stuck(driver: Driver) -> Condition:
    return condition(driver.state, driver.plan(), driver.now_s, TIMING)


def failing(driver: Driver, seconds: int) -> None:
    for _ in range(seconds * 4):
        driver.wait(0.25)
        if driver.is_flying(events.Resize):
            driver.finish(events.Resize, events.ResizeFailed("quota exceeded", CHANCE))


def test_resizes_that_are_refused_for_ever_are_named_within_two_ticks_and_tried_again_with_a_back_off() -> (
    None
):
    driver = growing(events.Resize)
    failing(driver, int(TIMING.metrics_s + 2 * TIMING.tick_s) + 1)
    found = stuck(driver)
    assert (found.health, found.peers, driver.size) == (Health.STUCK, ("VM",), cu(2))
    assert "quota exceeded" in found.reasons[0]
    tries = len(driver.resizes())
    failing(driver, 60)
    least = 60 / (TIMING.command_deadline_s + TIMING.retry_cap_s)
    assert least <= len(driver.resizes()) - tries <= 60 / (TIMING.retry_cap_s / 2)
    driver.by_hand = set()
    driver.wait(TIMING.retry_cap_s + 1)
    assert (driver.size, stuck(driver).health) == (cu(5), Health.OK)


def test_resizes_that_fail_are_of_no_account_once_nothing_is_wanted() -> None:
    driver = growing(events.Resize)
    failing(driver, 2)
    driver.load(2)
    failing(driver, int(3 * TIMING.tick_s))
    assert stuck(driver).health is Health.OK


def test_a_growth_that_took_effect_and_lost_its_answer_is_no_failure() -> None:
    driver = growing(events.Resize)
    driver.wait(TIMING.metrics_s)
    driver.size = driver.target = cu(5)
    driver.finish(events.Resize, events.ResizeFailed("no answer", CHANCE))
    driver.by_hand = set()
    driver.guest = lambda amount: events.DownscaleDenied(amount, "in use")
    driver.busy_cpus = 0.5
    driver.wait(4 * TIMING.tick_s)
    assert stuck(driver).health is Health.OK


def test_a_growth_that_failed_once_and_is_not_permitted_any_more_is_denied_and_not_stuck() -> None:
    driver = growing(events.Resize)
    driver.wait(TIMING.metrics_s)
    driver.scheduler = lambda request: grant(
        request, request.resources.min(cu(2)), sent_s=driver.now_s, reasons=FULL
    )
    link = driver.state.scheduler
    driver.state = replace(driver.state, scheduler=replace(link, held=cu(2)))
    driver.by_hand = set()
    driver.finish(events.Resize, events.ResizeFailed("quota exceeded", CHANCE))
    driver.wait(4 * TIMING.tick_s)
    assert stuck(driver).health is Health.DENIED


def test_a_vm_whose_looks_and_resizes_both_fail_is_one_peer() -> None:
    driver = growing(events.Resize, events.Observe)
    for _ in range(600):
        driver.wait(0.25)
        if driver.is_flying(events.Resize):
            driver.finish(events.Resize, events.ResizeFailed("quota exceeded", CHANCE))
        if driver.is_flying(events.Observe):
            driver.finish(events.Observe, events.ObserveFailed("the API is away", CHANCE))
    assert stuck(driver).peers == ("VM",)


def test_a_permit_out_of_ratio_is_used() -> None:
    """A published scheduler may grant one resource and not the other; the room that it keeps must not lie idle."""
    driver = Driver(cu(1))
    driver.scheduler = lambda request: grant(
        request, request.resources.min(cu(1, 2)), sent_s=driver.now_s, instance=None, unit=cu(1)
    )
    driver.busy_cpus = 3.0
    driver.wait(20)
    assert (driver.size, driver.request().resources) == (cu(1, 2), cu(4))
    driver.busy_cpus = 0.1
    driver.wait(40)
    assert (driver.size, driver.request().resources) == (cu(1), cu(1))
