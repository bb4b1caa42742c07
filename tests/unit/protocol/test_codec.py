"""Writing messages, and error bodies that are none of ours."""

import json
import math
import sys
from typing import Any
from uuid import UUID

import pytest

from protocol import codec, extension, values, wire
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.quantities import parse
from protocol.reasons import ErrorCode, Reason, ReasonCode

UNIT = wire.SlotResources(1, 4)


def test_text_is_written_as_utf_8() -> None:
    assert codec.encode(wire.PodName("grün", "\U0001f680")) == '{"name":"grün","namespace":"🚀"}'.encode()


@pytest.mark.parametrize("load", [math.nan, math.inf, -math.inf])
def test_a_load_that_is_not_finite_is_never_written(load: float) -> None:
    with pytest.raises((LocalProtocolError, ValueError)):
        codec.encode(wire.Metrics(load, 0.0))


def _reply(*reasons: Reason) -> bytes:
    amount = values.Resources(1000, 2**30)
    own = extension.ReplyExtension(
        1, UUID(int=1), 0, extension.RawReply(amount, values.ComputeUnit(amount)), reasons
    )
    return codec.encode(wire.PluginResponse(UNIT, UNIT, extension=own))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0"), (0.0, b"0.0"), (-0.0, b"-0.0"), (1e300, b"1e+300"), (2**70, str(2**70).encode())],
)
def test_equal_seconds_keep_their_text(seconds: float, text: bytes) -> None:
    assert _reply(Reason(ReasonCode.UNSETTLED, "m", None, seconds)).endswith(
        b'"retryAfterSeconds":' + text + b"}]}"
    )


@pytest.mark.parametrize(
    "reason",
    [
        Reason(ReasonCode.POOL, "\ud800"),
        Reason(ReasonCode.POOL, "m", "\udfff"),
        Reason(ReasonCode.POOL, "m", retry_after_s=math.nan),
        Reason(ReasonCode.POOL, "m", retry_after_s=-math.inf),
    ],
)
def test_what_json_cannot_carry_is_our_own_fault(reason: Reason) -> None:
    with pytest.raises(LocalProtocolError, match="PluginResponse cannot be written"):
        _reply(reason)


AGENT = "12345678-1234-5678-9abc-def012345678"
RAW: dict[str, Any] = {
    "resources": {"cpu": "1750m", "memory": "7Gi"},
    "lastPermit": None,
    "computeUnit": None,
}
REQUEST: dict[str, Any] = {
    "protoVersion": 2,
    "pod": {"name": "vm-a", "namespace": "default"},
    "resources": {"vCPUs": 2, "mem": 8},
    "metrics": {"loadAvg1M": 1.5, "loadAvg5M": 0.25},
    "agentID": AGENT,
    "agentStartedAtMs": 1,
    "podUID": "uid",
    "sequenceNumber": 7,
    "seenEpoch": 3,
    "schedulerInstance": None,
    "raw": RAW,
}


def _body(**changed: Any) -> bytes:
    return json.dumps({**REQUEST, **changed}, ensure_ascii=False).encode()


READ = codec.decode(wire.AgentRequest, _body())


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(json.dumps(dict(reversed(REQUEST.items()))).encode(), id="order"),
        pytest.param(_body().replace(b'"podUID"', b'"pod\\u0055ID"'), id="escaped name"),
        pytest.param(
            _body().replace(b'"seenEpoch": 3', b'"seenEpoch":9,"seenEpoch":3'), id="the last of two"
        ),
        pytest.param(_body(agentID=AGENT.replace("-", "").upper()), id="UUID without hyphens"),
        pytest.param(_body(metrics={"loadAvg1M": 1.50000000001, "loadAvg5M": 0.25}), id="rounded to float32"),
        pytest.param(
            _body(raw={**RAW, "resources": {"cpu": "1.75", "memory": "7168Mi"}}),
            id="amounts spelled otherwise",
        ),
    ],
)
def test_other_spellings_of_a_request_are_read_strictly(body: bytes) -> None:
    assert codec.strict(wire.AgentRequest)(body) == READ


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_body() + b"x", id="trailing byte"),
        pytest.param(_body(later=1), id="unknown field"),
        pytest.param(_body(extension=None), id="the attribute's name"),
        pytest.param(_body().replace(b'"protoVersion"', b'"protoversion"'), id="another case"),
        pytest.param(_body().replace(b'"agentID"', b'"agent\\u0049D"'), id="the first field's name escaped"),
        pytest.param(_body(agentID=f"urn:uuid:{AGENT}"), id="URN"),
        pytest.param(
            _body(raw={**RAW, "resources": {"cpu": 1.75, "memory": "7Gi"}}), id="an amount as a number"
        ),
    ],
)
def test_what_only_published_programs_may_send_is_left_to_the_lenient_reader(body: bytes) -> None:
    with pytest.raises(codec.REFUSALS):
        codec.strict(wire.AgentRequest)(body)
    assert codec.decode(wire.AgentRequest, body) == READ


@pytest.mark.parametrize("name", ["agentStartedAtMs", "sequenceNumber", "seenEpoch"])
def test_numbers_of_64_bits_are_read_and_no_longer_ones(name: str) -> None:
    read = codec.strict(wire.AgentRequest)
    assert read(_body(**{name: 2**64 - 1})).extension is not None
    with pytest.raises(codec.REFUSALS):
        read(_body(**{name: 2**64}))


def test_a_uid_is_measured_in_characters() -> None:
    own = codec.strict(wire.AgentRequest)(_body(podUID="😀" * 64)).extension
    assert own.pod_uid == "😀" * 64


def test_amounts_travel_as_exact_quantities() -> None:
    raw = extension.RawAmount.from_resources(values.Resources(1250, 1536 * 2**20))
    assert raw == extension.RawAmount(parse("1250m"), parse("1536Mi"))
    assert raw.to_resources() == values.Resources(1250, 1536 * 2**20)


@pytest.mark.parametrize(
    ("cpu", "memory", "named"),
    [
        ("0.5m", "1", "cpu"),
        ("-1m", "1", "cpu"),
        ("1", "1m", "memory"),
        ("1", "-1", "memory"),
        ("1", "10E", "memory"),
    ],
)
def test_an_amount_that_is_not_whole_or_in_range_is_named(cpu: str, memory: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} must be"):
        extension.RawAmount(parse(cpu), parse(memory)).to_resources()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"pod not found",
        b"404 page not found\n",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"{}",
        b"\xff\xfe",
        b"{",
        b'{"code":3}',
        b'{"code":null}',
        b'{"error":"no code"}',
        b"[" * 100_000,
        b'{"code":' + b"9" * 10_000 + b"}",
        b'{"code":"internal"} trailing',
        b'{"code":"internal"',
        b"\x00",
    ],
)
def test_a_body_that_is_none_of_ours_is_none(body: bytes) -> None:
    assert codec.decode_error(body) is None


@pytest.mark.parametrize(
    "supported",
    [
        None,
        3,
        "1..2",
        [],
        {},
        {"min": 1},
        {"max": 2},
        {"min": "1", "max": "2"},
        {"min": 1.0, "max": 2},
        {"min": -1, "max": 2},
        {"min": True, "max": 2},
        {"min": 1, "max": 2**64},
    ],
)
def test_a_strange_version_range_of_an_error_is_unknown(supported: object) -> None:
    read = codec.decode_error(json.dumps({"code": "internal", "error": "e", "supported": supported}).encode())
    assert read == codec.ReadErrorBody(codec.ErrorBody("e", ErrorCode.INTERNAL), None)


def test_strange_fields_of_an_error_are_left_out_and_its_code_stays() -> None:
    content = {"code": "sequence-stale", "lastSequenceNumber": "7", "currentStartedAtMs": -1, "leader": 5}
    read = codec.decode_error(json.dumps(content).encode())
    assert read == codec.ReadErrorBody(codec.ErrorBody("", ErrorCode.SEQUENCE_STALE), None)


def test_an_error_code_of_a_later_version_is_other() -> None:
    read = codec.decode_error(b'{"code":"too-early","error":"wait"}')
    assert read is not None
    assert (read.body.code, read.body.message) == (ErrorCode.OTHER, "wait")


def test_a_long_error_text_is_cut() -> None:
    read = codec.decode_error(json.dumps({"code": "internal", "error": "x" * 5000}).encode())
    assert read is not None
    assert read.body.message == "x" * 1023 + "…"


def test_an_error_whose_text_nests_deeply_is_read_or_none() -> None:
    """Every depth around the interpreter's limit: parsing may still fit where showing does not."""
    answers = set()
    for depth in range(1, sys.getrecursionlimit() + 10):
        body = b'{"code":"internal","error":' + b"[" * depth + b"]" * depth + b"}"
        read = codec.decode_error(body)
        answers.add(read is None)
    assert answers == {True, False}


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (wire.AgentMessage[wire.AgentIdentification], b'{"data":{"agentID":7},"sequenceNumber":"1"}'),
        (wire.AgentMessage[wire.RawResources], b'{"data":{"cpu":[]},"sequenceNumber":-1}'),
    ],
)
def test_faults_inside_a_generic_message_have_their_place(
    message: type[wire.AgentMessage[object]], body: bytes
) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(message, body)
    first, second = (fault.path for fault in caught.value.faults)
    assert first.startswith("data.")
    assert second == "sequenceNumber"
