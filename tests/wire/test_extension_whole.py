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


def _raw(**changes: object) -> dict[str, Any]:
    """A change of `raw`; `...` leaves a field out."""
    return {"raw": {name: value for name, value in (REQUEST["raw"] | changes).items() if value is not ...}}


IN_REQUESTS: list[tuple[dict[str, Any], set[str]]] = [
    *((_raw(**{name: ...}), {f"raw.{name}"}) for name in REQUEST["raw"]),
    *((_raw(**{name: {"cpu": "1"}}), {f"raw.{name}.memory"}) for name in REQUEST["raw"]),
    *((_raw(**{name: {"memory": "1"}}), {f"raw.{name}.cpu"}) for name in REQUEST["raw"]),
    *(({name: None}, {name}) for name in REQUEST_FIELDS if name not in NULLABLE),
    # Faults of published and extended fields come together.
    *(
        ({"protoVersion": "2", "pod": 5, name: []}, {"protoVersion", "pod", name})
        for name in ("resources", "podUID", "agentID")
    ),
    *(({"sequenceNumber": wrong}, {"sequenceNumber"}) for wrong in (0, 2**64, "1")),
    *(({"agentStartedAtMs": wrong}, {"agentStartedAtMs"}) for wrong in (-1, 1.5)),
    *(({"podUID": wrong}, {"podUID"}) for wrong in ("", "x" * 65, 7)),
    ({"seenEpoch": True}, {"seenEpoch"}),
    ({"agentID": "not a UUID"}, {"agentID"}),
    ({"schedulerInstance": ""}, {"schedulerInstance"}),
    ({"raw": []}, {"raw"}),
    # Amounts are whole and in range.
    *(
        (_raw(resources={"cpu": cpu, "memory": "1Gi"}), {"raw.resources"})
        for cpu in ("1.0005", "-1", "1e300")
    ),
    *(
        (_raw(resources={"cpu": "1", "memory": memory}), {"raw.resources"})
        for memory in ("1500m", "-1Ki", "9223372036854775808")
    ),
    (_raw(apart=1), {"raw.apart"}),
    (_raw(apart="true"), {"raw.apart"}),
]
POOL = {"code": "pool", "message": "m"}
IN_REPLIES: list[tuple[dict[str, Any], set[str]]] = [
    *(({"raw": _without(REPLY["raw"], {name})}, {f"raw.{name}"}) for name in ("permit", "computeUnit")),
    *(({name: None}, {name}) for name in REPLY_FIELDS),
    ({"reasons": [{"message": "m"}]}, {"reasons[0].code"}),
    ({"reasons": [POOL, {"code": "pool"}]}, {"reasons[1].message"}),
    ({"reasons": [{"code": "", "message": "m"}]}, {"reasons[0].code"}),
    ({"reasons": [POOL | {"resource": 3}]}, {"reasons[0].resource"}),
    ({"reasons": [POOL | {"retryAfterSeconds": True}]}, {"reasons[0].retryAfterSeconds"}),
    ({"reasons": [None, POOL]}, {"reasons[0]"}),
    ({"reasons": {"code": "pool"}}, {"reasons"}),
    (
        {"raw": REPLY["raw"] | {"computeUnit": REPLY["raw"]["computeUnit"] | {"apart": 1}}},
        {"raw.computeUnit.apart"},
    ),
]


@pytest.mark.parametrize(
    ("message", "content", "changes", "paths"),
    [(wire.AgentRequest, REQUEST, *row) for row in IN_REQUESTS]
    + [(wire.PluginResponse, REPLY, *row) for row in IN_REPLIES],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) and len(value) < 4 else "",
)
def test_what_is_wrong_is_named_by_its_place(
    message: type[wire.Message], content: dict[str, Any], changes: dict[str, Any], paths: set[str]
) -> None:
    assert set(_faults(message, content | changes)) == paths


def test_null_is_read_where_nothing_may_be_known_yet() -> None:
    raw = {**REQUEST["raw"], "lastPermit": None, "computeUnit": None}
    body = json.dumps({**REQUEST, "schedulerInstance": None, "raw": raw}).encode()
    read = codec.decode(wire.AgentRequest, body)
    own = read.extension
    assert own is not None
    assert (own.scheduler_instance, own.last_permit, own.raw.compute_unit) == (None, None, None)


def test_an_unknown_reason_keeps_its_text_and_names_its_code() -> None:
    reasons = [{"code": "moon-phase", "message": "full moon"}]
    read = codec.decode(wire.PluginResponse, json.dumps({**REPLY, "reasons": reasons}).encode())
    assert read.extension is not None
    (reason,) = read.extension.reasons
    assert (reason.code.value, reason.message) == ("other", "moon-phase: full moon")
