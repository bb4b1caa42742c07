"""Wire messages of the published protocol v1.0/v1.1, read and written as Go's encoding/json does.

The test peers' own small encoders: they share nothing with the project's. Messages are plain dictionaries
in the order of the Go fields; what each message holds is a `Struct` of named kinds.
"""

import json
import math
import re
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from uuid import UUID

Message = dict[str, Any]

_NIL_UUID = "00000000-0000-0000-0000-000000000000"
_HEX32 = re.compile(r"[0-9a-fA-F]{32}")
_DASHED = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]?|[eE][+-]?[0-9]+)")
_BINARY = {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {
    suffix: Fraction(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)
}
INT64_MAX = 2**63 - 1


class BadJSONError(Exception):
    """Go would refuse this text, or would be unable to write this value."""


class _Literal(str):
    """A number as it was written: Go judges the text, not the value."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The members of an object in their order, duplicates included."""


@dataclass(frozen=True)
class Uint:
    bits: int


@dataclass(frozen=True)
class Scalar:
    name: str  # "bool", "string", "float32", "uuid", "quantity" or "*quantity"


@dataclass(frozen=True)
class Struct:
    fields: tuple[tuple[str, "Kind"], ...]


@dataclass(frozen=True)
class Pointer:
    to: Struct
    omit_empty: bool = False


Kind = Uint | Scalar | Struct | Pointer

U16, U32, U64 = Uint(16), Uint(32), Uint(64)
BOOL, TEXT, FLOAT32 = Scalar("bool"), Scalar("string"), Scalar("float32")
ID, QUANTITY, MAYBE_QUANTITY = Scalar("uuid"), Scalar("quantity"), Scalar("*quantity")
_ZEROES: dict[str, Any] = {
    "bool": False, "string": "", "float32": 0.0, "uuid": _NIL_UUID, "quantity": "0", "*quantity": None,
}  # fmt: skip

EMPTY = Struct(())
RESOURCES = Struct((("vCPUs", U16), ("mem", U16)))
METRICS = Struct((("loadAvg1M", FLOAT32), ("loadAvg5M", FLOAT32)))
POD_NAME = Struct((("name", TEXT), ("namespace", TEXT)))
AGENT_REQUEST = Struct(
    (("protoVersion", U32), ("pod", POD_NAME), ("resources", RESOURCES), ("metrics", Pointer(METRICS)))
)
PLUGIN_RESPONSE = Struct(
    (("permit", RESOURCES), ("migrate", Pointer(EMPTY, omit_empty=True)), ("resourceUnit", RESOURCES))
)
AGENT_DESC = Struct(
    (("agentID", ID), ("agentServeAddr", TEXT), ("minProtoVersion", U32), ("maxProtoVersion", U32))
)
INFORMANT_DESC = Struct(
    (
        ("protoVersion", U32),
        ("metricsMethod", Struct((("prometheus", Pointer(Struct((("port", U16),)), omit_empty=True)),))),
    )
)
RAW_RESOURCES = Struct((("cpu", MAYBE_QUANTITY), ("memory", MAYBE_QUANTITY)))
DOWNSCALE_RESULT = Struct((("Ok", BOOL), ("Status", TEXT)))
UNREGISTER_AGENT = Struct((("wasActive", BOOL),))
EXPECTED_ID = Struct((("expectedID", ID),))  # SuspendAgent and ResumeAgent
MORE_RESOURCES_REQUEST = Struct((("cpu", BOOL), ("memory", BOOL), ("expectedID", ID)))
AGENT_IDENTIFICATION = Struct((("agentID", ID),))


def agent_message(data: Struct) -> Struct:
    return Struct((("data", data), ("sequenceNumber", U64)))


AGENT_IDENTIFICATION_MESSAGE = agent_message(AGENT_IDENTIFICATION)

NAMED: dict[str, Struct] = {
    "AgentRequest": AGENT_REQUEST,
    "PluginResponse": PLUGIN_RESPONSE,
    "AgentDesc": AGENT_DESC,
    "InformantDesc": INFORMANT_DESC,
    "DownscaleResult": DOWNSCALE_RESULT,
    "UnregisterAgent": UNREGISTER_AGENT,
    "SuspendAgent": EXPECTED_ID,
    "ResumeAgent": EXPECTED_ID,
    "MoreResourcesRequest": MORE_RESOURCES_REQUEST,
    "AgentMessage[AgentIdentification]": AGENT_IDENTIFICATION_MESSAGE,
    "AgentMessage[RawResources]": agent_message(RAW_RESOURCES),
    "AgentMessage[struct{}]": agent_message(EMPTY),
}


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Literal, parse_float=_Literal, parse_constant=_no_constant
)


def decode(kind: Struct, body: bytes) -> Message:
    """The first JSON value of a body, as Go's `json.Decoder` reads it: what follows is not looked at."""
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    try:
        raw, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as fault:
        raise BadJSONError("bad JSON") from fault
    message: Message = _read(kind, _zero(kind), raw)
    return message


def _zero(kind: Kind) -> Any:
    if isinstance(kind, Struct):
        return {name: _zero(inner) for name, inner in kind.fields}
    if isinstance(kind, Pointer):
        return None
    return 0 if isinstance(kind, Uint) else _ZEROES[kind.name]


def _read(kind: Kind, before: Any, raw: Any) -> Any:
    """The value after `raw` was read into a variable that held `before`."""
    if raw is None:
        return None if isinstance(kind, Pointer) or kind == MAYBE_QUANTITY else before
    if isinstance(kind, Pointer):
        return _read(kind.to, _zero(kind.to) if before is None else before, raw)
    if isinstance(kind, Struct):
        return _read_struct(kind, before, raw)
    if isinstance(kind, Uint):
        if isinstance(raw, _Literal) and raw.isdigit() and int(raw) < 2**kind.bits:
            return int(raw)
        raise BadJSONError(f"{raw!r} is no uint{kind.bits}")
    return _read_scalar(kind.name, raw)


def _read_struct(kind: Struct, before: Message, raw: Any) -> Message:
    if not isinstance(raw, _Object):
        raise BadJSONError(f"{raw!r} is no object")
    found = dict(before)
    exact = dict(kind.fields)
    folded = {name.casefold(): name for name, _ in reversed(kind.fields)}
    for name, value in raw:
        field = name if name in exact else folded.get(name.casefold())
        if field is not None:
            found[field] = _read(exact[field], found[field], value)
    return found


def _read_scalar(name: str, raw: Any) -> Any:
    if name.endswith("quantity") and isinstance(raw, str):
        quantity(raw.strip())  # blanks within the quotes are nothing to its reader
        return str(raw).strip()
    if name == "float32" and isinstance(raw, _Literal):
        return read_float32(raw)
    if name == "bool" and isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and not isinstance(raw, _Literal):
        if name == "string":
            return raw.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if name == "uuid":
            return read_uuid(raw)
    raise BadJSONError(f"{raw!r} is no {name}")


def read_uuid(text: str) -> str:
    """A UUID in any of the four spellings, as lower-case canonical text."""
    if len(text) == 45 and text[:9].lower() == "urn:uuid:":
        text = text[9:]
    elif len(text) == 38:
        text = text[1:-1]
    if _HEX32.fullmatch(text) or _DASHED.fullmatch(text):
        return str(UUID(text))
    raise BadJSONError(f"{text!r} is no UUID")


def float32(value: float) -> float:
    """The nearest float32; overflow is a fault, as in Go."""
    try:
        near: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError as fault:
        raise BadJSONError(f"{value} is no float32") from fault
    return near


def read_float32(text: str) -> float:
    """Go's `ParseFloat(text, 32)`: overflow is a fault, a written infinity is not."""
    try:
        value = float.fromhex(text) if "0x" in text.lower() else float(text)
    except ValueError as fault:
        raise BadJSONError(f"{text!r} is no number") from fault
    if math.isinf(value) and "inf" not in text.lower():
        raise BadJSONError(f"{text!r}: value out of range")
    return float32(value)


def quantity(text: str) -> Fraction:
    """A Kubernetes quantity, rounded away from zero to nano-units, at most the largest int64 for binary suffixes."""
    found = _QUANTITY.fullmatch(text)
    if text == "" or found is None:
        raise BadJSONError(f"{text!r} is no quantity")
    sign, whole, part, suffix = found[1], found[2], found[3] or "", found[4]
    amount = Fraction(int((whole + part) or "0"), 10 ** len(part))
    if suffix in _BINARY:
        amount = min(amount * _BINARY[suffix], Fraction(INT64_MAX))
    elif suffix in _DECIMAL:
        amount *= _DECIMAL[suffix]
    else:
        amount *= Fraction(10) ** int(suffix[1:])
    amount = Fraction(-((-amount * 10**9) // 1), 10**9)
    return -amount if sign == "-" else amount


def whole_quantity(text: str) -> int:
    """`Quantity.Value()`: rounded away from zero to an integer."""
    amount = quantity(text)
    up = -((-abs(amount)) // 1)
    return up if amount >= 0 else -up


def decimal_quantity(number: int) -> str:
    """An integer as Go writes it in decimal-SI form: thousands become suffixes."""
    for suffix in ("", *"kMGTPE"):
        if number % 1000 or number == 0 or suffix == "E":
            return f"{number}{suffix}"
        number //= 1000
    raise AssertionError(number)


def binary_quantity(number: int) -> str:
    """An integer as Go writes it in binary-SI form (below 1024: decimal)."""
    if abs(number) < 1024:
        return decimal_quantity(number)
    suffix = ""
    for next_suffix in _BINARY:
        if number % 1024:
            break
        number //= 1024
        suffix = next_suffix
    return f"{number}{suffix}"


def encode(kind: Struct, message: Message) -> bytes:
    """The exact text of Go's `json.Marshal`."""
    return _write(kind, message).encode()


def _write(kind: Kind, value: Any) -> str:
    if isinstance(kind, Pointer):
        return "null" if value is None else _write(kind.to, value)
    if isinstance(kind, Struct):
        members = (
            f'"{name}":{_write(inner, value[name])}'
            for name, inner in kind.fields
            if not (isinstance(inner, Pointer) and inner.omit_empty and value.get(name) is None)
        )
        return "{" + ",".join(members) + "}"
    if isinstance(kind, Uint):
        return str(value)
    if value is None:
        return "null"
    if kind.name == "bool":
        return "true" if value else "false"
    return _write_float32(value) if kind.name == "float32" else _write_text(value)


def _write_text(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written


def _write_float32(value: float) -> str:
    """The shortest text that reads as the same float32; exponents below 1e-6 and from 1e21, as Go has them."""
    if not math.isfinite(value):
        raise BadJSONError(f"unsupported value: {value}")
    value = float32(value)
    digits = next(text for places in range(9) if _reads_as(text := f"{value:.{places}e}", value))
    if value == 0 or float32(1e-6) <= abs(value) < float32(1e21):
        mantissa, exponent = digits.split("e")
        places = max(0, len(mantissa.lstrip("-").replace(".", "")) - 1 - int(exponent))
        return f"{float(digits):.{places}f}"
    mantissa, exponent = digits.split("e")
    number = int(exponent)
    return f"{mantissa}e{'-' if number < 0 else '+'}{abs(number):02d}".replace("e-0", "e-")


def _reads_as(text: str, value: float) -> bool:
    try:
        return float32(float(text)) == value
    except BadJSONError:  # rounded up beyond the largest float32
        return False
