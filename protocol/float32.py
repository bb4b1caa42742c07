"""Single-precision numbers as the published peers write them: rounded to float32, shortest text that reads back."""

import functools
import json
import math
import struct

import msgspec

_FORMAT = struct.Struct("<f")
_PAIR = struct.Struct("<2f")
_MAX_PLUS_HALF = 2.0**128 - 2.0**103
"""From here on a number rounds beyond the largest float32."""


def round32(number: float) -> float:
    """`number` rounded to the nearest float32. Raises `ValueError` for NaN, infinities and values out of range."""
    try:
        rounded: float = _FORMAT.unpack(_FORMAT.pack(number))[0]
    except OverflowError:
        raise ValueError(f"{number} is beyond the range of a 32-bit float") from None
    if not math.isfinite(rounded):
        raise ValueError(f"{number} is not a finite number")
    return rounded


def round_pair(one: float, other: float) -> tuple[float, float]:
    """Both numbers as `round32` rounds them, in one step: it is on the path of every request."""
    try:
        first, second = _PAIR.unpack(_PAIR.pack(one, other))
    except OverflowError:
        return round32(one), round32(other)
    if first - first + second - second == 0:  # neither is NaN or infinite
        return first, second
    return round32(one), round32(other)


def shortest(number: float) -> str:
    """The shortest decimal text that reads back as the same float32, valid as a JSON number."""
    if number == 0:  # 0.0 and -0.0 are equal, so a cache would take one for the other
        return "-0" if math.copysign(1, number) < 0 else "0"
    return _shortest(number)


@functools.lru_cache(maxsize=1024)
def _shortest(number: float) -> str:
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if abs(float(text)) < _MAX_PLUS_HALF and round32(float(text)) == number:
            return text
    raise AssertionError(f"nine digits identify every float32, {number!r} is none")


def finite(number: float) -> float:
    """`number`. Raises `ValueError` for NaN and infinities."""
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def text(number: float) -> msgspec.Raw:
    """`number` as JSON, with the digits that Python writes. Raises `ValueError` for NaN and infinities."""
    if type(number) is float and math.isfinite(number):
        return msgspec.Raw(repr(number))
    return msgspec.Raw(json.dumps(number, allow_nan=False))


def rounded_text(number: float) -> msgspec.Raw:
    """`number`, rounded to a float32, as JSON; raises `ValueError` as `round32` does."""
    return text(float(shortest(round32(number))))
