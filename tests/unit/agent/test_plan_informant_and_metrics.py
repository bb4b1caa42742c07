"""Registration, suspension, try-upscale, silence and loss of the informant; metrics that are missing or old."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.model import amounts
from agent.core.state import NO_WISHES, RegistrationPhase
from agent.core.step import lapse
from agent.core.timing import Timing
from protocol.versions import InformantProtoVersion
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, Driver, steady


def _phase(driver: Driver) -> RegistrationPhase:
    return driver.state.informant.phase


@pytest.mark.parametrize("is_suspended", [False, True])
def test_calls_before_the_register_answer_count(is_suspended: bool) -> None:
    driver = Driver(by_hand=[events.Register]).settle()
    driver.resumes = False
    mine = driver.registrations[-1]
    driver.tell(events.Resumed(mine), *[events.Suspended(mine)] * is_suspended)
    driver.finish(events.Register, *driver.registered())
    phase = RegistrationPhase.SUSPENDED if is_suspended else RegistrationPhase.ACTIVE
    assert (_phase(driver), driver.state.informant.version) == (phase, InformantProtoVersion.V1_1)
    driver.tell(events.Resumed(mine)).load(4).wait(12)
    assert driver.size == cu(4)


def test_suspended_before_a_register_answer_that_never_came_registers_again() -> None:
    driver = Driver(by_hand=[events.Register]).settle()
    driver.tell(events.Suspended(driver.registrations[-1]))
    driver.finish(events.Register, events.RegisterFailed("no answer", CHANCE)).wait(6)
    assert len(driver.registrations) == 2


def test_while_suspended_nothing_is_resized_or_told() -> None:
    driver = steady()
    driver.tell(events.Suspended(driver.registrations[-1])).forget()
    driver.busy_cpus = 2.9
    driver.wait(30)
    assert driver.resizes() == []
    assert {"AskDownscale", "AnnounceUpscale"}.isdisjoint(driver.kinds())
    driver.tell(events.Resumed(driver.registrations[-1]))
    assert driver.wait(6).size == cu(4)


def test_after_a_resume_the_guest_is_told_of_the_size_again() -> None:
    driver = steady(cu(4))
    driver.tell(events.Suspended(driver.registrations[-1]))
    driver.size = driver.target = cu(2)  # the other agent's work, approved by the guest
    driver.wait(11).forget()
    driver.tell(events.Resumed(driver.registrations[-1]))
    driver.wait(12)
    assert driver.size == cu(4)
    assert driver.of(events.AnnounceUpscale)[-1:] == [events.AnnounceUpscale(cu(4))]


def test_an_approval_from_before_a_suspension_is_worth_nothing_after_it() -> None:
    driver = steady(cu(3))
    driver.by_hand = {events.Resize}
    driver.busy_cpus = 1.3
    driver.wait(10.1)
    driver.finish(events.Resize, events.ResizeFailed("busy", CHANCE))
    driver.tell(events.Suspended(driver.registrations[-1])).wait(6)
    driver.by_hand = {events.AskDownscale, events.AnnounceUpscale}
    driver.forget()
    driver.tell(events.Resumed(driver.registrations[-1])).wait(6)
    assert driver.resizes() == []


def test_a_silent_informant_is_registered_with_anew_and_its_older_registration_means_nothing() -> None:
    driver = steady()
    driver.is_heard = False
    driver.wait(24)
    assert len(driver.registrations) == 1
    driver.wait(2)
    assert len(driver.registrations) == 2
    assert driver.of(events.AnnounceUpscale) == [events.AnnounceUpscale(cu(2))]
    driver.tell(events.Suspended(driver.registrations[0]))
    assert _phase(driver) is RegistrationPhase.ACTIVE


def test_silence_ends_at_the_very_moment_for_which_the_plan_wakes_up() -> None:
    state, timing = steady().state, Timing()
    for step in range(300):  # floats round: not every sum taken apart again gives the same
        heard_s = 1000 + 0.05 * step
        silent = replace(state, informant=replace(state.informant, heard_s=heard_s))
        after = lapse(silent, heard_s + timing.informant_silence_s, timing)
        assert after.informant.phase is RegistrationPhase.UNREGISTERED


def test_silence_during_a_call_is_no_busy_loop() -> None:
    driver = steady(cu(3))
    driver.is_heard = False
    driver.by_hand = {events.AskDownscale}
    driver.busy_cpus = 1.3
    driver.wait(40)  # asserts that every plan has something to do or a later wake-up
    driver.finish(events.AskDownscale, events.InformantFailed("no answer", False, CHANCE))
    assert len(driver.registrations) == 2


def test_an_informant_that_forgot_us_is_registered_with_again() -> None:
    driver = steady(cu(3))
    driver.guest = lambda _: events.InformantFailed("status 404", True, CHANCE)
    driver.busy_cpus = 1.3
    driver.wait(11)
    assert len(driver.registrations) > 1
    assert driver.size == cu(3)


def test_a_try_upscale_that_was_met_stands_for_its_time_and_then_the_guest_decides() -> None:
    driver = steady().try_upscale(cpu=True, memory=True)
    driver.wait(driver.timing.try_upscale_s - 0.5)
    assert (driver.size, driver.of(events.AskDownscale)) == (cu(3), [])
    driver.guest = lambda amount: events.DownscaleDenied(amount, "in use")
    driver.load(1.75).wait(20)
    assert (driver.size, driver.plan().desired) == (cu(3), cu(2))
    driver.guest = events.DownscaleApproved
    assert driver.wait(6).size == cu(2)


def test_a_try_upscale_that_cannot_be_met_expires() -> None:
    driver = steady()
    driver.scheduler = lambda request: events.PermitFailed(request.number, "down", CHANCE)
    driver.try_upscale(cpu=True)
    driver.wait(driver.timing.try_upscale_s - 0.5)
    assert [wish and wish.amount for wish in driver.state.informant.wishes] == [*amounts(cu(3))], (
        "a tied VM keeps its ratio"
    )
    driver.wait(1)
    assert driver.state.informant.wishes == NO_WISHES


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_tied_vm_whose_guest_wishes_for_one_resource_keeps_its_ratio(name: str) -> None:
    driver = steady().try_upscale(cpu=name == "cpu", memory=name == "memory")
    driver.try_upscale(cpu=name == "cpu", memory=name == "memory")
    assert (driver.resizes(), driver.size) == ([cu(3), cu(4)], cu(4))


def test_a_try_upscale_for_nothing_cancels() -> None:
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    driver.try_upscale(cpu=True).try_upscale()
    assert driver.state.informant.wishes == NO_WISHES


def test_what_a_try_upscale_brought_stays_for_the_down_window_when_nothing_is_wanted_any_more() -> None:
    driver = steady().try_upscale(cpu=True, memory=True)
    assert driver.size == cu(3)
    driver.try_upscale()
    driver.wait(driver.timing.down_window_s - 0.5)
    assert (driver.size, driver.of(events.AskDownscale)) == (cu(3), [])
    driver.try_upscale()  # told again, it does not stay any longer
    driver.load(1.75).wait(6)
    assert driver.size == cu(2)


def test_what_was_given_back_and_missed_stays_as_long_as_the_load_is_what_it_was() -> None:
    driver = steady().try_upscale(cpu=True).try_upscale().wait(6)
    assert driver.size == cu(2)
    driver.try_upscale(cpu=True).try_upscale()
    assert driver.wait(600).size == cu(3)
    assert driver.plan().reason.cpu == "the guest could not wait before"
    assert driver.load(1.75).wait(11).size == cu(2)


def test_what_is_wished_for_again_soon_after_it_was_given_back_stays_longer_each_time() -> None:
    """The load of a guest with bursts goes up and down, so growth is given back although it is needed."""
    driver, kept_s = steady(), []
    for _ in range(4):
        driver.load(2).memory(2).wait(6)
        driver.try_upscale(cpu=True).try_upscale()
        assert driver.size.vcpu_milli == 3000
        driver.load(1.5).memory(1.5)
        began_s = driver.now_s
        while driver.size.vcpu_milli == 3000:
            driver.wait(1)
        kept_s.append(driver.now_s - began_s)
    assert kept_s == [pytest.approx(each, abs=2) for each in (5, 60, 120, 240)]
    driver.wait(1000).load(2).memory(2).wait(6)
    driver.try_upscale(cpu=True).try_upscale()
    driver.load(1.5).memory(1.5).wait(11)
    assert driver.size.vcpu_milli == 2000, "that was long ago"


def test_a_try_upscale_at_the_maximum_does_not_stop_a_later_shrink() -> None:
    driver = steady(cu(8)).try_upscale(cpu=True, memory=True)
    driver.load(7)
    assert driver.wait(25).size == cu(7)


def test_without_metrics_the_size_is_kept() -> None:
    driver = Driver(cu(4), by_hand=[events.ReadMetrics]).settle()
    for _ in range(8):
        driver.finish(events.ReadMetrics, events.MetricsFailed("status 500", False, CHANCE)).wait(6)
    assert (driver.size, driver.resizes()) == (cu(4), [])
    assert {request.resources for request in driver.requests()} == {cu(4)}


def test_a_plugin_that_tells_the_load_every_other_time_leaves_the_load_known() -> None:
    """Each source counts the CPU time from a moment of its own."""
    driver = Driver(cu(2), by_hand=[events.ReadMetrics]).load(6).settle()
    for number in range(8):
        sample, source = driver.sample(), ("theirs", "")[number % 2]
        assert sample.cpu_busy_s is not None
        counted = replace(sample, cpu_busy_s=sample.cpu_busy_s + 1000 * bool(source))
        driver.finish(events.ReadMetrics, events.MetricsRead(counted, source)).wait(6)
    assert driver.size == cu(6)


def test_old_metrics_never_shrink() -> None:
    driver = steady(cu(4))
    driver.by_hand = {events.Resize}
    driver.busy_cpus = 0.1
    driver.wait(10.1)
    driver.by_hand = {events.Resize, events.ReadMetrics}
    driver.wait(20)
    driver.by_hand = {events.ReadMetrics}
    driver.finish(events.Resize, events.ResizeFailed("busy", CHANCE)).forget()
    driver.wait(60)
    assert driver.of(events.AskDownscale) == []
    assert str(driver.plan().reason) == "the metrics are stale"


def test_the_first_sample_of_a_counter_decides_nothing() -> None:
    driver = Driver(cu(4))
    driver.busy_cpus = 0.0
    driver.wait(4)
    assert driver.of(events.AskDownscale) == []
    assert driver.wait(30).size == cu(1)
