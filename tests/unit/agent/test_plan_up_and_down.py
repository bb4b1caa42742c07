"""Growth goes scheduler, VM, guest; shrinking goes guest, VM, scheduler; either may turn round in the middle."""

from agent.core import events
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import CHANCE, Driver, grant, steady


def _grow(driver: Driver, busy: float = 2.9) -> Driver:
    driver.busy_cpus = busy
    return driver


def _goal(driver: Driver, units: int) -> Driver:
    """A goal of `units` now, and the older ones forgotten."""
    driver.busy_cpus = 0.75 * units - 0.1
    return driver.wait(10.1)


def test_growth_asks_then_resizes_then_tells_the_guest() -> None:
    driver = _grow(steady()).wait(5)
    order = driver.kinds()
    assert order[:3] == ["RequestPermit", "Resize", "AnnounceUpscale"]
    assert (driver.size, driver.held()) == (cu(4), cu(4))
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(4))]


def test_nothing_is_resized_while_the_request_is_under_way() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    _grow(driver).wait(14)
    assert driver.resizes() == []
    assert len(driver.requests()) == 1


def test_the_guest_is_told_only_of_what_was_seen() -> None:
    driver = steady()
    driver.obeys = False
    _grow(driver).wait(8)
    assert driver.resizes() == [cu(4)]
    assert driver.of(events.AnnounceUpscale) == []
    driver.size = driver.target
    driver.wait(1)
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(4))]


def test_a_shrink_asks_the_guest_then_resizes_then_tells_the_scheduler() -> None:
    driver = _goal(steady(cu(3)), 2)
    assert driver.kinds() == ["AskDownscale", "Resize", "RequestPermit"]
    assert (driver.size, driver.held(), driver.request().resources) == (cu(2), cu(2), cu(2))
    assert driver.request().claim == cu(3)


def test_a_shrink_goes_one_unit_at_a_time_and_asks_once_for_each() -> None:
    driver = _goal(steady(cu(5)), 2)
    assert driver.resizes() == [cu(4), cu(3), cu(2)]
    assert driver.of(events.AskDownscale) == [events.AskDownscale(cu(n)) for n in (4, 3, 2)]


def test_a_shrink_has_happened_when_it_is_seen() -> None:
    driver = steady(cu(3))
    driver.obeys = False
    _goal(driver, 2)
    assert driver.resizes() == [cu(2)]
    assert all(request.resources == cu(3) for request in driver.requests())
    assert driver.held() == cu(3)
    driver.size = driver.target
    driver.wait(1)
    assert driver.request().resources == cu(2)


def test_a_guest_that_refuses_is_asked_again_after_the_cool_down() -> None:
    driver = steady(cu(3))
    driver.guest = lambda amount: events.DownscaleDenied(amount, "memory is in use")
    _goal(driver, 2)
    assert driver.resizes() == []
    count = len(driver.of(events.AskDownscale))
    driver.wait(20)
    assert len(driver.of(events.AskDownscale)) - count in (4, 5)
    driver.guest = events.DownscaleApproved
    assert driver.wait(6).size == cu(2)


def test_up_turns_to_down_while_the_permit_is_under_way() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    _goal(_grow(driver).wait(5), 2)
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
    driver.busy_cpus = 0.75 * 3 - 0.1
    driver.wait(30)
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


def test_a_resize_that_failed_still_counts_until_it_cannot_happen_any_more() -> None:
    driver = steady()
    driver.by_hand = {events.Resize}
    _grow(driver).wait(5)
    driver.finish(events.Resize, events.ResizeFailed("cut", CHANCE))
    driver.wait(4)
    assert driver.state.in_use() == cu(4)
    assert driver.resizes() == [cu(4)]
    driver.wait(2)
    assert len(driver.resizes()) == 2


def test_a_failed_resize_does_not_end_the_look_that_is_under_way() -> None:
    driver = steady()
    driver.by_hand = {events.Observe}
    driver.wait(10.5)
    assert driver.is_flying(events.Observe)
    driver.by_hand = {events.Observe, events.Resize}
    driver.try_upscale(cpu=True, memory=True)
    assert driver.is_flying(events.Resize)
    driver.finish(events.Resize, events.ResizeFailed("busy", CHANCE))
    driver.wait(6)  # asserts that no second look is started


def test_a_failed_look_does_not_end_the_resize_that_is_under_way() -> None:
    driver = steady()
    driver.by_hand = {events.Observe}
    driver.wait(10.5)
    driver.by_hand = {events.Observe, events.Resize}
    driver.try_upscale(cpu=True, memory=True)
    driver.finish(events.Observe, events.ObserveFailed("later", CHANCE))
    driver.by_hand = {events.Resize}
    driver.wait(20)  # asserts that no second resize is started
    assert driver.resizes() == [cu(3)]


def test_a_permit_in_fractions_is_used_in_fractions() -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(request, request.resources.min(cu(2.5)), sent_s=driver.now_s)
    _grow(driver).wait(5)
    assert driver.size == cu(2.5)
    assert driver.size != UNIT * 2
