"""The lenient reader on hostile bodies: a value, or a refusal that says what is wrong. Nothing else ever."""

import json
import sys
from typing import Any

import pytest

from protocol import codec, lenient, wire
from protocol.errors import RemoteProtocolError

ID = "00000000-0000-0000-0000-000000000001"
REQUEST: dict[str, Any] = {
    "protoVersion": 2,
    "pod": {"name": "vm-a", "namespace": "default"},
    "resources": {"vCPUs": 1, "mem": 4},
    "metrics": {"loadAvg1M": 0.5, "loadAvg5M": 0.25},
}
EXTENDED: dict[str, Any] = {
    **REQUEST,
    "agentID": ID,
    "agentStartedAtMs": 1,
    "podUID": "uid",
    "sequenceNumber": 1,
    "seenEpoch": 0,
    "schedulerInstance": ID,
    "raw": {
        "resources": {"cpu": "1", "memory": "1Gi"},
        "lastPermit": {"cpu": "1", "memory": "1Gi"},
        "computeUnit": None,
    },
}
REPLY: dict[str, Any] = {
    "permit": {"vCPUs": 1, "mem": 4},
    "migrate": {},
    "resourceUnit": {"vCPUs": 1, "mem": 4},
    "sequenceNumber": 1,
    "schedulerInstance": ID,
    "schedulerEpoch": 0,
    "raw": {"permit": {"cpu": "1", "memory": "1Gi"}, "computeUnit": {"cpu": "1", "memory": "1Gi"}},
    "reasons": [{"code": "pool", "message": "full", "resource": "cpu", "retryAfterSeconds": 1.5}],
}
DESC: dict[str, Any] = {"protoVersion": 2, "metricsMethod": {"prometheus": {"port": 9100}}}
IDENTIFICATION = {"data": {"agentID": ID}, "sequenceNumber": 1}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (wire.AgentRequest, REQUEST),
    (wire.AgentRequest, EXTENDED),
    (wire.PluginResponse, REPLY),
    (wire.InformantDesc, DESC),
    (wire.RawResources, {"cpu": "1", "memory": "1Gi"}),
    (wire.AgentMessage[wire.AgentIdentification], IDENTIFICATION),
    (wire.MoreResourcesRequest, {"cpu": True, "memory": False, "expectedID": ID}),
    (wire.DownscaleResult, {"Ok": True, "Status": "s"}),
]
IDS = [f"{number}-{message.__name__}" for number, (message, _) in enumerate(BODIES)]
all_bodies = pytest.mark.parametrize(("message", "content"), BODIES, ids=IDS)


def _refused(message: Any, body: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(message, body)
    assert caught.value.faults
    assert all(fault.rule for fault in caught.value.faults)
    str(caught.value).encode()  # it can be logged and answered
    return caught.value


def _value_or_refusal(message: Any, body: bytes) -> bool:
    """Whether `body` was read; anything but a value or a refusal fails the test."""
    refusal = None
    try:
        codec.encode(codec.decode(message, body))
    except RemoteProtocolError as error:
        refusal = error
    if refusal is not None:
        assert refusal.faults
        str(refusal).encode()
    return refusal is None


@all_bodies
def test_every_truncation_is_refused(message: Any, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    for length in range(len(body)):
        _refused(message, body[:length])
    assert _value_or_refusal(message, body)


WRONG = [
    "true",
    "false",
    "null",
    "-1",
    "1.5",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 10_000,
    "-" + "9" * 10_000,
    "1e-9999",
    '""',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\u0000"',
    '"' + "x" * 100_000 + '"',
    "[]",
    "[null]",
    "{}",
    '{"":{}}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 300 + "]" * 300,
]


def _replaced(content: Any, wrong: str) -> list[str]:
    """`content` as JSON, once for each value in it, that value replaced by the text `wrong`."""
    texts = [wrong]
    pairs = enumerate(content) if isinstance(content, list) else content.items()
    for key, item in pairs:
        inner = _replaced(item, wrong) if isinstance(item, dict | list) else [wrong]
        for text in inner:
            copy = list(content) if isinstance(content, list) else dict(content)
            copy[key] = "\0hole"
            texts.append(json.dumps(copy).replace(json.dumps("\0hole"), text))
    return texts


@pytest.mark.parametrize("wrong", WRONG, ids=lambda text: text[:12])
@all_bodies
def test_a_wrong_value_anywhere_gives_a_value_or_a_refusal(
    message: Any, content: dict[str, Any], wrong: str
) -> None:
    outcomes = [_value_or_refusal(message, text.encode()) for text in _replaced(content, wrong)]
    assert len(outcomes) > len(content)
    if wrong in {"true", "-1", "1e999", "NaN", "[" * 100_000}:
        assert not outcomes[0], "no value of this kind is a message"


@pytest.mark.parametrize("number", ["true", "1.0", "1e0", "9" * 10_000, "-1", "65536", '"1"'])
def test_what_is_no_port_is_refused(number: str) -> None:
    error = _refused(wire.MetricsMethodPrometheus, f'{{"port":{number}}}'.encode())
    assert [fault.path for fault in error.faults] == ["port"]


@pytest.mark.parametrize("field", ["", "protoVersion", "pod", "metrics", "raw", "unknown"])
def test_nesting_of_any_depth_is_a_value_or_a_refusal(field: str) -> None:
    """Every depth around the interpreter's limit: parsing may still fit where showing the value does not."""
    start, end = (f'{{"{field}":', "}") if field else ("", "")
    outcomes = []
    for depth in range(1, sys.getrecursionlimit() + 10):
        body = (start + "[" * depth + "]" * depth + end).encode()
        outcomes.append(_value_or_refusal(wire.AgentRequest, body))
    assert outcomes[-1] is False
    assert outcomes[0] is (field == "unknown")


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf0\x9f"])
def test_invalid_utf_8_in_a_text_is_replaced_as_go_does(bad: bytes) -> None:
    read = codec.decode(wire.DownscaleResult, b'{"Ok":true,"Status":"a' + bad + b'b"}')
    assert read.status.startswith("a\ufffd")
    assert read.status.endswith("b")
    codec.encode(read)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\ud800", "\ufffd"),
        (r"\udc00", "\ufffd"),
        (r"\ud83d\ude80", "🚀"),
        (r"a\ud800b", "a\ufffdb"),
        (r"\udc00\ud800", "\ufffd\ufffd"),
    ],
)
def test_unpaired_surrogates_are_replaced_as_go_does(escaped: str, text: str) -> None:
    read = codec.decode(wire.DownscaleResult, f'{{"Ok":true,"Status":"{escaped}"}}'.encode())
    assert read.status == text


def test_a_body_without_bytes_is_refused_at_its_root() -> None:
    assert [fault.path for fault in _refused(wire.AgentRequest, b"").faults] == [""]


def test_a_huge_body_is_read_or_refused() -> None:
    padded = json.dumps({**REQUEST, "padding": "x" * 10**6}).encode()
    assert codec.decode(wire.AgentRequest, padded) == codec.decode(
        wire.AgentRequest, json.dumps(REQUEST).encode()
    )
    _refused(wire.AgentRequest, b"x" * 10**6)


def test_the_value_shown_in_a_fault_is_short() -> None:
    error = _refused(wire.UnregisterAgent, json.dumps({"wasActive": "x" * 10_000}).encode())
    assert len(error.faults[0].value) <= 40


def test_the_rule_of_a_fault_says_what_would_be_right() -> None:
    error = _refused(wire.SlotResources, b'{"vCPUs":-1,"mem":"4"}')
    assert [str(fault) for fault in error.faults] == [
        "vCPUs: must be a whole number, 0 to 65535 (found -1)",
        'mem: must be a whole number, 0 to 65535 (found "4")',
    ]


def test_the_parser_reads_one_value_and_ignores_the_rest() -> None:
    assert lenient.parse(b" [1] [2]") == [1]


@pytest.mark.parametrize(
    ("message", "content", "twice", "earlier"),
    [
        (wire.RawResources, {"cpu": "1", "memory": "1Gi"}, '"cpu": "1"', '"cpu": "1e401"'),
        (wire.RawResources, {"cpu": "1", "memory": "1Gi"}, '"cpu": "1"', '"cpu": "one"'),
        (wire.AgentRequest, EXTENDED, '"sequenceNumber": 1', f'"sequenceNumber": {2**64}'),
        (wire.AgentRequest, EXTENDED, '"lastPermit"', '"lastPermit": {"cpu": "1m1", "memory": "1"}'),
        (wire.AgentRequest, EXTENDED, '"lastPermit"', '"lastPermit": {"cpu": "0.1m", "memory": "1"}'),
        (
            wire.AgentRequest,
            EXTENDED,
            '"raw"',
            '"raw": {"resources": {"cpu": "1", "memory": "1"}, "lastPermit": null, "computeUnit": null, "apart": true}',
        ),
    ],
)
def test_both_readers_look_at_the_last_duplicate_alone(
    message: Any, content: dict[str, Any], twice: str, earlier: str
) -> None:
    body = json.dumps(content).replace(twice, f"{earlier}, {twice}", 1).encode()
    strict = codec.strict(message)(body)
    assert lenient.read(message, body) == strict
    assert strict == codec.strict(message)(json.dumps(content).encode())


def test_the_last_duplicate_is_judged_and_so_is_the_form_of_those_before_it() -> None:
    assert _refused(wire.RawResources, b'{"cpu":"1","memory":"1","cpu":"1e401"}').faults
    assert _refused(wire.RawResources, b'{"cpu":[],"memory":"1","cpu":"1"}').faults
    assert _refused(
        wire.AgentRequest, b'{"sequenceNumber":18446744073709551616,"sequenceNumber":null}'
    ).faults
