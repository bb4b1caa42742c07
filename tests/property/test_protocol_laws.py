"""Laws of messages: what is written reads back, and a request always fits."""

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import codec, extension, float32, values, wire
from protocol.errors import LocalProtocolError
from protocol.versions import PluginProtoVersion
from tests.property import protocol_strategies as some

relaxed = settings(deadline=None, max_examples=25)


@relaxed
@pytest.mark.parametrize("kind", some.KINDS)
@given(data=st.data())
def test_what_is_written_reads_back_as_the_same_value(kind: str, data: st.DataObject) -> None:
    message, values_of_it = some.KINDS[kind]
    value = data.draw(values_of_it)
    read = codec.decode(message, codec.encode(value))
    assert read == value
    assert type(read) is type(value)


@relaxed
@pytest.mark.parametrize("kind", some.KINDS)
@given(data=st.data())
def test_order_case_and_unknown_fields_do_not_change_the_value(kind: str, data: st.DataObject) -> None:
    message, values_of_it = some.KINDS[kind]
    value = data.draw(values_of_it)
    content = json.loads(codec.encode(value))
    turned = {name.swapcase(): content[name] for name in data.draw(st.permutations(list(content)))}
    noisy = {"": None, **turned, "later": [{"x": 1}]}
    assert codec.decode(message, json.dumps(noisy).encode() + b"\n,") == value


@relaxed
@given(some.float32s)
def test_a_float32_is_written_as_the_shortest_text_that_reads_back(number: float) -> None:
    text = float32.shortest(number)
    assert float32.round32(float(text)) == number
    assert json.loads(text) == float(text)
    digits = len(text.lower().split("e")[0].replace("-", "").replace(".", "").strip("0"))
    shorter = f"{number:.{max(digits - 1, 1)}g}"
    if digits > 1 and abs(float(shorter)) < 3.4e38:
        assert float32.round32(float(shorter)) != number


@relaxed
@given(st.floats(-3.4e38, 3.4e38))
def test_rounding_to_float32_is_idempotent_and_nearest(number: float) -> None:
    rounded = float32.round32(number)
    assert float32.round32(rounded) == rounded
    assert abs(rounded - number) <= max(abs(number) * 2.0**-24, 2.0**-150)


def _longest(float_: float, resources: values.Resources) -> wire.AgentRequest:
    every_one = UUID(int=2**128 - 1)
    own = extension.RequestExtension(
        every_one,
        2**64 - 1,
        "u" * 64,
        2**64 - 1,
        2**64 - 1,
        every_one,
        extension.RawRequest(resources, resources, resources, apart=True),
    )
    return wire.AgentRequest(
        PluginProtoVersion(2**32 - 1),
        wire.PodName("p" * 253, "n" * 63),
        wire.SlotResources(65535, 65535),
        wire.Metrics(float_, float_),
        own,
    )


# Below 1e16 a float is written without an exponent, which is longer than the largest with one.
LONGEST_FLOATS = [
    float32.round32(load) for load in (-3.4028235e38, -1.1754944e-38, -9.9999998e14, -9.9999998e15)
]
LARGEST = values.Resources(values.MAX_VCPU_MILLI - 1, values.MAX_MEMORY_BYTES)


@pytest.mark.parametrize("load", LONGEST_FLOATS)
def test_the_longest_request_fits_into_what_a_published_scheduler_reads(load: float) -> None:
    body = codec.encode_request(_longest(load, LARGEST))
    assert len(body) <= codec.MAX_FIRST_REQUEST_BYTES == 1024
    assert codec.decode(wire.AgentRequest, body) == _longest(load, LARGEST)


@relaxed
@given(st.lists(some.amounts, min_size=3, max_size=3), st.lists(some.float32s, min_size=2, max_size=2))
def test_no_amount_or_load_is_longer_than_the_longest(
    amounts: list[values.Resources], loads: list[float]
) -> None:
    request: Any = _longest(loads[0], amounts[0])
    assert len(codec.encode_request(request)) <= 1024
    mixed = extension.RawRequest(amounts[0], amounts[1], amounts[2], apart=True)
    assert len(codec.encode(mixed)) <= len(
        codec.encode(extension.RawRequest(LARGEST, LARGEST, LARGEST, apart=True))
    )
    assert len(codec.encode(wire.Metrics(*loads))) <= max(
        len(codec.encode(wire.Metrics(longest, longest))) for longest in LONGEST_FLOATS
    )


def _request_of(length: int) -> wire.AgentRequest:
    """A request whose body is `length` bytes long."""
    empty = wire.AgentRequest(PluginProtoVersion.V1_1, wire.PodName("", ""), wire.SlotResources(1, 1), None)
    name = "x" * (length - len(codec.encode(empty)))
    return wire.AgentRequest(empty.proto_version, wire.PodName(name, ""), empty.resources, None)


def test_a_request_of_exactly_the_limit_is_written() -> None:
    assert len(codec.encode_request(_request_of(1024))) == 1024


@relaxed
@given(st.integers(1025, 5000))
def test_a_longer_request_is_our_own_fault(length: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"{length} bytes"):
        codec.encode_request(_request_of(length))


def test_the_limit_counts_bytes_not_characters() -> None:
    request = _request_of(1000)
    wide = wire.AgentRequest(
        request.proto_version, wire.PodName("ä" * len(request.pod.name), ""), request.resources, None
    )
    with pytest.raises(LocalProtocolError):
        codec.encode_request(wide)
