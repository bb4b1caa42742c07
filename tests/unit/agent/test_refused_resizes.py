"""A resize that the VM's node does not carry out is taken back: the target goes back, the scheduler hears of it, and the
size is left for a while."""

from itertools import pairwise

from agent.core import events
from agent.core.condition import Health, condition
from tests.support.amounts import cu
from tests.unit.agent.driver import APART, CHANCE, TIMING, Driver, steady

WHY = "Deferred: Node didn't have enough resource: cpu"


def deferred() -> Driver:
    """A runner whose growth from 2 to 4 was permitted, accepted, and is deferred by the node."""
    driver = steady(cu(2))
    driver.obeys = False
    driver.refusal = WHY
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    assert driver.resizes()[:1] == [cu(4)]
    return driver


def test_growth_that_is_refused_goes_back_and_the_scheduler_gets_the_room_at_once() -> None:
    driver = deferred()
    driver.wait(1.0)
    assert driver.resizes() == [cu(4), cu(2)]
    assert (driver.target, driver.request().resources, driver.request().claim) == (cu(2), cu(2), cu(4))
    now = condition(driver.state, driver.plan(), driver.now_s, TIMING)
    assert (now.health, now.reasons) == (
        Health.DENIED,
        (f"the VM's node refuses growth to {cu(4)}: {WHY}",),
    )


def test_a_refused_size_is_tried_again_after_a_wait_that_doubles() -> None:
    driver = deferred()
    driver.wait(200.0)
    tries = [
        at_s
        for at_s, each in driver.transitions
        if isinstance(each.event, events.Started)
        and isinstance(each.event.action, events.Resize)
        and each.event.action.target == cu(4)
    ]
    waits = [round(after - before) for before, after in pairwise(tries)]
    assert waits[:4] == [10, 20, 40, 80]


def test_less_than_was_refused_may_be_tried_at_once() -> None:
    driver = deferred()
    driver.wait(1.0)
    driver.obeys, driver.refusal = True, None
    driver.load(3)
    driver.wait(2 * TIMING.down_window_s)
    assert driver.size == cu(3)


def test_a_shrink_that_is_refused_goes_back_to_what_stands_and_the_guest_hears_of_it() -> None:
    driver = steady(cu(4))
    driver.obeys, driver.refusal = False, "Error: below current usage"
    driver.busy_cpus = 0.5
    driver.wait(2 * TIMING.down_window_s)
    shrunk = driver.resizes()[0]
    assert driver.resizes() == [shrunk, cu(4)]
    assert driver.request().resources == cu(4), "what stands is held"
    assert driver.of(events.AnnounceUpscale)[-1].amount == cu(4)


def test_a_refusal_in_the_answer_does_not_count_as_sent_any_more() -> None:
    driver = steady(cu(2))
    driver.by_hand = {events.Resize}
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    driver.finish(events.Resize, events.ResizeRefused("exceeded quota", CHANCE))
    assert driver.state.in_use() == cu(2)
    driver.wait(TIMING.refused_base_s / 2)
    assert (len(driver.of(events.Resize)), driver.request().resources) == (1, cu(2))
    driver.wait(TIMING.refused_base_s)
    assert len(driver.of(events.Resize)) == 2


def test_growth_and_shrinks_that_are_refused_are_left_alone_each_for_itself() -> None:
    driver = steady(cu(4), vm=APART)
    driver.obeys, driver.refusal = False, WHY
    driver.load(6)
    driver.memory(0.5)
    driver.wait(2 * TIMING.down_window_s)
    assert driver.target == cu(4)
    kinds = [each.is_growth for each in driver.state.refused_at(driver.now_s)]
    assert sorted(kinds) == [False, True]
    driver.forget().wait(2.0)
    assert driver.resizes() == []


def test_refusals_of_cpu_and_of_memory_stand_beside_each_other() -> None:
    driver = steady(cu(2), vm=APART)
    driver.by_hand = {events.Resize}
    for growth in (driver.load, driver.memory):
        growth(4)
        driver.wait(TIMING.metrics_s)
        driver.finish(events.Resize, events.ResizeRefused("exceeded quota", CHANCE))
    assert driver.resizes() == [cu(4, 2), cu(2, 4)]
    assert [str(each.target) for each in driver.state.refused_at(driver.now_s)] == [
        str(cu(4, 2)),
        str(cu(2, 4)),
    ]
    assert driver.forget().wait(1.0).resizes() == [], "they are not tried in turn"
