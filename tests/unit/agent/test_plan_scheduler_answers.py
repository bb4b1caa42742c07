"""The runner answers errors of the scheduler with the same number again, a number above a named one, another version, or
nothing more."""

from collections.abc import Callable

import pytest

from agent.core import events
from agent.core.state import PermitRequest
from agent.peers.scheduler import request_of
from protocol.codec import encode_request
from protocol.fields import UINT64_MAX
from protocol.reasons import ErrorCode
from protocol.values import ZERO
from protocol.versions import PluginProtoVersion
from tests.support.amounts import cu
from tests.unit.agent.driver import CHANCE, OTHER_INSTANCE, VM, Driver, grant, refusal, steady

V1_0, V1_1 = PluginProtoVersion.V1_0, PluginProtoVersion.V1_1


def _bytes(request: PermitRequest) -> bytes:
    return encode_request(request_of(VM, request))


def _lost(request: PermitRequest) -> events.Event:
    return events.PermitFailed(request.number, "no answer within 4 s", CHANCE)


def _asking(busy: float = 2.9) -> Driver:
    """A runner with a request for growth under way."""
    driver = steady()
    driver.by_hand = {events.RequestPermit}
    driver.busy_cpus = busy
    driver.wait(5)
    assert driver.is_flying(events.RequestPermit)
    return driver


@pytest.mark.parametrize("status", [None, 500, 503, 502, 418, 429])
def test_after_a_time_out_or_an_error_status_the_same_bytes_are_sent_again(status: int | None) -> None:
    driver = _asking()
    for _ in range(3):  # the lease lasts for these
        driver.answer(lambda request: refusal(request, status) if status else _lost(request)).wait(6)
    assert len(driver.requests()) == 4
    assert len({_bytes(each) for each in driver.requests()}) == 1
    assert driver.held() == cu(2)
    assert driver.answer(driver.grants).size == cu(4)


@pytest.mark.parametrize("status", [None, 503])
def test_a_new_leader_is_met_soon_however_long_there_was_none(status: int | None) -> None:
    driver = steady()
    driver.scheduler = lambda request: refusal(request, status) if status else _lost(request)
    driver.wait(60)
    count = len(driver.requests())
    driver.wait(60)
    seconds_each = 60 / (len(driver.requests()) - count)
    assert 1 <= seconds_each <= driver.timing.leader_retry_cap_s


def test_a_goal_that_fell_gets_a_new_number() -> None:
    driver = _asking()
    driver.load(3)
    driver.wait(10.1).answer(_lost).wait(1)
    first, second = driver.requests()
    assert (first.number + 1, second.resources) == (second.number, cu(3))


def test_a_goal_that_rose_waits_for_the_answer_to_the_old_number() -> None:
    driver = _asking()
    driver.busy_cpus = 5
    driver.wait(5.1).answer(_lost).wait(1)
    assert driver.requests()[0] == driver.requests()[1]
    driver.by_hand.clear()
    assert driver.answer(driver.grants).size == cu(7)


def test_a_use_that_rose_gets_a_new_number_that_names_it() -> None:
    driver = _asking()
    driver.size = driver.target = cu(3)
    driver.wait(10).answer(_lost).wait(1)
    first, second = driver.requests()
    assert second.number > first.number
    assert (second.in_use, second.claim) == (cu(3), cu(3))


def test_a_claim_that_shrank_gets_a_new_number() -> None:
    driver = steady(cu(4))
    driver.size = driver.target = cu(2)
    driver.busy_cpus = 1.3
    driver.by_hand = {events.RequestPermit, events.Resize}
    driver.wait(11)
    assert (driver.request().resources, driver.request().claim) == (cu(2), cu(4))
    driver.answer(_lost).wait(1)
    first, second = driver.requests()[-2:]
    assert (first.number + 1, second.claim) == (second.number, cu(2))


@pytest.mark.parametrize(
    ("status", "code", "last", "number"),
    [
        (409, ErrorCode.SEQUENCE_STALE, 90, 91),
        (409, ErrorCode.SEQUENCE_REUSED, 90, 91),
        (409, ErrorCode.SEQUENCE_STALE, None, 3),
        (409, None, None, 3),
        (404, ErrorCode.UNKNOWN_POD, None, 3),
        (404, ErrorCode.WRONG_POD_UID, None, 3),
        (404, None, None, 3),
    ],
)
def test_a_conflict_or_an_unknown_pod_is_tried_again_with_a_new_number(
    status: int, code: ErrorCode | None, last: int | None, number: int
) -> None:
    driver = _asking()
    assert driver.request().number == 2
    driver.answer(lambda request: refusal(request, status, code, last=last)).wait(6)
    assert [request.number for request in driver.requests()] == [2, number]
    driver.by_hand.clear()
    assert driver.answer(driver.grants).size == cu(4)


def test_a_conflict_that_names_the_last_number_of_all_trips_nothing() -> None:
    driver = _asking()
    driver.answer(lambda request: refusal(request, 409, ErrorCode.SEQUENCE_STALE, last=UINT64_MAX)).wait(10)
    assert driver.state.superseded_at_ms is None


@pytest.mark.parametrize(
    ("named_s", "waits_s"), [(9.0, 9.0), (3000.0, 15.0)], ids=["as named", "a tick at most"]
)
def test_retry_after_is_respected_within_a_tick(named_s: float, waits_s: float) -> None:
    driver = _asking()
    overloaded = ErrorCode.OVERLOADED
    driver.answer(lambda request: refusal(request, 429, overloaded, retry_after_s=named_s)).wait(
        waits_s - 0.5
    )
    assert len(driver.requests()) == 1
    driver.wait(waits_s * 0.2 + 0.6)
    assert len(driver.requests()) == 2


def test_retry_after_zero_is_not_a_busy_loop() -> None:
    driver = steady()
    driver.scheduler = lambda request: refusal(request, 429, ErrorCode.OVERLOADED, retry_after_s=0)
    driver.busy_cpus = 2.9
    driver.wait(10)
    assert len(driver.requests()) < 20


def test_a_json_400_moves_to_the_version_that_is_shared() -> None:
    driver = Driver(by_hand=[events.RequestPermit]).settle()
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    driver.answer(lambda request: refusal(request, 400, unsupported, supported=(1, 1))).wait(1)
    assert [request.version for request in driver.requests()] == [V1_1, V1_0]
    assert driver.requests()[1].number > driver.requests()[0].number
    driver.by_hand.clear()
    driver.answer(driver.grants).wait(40)
    assert {request.version for request in driver.requests()[1:]} == {V1_0}


def test_no_shared_version_is_reported_and_tried_again() -> None:
    driver = Driver()
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    driver.scheduler = lambda request: refusal(request, 400, unsupported, supported=(3, 7))
    driver.wait(30)
    assert "unsupported-version" in driver.state.scheduler.fault
    assert 5 <= len(driver.requests()) <= 15
    assert driver.resizes() == []
    driver.scheduler = driver.grants
    assert driver.wait(6).held() == cu(2)


def test_a_plain_400_steps_down_before_the_first_success() -> None:
    driver = Driver(by_hand=[events.RequestPermit]).settle()
    driver.answer(lambda request: refusal(request, 400)).wait(6)
    driver.answer(lambda request: refusal(request, 400)).wait(6)
    assert [request.version for request in driver.requests()] == [V1_1, V1_0, V1_1]


def test_a_plain_400_after_a_success_is_a_refusal() -> None:
    driver = steady()
    driver.scheduler = lambda request: refusal(request, 400)
    driver.wait(40)
    assert {request.version for request in driver.requests()} == {V1_1}
    assert (driver.held(), driver.size) == (ZERO, cu(2))
    driver.scheduler = driver.grants
    assert driver.wait(6).held() == cu(2)


def test_a_lower_epoch_or_none_is_refused_and_the_same_number_goes_to_the_next_one() -> None:
    driver = steady(scheduler=lambda request: grant(request, sent_s=1000.0, epoch=7))
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, epoch=6, instance=OTHER_INSTANCE)
    driver.load(4).wait(12)
    assert driver.size == cu(2)
    assert "epoch 6 is below 7" in driver.state.scheduler.fault
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, instance=None)
    driver.wait(12)
    assert driver.size == cu(2)
    assert len({request.number for request in driver.requests()}) == 1
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, epoch=8, instance=OTHER_INSTANCE)
    driver.wait(6)
    assert (driver.size, driver.state.scheduler.seen_epoch) == (cu(4), 8)


@pytest.mark.parametrize(
    "wrong",
    [
        _lost,
        lambda request: refusal(request, 500),
        lambda request: refusal(request, 400),
        lambda request: refusal(request, 404, ErrorCode.UNKNOWN_POD),
        lambda request: refusal(request, 409, ErrorCode.SEQUENCE_STALE, last=1),
        lambda request: refusal(request, 429, ErrorCode.OVERLOADED, retry_after_s=1),
    ],
    ids=["lost", "500", "400", "404", "409", "429"],
)
def test_whatever_went_wrong_it_never_uses_more_than_it_holds_and_recovers(
    wrong: Callable[[PermitRequest], events.Event],
) -> None:
    driver = steady()
    driver.scheduler = wrong
    driver.busy_cpus = 2.9
    driver.wait(60)
    assert (driver.size, driver.resizes()) == (cu(2), [])
    assert 5 <= len(driver.requests()) <= 130
    driver.scheduler = driver.grants
    assert driver.wait(25).size == cu(4)
