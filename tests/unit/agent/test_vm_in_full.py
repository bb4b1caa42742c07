"""The agent tells of one VM field by field, for `parley explain` and other programs."""

import json
from typing import Any

import msgspec
import pytest

from agent.core import events
from agent.daemon import vm_pages
from protocol.agent_pages import VmInFull
from protocol.codec import ErrorBody, ReadErrorBody
from protocol.reasons import ErrorCode
from tests.support.amounts import cu
from tests.unit.agent.driver import APART, CHANCE, FULL, TIMING, Driver, grant, refusal, steady


def parts(driver: Driver) -> dict[str, Any]:
    """All parts now, as they travel."""
    found = vm_pages.in_full(driver.state, driver.plan(), driver.timing, driver.now_s)
    told: dict[str, Any] = msgspec.to_builtins(VmInFull(vm="d/a", **found))
    return told


def test_at_rest_the_next_request_renews_the_lease() -> None:
    driver = steady()
    before = parts(driver)["scheduler"]
    driver.wait(3.0)
    told = parts(driver)
    assert told["scheduler"]["nextSeconds"] == pytest.approx(before["nextSeconds"] - 3.0)
    assert told["scheduler"]["leaseLeftSeconds"] == pytest.approx(before["leaseLeftSeconds"] - 3.0)
    driver.wait(told["scheduler"]["nextSeconds"])
    assert parts(driver)["scheduler"]["leaseLeftSeconds"] == TIMING.hold_s
    assert (told["scheduler"]["waitsFor"], told["scheduler"]["fault"]) == (None, None)
    assert (told["scheduler"]["version"], told["scheduler"]["isExhausted"]) == ("v1.1", False)
    assert (told["resize"]["phase"], told["refusedSizes"], told["takeover"]) == ("at-rest", (), None)
    assert told["standingFaults"] == ()


def test_what_was_denied_is_asked_for_again_soon() -> None:
    driver = steady()
    driver.scheduler = lambda request: grant(request, cu(2), sent_s=driver.now_s, reasons=FULL)
    driver.load(4)
    driver.wait(TIMING.metrics_s + 0.5)
    told = parts(driver)["scheduler"]
    assert told["wanted"] == {"cpu": "4", "memory": "4Gi"}
    assert 0 < told["nextSeconds"] <= TIMING.denied_s


def test_while_a_request_is_under_way_the_next_one_has_no_moment() -> None:
    driver = steady()
    driver.by_hand.add(events.RequestPermit)
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    told = parts(driver)["scheduler"]
    assert (told["isUnderWay"], told["nextSeconds"], told["waitsFor"]) == (True, None, "answer")


def test_before_the_first_look_the_look_is_waited_for() -> None:
    driver = Driver(by_hand=[events.Observe])
    driver.settle()
    assert parts(driver)["scheduler"]["waitsFor"] == "look"
    assert parts(driver)["resize"]["phase"] == "unknown"
    driver = Driver(by_hand=[events.Fence])
    driver.settle()
    assert parts(driver)["scheduler"]["waitsFor"] == "fence"


def test_a_refusal_is_told_by_its_code_until_the_next_answer() -> None:
    driver = steady()
    driver.scheduler = lambda request: refusal(request, 503, ErrorCode.NOT_LEADER)
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    told = parts(driver)
    assert (told["scheduler"]["fault"]["status"], told["scheduler"]["fault"]["code"]) == (503, "not-leader")
    assert told["scheduler"]["failures"] > 0
    (fault,) = told["standingFaults"]
    assert (fault["peer"], fault["code"], fault["status"]) == ("scheduler", "not-leader", 503)
    driver.scheduler = lambda request: events.PermitFailed(request.number, "connection refused", CHANCE)
    driver.wait(10.0)
    assert parts(driver)["scheduler"]["fault"] == {
        "status": None,
        "code": None,
        "supported": None,
        "message": "connection refused",
    }
    driver.scheduler = driver.grants
    driver.wait(10.0)
    assert parts(driver)["scheduler"]["fault"] is None


def test_the_versions_of_a_scheduler_that_shares_none_are_told() -> None:
    driver = Driver()
    body = ReadErrorBody(ErrorBody("no", ErrorCode.UNSUPPORTED_VERSION), (6, 7))
    driver.scheduler = lambda request: events.PermitRefused(request.number, 400, body, None, CHANCE)
    driver.wait(10.0)
    told = parts(driver)["scheduler"]
    assert (told["version"], told["isExhausted"]) == (None, True)
    assert (told["supportedVersions"], told["fault"]["supported"]) == ("v1.0 to v1.1", "v4.0 to v5.0")


def test_a_scheduler_that_refuses_every_version_without_a_word_exhausts_them() -> None:
    driver = Driver()
    driver.scheduler = lambda request: refusal(request, 400)
    driver.wait(10.0)
    assert parts(driver)["scheduler"]["isExhausted"]


def test_the_goal_is_told_before_the_bounds_cut_it_with_its_parts() -> None:
    driver = steady(vm=APART)
    driver.load(12)
    driver.wait(2 * TIMING.metrics_s)
    told = parts(driver)
    assert told["goalBeforeBounds"]["cpu"] == "12"
    assert driver.plan().desired.vcpu_milli == 8000
    first = told["goalParts"]["cpu"][0]
    assert (first["policy"], first["units"]) == ("utilisation/cpu target", 12)


def test_a_resize_is_told_from_its_sending_to_its_end() -> None:
    driver = steady()
    driver.obeys = False
    driver.by_hand.add(events.Resize)
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    told = parts(driver)["resize"]
    assert (told["phase"], told["from"]["cpu"], told["to"]["cpu"]) == ("sending", "2", "4")
    driver.target = cu(4)
    driver.finish(events.Resize, events.ResizeAccepted())
    driver.wait(6.0)
    told = parts(driver)["resize"]
    assert told["phase"] == "moving"
    assert 5.0 < told["sinceSeconds"] <= 6.0
    driver.wait(TIMING.stall_s)
    assert parts(driver)["resize"]["phase"] == "stalled"
    driver.size = cu(4)
    driver.wait(TIMING.observe_idle_s)
    assert parts(driver)["resize"]["phase"] == "at-rest"


def test_resizes_that_fail_are_counted_with_the_next_try() -> None:
    driver = steady()
    driver.by_hand.add(events.Resize)
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    driver.finish(events.Resize, events.ResizeFailed("no answer", CHANCE))
    told = parts(driver)["resize"]
    assert (told["phase"], told["failures"], told["fault"]) == ("failing", 1, "no answer")
    assert told["to"] == {"cpu": "4", "memory": "4Gi"}
    assert 0 < told["retryInSeconds"] <= TIMING.retry_cap_s


def test_a_size_that_the_node_refuses_is_told_with_its_next_try() -> None:
    driver = steady()
    driver.obeys, driver.refusal = False, "Deferred: no room"
    driver.load(4)
    driver.wait(TIMING.metrics_s + 1.0)
    (told,) = parts(driver)["refusedSizes"]
    assert (told["kind"], told["target"]["cpu"], told["why"]) == ("growth", "4", "Deferred: no room")
    assert told["times"] == 1
    assert 0 < told["retryInSeconds"] <= TIMING.refused_base_s


def test_metrics_turn_stale_and_what_they_wait_for_is_told() -> None:
    driver = steady()
    driver.wait(1.0)
    driver.by_hand.add(events.ReadMetrics)
    driver.wait(TIMING.metrics_s + 1.0)
    driver.finish(events.ReadMetrics, events.MetricsFailed("no answer", is_lost=False, chance=CHANCE))
    told = parts(driver)["metrics"]
    assert (told["isStale"], told["failures"], told["fault"]) == (False, 1, "no answer")
    driver.wait(TIMING.metrics_stale_s)
    assert parts(driver)["metrics"]["isStale"]
    unregistered = Driver(by_hand=[events.Register])
    unregistered.settle()
    assert parts(unregistered)["metrics"]["waitsFor"] == "informant"


def test_a_downscale_that_the_guest_refuses_is_told_with_the_next_question() -> None:
    driver = steady(cu(4))
    driver.guest = lambda amount: events.DownscaleDenied(amount, "too tight")
    driver.load(2)
    driver.wait(3 * TIMING.down_window_s)
    told = parts(driver)["guest"]
    assert told["refusedDownscale"].keys() == {"cpu", "memory", "retryInSeconds"}
    assert told["fault"] == "downscale refused: too tight"


def test_what_the_guest_cannot_wait_for_is_told_by_resource() -> None:
    driver = steady(vm=APART)
    driver.scheduler = lambda request: grant(request, cu(2), sent_s=driver.now_s, reasons=FULL)
    driver.try_upscale(memory=True)
    told = parts(driver)["guest"]["urgent"]
    assert told.keys() == {"memory", "leftSeconds"}
    assert told["leftSeconds"] == TIMING.try_upscale_s
    driver.scheduler = driver.grants
    driver.wait(TIMING.denied_s)
    assert parts(driver)["guest"]["urgent"] is None, "it has come"


def test_whom_another_agent_has_superseded_asks_nobody() -> None:
    driver = steady()
    driver.scheduler = lambda request: refusal(request, 409, ErrorCode.AGENT_SUPERSEDED, started_ms=7)
    driver.load(4)
    driver.wait(TIMING.metrics_s)
    told = parts(driver)
    assert (told["scheduler"]["nextSeconds"], told["scheduler"]["waitsFor"]) == (None, "takeover")
    assert told["takeover"] == {"timesInARow": 0, "nextLifeSeconds": 0.0}


def test_a_look_that_fails_leaves_the_age_of_the_last_one() -> None:
    driver = steady()
    driver.by_hand.add(events.Observe)
    driver.wait(TIMING.observe_rest_s + 1.0)
    driver.finish(events.Observe, events.ObserveFailed("cannot be read", CHANCE))
    told = parts(driver)["look"]
    assert (told["failures"], told["fault"]) == (1, "cannot be read")
    assert told["ageSeconds"] > TIMING.observe_rest_s


def test_a_vm_that_is_not_scaled_is_told_with_its_reasons() -> None:
    reply = vm_pages.not_here("d/a", ["no limits", "no bounds"])
    told = json.loads(reply.body)
    assert (reply.status, told["code"], told["faults"]) == (404, "vm-not-scaled", ["no limits", "no bounds"])
    assert told["detail"] == "d/a is not scaled: no limits; no bounds"
    assert json.loads(vm_pages.not_here("d/b").body)["code"] == "unknown-vm"
