"""A new life: fence, look, name the use, settle; nothing grows before that."""

from agent.core import events
from protocol.values import ZERO
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, INSTANCE, OTHER_INSTANCE, UNSETTLED, Driver, grant


def test_the_fence_comes_before_everything_else() -> None:
    driver = Driver(by_hand=[events.Fence]).settle()
    assert driver.kinds() == ["Fence"]
    driver.wait(30)
    assert driver.log == [events.Fence()]
    driver.finish(events.Fence, events.Fenced())
    assert driver.log[1:3] == [events.Observe(), events.Register()]


def test_a_fence_that_fails_is_tried_again_before_anything_else() -> None:
    driver = Driver(by_hand=[events.Fence]).settle()
    for _ in range(4):
        driver.finish(events.Fence, events.FenceFailed("busy", CHANCE)).wait(6)
    assert driver.log == [events.Fence()] * 5
    driver.finish(events.Fence, events.Fenced()).wait(1)
    assert driver.held() == cu(2)


def test_nothing_is_asked_before_the_first_look() -> None:
    driver = Driver(by_hand=[events.Observe]).wait(20)
    assert driver.requests() == []
    driver.finish(events.Observe, events.ObserveFailed("gone", CHANCE)).wait(6)
    assert driver.requests() == []
    driver.finish(events.Observe, events.Observed(driver.observation()))
    assert driver.request().resources == cu(2)


def test_the_first_request_names_the_use_whatever_the_goal() -> None:
    driver = Driver(by_hand=[events.RequestPermit])
    driver.busy_cpus = 6.0
    driver.wait(12)
    (request,) = driver.requests()
    assert (request.number, request.resources, request.claim, request.instance) == (1, cu(2), cu(2), None)


def test_the_first_request_names_a_target_that_is_not_reached() -> None:
    driver = Driver(by_hand=[events.RequestPermit])
    driver.target = cu(3)
    driver.settle()
    assert driver.request().resources == cu(3)


def test_an_unsettled_scheduler_is_asked_again_at_once_by_its_name() -> None:
    driver = Driver(by_hand=[events.RequestPermit]).settle()
    driver.answer(lambda request: grant(request, sent_s=driver.now_s, reasons=UNSETTLED))
    first, second = driver.requests()
    assert (first.instance, second.instance) == (None, INSTANCE)
    assert (second.number, second.resources) == (2, cu(2))


def test_a_scheduler_that_stays_unsettled_is_asked_now_and_then() -> None:
    driver = Driver()
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, reasons=UNSETTLED)
    driver.wait(20)
    assert 50 <= len(driver.requests()) <= 110


def test_schedulers_that_take_turns_in_being_unsettled_are_not_asked_without_end() -> None:
    driver = Driver()
    names = (INSTANCE, OTHER_INSTANCE)
    driver.scheduler = lambda request: grant(
        request, sent_s=driver.now_s, instance=names[request.number % 2], reasons=UNSETTLED
    )
    driver.wait(20)
    assert len(driver.requests()) <= 210


def test_a_restarted_scheduler_is_told_its_new_name_before_growth() -> None:
    driver = Driver().wait(6)
    told = []

    def restarted(request: object) -> events.Event:
        last = driver.request()
        told.append(last.instance)
        if last.instance != OTHER_INSTANCE:
            capped = last.resources.min(last.claim)
            return grant(last, capped, sent_s=driver.now_s, instance=OTHER_INSTANCE, reasons=UNSETTLED)
        return grant(last, sent_s=driver.now_s, instance=OTHER_INSTANCE)

    driver.scheduler = restarted
    driver.busy_cpus = 2.9
    driver.wait(6)
    assert told[:2] == [INSTANCE, OTHER_INSTANCE]
    assert driver.size == cu(4)


def test_looks_that_fail_at_first_only_delay_the_start() -> None:
    driver = Driver(by_hand=[events.Observe]).settle()
    for _ in range(3):
        driver.finish(events.Observe, events.ObserveFailed("later", CHANCE)).wait(6)
    driver.by_hand.clear()
    driver.finish(events.Observe, events.Observed(driver.observation()))
    assert driver.held() == cu(2)


def test_without_an_informant_the_use_is_kept_and_asked_for() -> None:
    driver = Driver(by_hand=[events.Register]).settle()
    for _ in range(6):
        driver.finish(events.Register, events.RegisterFailed("refused", CHANCE)).wait(6)
    assert driver.held() == cu(2) != ZERO
    assert driver.resizes() == []
