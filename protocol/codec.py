"""Bytes ↔ messages. Reading is strict first; only what that refuses goes to the lenient reader (design section 4)."""

import functools
import json
import typing
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from protocol import extension, float32, lenient, values, wire
from protocol.errors import LocalProtocolError
from protocol.quantities import Quantity
from protocol.reasons import ErrorCode, Reason
from protocol.versions import PLUGIN_SPOKEN

M = TypeVar("M", bound=wire.Message)

MAX_REQUEST_BYTES: Final = 1024
"""The published scheduler plugin cuts request bodies there."""

_EXTENDED: Final = {
    wire.AgentRequest: extension.ExtendedRequest | wire.AgentRequest,
    wire.PluginResponse: extension.ExtendedResponse | wire.PluginResponse,
}


@functools.cache
def _adapter(message: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_EXTENDED.get(message, message))


def decode(message: type[M], body: bytes) -> M:
    """Read `body` as `message`; the extended form of requests and replies is recognised by its fields.

    Raises `RemoteProtocolError` (400) that names every field at fault.
    """
    try:
        return cast("M", _adapter(cast("Any", message)).validate_json(body))
    except ValidationError:
        pass  # the lenient reader decides, and names the faults of what it refuses too
    return lenient.read(message, body)


def encode(message: wire.Message) -> bytes:
    """Write `message` as compact JSON in the published order of fields.

    Raises `LocalProtocolError` for what JSON cannot carry: NaN, infinities, unpaired surrogates.
    """
    try:
        return json.dumps(
            _jsonable(message), separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except ValueError as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot be written: {error}") from None


def encode_request(request: wire.AgentRequest) -> bytes:
    """Write a request. Raises `LocalProtocolError` beyond the 1,024 bytes that a published scheduler reads."""
    body = encode(request)
    if len(body) > MAX_REQUEST_BYTES:
        raise LocalProtocolError(f"a request of {len(body)} bytes exceeds {MAX_REQUEST_BYTES}")
    return body


@functools.cache
def _names(message: Any) -> tuple[tuple[str, str, bool], ...]:
    """(attribute, wire name, left out when None) of each field."""
    result = []
    for item in fields(cast("Any", message)):
        hint = _hints(message)[item.name]
        alias = next(mark.alias for mark in hint.__metadata__ if isinstance(mark, FieldInfo))
        assert alias is not None
        result.append((item.name, alias, alias in message.OMITTED_WHEN_NONE))
    return tuple(result)


@functools.cache
def _hints(message: Any) -> dict[str, Any]:
    return typing.get_type_hints(message, include_extras=True)


def _jsonable(value: Any) -> Any:
    match value:
        case wire.Metrics():
            loads = (value.load_average_1min, value.load_average_5min)
            names = (name for _, name, _ in _names(wire.Metrics))
            return {n: float(float32.shortest(float32.round32(v))) for n, v in zip(names, loads, strict=True)}
        case wire.Message():
            found = (
                (name, getattr(value, attribute), omit)
                for attribute, name, omit in _names(cast("Any", type(value)))
            )
            return {name: _jsonable(item) for name, item, omit in found if not (omit and item is None)}
        case values.Resources():
            return _jsonable(extension.RawAmount.from_resources(value))
        case Reason():
            return _jsonable(extension.WireReason.from_reason(value))
        case Quantity():
            return value.canonical()
        case UUID():
            return str(value)
        case int() if not isinstance(value, bool):
            return int(value)
        case tuple():
            return [_jsonable(item) for item in value]
        case _:
            return value


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The JSON body of an error to a caller with the extension.

    `last_sequence_number` comes with a 409 and `current_started_at_ms` names the life that superseded the caller;
    `leader` is the address to turn to. The versions that the scheduler speaks are always added (`supported`).
    """

    message: str
    code: ErrorCode
    last_sequence_number: int | None = None
    current_started_at_ms: int | None = None
    leader: str | None = None


def encode_error(body: ErrorBody) -> bytes:
    """Write an error body."""
    content: dict[str, Any] = {
        "error": body.message,
        "code": body.code.value,
        "supported": {"min": int(PLUGIN_SPOKEN.min), "max": int(PLUGIN_SPOKEN.max)},
        "lastSequenceNumber": body.last_sequence_number,
        "currentStartedAtMs": body.current_started_at_ms,
        "leader": body.leader,
    }
    return json.dumps({key: item for key, item in content.items() if item is not None}).encode()


@dataclass(frozen=True, slots=True)
class ReadErrorBody:
    """An error body as the agent reads it; `supported` is the peer's version range as integers."""

    body: ErrorBody
    supported: tuple[int, int] | None


def decode_error(body: bytes) -> ReadErrorBody | None:
    """Read an error body, or None where it is none of ours (published peers answer plain text)."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not isinstance(content.get("code"), str):
        return None
    supported = content.get("supported")
    known = None
    if isinstance(supported, dict):
        low, high = _whole(supported.get("min")), _whole(supported.get("max"))
        known = None if low is None or high is None else (low, high)
    leader = content.get("leader")
    read = ErrorBody(
        str(content.get("error", ""))[:1024],
        ErrorCode(content["code"]),
        _whole(content.get("lastSequenceNumber")),
        _whole(content.get("currentStartedAtMs")),
        leader if isinstance(leader, str) else None,
    )
    return ReadErrorBody(read, known)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**64 else None
