"""A VM whose resources are apart: each has its own goal, permit, refusals and reason, and none waits for the other."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Health, condition
from agent.core.desire import shrink
from agent.core.model import Denial, PerResource, Vm
from agent.core.state import NO_DENIALS, InformantState, PermitRequest, RunnerState
from agent.runner.stats import GrowthTimer, Latencies
from protocol.reasons import Reason, ReasonCode
from protocol.values import Bounds, ComputeUnit, Resources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import APART, CHANCE, LIFE, OTHER_INSTANCE, TIMING, VM, Driver, grant, steady


def at_rest(size: Resources = UNIT * 2) -> Driver:
    """A VM that is apart, at rest right after a reading: its load and its memory in use are those of its size."""
    return steady(size, vm=APART).wait(4.5).forget()


def with_room(driver: Driver, room: Resources, retry_after_s: float | None = None) -> None:
    """From now on no more than `room` is permitted, with a reason for each resource that is cut."""

    def judged(request: PermitRequest) -> events.Event:
        permit = request.resources.min(room.max(request.claim))
        pairs = zip(request.resources.named(), permit.named(), strict=True)
        reasons = tuple(
            Reason(ReasonCode.NODE_HEADROOM, "the node is full", name, retry_after_s)
            for (name, want), (_, have) in pairs
            if have < want
        )
        return grant(request, permit, sent_s=driver.now_s, reasons=reasons)

    driver.scheduler = judged


def test_each_resource_follows_its_own_load_in_one_resize() -> None:
    driver = at_rest()
    driver.memory(6).wait(5)
    assert (driver.size, driver.resizes()) == (cu(2, 6), [cu(2, 6)])
    driver.load(5).memory(1).wait(15)
    assert driver.size == cu(5, 1)
    assert driver.resizes()[1:] == [cu(5, 1)]
    why = driver.plan().reason
    assert ("CPUs busy" in why.cpu, "memory" in why.memory) == (True, True)


def test_without_any_figure_of_its_own_a_resource_stays() -> None:
    driver = Driver(cu(2, 4), vm=APART)
    driver.load(4).wait(20)
    assert driver.size == cu(4, 4)
    assert driver.plan().reason.memory.startswith("the size stays: ")


def test_a_node_without_free_cpu_gives_memory_and_says_what_is_denied() -> None:
    driver = at_rest()
    with_room(driver, cu(2, 8), retry_after_s=14.0)
    driver.load(4).memory(4).wait(6)
    assert (driver.size, driver.held()) == (cu(2, 4), cu(2, 4))
    found = condition(driver.state, driver.plan(), driver.now_s, driver.timing)
    assert (found.health, found.reasons) == (Health.DENIED, ("node-headroom (cpu): the node is full",))


@pytest.mark.parametrize("is_wish", [False, True])
def test_a_denial_of_cpu_delays_neither_growth_of_memory_nor_a_wish_nor_a_shrink(is_wish: bool) -> None:
    driver = at_rest()
    with_room(driver, cu(2, 8), retry_after_s=14.0)
    driver.load(4).wait(6)
    assert driver.size == cu(2)
    asked = len(driver.requests())
    if is_wish:
        driver.try_upscale(memory=True)
    else:
        driver.memory(3).wait(5)
    assert driver.size == cu(2, 3)
    assert len(driver.requests()) == asked + 1, (
        "CPU is asked for along with it, and not again before its time"
    )
    driver.memory(1).wait(20)
    assert (driver.size.memory_bytes, driver.held()) == (UNIT.memory_bytes, cu(2, 1))


def test_a_wish_for_memory_grows_memory_alone_by_half_and_then_to_the_double() -> None:
    driver = at_rest(cu(4))
    driver.load(1)
    driver.try_upscale(memory=True)
    assert driver.size == cu(4, 6)
    assert driver.plan().reason.memory == "the guest cannot wait"
    driver.wait(6)
    assert driver.size == cu(1, 6), "CPU goes by its own load"
    driver.try_upscale(memory=True)
    assert driver.size == cu(1, 8), "the double would be beyond the maximum"


def test_a_resource_that_is_not_named_any_more_is_called_off_by_itself() -> None:
    driver = at_rest()
    with_room(driver, cu(2, 8))
    driver.try_upscale(cpu=True, memory=True)
    assert driver.size == cu(2, 3)
    driver.try_upscale(memory=True)
    wishes = driver.state.informant.wishes
    assert wishes.cpu is None, "it was not met"
    assert wishes.memory is not None
    assert not wishes.memory.is_over
    driver.try_upscale()
    assert driver.plan().reason.memory == "the guest could not wait before"


def test_a_shrink_to_what_the_guest_has_wished_for_says_why_it_shrinks() -> None:
    driver = steady(cu(4), vm=APART, timing=replace(TIMING, metrics_s=1.0, down_window_s=2.0))
    driver.try_upscale(memory=True)
    driver.memory(8).wait(1.5)
    assert driver.size == cu(4, 8), "the load has grown beyond the wish"
    driver.by_hand = {events.AskDownscale}
    driver.memory(2).wait(3.5)
    planned = driver.plan()
    assert planned.desired == cu(4, 6)
    assert planned.reason.memory.endswith("75% is the target; what the guest could not wait for stays")


def test_where_the_guest_keeps_its_memory_cpu_shrinks_and_memory_goes_as_far_as_it_can() -> None:
    driver = at_rest(cu(4, 8))
    driver.guest = lambda amount: (
        events.DownscaleDenied(amount, "in use")
        if cu(0, 3).exceeds(amount)
        else events.DownscaleApproved(amount)
    )
    driver.load(1).memory(1).wait(6)
    assert driver.size == cu(1, 8)
    asked = [each.amount for each in driver.of(events.AskDownscale)]
    assert asked == [cu(1), cu(1, 8)], "both, then CPU without memory"
    assert driver.resizes() == [cu(1, 8)]
    driver.forget().wait(6)
    assert driver.size == cu(1, 5), "half-way"
    driver.wait(60)
    assert driver.size == cu(1, 3)


def test_a_refusal_about_cpu_does_not_hold_memory_back() -> None:
    driver = at_rest(cu(4))
    known = cu(4)

    def judged(amount: Resources) -> events.Event:
        is_less = amount.vcpu_milli < known.vcpu_milli
        return (
            events.DownscaleDenied(amount, "CPU was short lately")
            if is_less
            else events.DownscaleApproved(amount)
        )

    driver.guest = judged
    driver.load(1).memory(1).wait(30)
    assert driver.size == cu(4, 1)
    driver.guest = events.DownscaleApproved
    assert driver.wait(12).size == cu(1)


def test_memory_that_is_slow_to_go_keeps_nothing_else_waiting() -> None:
    driver = at_rest(cu(2, 6))
    driver.obeys = False
    driver.memory(2).wait(16)
    assert (driver.target, driver.size) == (cu(2), cu(2, 6))
    driver.load(4).wait(6)
    assert driver.target == cu(4, 2), "and memory still goes"


def _tied(driver: Driver) -> Callable[[PermitRequest], events.Event]:
    return lambda request: grant(request, sent_s=driver.now_s, knows_apart=False)


def _published(driver: Driver) -> Callable[[PermitRequest], events.Event]:
    return lambda request: grant(request, sent_s=driver.now_s, instance=None)


@pytest.mark.parametrize("peer", [_tied, _published])
def test_a_vm_is_tied_as_long_as_its_scheduler_takes_it_so(
    peer: Callable[[Driver], Callable[[PermitRequest], events.Event]],
) -> None:
    driver = at_rest()
    driver.memory(5).wait(6)
    assert (driver.size, driver.state.unit.is_apart) == (cu(2, 5), True)
    driver.scheduler = peer(driver)
    driver.wait(40)
    assert (driver.size, driver.state.unit.is_apart) == (cu(5), False)
    asked = driver.requests()
    assert ({request.is_apart for request in asked}, asked[-1].resources) == ({True}, cu(5))
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, instance=OTHER_INSTANCE)
    driver.wait(40)
    assert (driver.size, driver.state.unit.is_apart) == (cu(2, 5), True)


def test_denials_of_the_other_kind_mean_nothing() -> None:
    driver = at_rest()
    with_room(driver, cu(2, 8), retry_after_s=14.0)
    driver.load(4).memory(3).wait(6)
    assert driver.state.scheduler.denied.cpu is not None
    driver.scheduler = driver.grants
    driver.tell(events.VmChanged(VM))
    assert driver.state.scheduler.denied == NO_DENIALS
    assert driver.wait(5).size == cu(4)
    driver.tell(events.VmChanged(APART))
    assert driver.wait(40).size == cu(4, 3)


def test_a_request_that_is_sent_again_keeps_its_kind() -> None:
    driver = Driver(vm=APART, by_hand=[events.RequestPermit]).settle()
    first = driver.request()
    driver.tell(events.VmChanged(VM))
    driver.finish(events.RequestPermit, events.PermitFailed(first.number, "no answer", CHANCE)).wait(1)
    assert driver.request() is first
    driver.by_hand.clear()
    driver.answer(driver.grants).wait(20)
    assert (first.is_apart, driver.request().is_apart) == (True, False)


def test_steps_of_each_resource_are_its_own() -> None:
    unit = Resources(250, 2 * UNIT.memory_bytes)
    driver = steady(cu(2), vm=replace(APART, unit=ComputeUnit(unit, is_apart=True)))
    driver.load(1.2).memory(2.5).wait(20)
    assert driver.size == cu(1.25, 4)


def latencies(driver: Driver) -> list[tuple[int, float]]:
    """How often each part of a growth was measured, and for how long in all."""
    timer = GrowthTimer(Latencies())
    for at_s, transition in driver.transitions:
        timer.note(transition, at_s)
    found = timer.latencies
    parts = (found.metric_to_permit, found.permit_to_size, found.try_upscale_to_permit)
    return [(sum(part.counts), round(part.sum_s, 1)) for part in parts]


@pytest.mark.parametrize("vm", [VM, APART])
def test_resources_that_grow_together_are_measured_once(vm: Vm) -> None:
    driver = steady(vm=vm)
    driver.load(4).memory(4).wait(6)
    assert driver.size == cu(4)
    assert [count for count, _ in latencies(driver)] == [1, 1, 0]


def test_growth_of_memory_is_not_measured_from_when_cpu_began_to_wait() -> None:
    driver = at_rest()
    with_room(driver, cu(2, 8))
    driver.load(4).wait(30)
    driver.memory(4).wait(6)
    assert latencies(driver) == [(1, 0.0), (1, 0.0), (0, 0.0)]
    driver.try_upscale(cpu=True).wait(3)
    driver.try_upscale(cpu=True, memory=True)
    assert latencies(driver)[2] == (1, 0.0)


STEPS = st.integers(1, 40)


def denials(step: int) -> st.SearchStrategy[Denial | None]:
    """A refusal of some steps of a resource, before or after 1000 s, or none."""
    return st.none() | st.builds(Denial, STEPS.map(lambda count: count * step), st.floats(990, 1010))


@given(
    st.builds(cu, STEPS, STEPS),
    st.builds(cu, STEPS, STEPS),
    st.builds(PerResource, denials(UNIT.vcpu_milli), denials(UNIT.memory_bytes)),
    st.sampled_from([VM, APART]),
)
def test_as_long_as_anything_should_shrink_something_is_asked_for_or_waited_for(
    size: Resources, desired: Resources, denied: PerResource[Denial | None], vm: Vm
) -> None:
    state = RunnerState(vm, LIFE, informant=InformantState(denied=denied))
    found = shrink(state, size, desired, size, 1000.0, TIMING)
    assert size.min(desired).fits_in(found.amount)
    assert found.amount.fits_in(size)
    if size.exceeds(desired):
        assert size.exceeds(found.amount) or (found.until_s is not None and found.until_s > 1000.0)


@pytest.mark.parametrize(("vm", "most"), [(APART, cu(4)), (VM, cu(4, 3))])
@pytest.mark.parametrize("is_permit", [False, True])
def test_what_a_capped_wish_has_brought_stays_for_the_down_window_and_goes_when_the_load_falls(
    vm: Vm, most: Resources, is_permit: bool
) -> None:
    """The wish is for more than the VM's maximum, or than what was permitted."""
    driver = steady(cu(3), vm=vm if is_permit else replace(vm, bounds=Bounds(cu(1), most)))
    if is_permit:
        with_room(driver, most)
    driver.try_upscale(cpu=True, memory=True)
    assert driver.size == most
    driver.try_upscale()
    driver.wait(driver.timing.down_window_s - 0.5)
    assert driver.resizes() == [most]
    assert driver.plan().reason.cpu == "the guest could not wait before"
    assert driver.load(2.6).memory(2.6).wait(6).size == cu(3)
