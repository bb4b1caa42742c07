"""A new life: fence, look, name the use, settle; nothing grows before that."""

from functools import partial
from uuid import UUID

import pytest

from agent.core import events
from agent.core.state import PermitRequest
from protocol.values import ZERO
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, INSTANCE, OTHER_INSTANCE, UNSETTLED, Driver, grant


def test_the_fence_is_tried_until_it_stands_and_comes_before_everything_else() -> None:
    driver = Driver(by_hand=[events.Fence]).wait(30)
    assert driver.log == [events.Fence()]
    for _ in range(4):
        driver.finish(events.Fence, events.FenceFailed("busy", CHANCE)).wait(6)
    assert driver.log == [events.Fence()] * 5
    driver.finish(events.Fence, events.Fenced())
    assert driver.log[5:7] == [events.Observe(), events.Register()]


def test_nothing_is_asked_before_the_first_look_and_looks_that_fail_only_delay_it() -> None:
    driver = Driver(by_hand=[events.Observe]).wait(20)
    for _ in range(3):
        driver.finish(events.Observe, events.ObserveFailed("later", CHANCE)).wait(6)
    assert driver.requests() == []
    driver.finish(events.Observe, events.Observed(driver.observation()))
    assert (driver.request().resources, driver.held()) == (cu(2), cu(2))


@pytest.mark.parametrize("target", [2, 3], ids=["at rest", "on its way to 3"])
def test_the_first_request_names_the_use_whatever_the_goal_and_nothing_is_held_before_its_answer(
    target: int,
) -> None:
    driver = Driver(by_hand=[events.RequestPermit])
    driver.target = cu(target)
    driver.load(8).wait(12)
    (request,) = driver.requests()
    assert (request.number, request.resources, request.instance) == (1, cu(target), None)
    assert (request.claim, driver.held()) == (cu(target), ZERO)


def test_an_unsettled_scheduler_is_asked_again_at_once_by_its_name() -> None:
    driver = Driver(by_hand=[events.RequestPermit]).settle()
    driver.answer(lambda request: grant(request, sent_s=driver.now_s, reasons=UNSETTLED))
    first, second = driver.requests()
    assert (first.instance, second.instance) == (None, INSTANCE)
    assert (second.number, second.resources) == (2, cu(2))


def restarted(driver: Driver, *, answers: int = 1) -> None:
    """The next answers are those of another process, which does not know the VM yet."""
    script = [
        partial(grant, instance=OTHER_INSTANCE, reasons=UNSETTLED, token=f"t{number}")
        for number in range(answers)
    ]

    def answered(request: PermitRequest) -> events.Event:
        answer = script.pop(0) if script else partial(grant, instance=OTHER_INSTANCE)
        return answer(request, sent_s=driver.now_s)

    driver.scheduler = answered


@pytest.mark.parametrize(("served_s", "token"), [(29.0, None), (61.0, "t0")])
def test_a_life_proves_to_be_alone_once_the_leases_of_those_before_it_are_over(
    served_s: float, token: str | None
) -> None:
    driver = Driver().settle().wait(served_s)
    restarted(driver)
    driver.by_hand = {events.RequestPermit}
    driver.wait(15.5)  # no look begins at the moment of the answer, which is followed by one of its own
    driver.answer(driver.scheduler)
    assert driver.of(events.Observe)[-1] == events.Observe(checks_fence=True)
    assert driver.state.scheduler.is_fenced
    assert (driver.request().instance, driver.request().token) == (OTHER_INSTANCE, token)


def test_who_was_alone_once_stays_alone_over_every_restart() -> None:
    driver = Driver().settle().wait(61)
    restarted(driver, answers=2)
    driver.wait(31)
    assert "t1" in {request.token for request in driver.requests()}


def test_a_token_is_named_only_after_a_look_that_has_found_the_fence_in_force() -> None:
    driver = Driver().settle().wait(61)
    restarted(driver)
    driver.by_hand = {events.Observe}
    driver.wait(31)
    asked = len(driver.requests())
    driver.finish(events.Observe, events.Observed(driver.observation(), is_fenced=False)).wait(1)
    assert [request.token for request in driver.requests()[asked:]] == [None]


def test_a_look_from_before_the_answer_is_followed_by_another_at_once() -> None:
    driver = Driver(by_hand=[events.Observe, events.RequestPermit]).wait(1)
    driver.finish(events.Observe, events.Observed(driver.observation())).wait(11)
    early = driver.observation()
    driver.wait(1)
    driver.answer(lambda request: grant(request, sent_s=driver.now_s, reasons=UNSETTLED))
    looks = len(driver.of(events.Observe))
    driver.finish(events.Observe, events.Observed(early))
    assert driver.of(events.Observe)[looks:] == [events.Observe(checks_fence=True)]


def test_who_is_fenced_off_settles_nothing() -> None:
    driver = Driver().settle().wait(61)
    restarted(driver)
    driver.by_hand = {events.Observe}
    driver.wait(31)
    asked = len(driver.requests())
    driver.finish(events.Observe, events.FencedOff()).wait(31)
    assert len(driver.requests()) == asked


@pytest.mark.parametrize(
    ("names", "least", "most"),
    [((INSTANCE,), 50, 110), ((INSTANCE, OTHER_INSTANCE), 50, 210)],
    ids=["one", "two in turns"],
)
def test_schedulers_that_stay_unsettled_are_asked_now_and_then(
    names: tuple[UUID, ...], least: int, most: int
) -> None:
    driver = Driver()
    driver.scheduler = lambda request: grant(
        request, sent_s=driver.now_s, instance=names[request.number % len(names)], reasons=UNSETTLED
    )
    driver.wait(20)
    assert least <= len(driver.requests()) <= most


def test_without_an_informant_the_use_is_kept_and_asked_for() -> None:
    driver = Driver(by_hand=[events.Register]).settle()
    for _ in range(6):
        driver.finish(events.Register, events.RegisterFailed("refused", CHANCE)).wait(6)
    assert driver.held() == cu(2) != ZERO
    assert driver.resizes() == []
