"""The fast reader and writer of the hot messages by example, and the two forms of a batch."""

import json
from typing import Any
from uuid import UUID

import pytest

from protocol import codec, extension, hot, wire
from protocol.errors import LocalProtocolError
from protocol.reasons import Reason, ReasonCode
from protocol.values import Resources
from protocol.versions import PluginProtoVersion

AGENT = UUID("12345678-1234-5678-9abc-def012345678")
INSTANCE = UUID("ffffffff-0000-4000-8000-00000000000a")
GIB = 2**30
REQUEST = extension.ExtendedRequest(
    PluginProtoVersion.V1_1,
    wire.PodName("vm-a", "default"),
    wire.SlotResources(2, 8),
    wire.Metrics(1.5, 0.25),
    AGENT,
    1_790_000_000_123,
    "3f1e9a52-9a6b-4a57-b0a5-4b2f5f0a9c11",
    7,
    3,
    INSTANCE,
    extension.RawRequest(Resources(1750, 7 * GIB), Resources(1500, 6 * GIB), Resources(250, GIB)),
)
ASK = hot.Ask(
    pod=wire.PodName("vm-a", "default"),
    pod_uid="3f1e9a52-9a6b-4a57-b0a5-4b2f5f0a9c11",
    agent_id=AGENT,
    started_at_ms=1_790_000_000_123,
    number=7,
    version=2,
    want=Resources(1750, 7 * GIB),
    claim=Resources(1500, 6 * GIB),
    unit=Resources(250, GIB),
    names=INSTANCE,
    seen_epoch=3,
    load1=1.5,
    load5=0.25,
    slots=(2, 8),
)
BODY = codec.encode_request(REQUEST)
FIRST = extension.ExtendedRequest(
    PluginProtoVersion.V1_1,
    wire.PodName("vm-a", "default"),
    wire.SlotResources(2, 8),
    None,
    AGENT,
    0,
    "u",
    1,
    0,
    None,
    extension.RawRequest(Resources(0, 0), None, None),
)


def _with(**changed: Any) -> bytes:
    """The body with other values in some of its fields."""
    return json.dumps({**json.loads(BODY), **changed}, ensure_ascii=False).encode()


def _with_raw(**changed: Any) -> bytes:
    return _with(raw={**json.loads(BODY)["raw"], **changed})


def _replaced(old: bytes, new: bytes) -> bytes:
    assert BODY.count(old) == 1
    return BODY.replace(old, new)


def test_a_request_is_read_flat() -> None:
    assert hot.ask_of(REQUEST) == ASK
    assert hot.read_ask(BODY) == ASK


def test_a_first_request_has_no_claim_no_unit_no_instance_and_no_metrics() -> None:
    ask = hot.read_ask(codec.encode_request(FIRST))
    assert ask == hot.ask_of(FIRST)
    assert (ask.claim, ask.unit, ask.names, ask.load1, ask.load5) == (None, None, None, None, None)
    assert ask.want == Resources(0, 0)


def test_the_name_of_a_pod_is_one_object_for_all_its_requests() -> None:
    one, other = hot.read_ask(BODY), hot.read_ask(_with(sequenceNumber=8))
    assert one is not None
    assert other is not None
    assert one.pod is other.pod


@pytest.mark.parametrize("number", [0, 1, 3, 7, 2**32 - 1])
def test_a_version_that_we_do_not_speak_is_read(number: int) -> None:
    ask = hot.read_ask(_with(protoVersion=number))
    assert ask is not None
    assert ask.version == number


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_with(), id="blanks"),
        pytest.param(json.dumps(dict(reversed(json.loads(BODY).items()))).encode(), id="order"),
        pytest.param(_replaced(b'"podUID"', b'"pod\\u0055ID"'), id="escaped name"),
        pytest.param(_replaced(b'"seenEpoch":3', b'"seenEpoch":9,"seenEpoch":3'), id="the last of two"),
        pytest.param(_with(agentID=AGENT.hex.upper()), id="UUID without hyphens"),
        pytest.param(_with(metrics={"loadAvg1M": 1.50000000001, "loadAvg5M": 0.25}), id="rounded to float32"),
        pytest.param(
            _with_raw(resources={"cpu": "1.75", "memory": "7168Mi"}), id="other spelling of amounts"
        ),
    ],
)
def test_other_spellings_of_the_same_request_are_read_fast(body: bytes) -> None:
    assert hot.read_ask(body) == ASK
    assert codec.decode(wire.AgentRequest, body) == REQUEST


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(BODY + b"x", id="trailing byte"),
        pytest.param(_with(later=1), id="unknown field"),
        pytest.param(_replaced(b'"protoVersion"', b'"protoversion"'), id="another case"),
        pytest.param(_with(agentID=f"urn:uuid:{AGENT}"), id="URN"),
        pytest.param(_with(agentID=f"{{{AGENT}}}"), id="braces"),
        pytest.param(_with_raw(resources={"cpu": " 1750m ", "memory": "7Gi"}), id="blanks in an amount"),
        pytest.param(_with_raw(resources={"cpu": 1.75, "memory": "7Gi"}), id="an amount as a number"),
        pytest.param(b"  " * 512 + BODY, id="longer than any request"),
    ],
)
def test_what_only_the_codec_understands_is_left_to_it(body: bytes) -> None:
    assert hot.read_ask(body) is None
    assert codec.decode(wire.AgentRequest, body) == REQUEST


def test_an_absent_field_and_a_lone_surrogate_are_left_to_the_codec() -> None:
    content = json.loads(BODY)
    del content["metrics"]
    for body in (json.dumps(content).encode(), _replaced(b'"vm-a"', b'"vm-\\ud800"')):
        assert hot.read_ask(body) is None
        assert isinstance(codec.decode(wire.AgentRequest, body), extension.ExtendedRequest)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[" * 1000, id="deep"),
        pytest.param(BODY[:-1], id="cut"),
        pytest.param(_replaced(b'"vm-a"', b'"\xff"'), id="no UTF-8"),
        pytest.param(_with(protoVersion=2**32), id="version beyond uint32"),
        pytest.param(_with(protoVersion=2.0), id="version as a float"),
        pytest.param(_with(protoVersion=True), id="version as a boolean"),
        pytest.param(_with(resources={"vCPUs": 65536, "mem": 1}), id="beyond uint16"),
        pytest.param(_with(sequenceNumber=0), id="number zero"),
        pytest.param(_with(sequenceNumber=2**64), id="number beyond uint64"),
        pytest.param(_with(agentStartedAtMs=2**64), id="start beyond uint64"),
        pytest.param(_with(seenEpoch=2**64), id="epoch beyond uint64"),
        pytest.param(_with(seenEpoch=-1), id="epoch below zero"),
        pytest.param(_with(podUID=""), id="no UID"),
        pytest.param(_with(podUID="ä" * 65), id="UID of 65 characters"),
        pytest.param(_with(metrics={"loadAvg1M": 3.5e38, "loadAvg5M": 0}), id="load beyond float32"),
        pytest.param(_with(metrics={"loadAvg1M": float("nan"), "loadAvg5M": 0}), id="load that is no number"),
        pytest.param(_with_raw(resources={"cpu": "0.5m", "memory": "1"}), id="half a milli-CPU"),
        pytest.param(_with_raw(resources={"cpu": "1", "memory": "-1"}), id="less than nothing"),
        pytest.param(_with_raw(lastPermit={"cpu": "1", "memory": "8Ei "}), id="claim that is no amount"),
        pytest.param(_with_raw(computeUnit={"cpu": "", "memory": "1"}), id="unit that is no amount"),
        pytest.param(_with_raw(resources=None), id="no amount"),
    ],
)
def test_what_is_refused_has_no_ask(body: bytes) -> None:
    assert hot.read_ask(body) is None


@pytest.mark.parametrize("name", ["agentStartedAtMs", "sequenceNumber", "seenEpoch"])
def test_the_largest_numbers_are_read(name: str) -> None:
    body = _with(**{name: 2**64 - 1})
    read = codec.decode(wire.AgentRequest, body)
    assert isinstance(read, extension.ExtendedRequest)
    assert hot.read_ask(body) == hot.ask_of(read)


def test_a_uid_is_measured_in_characters() -> None:
    ask = hot.read_ask(_with(podUID="😀" * 64))
    assert ask is not None
    assert ask.pod_uid == "😀" * 64


def _written(*reasons: Reason, migrate: bool = False) -> bytes:
    return hot.write_reply(
        Resources(1750, 7 * GIB), Resources(250, GIB), GIB, 7, INSTANCE, 3, reasons, migrate
    )


def test_a_reply_is_written_in_the_published_order() -> None:
    assert _written() == (
        b'{"permit":{"vCPUs":1,"mem":7},"resourceUnit":{"vCPUs":0,"mem":1},"sequenceNumber":7,'
        b'"schedulerInstance":"ffffffff-0000-4000-8000-00000000000a","schedulerEpoch":3,'
        b'"raw":{"permit":{"cpu":"1750m","memory":"7Gi"},"computeUnit":{"cpu":"250m","memory":"1Gi"}},'
        b'"reasons":[]}'
    )


def test_a_reply_with_reasons_to_a_vm_that_is_migrated() -> None:
    first = Reason(ReasonCode.NODE_HEADROOM, "grün\n", "cpu", 2.5)
    body = _written(first, Reason(ReasonCode.POOL, ""), migrate=True)
    assert b'"mem":7},"migrate":{},"resourceUnit"' in body
    assert body.endswith(
        '"reasons":[{"code":"node-headroom","message":"grün\\n","resource":"cpu","retryAfterSeconds":2.5},'
        '{"code":"pool","message":""}]}'.encode()
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0"), (0.0, b"0.0"), (-0.0, b"-0.0"), (1e300, b"1e+300"), (2**70, str(2**70).encode())],
)
def test_equal_seconds_keep_their_text(seconds: float, text: bytes) -> None:
    body = _written(Reason(ReasonCode.UNSETTLED, "m", retry_after_s=seconds))
    assert body.endswith(b'"retryAfterSeconds":' + text + b"}]}")


@pytest.mark.parametrize(
    "reason",
    [
        Reason(ReasonCode.POOL, "\ud800"),
        Reason(ReasonCode.POOL, "m", "\udfff"),
        Reason(ReasonCode.POOL, "m", retry_after_s=float("nan")),
        Reason(ReasonCode.POOL, "m", retry_after_s=float("-inf")),
    ],
)
def test_what_json_cannot_carry_is_our_own_fault(reason: Reason) -> None:
    with pytest.raises(LocalProtocolError, match="ExtendedResponse cannot be written"):
        _written(reason)


def test_a_batch_is_split_into_its_items_as_they_were_sent() -> None:
    body = b" [ " + BODY + b' ,\n{"a": [1, 2]}, null ]\n'
    assert hot.read_batch(body) == [BODY, b'{"a": [1, 2]}', b"null"]
    assert hot.read_batch(b"[]") == []


def test_an_item_that_is_no_request_does_not_spoil_the_others() -> None:
    items = hot.read_batch(b'[{"pod":"\xff"},' + BODY + b"]")
    assert items is not None
    assert [hot.read_ask(item) for item in items] == [None, ASK]


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"null", b'"[]"', b"[", b"[1", b"[1,]", b"[1 2]", b"[]x", b"[nul]", b"[" * 100_000, b"\xff"],
)
def test_what_is_no_array_is_no_batch(body: bytes) -> None:
    assert hot.read_batch(body) is None


def test_the_answer_to_a_batch_holds_each_body_as_it_is() -> None:
    assert hot.write_batch([(200, b'{"a": 1}'), (409, b"{}")]) == (
        b'[{"status":200,"body":{"a": 1}},{"status":409,"body":{}}]'
    )
    assert hot.write_batch([]) == b"[]"
