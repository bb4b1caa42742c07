"""Durations as Go writes them, such as `1m30s`: the texts of time-outs are the published ones. Source: golden/framework.md, rule 6."""

from typing import Final

NS_PER_S: Final = 10**9
_SMALL: Final = ((1, "ns"), (10**3, "µs"), (10**6, "ms"), (NS_PER_S, "s"))
"""What Go writes durations below a minute in, by the nanoseconds of one."""


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
