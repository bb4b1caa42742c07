"""The questions of `http-admission`, and the meaning of each answer. No I/O."""

import json
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosting.client import Answered, FailureKind, Unanswered
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.pools.core.batches import MAX_WAIT_S
from scheduler.pools.core.errors import AppError, Detail, PluginErrorKind, Scope, kind_from_app_error
from scheduler.pools.core.values import ADMITTED, Context, Member, Pool, PoolLimits, Purpose, VmRequest
from scheduler.pools.shipped.http_messages import (
    MAX_MESSAGE,
    Failed,
    Said,
    question,
    retry_after_s,
    shown,
    understood,
)

UNIT = Resources(500, 2**30)
POOL = Pool(
    "blue", UNIT, PoolLimits(10), {"team": "a"}, {"note": "b"}, replicas=5, uid="uid-blue", generation=2
)
FIRST = VmRequest(PodName("vm-1", "default"), "uid-1", "n1", {"app": "x"}, UNIT, UNIT * 2, 1, 2)
SECOND = VmRequest(PodName("vm-2", "default"), "uid-2", "n1", {}, UNIT, UNIT * 3, 1, 3)
ASKING = (FIRST, SECOND)
MEMBER = Member(PodName("vm-1", "default"), "uid-1", "n1", {"app": "x"}, UNIT, UNIT * 2, 2)
NOW_S = 1_700_000_000.0


def read(
    status: int, body: object = None, requests: tuple[VmRequest, ...] = ASKING, **headers: str
) -> Said | Failed:
    """The meaning of an answer with such a body; bytes travel as they are."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return understood(Answered(status, content, named), requests, NOW_S)


def refusal(meant: Said | Failed) -> AppError:
    assert isinstance(meant, Said)
    assert meant.admission.error is not None
    return meant.admission.error


def failure(meant: Said | Failed) -> Failed:
    """A failure, which is always Internal."""
    assert isinstance(meant, Failed)
    assert kind_from_app_error(meant.error) is PluginErrorKind.INTERNAL
    return meant


def detail(meant: Said | Failed) -> Detail:
    """The detail of a refusal, or of a failure's error."""
    found = (meant.error if isinstance(meant, Failed) else refusal(meant)).detail
    assert isinstance(found, Detail)
    return found


# ------------------------------------------------------------ the question


def test_the_question_holds_the_pool_and_who_asks() -> None:
    asked = json.loads(
        question("update", Context(Purpose.PROBE, (FIRST,), question="q-1"), POOL, [MEMBER], False)
    )
    assert asked == {
        "version": 1,
        "hook": "update",
        "purpose": "probe",
        "question": "q-1",
        "pool": {
            "name": "blue",
            "uid": "uid-blue",
            "generation": 2,
            "labels": {"team": "a"},
            "annotations": {"note": "b"},
            "computeUnit": {"cpu": "500m", "memory": "1Gi"},
            "limits": {"maxUnits": 10, "maxUnitsPerVm": None, "minUnits": 0},
            "replicas": 5,
        },
        "requests": [
            {
                "namespace": "default",
                "name": "vm-1",
                "uid": "uid-1",
                "node": "n1",
                "labels": {"app": "x"},
                "current": {"cpu": "500m", "memory": "1Gi"},
                "wanted": {"cpu": "1", "memory": "2Gi"},
                "units": 1,
                "wantedUnits": 2,
            }
        ],
        "memberCount": 1,
    }


def test_members_are_sent_only_where_they_are_wanted() -> None:
    asked = json.loads(question("update", Context(Purpose.PROBE), POOL, [MEMBER], True))
    assert asked["members"] == [
        {
            "namespace": "default",
            "name": "vm-1",
            "uid": "uid-1",
            "node": "n1",
            "labels": {"app": "x"},
            "current": {"cpu": "500m", "memory": "1Gi"},
            "reserved": {"cpu": "1", "memory": "2Gi"},
            "units": 2,
        }
    ]


def test_a_hook_without_members_does_not_say_that_there_are_none() -> None:
    asked = json.loads(question("delete", Context(Purpose.DELETE), POOL, None, True))
    assert not asked.keys() & {"members", "memberCount"}


# ------------------------------------------------------------ admitted


@pytest.mark.parametrize(("status", "body"), [(204, None), (200, None), (200, {}), (200, {"admitted": None})])
def test_an_answer_that_states_nothing_admits_everything(status: int, body: object) -> None:
    assert read(status, body) == Said(ADMITTED)


def test_an_answer_may_cap() -> None:
    meant = read(200, {"admitted": 3, "retryAfterSeconds": 2, "reason": "QuotaUsed", "message": "three\nfit"})
    assert isinstance(meant, Said)
    said = meant.admission
    assert (said.admitted, said.retry_after_s, said.reason) == (3, 2.0, "QuotaUsed")
    assert (said.message, said.error) == ("three fit", None)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"yes", "Invalid JSON"),
        (b"\xff", "Invalid JSON"),
        (b'"\\ud800"', "Invalid JSON"),
        (b"[" * 10_000, "Invalid JSON"),
        (b"null", "mapping"),
        (b"[]", "mapping"),
        ({"allowed": False}, "allowed"),
        ({"admitted": -1}, "admitted"),
        ({"admitted": 2**63}, "admitted"),
        ({"admitted": "3"}, "admitted"),
        ({"admitted": True}, "admitted"),
        ({"admitted": 2.5}, "admitted"),
        (b'{"retryAfterSeconds": NaN}', "retryAfterSeconds"),
        ({"retryAfterSeconds": -1}, "retryAfterSeconds"),
        ({"reason": "not camel case"}, "reason"),
        ({"message": 5}, "message"),
        ({"kind": "InsufficientResources"}, "kind"),
        ({"kind": "Full"}, "kind"),
        ({"scope": "pool"}, "scope"),
        ({"vmUid": "uid-1"}, "vmUid"),
        (b'{"admitted": 3, "admitted": 300}', "admitted"),
        (b'{"message": "x", "message": "x"}', "message"),
    ],
)
def test_an_answer_that_cannot_be_used_admits_nothing_and_says_why(body: object, names: str) -> None:
    failed = failure(read(200, body))
    assert names in failed.error.message
    assert not failed.is_outage
    assert not failed.may_retry


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps)
)
def test_no_body_of_any_status_is_more_than_an_answer_or_a_failure(body: bytes | str) -> None:
    content = body if isinstance(body, bytes) else body.encode()
    for status in (200, 400, 422, 429, 500, 503):
        meant = read(status, content)
        if isinstance(meant, Failed):
            assert len(failure(meant).error.message) <= MAX_MESSAGE
        elif status != 200:
            assert meant.admission.error is not None


# ------------------------------------------------------------ refused


INSUFFICIENT, INVALID = PluginErrorKind.INSUFFICIENT_RESOURCES, PluginErrorKind.INVALID_SPEC
REFUSED = "the admission service refused (status 429)"


@pytest.mark.parametrize(
    ("status", "body", "found", "message"),
    [
        # 429 is for want of resources whatever its body says.
        (429, None, Detail(INSUFFICIENT), REFUSED),
        (429, b"<html>slow down</html>", Detail(INSUFFICIENT), REFUSED),
        (429, {}, Detail(INSUFFICIENT), REFUSED),
        (429, {"error": "too many"}, Detail(INSUFFICIENT), REFUSED),
        (429, {"retryAfterSeconds": 1e300}, Detail(INSUFFICIENT, retry_after_s=MAX_WAIT_S), REFUSED),
        # 503 only where its body says so.
        (503, {"message": "full"}, Detail(INSUFFICIENT), "full"),
        (503, {"kind": "InsufficientResources", "message": "f"}, Detail(INSUFFICIENT), "f"),
        # 400 and 422: the VM that asks first is wrong, the one that the body names, or the pool.
        (400, {"message": "no such flavour", "admitted": 3}, Detail(INVALID, Scope.VM), "no such flavour"),
        (422, {"message": "no such flavour", "admitted": 3}, Detail(INVALID, Scope.VM), "no such flavour"),
        (422, b"Bad Request", Detail(INVALID, Scope.VM), "the admission service refused (status 422)"),
        (422, {"vmUid": "uid-2", "message": "x"}, Detail(INVALID, Scope.VM, "uid-2"), "x"),
        (422, {"scope": "pool", "vmUid": "uid-3", "message": "x"}, Detail(INVALID), "x"),
        # A kind in the body wins over the status.
        (422, {"kind": "InsufficientResources", "message": "x"}, Detail(INSUFFICIENT), "x"),
        (429, {"kind": "InvalidSpec", "message": "x"}, Detail(INVALID, Scope.VM), "x"),
    ],
)
def test_what_a_refusal_is_and_what_it_says(status: int, body: object, found: Detail, message: str) -> None:
    meant = read(status, body)
    assert isinstance(meant, Said)
    assert (detail(meant), refusal(meant).message, meant.admission.admitted) == (found, message, None)


def test_a_503_that_names_its_kind_alone_is_for_want_of_resources() -> None:
    assert kind_from_app_error(refusal(read(503, {"kind": "InsufficientResources"}))) is INSUFFICIENT


def test_where_no_vm_asks_the_pool_is_wrong() -> None:
    assert detail(read(422, {"scope": "vm"}, ())) == Detail(INVALID)


def test_429_may_name_what_would_fit_and_the_body_wins_over_the_header() -> None:
    meant = read(429, {"admitted": 4, "message": "four fit", "reason": "Full", "other": 1}, retry_after="30")
    assert isinstance(meant, Said)
    said = meant.admission
    assert (said.admitted, said.retry_after_s, said.reason, said.message) == (4, 30.0, "Full", "four fit")
    assert detail(meant) == Detail(INSUFFICIENT, retry_after_s=30.0, reason="Full")
    assert detail(read(429, {"retryAfterSeconds": 1.5}, retry_after="30")).retry_after_s == 1.5


@pytest.mark.parametrize("status", [400, 422, 429, 503])
def test_a_refusal_that_says_something_twice_is_no_answer(status: int) -> None:
    failed = failure(
        read(status, b'{"message": "full", "kind": "InvalidSpec", "kind": "InsufficientResources"}')
    )
    assert "'kind' was given twice" in failed.error.message


@pytest.mark.parametrize(
    "body",
    [
        None,
        b"upstream connect error",
        {},
        {"message": None},
        {"message": " \n"},
        {"message": "Service Unavailable", "status": 503},
        {"kind": "Internal", "message": "the database is gone"},
        [],
    ],
)
def test_any_other_503_is_an_outage(body: object) -> None:
    failed = failure(read(503, body))
    assert failed.is_outage
    assert failed.may_retry


def test_a_vm_that_does_not_ask_cannot_be_named() -> None:
    assert "vmUid" in failure(read(422, {"vmUid": "uid-3"})).error.message


@pytest.mark.parametrize("body", [{"scope": "galaxy"}, {"kind": "Nonsense"}, {"admitted": -1}])
@pytest.mark.parametrize("status", [400, 422, 429])
def test_a_refusal_with_a_wrong_field_is_a_failure(status: int, body: object) -> None:
    assert not failure(read(status, body)).is_outage


# ------------------------------------------------------------ failed


@pytest.mark.parametrize("status", [201, 202, 301, 302, 401, 403, 404, 409, 418])
def test_a_status_that_is_no_answer_is_a_fault_that_asking_again_does_not_mend(status: int) -> None:
    failed = failure(read(status, {"message": "secret"}))
    assert str(status) in failed.error.message
    assert "secret" not in failed.error.message + failed.why
    assert (failed.is_outage, failed.may_retry) == (False, False)


def test_a_server_error_is_an_outage_and_is_asked_again_unless_it_names_a_time() -> None:
    for status in (500, 502, 504, 599):
        failed = failure(read(status))
        assert (failed.is_outage, failed.may_retry) == (True, True)
    failed = failure(read(503, retry_after="7"))
    assert (failed.may_retry, detail(failed).retry_after_s) == (False, 7.0)


@pytest.mark.parametrize(
    ("kind", "is_outage", "may_retry", "is_late"),
    [
        ("timeout", True, False, True),
        ("connect", True, True, False),
        ("cut", True, True, False),
        ("too-large", False, False, False),
        ("garbage", False, False, False),
    ],
)
def test_without_an_answer_the_cause_is_for_logs(
    kind: FailureKind, is_outage: bool, may_retry: bool, is_late: bool
) -> None:
    failed = failure(understood(Unanswered(kind, "details"), ASKING, NOW_S))
    assert (failed.is_outage, failed.may_retry, failed.is_late) == (is_outage, may_retry, is_late)
    assert "details" not in failed.error.message
    assert "details" in str(failed.error.cause)


# ------------------------------------------------------------ when to ask again, and texts


def http_date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("0", 0.0),
        (" 120 ", 120.0),
        ("9" * 5000, MAX_WAIT_S),
        (http_date(NOW_S + 60), 60.0),
        (http_date(NOW_S - 60), 0.0),
        (http_date(NOW_S + 1e9), MAX_WAIT_S),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("²", None),
        ("Fri, 99 Foo 2023 99:99:99 GMT", None),
    ],
)
def test_the_header_names_seconds_or_a_date(text: str, wait_s: float | None) -> None:
    assert retry_after_s(text, None, NOW_S) == wait_s


def test_a_date_counts_from_the_peers_own_clock() -> None:
    behind_s = NOW_S - 10_000
    assert retry_after_s(http_date(behind_s + 60), http_date(behind_s), NOW_S) == 60.0
    assert retry_after_s(http_date(NOW_S + 60), "rubbish", NOW_S) == 60.0
    assert retry_after_s(None, http_date(NOW_S), NOW_S) is None


@given(st.text() | st.dates().map(str) | st.datetimes().map(format_datetime), st.text())
def test_no_header_is_more_than_a_wait(text: str, date: str) -> None:
    wait_s = retry_after_s(text, date, NOW_S)
    assert wait_s is None or 0 <= wait_s <= MAX_WAIT_S


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\r\nlines\x00\x1b[31m", "two lines"),
        ("back\u202ewards\u2028", "backwards"),
        ("   ", ""),
        ("x" * 240, "x" * 240),
        ("x" * 241, "x" * 239 + "…"),
    ],
)
def test_a_message_is_one_line_of_bounded_length(text: str, line: str) -> None:
    assert shown(text) == line


@given(st.text())
def test_every_message_can_be_shown(text: str) -> None:
    line: Any = shown(text)
    assert line.isprintable()
    assert len(line) <= MAX_MESSAGE
    assert shown(line) == line
