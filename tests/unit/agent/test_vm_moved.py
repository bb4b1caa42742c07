"""The back end tells that a VM is not as it was: the runner looks, and believes no look that is older than what it was told."""

from msgspec.structs import replace

from agent.core import events
from agent.core.timing import Timing
from tests.unit.agent.driver import Driver, steady


def test_it_is_looked_at_at_once_and_not_when_its_next_look_is_due() -> None:
    driver = steady()
    driver.wait(5)
    assert driver.forget().settle().of(events.Observe) == []
    driver.tell(events.VmMoved())
    assert len(driver.of(events.Observe)) == 1


def test_a_look_that_had_begun_before_is_followed_by_another_one() -> None:
    driver = steady()
    driver.wait(5)
    driver.by_hand.add(events.Observe)
    driver.tell(events.VmMoved())
    old = driver.observation()
    driver.now_s += 0.01
    driver.tell(events.VmMoved())
    driver.finish(events.Observe, events.Observed(old))
    assert driver.is_flying(events.Observe)
    driver.finish(events.Observe, events.Observed(driver.observation()))
    assert not driver.is_flying(events.Observe)


def test_where_the_back_end_tells_growth_needs_no_polling() -> None:
    told = Driver(timing=replace(Timing(), observe_busy_s=1.0))
    told.wait(10)
    told.obeys = False
    told.load(4).wait(30)
    told.forget()
    told.size = told.target
    told.tell(events.VmMoved())
    assert told.kinds() == ["AnnounceUpscale"], "the guest is told in the same moment"
    assert len(told.of(events.Observe)) == 1
