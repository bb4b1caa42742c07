"""The building blocks of a message's declaration: the base class, and the kinds of fields.

A declaration serves three: the strict reader and the writer (`protocol.codec`), and the lenient reader
(`protocol.lenient`). `fields_of` and `own_and_embedded` read it for them.
"""

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import Meta

from protocol import float32, quantities

UINT16_MAX: Final = 2**16 - 1
UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1


class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Base of every type that travels as a JSON object. The strict reader refuses fields that are not declared.

    A message must never be part of a cycle: the garbage collector does not look at it.
    """

    OMITTED_WHEN_NONE: ClassVar[frozenset[str]] = frozenset()
    """Names on the wire of the fields that are left out if there is no value; any other one is written as null."""
    PUBLISHED_ORDER: ClassVar[tuple[str, ...]] = ()
    """Names on the wire in the order of writing, if it differs from the order of declaration."""
    MUST_BE_WHOLE: ClassVar[bool] = False
    """True if the lenient reader, too, refuses an absent field without a default. Go reads it as its zero value."""
    IS_KEPT: ClassVar[bool] = False
    """True if the last results of reading and writing are kept. This needs a bounded length, and equal values that
    are written alike."""


@dataclass(frozen=True, slots=True)
class As:
    """Marks a value that travels in the form of another type.

    `read` makes the value of its form, and raises `ValueError` that says which rule the form breaks; `write` does the
    reverse. For `is_kept` see `Message.IS_KEPT`. With `is_ensured`, a message that has such a field does the same as `read`
    when it is made, so that the strict reader need not.
    """

    form: Any
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    is_kept: bool = False
    is_ensured: bool = False


EMBEDDED: Final = "embedded"
"""Marks a nullable message whose fields stand among those of the message around it, all of them or none."""

# A bound beyond 63 bits cannot be stated: a whole number without an upper bound ends at UINT64_MAX in both readers.
Uint16 = Annotated[int, Meta(ge=0, le=UINT16_MAX)]
Uint64 = Annotated[int, Meta(ge=0)]
Positive64 = Annotated[int, Meta(ge=1)]
PodUid = Annotated[str, Meta(min_length=1, max_length=64)]
Float32 = Annotated[float, As(float, float32.round32, float32.rounded_text, is_ensured=True)]
"""A finite number within the range of a 32-bit float, rounded to one."""
Float64 = Annotated[float, As(float, float32.finite, float32.text)]
"""A finite number."""
WireQuantity = Annotated[
    quantities.Quantity,
    As(
        Annotated[
            str, Meta(max_length=quantities.MAX_TEXT, extra_json_schema={"pattern": quantities.JSON_PATTERN})
        ],
        quantities.parse,
        quantities.Quantity.canonical,
    ),
]
"""A Kubernetes quantity, given as a string; the lenient reader takes numbers, too."""


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
class Mapped:
    """An object of any names, with values of one kind."""

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


Kind: TypeAlias = Scalar | Nested | Listed | Mapped | Converted | Parameter


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
    if typing.get_origin(plain) is dict:
        return Mapped(_kind(typing.get_args(plain)[1])[0]), False
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
