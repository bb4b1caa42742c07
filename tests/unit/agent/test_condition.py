"""How a runner says that it is doing: stuck within two ticks of a peer's silence, and never for a refusal."""

import pytest
from msgspec.structs import replace

from agent.core import events
from agent.core.condition import Condition, DeniedGrowth, Health, condition
from agent.core.state import RunnerState
from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import CHANCE, FULL, LIFE, TIMING, VM, Driver, grant

PATIENCE_S = 2 * TIMING.tick_s


def now(driver: Driver) -> Condition:
    return condition(driver.state, driver.plan(), driver.now_s, TIMING)


def settled() -> Driver:
    driver = Driver()
    driver.wait(40)
    return driver


def test_a_new_one_is_starting_for_as_long_as_it_may_take() -> None:
    state = RunnerState(VM, LIFE, began_s=100.0)
    assert condition(state, None, 100.0 + PATIENCE_S - 1, TIMING).health is Health.STARTING
    late = condition(state, None, 100.0 + PATIENCE_S, TIMING)
    assert late.health is Health.STUCK
    assert set(late.peers) == {"VM", "scheduler", "informant", "metrics"}


@pytest.mark.parametrize(
    ("kind", "failure", "peer"),
    [
        (events.RequestPermit, None, "scheduler"),
        (events.Observe, events.ObserveFailed("the API is away", CHANCE), "VM"),
        (events.ReadMetrics, events.MetricsFailed("no route", False, CHANCE), "metrics"),
    ],
)
def test_a_peer_that_is_not_heard_for_two_ticks_is_named(
    kind: type[object], failure: events.Event | None, peer: str
) -> None:
    driver = settled()
    driver.by_hand = {kind}
    for _ in range(60):
        driver.wait(1)
        while driver.is_flying(kind):
            number = driver.state.scheduler.request.number if driver.state.scheduler.request else 0
            driver.finish(kind, failure or events.PermitFailed(number, "no answer within 4 s", CHANCE))
    found = now(driver)
    assert (found.health, found.peers) == (Health.STUCK, (peer,))
    assert found.reasons[0].startswith(f"{peer}: ")


def test_a_refusal_is_a_reason_and_not_stuck() -> None:
    driver = settled()
    driver.scheduler = lambda request: grant(request, UNIT * 2, sent_s=driver.now_s, reasons=FULL)
    driver.busy_cpus = 4
    driver.wait(3 * PATIENCE_S)
    found = now(driver)
    assert (found.health, found.reasons) == (Health.DENIED, (str(FULL[0]),))
    assert driver.size == cu(2)


@pytest.mark.parametrize("code", [ReasonCode.NODE_HEADROOM, ReasonCode.POOL])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_denial_says_how_much_of_what_and_whether_there_is_room_elsewhere(
    code: ReasonCode, elsewhere: bool
) -> None:
    """Room on another node is no cause of the denial, and is not named as one."""
    full = Reason(code, "full")
    more = (Reason(ReasonCode.ROOM_ELSEWHERE, "node n2 has room"),) if elsewhere else ()
    driver = settled()
    driver.scheduler = lambda request: grant(
        request, UNIT * 2, sent_s=driver.now_s, reasons=(*more, full, *more)
    )
    driver.busy_cpus = 4
    driver.wait(3 * PATIENCE_S)
    found = now(driver)
    assert found.reasons == (str(full),)
    wanted = driver.plan().desired
    expected = DeniedGrowth(wanted, wanted - cu(2), code is ReasonCode.NODE_HEADROOM, elsewhere)
    assert found.growth == expected
    assert str(expected).startswith(f"denied {wanted.vcpu_milli // 1000 - 2} CPU and ")
    assert str(expected).endswith(f" of memory, of the {wanted} that it should have")


def test_a_scheduler_without_the_extension_cannot_tell_of_room_elsewhere() -> None:
    driver = settled()
    driver.scheduler = lambda request: replace(grant(request, UNIT * 2, sent_s=driver.now_s), instance=None)
    driver.busy_cpus = 4
    driver.wait(3 * PATIENCE_S)
    found = now(driver).growth
    assert found is not None
    assert (found.lacks_room, found.has_room_elsewhere) == (False, None)


@pytest.mark.parametrize(
    ("denied", "text"),
    [
        (Resources(250, 0), "denied 250m CPU, of the "),
        (Resources(0, 2**20), "denied 1Mi of memory, of the "),
    ],
)
def test_a_resource_that_is_not_denied_is_not_named(denied: Resources, text: str) -> None:
    assert str(DeniedGrowth(cu(2), denied)).startswith(text)


def test_a_scheduler_that_has_not_answered_yet_has_refused_nothing() -> None:
    driver = settled()
    driver.by_hand = {events.RequestPermit}
    driver.busy_cpus = 4
    driver.wait(TIMING.metrics_s)
    assert driver.is_flying(events.RequestPermit)
    assert now(driver).reasons == ("the scheduler is asked for more and has not answered yet",)


@pytest.mark.parametrize("tick_s", [1.0, 2.0, 5.0, 15.0])
def test_a_peer_that_keeps_its_own_pace_is_not_waited_for_in_vain(tick_s: float) -> None:
    """A VM at rest is looked at every ten seconds and an informant requests as often, however short the ticks are."""
    timing = replace(TIMING, tick_s=tick_s)
    driver = Driver(timing=timing)
    driver.is_heard = False
    for number in range(400):
        driver.wait(0.25)
        if number % 40 == 20:
            driver.tell(events.InformantHeard(driver.registrations[-1]))
        found = condition(driver.state, driver.plan(), driver.now_s, timing)
        assert found.health is not Health.STUCK, (driver.now_s, found.reasons)


def test_metrics_that_are_missing_for_two_ticks_are_named_however_short_the_ticks_are() -> None:
    """With a reading every half second, four seconds without one are long, although nothing is stale before fifteen."""
    timing = replace(TIMING, tick_s=2.0, metrics_s=0.5)
    driver = Driver(timing=timing)
    driver.wait(20)
    driver.by_hand = {events.ReadMetrics}
    for _ in range(20):
        driver.wait(0.25)
        if driver.is_flying(events.ReadMetrics):
            driver.finish(events.ReadMetrics, events.MetricsFailed("status 500", False, CHANCE))
    found = condition(driver.state, driver.plan(), driver.now_s, timing)
    assert (found.health, found.peers) == (Health.STUCK, ("metrics",))


def test_a_guest_that_refuses_every_downscale_is_named_as_the_reason() -> None:
    driver = settled()
    driver.guest = lambda amount: events.DownscaleDenied(amount, "too much memory is in use")
    driver.busy_cpus = 0.1
    driver.wait(60)
    found = now(driver)
    assert found.health is Health.OK
    assert "too much memory is in use" in found.reasons[-1]
