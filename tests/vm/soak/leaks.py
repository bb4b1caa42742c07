"""Whether a process has more at the end of a soak than it had at its beginning, when both are calm. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
LEAST_RSS_GROWTH_BYTES: Final = 24 * MIB
RSS_GROWTH_SHARE: Final = 0.25
"""Memory of a Python program grows for a while: caches fill up, and freed memory stays with the process. A leak of each resize, or of
each look, would grow beyond this within the hundreds of resizes."""


ALLOWED_MORE: Final[Mapping[str, int]] = {"descriptors": 4, "sockets": 4}
"""A pool keeps a few connections more at one moment than at another. One that is lost with each resize, or each look, would be hundreds."""


@dataclass(frozen=True, slots=True)
class ProcessCounts:
    """The resources that a process holds, in `counts` by name (file descriptors, sockets, threads, …) and as resident memory."""

    counts: Mapping[str, int]
    resident_bytes: int


def fewest(looks: list[ProcessCounts]) -> ProcessCounts:
    """The least of several looks: what is there for a moment only is no leak."""
    names = looks[0].counts
    least = {name: min(each.counts[name] for each in looks) for name in names}
    return ProcessCounts(least, min(each.resident_bytes for each in looks))


def leaks(who: str, before: ProcessCounts, after: ProcessCounts) -> Iterator[str]:
    for name, count in after.counts.items():
        if count > before.counts[name] + ALLOWED_MORE.get(name, 0):
            yield f"{who} has {count} {name}, and had {before.counts[name]} at the beginning"
    allowed = max(LEAST_RSS_GROWTH_BYTES, round(RSS_GROWTH_SHARE * before.resident_bytes))
    grown = after.resident_bytes - before.resident_bytes
    if grown > allowed:
        yield (
            f"{who} has grown by {grown / MIB:.1f} MiB to {after.resident_bytes / MIB:.1f} MiB of resident memory;"
            f" {allowed / MIB:.1f} MiB more would be usual"
        )
