"""A scheduler that has just started, one that moves the VM away, and what reasons say of asking again."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.state import PermitRequest
from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import OTHER_INSTANCE, UNSETTLED, Driver, grant


def started(want: float = 4) -> Driver:
    """A driver whose VM has grown to `want` units and whose requests are answered by hand from now on."""
    driver = Driver()
    driver.wait(1)
    driver.load(want)
    driver.wait(30)
    assert driver.size == cu(want)
    driver.by_hand = {events.RequestPermit}
    driver.wait(16)
    return driver


def asked(driver: Driver) -> PermitRequest:
    (request,) = [action.request for action in driver.flying if isinstance(action, events.RequestPermit)]
    return request


def growing(driver: Driver, want: float) -> PermitRequest:
    """Give the VM a load for `want` units and answer ticks until that is what is asked for."""
    driver.load(want)
    for _ in range(200):
        if not driver.is_flying(events.RequestPermit):
            driver.wait(0.25)
        elif asked(driver).resources == cu(want):
            return asked(driver)
        else:
            answer(driver, grant(asked(driver), sent_s=driver.now_s))
    raise AssertionError("it is never asked for")


def answer(driver: Driver, answered: events.PermitGranted) -> None:
    driver.finish(events.RequestPermit, answered)


# ------------------------------------------------------------ unsettled


def test_an_unsettled_answer_never_raises_what_is_held() -> None:
    driver = started()
    request = asked(driver)
    lower = replace(driver.state.scheduler, held=cu(2))
    driver.state = replace(driver.state, scheduler=lower)
    answer(driver, grant(request, sent_s=driver.now_s, instance=OTHER_INSTANCE, reasons=UNSETTLED))
    assert driver.state.held_at(driver.now_s) == cu(2)


def test_after_an_unsettled_answer_the_vm_is_looked_at_before_the_new_process_is_named() -> None:
    driver = started()
    driver.by_hand |= {events.Observe}
    answer(driver, grant(asked(driver), sent_s=driver.now_s, instance=OTHER_INSTANCE, reasons=UNSETTLED))
    driver.settle()
    assert [type(action) for action in driver.flying] == [events.Observe]
    driver.by_hand -= {events.Observe}
    driver.size = driver.target = cu(3)  # somebody has shrunk it since our last look
    driver.finish(events.Observe, events.Observed(driver.observation()))
    driver.settle()
    assert (asked(driver).instance, asked(driver).in_use) == (OTHER_INSTANCE, cu(3))


# ------------------------------------------------------------ migration


def test_a_vm_that_is_being_migrated_keeps_its_size_until_the_migration_is_over() -> None:
    driver = started()
    answer(driver, replace(grant(asked(driver), sent_s=driver.now_s), migrate=True))
    resizes = len(driver.resizes())
    for busy in (0.1, 6.0):
        driver.busy_cpus = busy
        driver.wait(40)
        request = asked(driver)
        assert request.resources == cu(4), "neither more nor less is asked for"
        answer(driver, replace(grant(request, sent_s=driver.now_s), migrate=True))
    assert len(driver.resizes()) == resizes
    assert str(driver.plan().reason) == "the VM is being migrated away"


# ------------------------------------------------------------ when to ask again


def denied(driver: Driver, retry_after_s: float | None, permit: Resources) -> float:
    """Refuse the growth under way; how long it takes until it is asked for again."""
    why = (Reason(ReasonCode.POOL, "full", retry_after_s=retry_after_s),)
    answer(driver, grant(asked(driver), permit, sent_s=driver.now_s, reasons=why))
    began_s = driver.now_s
    driver.settle()
    while not driver.is_flying(events.RequestPermit):
        driver.wait(0.25)
    return driver.now_s - began_s


@pytest.mark.parametrize(
    ("retry_after_s", "at_least", "at_most"),
    [(None, 2, 2.25), (1.0, 1, 1.25), (7.0, 7, 7.25), (60.0, 13, 15.25)],
)
def test_a_refusal_is_asked_again_when_its_reason_says_and_within_a_tick(
    retry_after_s: float | None, at_least: float, at_most: float
) -> None:
    driver = started()
    growing(driver, 6)
    assert at_least <= denied(driver, retry_after_s, UNIT * 4) <= at_most


def test_at_once_is_believed_the_first_time_only() -> None:
    driver = started()
    growing(driver, 6)
    assert denied(driver, 0.0, UNIT * 4) <= 0.25
    assert denied(driver, 0.0, UNIT * 4) >= 2
