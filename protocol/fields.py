"""The building blocks of a message's declaration: the base class, and the kinds of fields.

A declaration serves three: the strict reader and the writer (`protocol.codec`), and the lenient reader
(`protocol.lenient`). `protocol.schema` reads it for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

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
