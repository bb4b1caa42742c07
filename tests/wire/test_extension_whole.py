"""The extension comes whole or not at all: a partial one is a 400 that names exactly what is missing."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from protocol import codec, wire
from protocol.errors import RemoteProtocolError

_LINES = (Path(__file__).parent / "golden" / "extension.jsonl").read_text("utf-8").splitlines()
REQUEST: dict[str, Any] = json.loads(json.loads(_LINES[1])["json"])
REPLY: dict[str, Any] = json.loads(json.loads(_LINES[3])["json"])
PUBLISHED = {"protoVersion", "pod", "resources", "metrics", "permit", "migrate", "resourceUnit"}
REQUEST_FIELDS = [name for name in REQUEST if name not in PUBLISHED]
REPLY_FIELDS = [name for name in REPLY if name not in PUBLISHED]
NULLABLE = {"schedulerInstance"}
"""In a request; the scheduler always knows its own instance."""


def _faults(message: type[wire.Message], content: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(message, json.dumps(content).encode())
    assert caught.value.status == 400
    return {fault.path: fault.rule for fault in caught.value.faults}


def _without(content: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: item for name, item in content.items() if name not in names}


def _subsets(names: list[str]) -> list[set[str]]:
    sizes = range(1, len(names))
    return [set(some) for size in sizes for some in itertools.combinations(names, size)]


def test_the_extension_has_the_fields_of_the_design() -> None:
    assert REQUEST_FIELDS == [
        "agentID",
        "agentStartedAtMs",
        "podUID",
        "sequenceNumber",
        "seenEpoch",
        "schedulerInstance",
        "raw",
    ]
    assert REPLY_FIELDS == ["sequenceNumber", "schedulerInstance", "schedulerEpoch", "raw", "reasons"]


def test_a_partial_request_names_what_is_missing_whatever_is_missing() -> None:
    for missing in _subsets(REQUEST_FIELDS):
        faults = _faults(wire.AgentRequest, _without(REQUEST, missing))
        assert set(faults) == missing
        assert all("missing" in rule for rule in faults.values())


def test_a_partial_reply_names_what_is_missing_whatever_is_missing() -> None:
    for missing in _subsets(REPLY_FIELDS):
        assert set(_faults(wire.PluginResponse, _without(REPLY, missing))) == missing


@pytest.mark.parametrize(
    ("message", "content"),
    [(wire.AgentRequest, REQUEST), (wire.PluginResponse, REPLY)],
    ids=["request", "reply"],
)
def test_without_any_field_of_the_extension_it_is_a_published_message(
    message: type[wire.AgentRequest | wire.PluginResponse], content: dict[str, Any]
) -> None:
    published = _without(content, set(REQUEST_FIELDS + REPLY_FIELDS))
    assert codec.decode(message, json.dumps(published).encode()).extension is None


@pytest.mark.parametrize("name", ["resources", "lastPermit", "computeUnit"])
def test_a_partial_raw_request_names_what_is_missing(name: str) -> None:
    raw = _without(REQUEST["raw"], {name})
    assert set(_faults(wire.AgentRequest, {**REQUEST, "raw": raw})) == {f"raw.{name}"}


@pytest.mark.parametrize("name", ["permit", "computeUnit"])
def test_a_partial_raw_reply_names_what_is_missing(name: str) -> None:
    raw = _without(REPLY["raw"], {name})
    assert set(_faults(wire.PluginResponse, {**REPLY, "raw": raw})) == {f"raw.{name}"}


@pytest.mark.parametrize("amount", ["resources", "lastPermit", "computeUnit"])
@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_half_an_amount_names_the_other_half(amount: str, resource: str) -> None:
    raw = {**REQUEST["raw"], amount: {resource: "1"}}
    other = "memory" if resource == "cpu" else "cpu"
    assert set(_faults(wire.AgentRequest, {**REQUEST, "raw": raw})) == {f"raw.{amount}.{other}"}


@pytest.mark.parametrize("name", [name for name in REQUEST_FIELDS if name not in NULLABLE])
def test_null_in_a_request_is_refused_where_a_value_must_be(name: str) -> None:
    assert set(_faults(wire.AgentRequest, {**REQUEST, name: None})) == {name}


@pytest.mark.parametrize("name", REPLY_FIELDS)
def test_null_in_a_reply_is_refused(name: str) -> None:
    assert set(_faults(wire.PluginResponse, {**REPLY, name: None})) == {name}


def test_null_is_read_where_nothing_may_be_known_yet() -> None:
    raw = {**REQUEST["raw"], "lastPermit": None, "computeUnit": None}
    body = json.dumps({**REQUEST, "schedulerInstance": None, "raw": raw}).encode()
    read = codec.decode(wire.AgentRequest, body)
    own = read.extension
    assert own is not None
    assert (own.scheduler_instance, own.last_permit, own.compute_unit) == (None, None, None)


@pytest.mark.parametrize("resource", ["resources", "podUID", "agentID"])
def test_faults_of_published_and_extended_fields_come_together(resource: str) -> None:
    faults = _faults(wire.AgentRequest, {**REQUEST, "protoVersion": "2", "pod": 5, resource: []})
    assert set(faults) == {"protoVersion", "pod", resource}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequenceNumber", 0),
        ("sequenceNumber", 2**64),
        ("sequenceNumber", "1"),
        ("agentStartedAtMs", -1),
        ("agentStartedAtMs", 1.5),
        ("seenEpoch", True),
        ("podUID", ""),
        ("podUID", "x" * 65),
        ("podUID", 7),
        ("agentID", "not a UUID"),
        ("schedulerInstance", ""),
        ("raw", []),
    ],
)
def test_a_wrong_field_of_the_extension_is_named(name: str, value: object) -> None:
    assert set(_faults(wire.AgentRequest, {**REQUEST, name: value})) == {name}


@pytest.mark.parametrize(
    "amount",
    [
        {"cpu": "1.0005", "memory": "1Gi"},
        {"cpu": "1", "memory": "1500m"},
        {"cpu": "-1", "memory": "1Gi"},
        {"cpu": "1", "memory": "-1Ki"},
        {"cpu": "1", "memory": "9223372036854775808"},
        {"cpu": "1e300", "memory": "1Gi"},
    ],
)
def test_amounts_are_whole_and_in_range(amount: dict[str, str]) -> None:
    faults = _faults(wire.AgentRequest, {**REQUEST, "raw": {**REQUEST["raw"], "resources": amount}})
    assert set(faults) == {"raw.resources"}


def test_an_unknown_reason_keeps_its_text_and_names_its_code() -> None:
    reasons = [{"code": "moon-phase", "message": "full moon"}]
    read = codec.decode(wire.PluginResponse, json.dumps({**REPLY, "reasons": reasons}).encode())
    assert read.extension is not None
    (reason,) = read.extension.reasons
    assert (reason.code.value, reason.message) == ("other", "moon-phase: full moon")


@pytest.mark.parametrize(
    ("reasons", "paths"),
    [
        ([{"message": "m"}], {"reasons[0].code"}),
        ([{"code": "pool", "message": "m"}, {"code": "pool"}], {"reasons[1].message"}),
        ([{"code": "", "message": "m"}], {"reasons[0].code"}),
        ([{"code": "pool", "message": "m", "resource": 3}], {"reasons[0].resource"}),
        ([{"code": "pool", "message": "m", "retryAfterSeconds": True}], {"reasons[0].retryAfterSeconds"}),
        ([None, {"code": "pool", "message": "m"}], {"reasons[0]"}),
        ({"code": "pool"}, {"reasons"}),
    ],
)
def test_a_wrong_reason_is_named_by_its_place(reasons: object, paths: set[str]) -> None:
    assert set(_faults(wire.PluginResponse, {**REPLY, "reasons": reasons})) == paths
