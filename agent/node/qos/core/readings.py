"""Figures from consecutive readings of counters and files. A figure that cannot be known is None; nothing is made up."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_ID: Final = re.compile(r"(?:.*-)?([0-9a-f]{64})(?:\.scope)?")
"""With the driver systemd the group of a container is called `<runtime>-<id>.scope`, with cgroupfs `<id>`."""
_CONMON: Final = "crio-conmon-"
"""CRI-O keeps the process that watches a container in a group of its own."""
_DEGREES: Final = ("some", "full")
_PRECISIONS: Final = ("avg10", "avg60", "avg300")


class Counter:
    """A total that only rises, as long as it counts the same thing."""

    __slots__ = ("_at_s", "_total")

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._total = 0.0

    def rate(self, at_s: float, total: float) -> float | None:
        """The rise for each second since the last reading. None at the first one, if no time has passed, and if the total
        fell: then another thing is counted, from now on."""
        before_s, before = self._at_s, self._total
        if before_s is not None and total >= before and at_s <= before_s:
            return None  # the next reading tells the rise since the moment that is known
        self._at_s, self._total = at_s, total
        if before_s is None or total < before:
            return None
        return (total - before) / (at_s - before_s)


class Throttling:
    """The periods of a CPU limit, and those of them in which tasks were held back."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def share(self, periods: int, throttled: int) -> float | None:
        """The share of the periods since the last reading in which tasks were held back; 0 if none passed, since nothing ran.
        None at the first reading, without a limit so far, and if a counter fell or exceeds the number of periods."""
        before, self._last = self._last, (periods, throttled)
        if before is None or not periods:
            return None
        passed, held = periods - before[0], throttled - before[1]
        if passed < 0 or not 0 <= held <= passed:
            return None
        return held / passed if passed else 0.0


def container_id(group: str) -> str | None:
    """The runtime's ID of the container that a group inside a pod's belongs to; None if the group is no container's."""
    found = None if group.startswith(_CONMON) else _ID.fullmatch(group)
    return None if found is None else found[1]


def pressure(text: str) -> Iterator[tuple[str, str, float]]:
    """The averages of a file of pressure: `avg10`/`avg60`/`avg300`, `some`/`full`, per cent. Parts that are none are left out."""
    for line in text.splitlines():
        degree, _, fields = line.partition(" ")
        for name, _, written in (each.partition("=") for each in fields.split()):
            if degree in _DEGREES and name in _PRECISIONS and re.fullmatch(r"\d+(\.\d+)?", written):
                yield name, degree, float(written)


def total(parts: Iterable[float | None]) -> float | None:
    """The sum of all parts; None if one of them is not known."""
    found = 0.0
    for each in parts:
        if each is None:
            return None
        found += each
    return found


def rest(whole: float | None, parts: Iterable[float | None]) -> float | None:
    """The part of the whole that is in none of the parts, at least 0; None if the whole or a part is unknown."""
    inside = total(parts)
    return None if whole is None or inside is None else max(0.0, whole - inside)
