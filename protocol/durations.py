"""Durations as Go writes and reads them: `metav1.Duration` in published objects and configurations."""

import re
from typing import Final

NS_PER_S: Final = 10**9
_SMALL: Final = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (NS_PER_S, "s"))
"""The units in which Go writes durations below a minute, by the nanoseconds of one."""
_UNITS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_WHOLE: Final = re.compile(rf"[+-]?(?:0|(?:{_PART.pattern})+)")
_MAX_TEXT: Final = 64


class DurationError(ValueError):
    """A text is no duration of Go. The message names the text and what would be right."""


def parse_go_duration(text: str) -> float:
    """The seconds of a duration such as `5m`, `1h30m`, `1.5s`, `-2m0s` or `0`, exact to a nanosecond. Raises `DurationError`."""
    if len(text) > _MAX_TEXT or _WHOLE.fullmatch(text) is None:
        raise DurationError(f"{text[:_MAX_TEXT]!r} is not a duration: expected such as 300s, 5m or 1h30m0s")
    found_ns = 0
    for number, unit in _PART.findall(text):
        whole, _, part = number.partition(".")
        found_ns += int(whole or 0) * _UNITS_NS[unit]
        if part:
            found_ns += int(part) * _UNITS_NS[unit] // 10 ** len(part)
    return (-found_ns if text.startswith("-") else found_ns) / NS_PER_S


def go_duration(duration_s: float) -> str:
    """A duration of seconds, exact to a nanosecond, in Go's notation: `0s`, `999µs`, `1.5s`, `15m0s`, `-1h0m0s`."""
    left = abs(round(duration_s * NS_PER_S))
    sign = "-" if duration_s < 0 and left else ""
    minutes, rest = divmod(left, 60 * NS_PER_S)
    if not minutes:
        return sign + _below_a_minute(rest)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{f'{hours}h' if hours else ''}{minutes}m{_decimal(rest, NS_PER_S)}s"


def _below_a_minute(ns: int) -> str:
    """The largest unit of which there is a whole one."""
    size, unit = max((each for each in _SMALL if each[0] <= ns), default=_SMALL[-1])
    return f"{_decimal(ns, size)}{unit}"


def _decimal(ns: int, size: int) -> str:
    """`ns` in units of `size` nanoseconds, without zeros at the end."""
    whole, part = divmod(ns, size)
    digits = f"{part:0{len(str(size)) - 1}d}".rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)
