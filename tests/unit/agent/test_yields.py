"""A VM tells what it needs and what it can spare, and gives comfort back when the scheduler asks for it."""

import dataclasses

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm, YieldMode
from agent.core.policies.utilisation import Utilisation
from agent.core.policies.values import Load, Sizing, micro
from agent.core.state import Means
from agent.core.timing import Timing
from protocol.values import ZERO, Bounds, ComputeUnit, Resources
from protocol.wire import MoreResources
from tests.support.amounts import GIB, UNIT, cu
from tests.unit.agent.driver import APART, FULL, TIMING, Driver, grant, steady

LONG = replace(TIMING, down_window_s=300.0)
"""Comfort is kept for five minutes."""


def comfortable(
    *, vm: Vm = APART, size: Resources = UNIT * 4, needs: float = 1.0, timing: Timing = LONG
) -> Driver:
    """A VM of 4 units that needs one unit, and keeps the others for comfort."""
    driver = steady(size, vm=vm, timing=timing)
    driver.load(needs).memory(1).wait(6)
    assert driver.size == size
    return driver


def told(driver: Driver) -> Means:
    """The means in the next request: that of the tick."""
    driver.wait(driver.timing.tick_s + 1)
    found = driver.request().told
    assert found is not None
    return found


def asks(driver: Driver, keep: Resources, priority: int | None = 0) -> Driver:
    return driver.tell(events.YieldNoticed(keep, "demo/other", priority))


# ------------------------------------------------------------ what is told


def test_the_first_request_to_a_scheduler_tells_no_means() -> None:
    driver = Driver(UNIT * 4, vm=APART, timing=LONG)
    driver.load(1).memory(1).wait(1)
    assert driver.requests()[0].told is None
    assert driver.requests()[-1].told is not None or len(driver.requests()) == 1


def test_what_is_kept_for_comfort_can_be_spared() -> None:
    assert told(comfortable()) == Means(cu(1, 1), cu(3, 3))


@pytest.mark.parametrize(
    ("yields", "spare", "to_higher"),
    [
        (YieldMode.SLACK, cu(3, 3), ZERO),
        (YieldMode.TO_MINIMUM, cu(3, 3), ZERO),
        (YieldMode.NEVER, ZERO, ZERO),
    ],
)
def test_the_mode_says_what_is_offered(yields: YieldMode, spare: Resources, to_higher: Resources) -> None:
    assert told(comfortable(vm=replace(APART, yields=yields))) == Means(cu(1, 1), spare, to_higher)


def test_to_its_minimum_a_vm_can_give_what_it_needs() -> None:
    vm = replace(APART, yields=YieldMode.TO_MINIMUM)
    assert told(comfortable(vm=vm, needs=3.0)) == Means(cu(3, 1), cu(1, 3), cu(3, 3))


def test_nothing_can_be_spared_below_the_minimum() -> None:
    vm = replace(APART, bounds=Bounds(cu(3, 2), UNIT * 8))
    assert told(comfortable(vm=vm)) == Means(cu(3, 2), cu(1, 2))


def test_a_silent_informant_or_stale_metrics_spare_nothing() -> None:
    driver = comfortable()
    driver.by_hand = {events.ReadMetrics, events.Register}
    driver.is_heard = False
    assert told(driver.wait(20)).spare == ZERO


def test_a_vm_that_waits_for_a_container_or_whose_shrinks_fail_spares_nothing() -> None:
    driver = comfortable()
    driver.by_hand = {events.Resize}
    asks(driver, cu(1, 1)).finish(events.Resize, events.ResizeFailed("no", 0.0))
    assert told(driver).spare == ZERO


def test_an_urgent_wish_is_needed_and_so_is_its_gain_until_it_shows_in_the_metrics() -> None:
    driver = comfortable(timing=replace(LONG, tick_s=2.0))
    driver.try_upscale(cpu=True)
    assert driver.size.vcpu_milli > 4000
    size = driver.size
    driver.tell(events.TryUpscaleReceived(driver.registrations[-1], MoreResources(False, False)))
    driver.wait(4)
    assert driver.request().told == Means(size.max(cu(1, 1)).min(Resources(size.vcpu_milli, GIB)), cu(0, 3))
    driver.wait(20)
    assert driver.request().told == Means(cu(1, 1), size - UNIT)


# ------------------------------------------------------------ what is given


def test_a_yield_is_a_shrink_that_the_guest_agrees_to_and_is_reported() -> None:
    driver = asks(comfortable().forget(), cu(2, 4)).wait(1)
    assert driver.size == cu(2, 4)
    assert driver.kinds()[:2] == ["AskDownscale", "Resize"]
    assert driver.request().resources == cu(2, 4)
    assert driver.plan().reason.cpu == "gives back room for demo/other (priority 0)"


def test_a_tied_vm_gives_unit_by_unit() -> None:
    driver = steady(UNIT * 4, timing=LONG)
    driver.load(1).wait(6)
    assert asks(driver, UNIT * 2).wait(2).size == UNIT * 2


@pytest.mark.parametrize(
    ("vm", "priority", "left"),
    [
        (APART, 1000, cu(3, 1)),
        (replace(APART, yields=YieldMode.NEVER), 1000, cu(4, 4)),
        (replace(APART, yields=YieldMode.TO_MINIMUM), 1000, cu(1, 1)),
        (replace(APART, yields=YieldMode.TO_MINIMUM), 0, cu(1, 1)),
        (replace(APART, yields=YieldMode.TO_MINIMUM, priority=1), 0, cu(3, 1)),
        (replace(APART, yields=YieldMode.TO_MINIMUM, priority=1), None, cu(1, 1)),
        (APART, None, cu(3, 1)),
    ],
    ids=[
        "comfort",
        "never",
        "higher priority",
        "same priority",
        "lower priority",
        "quota",
        "comfort of a quota",
    ],
)
def test_it_gives_no_more_than_it_allows(vm: Vm, priority: int | None, left: Resources) -> None:
    driver = comfortable(vm=vm, needs=3.0)
    assert asks(driver, ZERO, priority).wait(2).size == left


def test_a_yield_never_grows_a_vm() -> None:
    driver = comfortable()
    assert asks(driver.forget(), UNIT * 8).wait(2).resizes() == []


def test_a_yield_of_cpu_leaves_memory_alone_and_a_late_notice_takes_nothing_back() -> None:
    driver = asks(comfortable(), cu(2, 4)).memory(6).wait(6)
    assert driver.size == cu(2, 6)
    asks(driver, cu(1, 6))
    assert asks(driver, cu(3, 6)).wait(2).size == cu(1, 6)


def test_the_comfort_comes_back_after_a_minute_and_the_need_at_once() -> None:
    driver = asks(comfortable(), cu(1, 1)).wait(2)
    assert driver.size == cu(1, 1)
    assert driver.load(3).wait(11).size.vcpu_milli == 3000
    driver = asks(comfortable(), cu(1, 1)).wait(50)
    assert driver.size == cu(1, 1)
    assert driver.wait(15).size == cu(4, 4)


def test_a_yield_does_not_delay_the_vms_own_urgent_wish() -> None:
    driver = comfortable()
    driver.hear(events.YieldNoticed(cu(1, 1), "demo/other", 0))
    driver.try_upscale(cpu=True)
    assert driver.size.vcpu_milli > 4000


def test_a_refusal_is_told_at_once_and_nothing_is_spared_for_a_while() -> None:
    driver = comfortable()
    driver.guest = lambda amount: events.DownscaleDenied(amount, "in use")
    told(driver)
    asks(driver.forget(), cu(4, 1)).settle()
    assert [each.told for each in driver.requests()] == [Means(cu(1, 1), cu(3, 0))]
    driver.guest = events.DownscaleApproved
    driver.state = replace(driver.state, yielding=None)
    assert told(driver.wait(30)).spare == cu(3, 0)
    assert told(driver.wait(35)).spare == cu(3, 3)


# ------------------------------------------------------------ room, and another scheduler


def test_room_makes_a_denied_vm_ask_at_once() -> None:
    driver = steady(UNIT * 2, vm=APART)
    driver.scheduler = lambda asked: grant(
        asked, UNIT * 2, sent_s=driver.now_s, reasons=(dataclasses.replace(FULL[0], retry_after_s=14.0),)
    )
    driver.load(4).wait(6).forget()
    assert driver.wait(1).requests() == []
    driver.scheduler = driver.grants
    driver.tell(events.RoomNoticed(UNIT * 4))
    assert driver.size.vcpu_milli == 4000


def test_another_scheduler_process_is_asked_soon() -> None:
    driver = steady(UNIT * 2).wait(3).forget()
    driver.tell(events.EpochNoticed(1.0))
    assert driver.requests() == []
    assert len(driver.wait(0.6).requests()) == 1


# ------------------------------------------------------------ need and comfort


SIZING = Sizing(cu(4), ComputeUnit(UNIT, is_apart=True), Bounds(UNIT, UNIT * 8))
POLICY = Utilisation(800_000, 800_000, memory_margin=0)


@pytest.mark.parametrize(
    ("busy", "mean", "units"),
    [
        (0.9, None, 1),
        (0.91, None, 2),
        (2.7, 2.7, 3),
        (3.79, None, 5),
        (3.81, None, 5),
        (2.0, 0.5, 3),
        (0.5, 2.0, 1),
    ],
)
def test_the_need_of_cpu_leaves_half_of_the_targets_room_until_the_size_is_full(
    busy: float, mean: float | None, units: int
) -> None:
    load = Load(busy_micro=micro(busy), busy_mean_micro=micro(mean), busy_tail_micro=micro(8.0))
    assert POLICY.need(load, SIZING).cpu.units == units


def test_tail_surge_and_slope_are_no_need() -> None:
    used = 3 * GIB
    load = Load(
        busy_micro=micro(1.0),
        memory_total=64 * GIB,
        memory_available=64 * GIB - used,
        memory_tail=7 * GIB,
        memory_surge=8 * GIB,
        memory_rise=GIB,
    )
    assert POLICY.goal(load, SIZING).memory.units == 8
    assert POLICY.need(load, SIZING).memory.units == 4
