"""A VM that does not finish a resize, because its guest keeps a part of its memory: it is not waited for without end."""

import pytest

from agent.core import events
from protocol.values import Resources
from tests.support.amounts import GIB, cu
from tests.unit.agent.driver import Driver, steady

ODD = Resources(4000, 3 * GIB + GIB // 2)


class Stubborn(Driver):
    """A VM whose memory stops half a GiB short of 4 GiB, and obeys otherwise."""

    def end(self, action: events.Action, *outcome: events.Event) -> None:
        super().end(action, *outcome)
        if isinstance(action, events.Resize):
            self.size = ODD if action.target == cu(4) else action.target


def stuck() -> Stubborn:
    driver = Stubborn()
    driver.wait(1)
    driver.load(4)
    driver.wait(60)
    assert (driver.size, driver.target) == (ODD, cu(4))
    return driver


@pytest.mark.parametrize(("goal", "within_s"), [(2, 60), (6, 10)])
def test_it_is_left_alone_and_follows_its_load(goal: int, within_s: float) -> None:
    driver = stuck()
    assert driver.of(events.AnnounceUpscale)[-1].amount == ODD, "the guest is told what has come"
    driver.forget().wait(120)
    assert driver.resizes() == []
    assert len(driver.of(events.Observe)) < 20, "it is looked at as seldom as one that rests"
    driver.load(goal).wait(within_s)
    assert (driver.size, driver.target, driver.held()) == (cu(goal), cu(goal), cu(goal))


def test_a_target_of_somebody_else_that_is_never_reached_is_taken_back() -> None:
    driver = steady()
    driver.wait(5)
    driver.target = cu(7)  # an edit that the VM cannot follow
    driver.wait(20)
    assert driver.state.in_use() == cu(7)
    driver.wait(40)
    assert (driver.target, driver.state.in_use()) == (driver.size, driver.size)
