"""The reader that published peers need: what Go's `encoding/json` accepts, with the same value.

Field names match in any case, an absent field has its zero value, unknown fields and bytes after the first value are
ignored, `null` leaves a plain field as it is, and of duplicate keys the last wins (objects merge). What even this
refuses is reported field by field, all faults at once. Source: reference/neon.md section 1.3, golden vectors "decode".

Fields of Parley's extension are required here too: a caller that sends some of them must send them all.
"""

import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic.fields import FieldInfo

from protocol import extension, float32, quantities, values, wire
from protocol.errors import Fault, RemoteProtocolError
from protocol.fields import Amount, Single, Text, Uint

M = TypeVar("M", bound=wire.Message)

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_HEX: Final = "[0-9a-fA-F]"
_UUID_TEXT: Final = re.compile(
    rf"(?:[uU][rR][nN]:[uU][uU][iI][dD]:)?{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
    rf"|\{{{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\}}|{_HEX}{{32}}"
)
_LONGEST_INTEGER: Final = 40


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order, duplicates included."""


class _Number(str):
    """A JSON number that is not a plain integer, as its text."""

    __slots__ = ()


class _RefusedError(ValueError):
    """A value breaks its field's rule; the text is the rule."""


def _integer(text: str) -> int | _Number:
    return int(text) if len(text) <= _LONGEST_INTEGER else _Number(text)


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_integer, parse_float=_Number, parse_constant=_constant
)

Reader = Callable[[Any, Any, str, list[Fault]], Any]
"""(JSON value, value so far, path, faults to add to) → value."""


@dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    name: str
    read: Reader
    zero: Callable[[], Any]
    required: bool
    nullable: bool


def parse(body: bytes) -> Any:
    """The first JSON value in `body`; what follows is ignored. Raises `RemoteProtocolError`."""
    text = body.decode("utf-8", errors="replace")
    blanks = _BLANKS.match(text)
    assert blanks is not None
    try:
        return _DECODER.raw_decode(text, blanks.end())[0]
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RemoteProtocolError("bad JSON", (Fault("", f"must be one JSON value: {message}"),)) from None


def read(message: type[M], body: bytes) -> M:
    """Read `body` as `message`, or as its extended form where the body carries any field of the extension.

    Raises `RemoteProtocolError` (400) with every fault.
    """
    value = parse(body)
    value = _Pairs() if value is None else value  # Go reads null as a value whose every field is absent
    extended = _extended_form(message)
    if extended is not None and isinstance(value, _Pairs):
        own = {_folded(plan.name) for plan in _plan(extended) if plan.required}
        if any(_folded(name) in own for name, _ in value):
            message = extended
    faults: list[Fault] = []
    result = _struct_reader(typing.cast("Any", message))(value, None, "", faults)
    if faults:
        raise RemoteProtocolError("bad JSON", tuple(faults))
    return typing.cast("M", result)


def _folded(name: str) -> str:
    """The same for all names that Go takes for one: the long s and the Kelvin sign are letters to it, too."""
    return name.lower().replace("\u017f", "s")


def _extended_form(message: type[wire.Message]) -> Any:
    if message is wire.AgentRequest:
        return extension.ExtendedRequest
    return extension.ExtendedResponse if message is wire.PluginResponse else None


@functools.cache
def _plan(message: Any) -> tuple[_Field, ...]:
    """The fields of `message`, with a reader each. Generic messages are given with their argument."""
    origin = typing.get_origin(message) or message
    arguments = dict(zip([wire.T], typing.get_args(message), strict=False))
    hints = typing.get_type_hints(origin, include_extras=True)
    published = set(typing.get_type_hints(origin.__base__)) if _is_extension(origin) else set(hints)
    plans = []
    for item in fields(origin):
        reader, zero = _kind(hints[item.name], arguments)
        required = item.name not in published or _is_part_of_extension(origin, item.default)
        nullable = _is_nullable(hints[item.name])
        plans.append(_Field(item.name, _wire_name(hints[item.name]), reader, zero, required, nullable))
    return tuple(plans)


def _is_extension(message: Any) -> bool:
    return message in (extension.ExtendedRequest, extension.ExtendedResponse)


def _is_part_of_extension(message: Any, default: object) -> bool:
    return message.__module__ == extension.__name__ and not _is_extension(message) and default is not None


def _is_nullable(annotation: Any) -> bool:
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = annotation.__origin__
    return typing.get_origin(annotation) in (types.UnionType, typing.Union)


def _wire_name(annotation: Any) -> str:
    alias = next(mark.alias for mark in annotation.__metadata__ if isinstance(mark, FieldInfo))
    assert alias is not None
    return alias


def _kind(annotation: Any, arguments: dict[Any, Any]) -> tuple[Reader, Callable[[], Any]]:
    marks: list[Any] = []
    while typing.get_origin(annotation) is typing.Annotated:
        marks.extend(annotation.__metadata__)
        annotation = annotation.__origin__
    annotation = arguments.get(annotation, annotation)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner, _ = _kind(typing.get_args(annotation)[0], arguments)
        return _nullable(inner), lambda: None
    if typing.get_origin(annotation) is tuple:
        return _listed(_kind(annotation.__args__[0], arguments)[0]), tuple
    return _scalar(annotation, marks) or _object(annotation)


def _object(annotation: Any) -> tuple[Reader, Callable[[], Any]]:
    reader = _struct_reader(annotation)
    return reader, lambda: reader(_Pairs(), None, "", [])


def _scalar(annotation: Any, marks: list[Any]) -> tuple[Reader, Callable[[], Any]] | None:
    for mark in marks:
        match mark:
            case Uint():
                return _plain(functools.partial(_read_uint, mark, annotation)), lambda: annotation(0)
            case Text():
                return _plain(functools.partial(_read_text, mark)), str
            case Single():
                return _plain(_read_float32), float
            case Amount():
                return _plain(_read_quantity), lambda: quantities.Quantity(0)
            case extension.ExactAmount():
                return _converted(extension.RawAmount, extension.RawAmount.to_resources), lambda: values.ZERO
            case extension.TypedReason():
                return _converted(extension.WireReason, extension.WireReason.to_reason), lambda: None
            case _:
                pass
    plain: dict[Any, tuple[Reader, Callable[[], Any]]] = {
        str: (_plain(functools.partial(_read_text, Text(2**20))), str),
        bool: (_plain(_read_bool), bool),
        float: (_plain(_read_float), float),
        UUID: (_plain(_read_uuid), lambda: wire.NIL_UUID),
    }
    return plain.get(annotation)


def _plain(convert: Callable[[Any], Any]) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        if value is None:
            return current
        try:
            return convert(value)
        except ValueError as error:
            faults.append(Fault(path, str(error), _show(value)))
            return current

    return read


def _nullable(inner: Reader) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        return None if value is None else inner(value, current, path, faults)

    return read


def _listed(inner: Reader) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        if value is None:
            return current
        if not isinstance(value, list) or isinstance(value, _Pairs):
            faults.append(Fault(path, "must be a list", _show(value)))
            return current
        for index, item in enumerate(value):
            if item is None:
                faults.append(Fault(f"{path}[{index}]", "must not be null", "null"))
        return tuple(inner(item, None, f"{path}[{index}]", faults) for index, item in enumerate(value))

    return read


def _converted(message: Any, convert: Callable[[Any], Any]) -> Reader:
    inner = _struct_reader(message)

    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        before = len(faults)
        result = inner(value, None, path, faults)
        if value is None or len(faults) > before:
            return current
        try:
            return convert(result)
        except ValueError as error:
            faults.append(Fault(path, str(error)))
            return current

    return read


@functools.cache
def _struct_reader(message: Any) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        plans, before = _plan(message), len(faults)
        if value is None:
            return current
        if not isinstance(value, _Pairs):
            faults.append(Fault(path, "must be an object", _show(value)))
            return current
        exact = {plan.name: plan for plan in plans}
        folded = {_folded(plan.name): plan for plan in plans}
        state = {
            plan.attribute: getattr(current, plan.attribute) if current else plan.zero() for plan in plans
        }
        given: set[str] = set()
        for name, item in value:
            plan = exact.get(name) or folded.get(_folded(name))
            if plan is not None:
                given.add(plan.name)
                where = f"{path}.{plan.name}" if path else plan.name
                state[plan.attribute] = plan.read(item, state[plan.attribute], where, faults)
                if item is None and plan.required and not plan.nullable:
                    faults.append(Fault(where, "must not be null", "null"))
        for plan in plans:
            if plan.required and plan.name not in given:
                where = f"{path}.{plan.name}" if path else plan.name
                faults.append(Fault(where, "is missing (the fields of the extension come together)"))
        if len(faults) > before:
            return current
        return (typing.get_origin(message) or message)(**state)

    return read


def _read_uint(mark: Uint, convert: Callable[[int], Any], value: Any) -> Any:
    if type(value) is not int or not mark.low <= value <= mark.high:
        raise _RefusedError(f"must be a whole number, {mark.low} to {mark.high}")
    return convert(value)


def _read_text(mark: Text, value: Any) -> str:
    if type(value) is not str or not mark.low <= len(value) <= mark.high:
        raise _RefusedError(f"must be a string of {mark.low} to {mark.high} characters")
    # Go replaces unpaired surrogates; a Python string that holds one could not be written again.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _RefusedError("must be true or false")
    return value


def _read_float32(value: Any) -> float:
    if type(value) not in (int, _Number):
        raise _RefusedError("must be a number")
    try:
        return float32.round32(float(value))
    except OverflowError:
        raise _RefusedError("must lie within the range of a 32-bit float") from None


def _read_float(value: Any) -> float:
    if type(value) not in (int, _Number) or not math.isfinite(float(value)):
        raise _RefusedError("must be a finite number")
    return float(value)


def _read_quantity(value: Any) -> quantities.Quantity:
    if type(value) not in (str, int, _Number):
        raise _RefusedError("must be a Kubernetes quantity")
    return quantities.parse(str(value).strip())


def _read_uuid(value: Any) -> UUID:
    if type(value) is not str or not _UUID_TEXT.fullmatch(value):
        raise _RefusedError("must be a UUID")
    return UUID(value.lower())


def _show(value: Any) -> str:
    if isinstance(value, list):  # never walked: it may nest as deep as the parser went
        return "an object" if isinstance(value, _Pairs) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"
