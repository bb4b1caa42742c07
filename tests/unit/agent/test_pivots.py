"""A shrink that the guest has approved, and that is not wanted any more before the VM has got there: the guest is told what it keeps."""

from agent.core import events
from protocol.values import Resources
from tests.support.amounts import cu
from tests.unit.agent.driver import APART, Driver


def shrinking() -> Driver:
    """A VM whose guest has agreed to give one unit of memory back, and does not do so: an eject that hangs."""
    driver = Driver(cu(3), vm=APART)
    driver.load(3).memory(3).wait(10)
    driver.obeys = False
    driver.memory(2).wait(20)
    assert (driver.size, driver.target) == (cu(3), cu(3, 2))
    assert driver.state.informant.known_size == cu(3, 2)
    return driver.forget()


def test_a_wish_in_the_middle_takes_the_shrink_back_at_once_and_then_the_guest_is_told() -> None:
    driver = shrinking()
    driver.try_upscale(memory=True)
    driver.wait(1)
    assert driver.resizes()[0] == cu(3), "the VM keeps what it has"
    assert driver.of(events.AnnounceUpscale)[0].amount == cu(3), (
        "the guest's limit rises before anything is waited for"
    )
    assert driver.kinds().index("Resize") < driver.kinds().index("AnnounceUpscale"), (
        "order up: the VM, then the guest"
    )


def test_growth_of_the_other_resource_does_not_take_it_back() -> None:
    driver = shrinking()
    driver.load(4).wait(10)
    assert driver.target == Resources(4000, cu(2).memory_bytes)
