"""One row for each decoder of bytes that others write: how it is called, good examples, and the errors that it documents.

`PLACES` of the rows name the functions of the product that decode; `test_decoders.py` looks for those that no row has.
"""

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Decoder:
    """`decode` is given bytes as they come from outside, and raises nothing but `errors`. `places` are the functions that it covers,
    as `path/of/module.py:Class.function`."""

    name: str
    decode: Callable[[bytes], object]
    examples: tuple[bytes, ...]
    errors: tuple[type[Exception], ...] = ()
    places: tuple[str, ...] = ()


def as_json(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def settled(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        found: T = stop.value
        return found
    coroutine.close()
    raise AssertionError("it waits for something")


def as_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """A decoder of texts: bytes that are no UTF-8 have their odd characters, as a header's or JSON's texts may."""
    return lambda content: read(content.decode("utf-8", "replace"))
