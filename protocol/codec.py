"""Bytes ↔ messages. Reading is strict first; only what that refuses goes to the lenient reader (design section 4).

The strict reader and the writer are derived from the declarations (`protocol.fields`). A message whose fields all travel
as they are is read and written by msgspec itself. Any other one goes by way of a flat struct that has the fields of the
JSON object, also derived: one to read into, with the types that msgspec checks, and one to write from.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec

from protocol import lenient, wire
from protocol.errors import LocalProtocolError
from protocol.fields import (
    UINT64_MAX,
    Converted,
    Field,
    Kind,
    Listed,
    Mapped,
    Message,
    Nested,
    Parameter,
    Scalar,
    fields_of,
    in_order,
    own_and_embedded,
)
from protocol.reasons import ErrorCode
from protocol.texts import clean
from protocol.versions import PLUGIN_SPOKEN

M = TypeVar("M", bound=Message)
Convert: TypeAlias = Callable[[Any], Any]

MAX_FIRST_REQUEST_BYTES: Final = 1024
"""The published scheduler plugin cuts request bodies there."""
MAX_REQUEST_BYTES: Final = 2048
"""A scheduler that has echoed the extension reads so much."""
_KEPT: Final = 4096
"""How many results of a conversion that is marked so are kept."""
_TO_JSON: Final = msgspec.json.Encoder().encode
REFUSALS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of a strict reader: `ValueError` comes from texts that are not UTF-8, and from conversions."""


def decode(message: type[M], body: bytes) -> M:
    """Read `body` as `message`.

    Raises `RemoteProtocolError` (400) that names every field at fault.
    """
    try:
        read: M = strict(message)(body)
    except REFUSALS:
        # The lenient reader decides, and names the faults of what it refuses too.
        return lenient.read(message, body)
    return read


def encode(message: Message) -> bytes:
    """Write `message` as compact JSON in the published order of fields.

    Raises `LocalProtocolError` for what JSON cannot carry: NaN, infinities, unpaired surrogates.
    """
    try:
        return _TO_JSON(_travelling(message))
    except ValueError as error:
        raise LocalProtocolError(f"{type(message).__name__} cannot be written: {error}") from None


def encode_request(request: wire.AgentRequest) -> bytes:
    """Write a request. Raises `LocalProtocolError` if it is longer than its reader reads: a published scheduler, unless the request names
    the process that has echoed the extension."""
    body, extension = encode(request), request.extension
    is_echoed = extension is not None and extension.scheduler_instance is not None
    most = MAX_REQUEST_BYTES if is_echoed else MAX_FIRST_REQUEST_BYTES
    if len(body) > most:
        raise LocalProtocolError(f"a request of {len(body)} bytes exceeds {most}")
    return body


# ---------------------------------------------------------------- the strict reader


@functools.cache
def strict(message: Any) -> Convert:
    """The strict reader of `message`. If a body is not strictly one, the reader raises one of `REFUSALS`."""
    form, build = _form(message)
    decode_form = msgspec.json.Decoder(form).decode
    _, embedded = own_and_embedded(message)
    if embedded is None:
        return decode_form if build is None else lambda body: build(decode_form(body))
    inner = cast("Nested", embedded.kind).message
    mark = f'"{fields_of(inner)[0].name}"'.encode()
    whole, build_whole = _embedding_form(message, inner)
    decode_whole = msgspec.json.Decoder(whole).decode

    def read(body: bytes) -> Any:
        # If the mark stands for something else, or is spelled otherwise, the form refuses: the value is never wrong.
        if body.find(mark) >= 0:
            return build_whole(decode_whole(body))
        plain = decode_form(body)
        return plain if build is None else build(plain)

    return read


def form(message: Any) -> Any:
    """The struct of the JSON object that `message` strictly is, together with its embedded message: for documents, which make a schema of
    it."""
    _, embedded = own_and_embedded(message)
    if embedded is None:
        return _form(message)[0]
    return _embedding_form(message, cast("Nested", embedded.kind).message)[0]


@functools.cache
def _form(message: Any) -> tuple[Any, Convert | None]:
    """The type that msgspec reads for `message`, and the function that makes the message from it; None if the type is the message itself.

    The embedded message is left out.
    """
    own, embedded = own_and_embedded(message)
    take, is_plain = _taking(own)
    if is_plain and embedded is None:
        return message, None
    return _form_of(message, own), lambda form: message(*take(form))


@functools.cache
def _embedding_form(message: Any, inner: Any) -> tuple[Any, Convert]:
    """The same for a `message` together with its embedded one, `inner`."""
    own, _ = own_and_embedded(message)
    take, take_inner = _taking(own)[0], _taking(fields_of(inner))[0]

    def build(form: Any) -> Any:
        return message(*take(form), inner(*take_inner(form)))

    return _form_of(message, own + fields_of(inner)), build


def _form_of(message: Any, fields: tuple[Field, ...]) -> Any:
    """A struct with these fields, under their names on the wire."""
    definitions: list[Any] = []
    for field in sorted(fields, key=lambda field: field.default is not msgspec.NODEFAULT):
        checked = _checked_type(field.kind)
        checked = checked | None if field.is_nullable else checked
        is_required = field.default is msgspec.NODEFAULT
        definitions.append((field.name, checked) if is_required else (field.name, checked, field.default))
    name = f"{getattr(message, '__name__', 'Generic')}Form"
    return msgspec.defstruct(name, definitions, frozen=True, gc=False, forbid_unknown_fields=True)


def _taking(fields: tuple[Field, ...]) -> tuple[Callable[[Any], Sequence[Any]], bool]:
    """A function that takes the values of `fields` from a form, in this order, and whether they are taken as they are.

    The former raises `ValueError` for a value that breaks a rule which msgspec does not check.
    """
    parts = _parts([field.name for field in fields])
    wide = [
        place for place, field in enumerate(fields) if isinstance(field.kind, Scalar) and field.kind.is_wide
    ]
    found = [(place, _reading(field.kind)) for place, field in enumerate(fields)]
    conversions = [(place, read) for place, read in found if read is not None]
    if not wide and not conversions:
        return parts, True

    def take(form: Any) -> Sequence[Any]:
        values = list(parts(form))
        for place in wide:
            value = values[place]
            if value is not None and value > UINT64_MAX:
                raise ValueError(f"{value} is beyond 64 bits")
        for place, read in conversions:
            value = values[place]
            if value is not None:
                values[place] = read(value)
        return values

    return take, False


def _parts(names: list[str]) -> Callable[[Any], Sequence[Any]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: [getattr(value, name) for name in names]


def _checked_type(kind: Kind) -> Any:
    match kind:
        case Scalar():
            return kind.annotation
        case Nested():
            return _form(kind.message)[0]
        case Listed():
            return tuple[_checked_type(kind.item), ...]  # type: ignore[misc]  # a type made at run time
        case Mapped():
            return dict[str, _checked_type(kind.item)]  # type: ignore[misc]  # a type made at run time
        case Converted():
            return _checked_type(kind.form)
        case Parameter():
            raise TypeError("a generic message is read with its argument")


def _reading(kind: Kind) -> Convert | None:
    """A function that makes the value from its checked form; None if the form is the value."""
    match kind:
        case Nested():
            build = _form(kind.message)[1]
            return _kept(build) if build is not None and kind.message.IS_KEPT else build
        case Listed():
            item = _reading(kind.item)
            return None if item is None else lambda items: tuple(map(item, items))
        case Mapped():
            member = _reading(kind.item)
            return (
                None if member is None else lambda found: {key: member(each) for key, each in found.items()}
            )
        case Converted() if not kind.mark.is_ensured:
            form, read = _reading(kind.form), kind.mark.read
            both = read if form is None else lambda value: read(form(value))
            return _kept(both) if kind.mark.is_kept else both
        case _:
            return None


def _kept(convert: Convert) -> Convert:
    return functools.lru_cache(maxsize=_KEPT)(convert)


# ---------------------------------------------------------------- the writer


def _travelling(message: Any) -> Any:
    """The object that msgspec writes for `message`."""
    kind: Any = type(message)
    plain, extended, embedded = _writings(kind)
    if extended is not None and getattr(message, embedded) is not None:
        return extended(message)
    return message if plain is None else plain(message)


@functools.cache
def _writings(message: Any) -> tuple[Convert | None, Convert | None, str]:
    """Functions that make the written form of `message` without and with its embedded message, and the name of the embedded attribute."""
    own, embedded = own_and_embedded(message)
    if embedded is None:
        is_as_it_is = not any(field.is_omitted or _writing(field.kind) for field in own)
        return None if is_as_it_is else _flattening(message, own, "", ()), None, ""
    inner, _ = own_and_embedded(cast("Nested", embedded.kind).message)
    within = embedded.attribute
    return _flattening(message, own, within, ()), _flattening(message, own, within, inner), within


def _flattening(message: Any, own: tuple[Field, ...], within: str, inner: tuple[Field, ...]) -> Convert:
    """A function that makes one flat struct of a message: its `own` fields, and the `inner` ones of its attribute `within`."""
    fields = tuple(in_order(message, own)) + inner
    parts = _parts([field.attribute if field in own else f"{within}.{field.attribute}" for field in fields])
    form: Any = msgspec.defstruct(f"{message.__name__}Form", [field.name for field in fields], gc=False)
    found = [(place, _writing(field.kind)) for place, field in enumerate(fields)]
    conversions = [(place, write) for place, write in found if write is not None]
    omitted = [place for place, field in enumerate(fields) if field.is_omitted]

    def flatten(message: Any) -> Any:
        values = list(parts(message))
        for place, write in conversions:
            value = values[place]
            if value is not None:
                values[place] = write(value)
        for place in omitted:
            if values[place] is None:
                values[place] = msgspec.UNSET
        return form(*values)

    return flatten


def _writing(kind: Kind) -> Convert | None:
    """A function that makes the written form of a value; None if msgspec writes the value as it is."""
    match kind:
        case Parameter():
            return _travelling
        case Nested():
            if _writings(kind.message)[0] is None:
                return None
            return _kept_text(_travelling) if kind.message.IS_KEPT else _travelling
        case Listed():
            item = _writing(kind.item)
            return None if item is None else lambda items: [item(value) for value in items]
        case Mapped():
            member = _writing(kind.item)
            return (
                None if member is None else lambda found: {key: member(each) for key, each in found.items()}
            )
        case Converted():
            form, write = _writing(kind.form), kind.mark.write
            both = write if form is None else lambda value: form(write(value))
            return _kept_text(both) if kind.mark.is_kept else both
        case _:
            return None


def _kept_text(write: Convert) -> Convert:
    return _kept(lambda value: msgspec.Raw(_TO_JSON(write(value))))


# ---------------------------------------------------------------- error bodies


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


def encode_error(body: ErrorBody, more: Mapping[str, Any] | None = None) -> bytes:
    """Write an error body. `more` are members beside its own, such as those of a problem document (RFC 9457)."""
    content: dict[str, Any] = {
        **(more or {}),
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
    """Read an error body, or None if it is none of ours (published peers answer plain text)."""
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
        clean(str(content.get("error", "")), 1024),
        ErrorCode(content["code"]),
        _whole(content.get("lastSequenceNumber")),
        _whole(content.get("currentStartedAtMs")),
        leader if isinstance(leader, str) else None,
    )
    return ReadErrorBody(read, known)


def _whole(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**64 else None
