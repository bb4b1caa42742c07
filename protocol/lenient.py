"""The reader that published peers need: it accepts the same texts as Go's `encoding/json`, with the same value.

Field names match in any case, an absent field has its zero value, unknown fields and bytes after the first value are ignored, `null` leaves
a plain field as it is, and of duplicate keys the last wins (objects merge). Refusals are reported field by field, all faults at once.
Source: reference/neon.md section 1.3, golden vectors "decode".

Fields of Parley's extension are required here too: a caller that sends some of them must send them all, and of duplicates the last counts as
a whole. The strict reader judges quantities and 64 bits after the last duplicate is known, so those before it are not judged here either.
"""

import functools
import json
import re
import typing
from collections.abc import Callable
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from protocol import quantities, values, wire
from protocol.errors import Fault, RemoteProtocolError
from protocol.fields import (
    UINT32_MAX,
    Converted,
    Field,
    Kind,
    Listed,
    Mapped,
    Nested,
    Parameter,
    Scalar,
    own_and_embedded,
)

M = TypeVar("M", bound=wire.Message)

_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_HEX: Final = "[0-9a-fA-F]"
_UUID_TEXT: Final = re.compile(
    rf"(?:[uU][rR][nN]:[uU][uU][iI][dD]:)?{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
    rf"|\{{{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\}}|{_HEX}{{32}}"
)
_LONGEST_INTEGER: Final = 40
LONGEST_TEXT: Final = 2**20


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its keys in order, duplicates included."""


class _Number(str):
    """A JSON number that is not a plain integer, as its text."""

    __slots__ = ()


class _RefusedError(ValueError):
    """A value breaks its field's rule; the text is the rule."""


class _LateRefusalError(_RefusedError):
    """The same for a rule that the strict reader looks at last, when a later duplicate may have replaced the value."""


class _LateFault(Fault):
    """A fault by such a rule."""

    __slots__ = ()


def _integer(text: str) -> int | _Number:
    return int(text) if len(text) <= _LONGEST_INTEGER else _Number(text)


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_integer, parse_float=_Number, parse_constant=_constant
)

Reader = Callable[[Any, Any, str, list[Fault]], Any]
"""(JSON value, value so far, path, faults to add to) → value."""


def parse(body: bytes) -> Any:
    """The first JSON value in `body`; bytes after it are ignored. Raises `RemoteProtocolError`."""
    text = body.decode("utf-8", errors="replace")
    blanks = _BLANKS.match(text)
    assert blanks is not None
    try:
        return _DECODER.raw_decode(text, blanks.end())[0]
    except (ValueError, RecursionError) as error:
        message = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RemoteProtocolError("bad JSON", (Fault("", f"must be one JSON value: {message}"),)) from None


def read(message: type[M], body: bytes) -> M:
    """Read `body` as `message`; the embedded message is there if the body has any of its fields.

    Raises `RemoteProtocolError` (400) with every fault.
    """
    value = parse(body)
    value = _Pairs() if value is None else value  # Go reads null as a value whose every field is absent
    faults: list[Fault] = []
    result = _object_reader(message)(value, None, "", faults)
    if faults:
        raise RemoteProtocolError(
            "bad JSON", tuple(Fault(each.path, each.rule, each.value) for each in faults)
        )
    return typing.cast("M", result)


def _folded(name: str) -> str:
    """The same for all names that Go takes for one: the long s and the Kelvin sign are letters to it, too."""
    return name.lower().replace("\u017f", "s")


def _reader(kind: Kind) -> Reader:
    match kind:
        case Nested():
            return _object_reader(kind.message)
        case Listed():
            return _listed(_reader(kind.item))
        case Mapped():
            return _mapped(_reader(kind.item))
        case Converted(type=quantities.Quantity):
            return _plain(_read_quantity)  # Go reads numbers as quantities, too
        case Converted():
            return _converted(_reader(kind.form), kind.mark.read)
        case Scalar():
            return _plain(functools.partial(_SCALARS.get(kind.type, _read_uint), kind))
        case Parameter():
            raise TypeError("a generic message is read with its argument")


def _zero(kind: Kind) -> Any:
    """The value of an absent field: Go's zero value."""
    match kind:
        case Nested():
            return _object_reader(kind.message)(_Pairs(), None, "", [])
        case Listed():
            return ()
        case Mapped():
            return {}
        case Scalar():
            return wire.NIL_UUID if kind.type is UUID else kind.type(0 if issubclass(kind.type, int) else "")
        case Converted(type=values.Resources):
            return values.ZERO
        case Converted(type=quantities.Quantity):
            return quantities.Quantity(0)
        case Converted():
            return 0.0 if kind.type is float else None
        case Parameter():
            return None


def _plain(convert: Callable[[Any], Any]) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        if value is None:
            return current
        try:
            return convert(value)
        except ValueError as error:
            is_late = isinstance(error, quantities.QuantityError | _LateRefusalError)
            faults.append((_LateFault if is_late else Fault)(path, str(error), _show(value)))
            return current

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


def _mapped(inner: Reader) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        if value is None:
            return current
        if not isinstance(value, _Pairs):
            faults.append(Fault(path, "must be an object", _show(value)))
            return current
        found: dict[str, Any] = {}
        for key, item in value:
            if item is None:
                faults.append(Fault(f"{path}.{_sound(key)}", "must not be null", "null"))
            found[_sound(key)] = inner(item, None, f"{path}.{_sound(key)}", faults)
        return found

    return read


def _converted(inner: Reader, convert: Callable[[Any], Any]) -> Reader:
    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        before = len(faults)
        form = inner(value, None, path, faults)
        if value is None or len(faults) > before:
            return current
        try:
            return convert(form)
        except ValueError as error:
            faults.append(_LateFault(path, str(error), "" if isinstance(value, list) else _show(value)))
            return current

    return read


@functools.cache
def _object_reader(message: Any) -> Reader:
    fields, embedded = own_and_embedded(message)
    readers = {field.name: _reader(field.kind) for field in fields}
    exact = {field.name: field for field in fields}
    folded = {_folded(field.name): field for field in fields}
    origin = typing.get_origin(message) or message
    is_whole = origin.MUST_BE_WHOLE
    required = {field.name for field in fields if is_whole and field.default is msgspec.NODEFAULT}

    def read(value: Any, current: Any, path: str, faults: list[Fault]) -> Any:
        before = len(faults)
        if value is None:
            return current
        if not isinstance(value, _Pairs):
            faults.append(Fault(path, "must be an object", _show(value)))
            return current
        state = _beginning(fields, None if is_whole else current)
        given: dict[str, list[Fault]] = {}
        for name, item in value:
            field = exact.get(name) or folded.get(_folded(name))
            if field is None:
                continue
            found = given.setdefault(field.name, [])
            where = f"{path}.{field.name}" if path else field.name
            if item is not None or field.is_nullable:
                found[:] = (each for each in found if not isinstance(each, _LateFault))
            if item is None and field.is_nullable:
                state[field.attribute] = None
            else:
                state[field.attribute] = readers[field.name](item, state[field.attribute], where, found)
            if item is None and field.name in required and not field.is_nullable:
                found.append(Fault(where, "must not be null", "null"))
        faults += (each for found in given.values() for each in found)
        for field in fields:
            if field.name in required and field.name not in given:
                where = f"{path}.{field.name}" if path else field.name
                faults.append(Fault(where, "is missing (the fields of the extension come together)"))
        if embedded is not None:
            state[embedded.attribute] = _read_embedded(embedded, value, path, faults)
        return current if len(faults) > before else origin(**state)

    return read


def _beginning(fields: tuple[Field, ...], current: Any) -> dict[str, Any]:
    """The values before an object is read: those of an earlier duplicate, or Go's zero values."""
    if current:
        return {field.attribute: getattr(current, field.attribute) for field in fields}
    return {field.attribute: None if field.is_nullable else _zero(field.kind) for field in fields}


def _read_embedded(field: Field, value: _Pairs, path: str, faults: list[Fault]) -> Any:
    """The embedded message, or None if the object has none of its fields."""
    message = typing.cast("Nested", field.kind).message
    names = {_folded(inner.name) for inner in own_and_embedded(message)[0]}
    if not any(_folded(name) in names for name, _ in value):
        return None
    return _object_reader(message)(value, None, path, faults)


def _read_uint(kind: Scalar, value: Any) -> Any:
    high = UINT32_MAX if kind.high is None else kind.high  # a version, else: the only number without bounds
    if type(value) is not int or not kind.low <= value <= high:
        is_late = kind.is_wide and type(value) is int and value > high
        rule = f"must be a whole number, {kind.low} to {high}"
        raise _LateRefusalError(rule) if is_late else _RefusedError(rule)
    return kind.type(value)


def _read_text(kind: Scalar, value: Any) -> str:
    high = LONGEST_TEXT if kind.high is None else kind.high
    if type(value) is not str or not kind.low <= len(value) <= high:
        raise _RefusedError(f"must be a string of {kind.low} to {high} characters")
    return _sound(value)


def _sound(text: str) -> str:
    """Go replaces unpaired surrogates; a Python string that holds one could not be written again."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_bool(_: Scalar, value: Any) -> bool:
    if type(value) is not bool:
        raise _RefusedError("must be true or false")
    return value


def _read_float(_: Scalar, value: Any) -> float:
    if type(value) not in (int, _Number):
        raise _RefusedError("must be a number")
    return float(value)


def _read_uuid(_: Scalar, value: Any) -> UUID:
    if type(value) is not str or not _UUID_TEXT.fullmatch(value):
        raise _RefusedError("must be a UUID")
    return UUID(value.lower())


_SCALARS: Final[dict[Any, Callable[[Scalar, Any], Any]]] = {
    str: _read_text,
    bool: _read_bool,
    float: _read_float,
    UUID: _read_uuid,
}
"""The reader of each type; any other type is a whole number."""


def _read_quantity(value: Any) -> quantities.Quantity:
    if type(value) not in (str, int, _Number):
        raise _RefusedError("must be a Kubernetes quantity")
    return quantities.parse(str(value).strip())


def _show(value: Any) -> str:
    if isinstance(value, list):  # never walked: it may nest as deep as the parser went
        return "an object" if isinstance(value, _Pairs) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"
