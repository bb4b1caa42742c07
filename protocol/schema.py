"""The fields of a message's declaration, for readers and writers of messages."""

import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from protocol.fields import EMBEDDED, UINT64_MAX, As, Message


@dataclass(frozen=True, slots=True)
class Scalar:
    """A JSON number, text or boolean. `low` and `high` bound a whole number, or the length of a text."""

    type: Any
    low: int = 0
    high: int | None = None
    annotation: Any = None
    """The type with its bounds, as msgspec wants it."""

    @property
    def is_wide(self) -> bool:
        """Whether the upper bound is one that msgspec cannot check."""
        return self.type is int and self.high == UINT64_MAX


@dataclass(frozen=True, slots=True)
class Nested:
    """Another message, as an object of its own; or, embedded, among the fields of the object around it."""

    message: Any
    is_embedded: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of items of one kind."""

    item: "Kind"


@dataclass(frozen=True, slots=True)
class Converted:
    """A value of `type` that travels in another form."""

    type: Any
    mark: As
    form: "Kind"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A message whose type only the value tells: the parameter of a generic message."""


Kind: TypeAlias = Scalar | Nested | Listed | Converted | Parameter


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. `name` is the one on the wire; see `Message` for the rest."""

    attribute: str
    name: str
    kind: Kind
    is_nullable: bool
    is_omitted: bool
    default: Any = msgspec.NODEFAULT


@functools.cache
def fields_of(message: Any) -> tuple[Field, ...]:
    """The fields of `message` as declared. Generics come with their argument."""
    found = []
    for item in msgspec.structs.fields(message):
        kind, is_nullable = _kind(item.type)
        is_omitted = item.encode_name in _origin(message).OMITTED_WHEN_NONE
        found.append(Field(item.name, item.encode_name, kind, is_nullable, is_omitted, item.default))
    return tuple(found)


def in_order(message: Any, fields: tuple[Field, ...]) -> list[Field]:
    """`fields` of `message` in the order of writing."""
    order = {name: place for place, name in enumerate(_origin(message).PUBLISHED_ORDER)}
    return sorted(fields, key=lambda field: order.get(field.name, len(order)))


def own_and_embedded(message: Any) -> tuple[tuple[Field, ...], Field | None]:
    """The fields of `message` that stand for themselves, and the one that is embedded."""
    fields = fields_of(message)
    embedded = [field for field in fields if isinstance(field.kind, Nested) and field.kind.is_embedded]
    assert len(embedded) <= 1, message
    return tuple(field for field in fields if field not in embedded), embedded[0] if embedded else None


def _origin(message: Any) -> type[Message]:
    origin: type[Message] = typing.get_origin(message) or message
    return origin


def _kind(annotation: Any) -> tuple[Kind, bool]:
    """The kind of an annotation, and whether it is nullable."""
    plain: Any = annotation
    marks: tuple[Any, ...] = ()
    if typing.get_origin(annotation) is typing.Annotated:
        plain, marks = annotation.__origin__, annotation.__metadata__
    if typing.get_origin(plain) in (types.UnionType, typing.Union):
        inner = typing.get_args(plain)[0]
        kind = Nested(inner, is_embedded=True) if EMBEDDED in marks else _kind(inner)[0]
        return kind, True
    for mark in marks:
        if isinstance(mark, As):
            return Converted(plain, mark, _kind(mark.form)[0]), False
    if typing.get_origin(plain) is tuple:
        return Listed(_kind(typing.get_args(plain)[0])[0]), False
    if isinstance(plain, typing.TypeVar):
        return Parameter(), False
    if issubclass(_origin(plain), Message):
        return Nested(plain), False
    return _scalar(annotation, plain, marks), False


def _scalar(annotation: Any, plain: Any, marks: tuple[Any, ...]) -> Scalar:
    for mark in marks:
        if isinstance(mark, msgspec.Meta) and plain is int:
            assert mark.ge is not None
            return Scalar(int, int(mark.ge), UINT64_MAX if mark.le is None else int(mark.le), annotation)
        if isinstance(mark, msgspec.Meta):
            return Scalar(plain, mark.min_length or 0, mark.max_length, annotation)
    return Scalar(plain, annotation=annotation)
