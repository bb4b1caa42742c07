"""A VM that is described otherwise while its runner lives."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm
from agent.core.on_metrics import goal_of
from agent.core.step import apply
from protocol.values import Bounds, ComputeUnit, Resources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import TIMING, UTILISATION, VM, Driver


def grown(units: float = 6) -> Driver:
    driver = Driver()
    driver.wait(1)
    driver.load(units)
    driver.wait(40)
    assert driver.size == cu(units)
    return driver


def with_max(most: Resources, least: Resources = UNIT) -> Vm:
    return replace(VM, bounds=Bounds(least, most))


def held_after(driver: Driver, vm: Vm) -> Resources:
    state = apply(driver.state, events.VmChanged(vm), driver.now_s, TIMING, UTILISATION)
    return state.held_at(driver.now_s)


def test_a_lower_maximum_lowers_what_is_held_to_what_is_in_use_and_the_vm_shrinks_to_it() -> None:
    driver = grown()
    assert held_after(driver, with_max(cu(3))) == cu(6), "it is in use still"
    driver.tell(events.VmChanged(with_max(cu(3))))
    driver.wait(40)
    assert driver.size == cu(3)
    assert driver.held() == cu(3)


def test_a_maximum_above_what_is_in_use_cuts_what_is_held_at_once() -> None:
    driver = grown()
    link = replace(driver.state.scheduler, held=cu(8))
    driver.state = replace(driver.state, scheduler=link)
    assert held_after(driver, with_max(cu(7))) == cu(7)


def test_a_higher_maximum_is_used_and_asked_for_first() -> None:
    driver = grown(8)
    driver.load(12)
    driver.wait(20)
    assert driver.size == cu(8), "the maximum"
    driver.forget().tell(events.VmChanged(with_max(cu(12))))
    driver.wait(20)
    assert driver.size == cu(12)
    assert driver.kinds().index("RequestPermit") < driver.kinds().index("Resize")


def test_a_higher_minimum_is_reached_without_any_load() -> None:
    driver = grown(2)
    driver.busy_cpus = 0.01
    driver.tell(events.VmChanged(with_max(cu(8), cu(4))))
    driver.wait(30)
    assert driver.size == cu(4)


@pytest.mark.parametrize("unit", [cu(2), cu(0.5)])
def test_goals_mean_the_same_in_other_units(unit: Resources) -> None:
    driver = grown(4)
    driver.tell(events.VmChanged(replace(VM, unit=ComputeUnit(unit))))
    goal = goal_of(driver.state)
    assert goal is not None
    assert ComputeUnit(unit).amount(goal.units()) == cu(4)
    driver.wait(30)
    assert driver.size == cu(4), "the same load, the same size"


def test_it_is_never_another_vm() -> None:
    driver = grown(2)
    with pytest.raises(AssertionError, match="another VM"):
        driver.tell(events.VmChanged(replace(VM, pod_uid="uid-b")))
