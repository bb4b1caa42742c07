"""The memory of a VM's load, as it is kept over a restart of the agent: plain numbers with Unix times, read strictly.

The agent counts in monotonic seconds, which mean nothing to the next process. All times of one file are moved by the same amount, so a
clock that was set meanwhile moves them together. A clock that was set back since the file was written makes nothing older than it was: the
remembered load then counts for longer, and nothing shrinks too early.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec

from agent.core.model import Vm
from agent.core.policies.peaks import MAX_PEAKS, Peaks, Span, Surge
from agent.core.policies.remembered import (
    MAX_GOALS,
    DownWindow,
    PastGoal,
    PastGoals,
    Remembered,
    Remembering,
    Smoothed,
    Track,
)
from agent.core.policies.values import MAX_TEXT
from protocol.values import MAX_MEMORY_BYTES

MAX_BYTES: Final = 32_768
"""A file that is longer is not ours."""
MAX_AGE_S: Final = 24 * 3600.0
"""An older memory says nothing about the present load."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_MEMORY_BYTES)]


class SavedTrack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Track`, its times in Unix seconds."""

    mean: Count
    began_s: float
    seen_s: float
    low: Count
    high: Count
    total: Count
    count: Count


class SavedPeaks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`Peaks`; the last period began at `began_s`, in Unix seconds."""

    began_s: float
    values: Annotated[tuple[Count | None, ...], msgspec.Meta(max_length=MAX_PEAKS)]


class SavedGoal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `PastGoal`, its time in Unix seconds."""

    at_s: float
    amount: Count
    reason: Annotated[str, msgspec.Meta(max_length=2 * MAX_TEXT)]


SavedGoals = Annotated[tuple[SavedGoal, ...], msgspec.Meta(max_length=MAX_GOALS)]


class SavedLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a VM's file, written at `saved_at_s` (Unix seconds)."""

    format: Literal[1]
    vm: str
    uid: str
    saved_at_s: float
    busy: SavedTrack | None
    load: SavedTrack | None
    memory: SavedTrack | None
    cpu_peaks: SavedPeaks
    memory_peaks: SavedPeaks
    memory_rises: SavedPeaks
    memory_highest: SavedPeaks
    cpu_goals: SavedGoals
    memory_goals: SavedGoals


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """The memory of a VM's load, and the way it was made."""

    vm: Vm
    remembered: Remembered
    how: Remembering


def encoded(load: KnownLoad, now_s: float, unix_s: float) -> bytes:
    """The content of a VM's file at the monotonic moment `now_s`, which is `unix_s`."""
    known, how, by_s = load.remembered, load.how, unix_s - now_s
    means = known.means
    return msgspec.json.encode(
        SavedLoad(
            1,
            load.vm.name,
            load.vm.pod_uid,
            unix_s,
            _saved_track(means.busy, by_s),
            _saved_track(means.load, by_s),
            _saved_track(means.memory, by_s),
            _saved_peaks(known.cpu_peaks, how.tail.span, by_s),
            _saved_peaks(known.memory_peaks, how.tail.span, by_s),
            _saved_peaks(known.memory_surge.rises, how.surges.span, by_s),
            _saved_peaks(known.memory_surge.highest, how.surges.span, by_s),
            _saved_goals(known.goals.cpu, by_s),
            _saved_goals(known.goals.memory, by_s),
        )
    )


def decoded(content: bytes, vm: Vm, how: Remembering, now_s: float, unix_s: float) -> Remembered:
    """The content of a file of `vm`, with monotonic times. Raises `ValueError` if it cannot be used, and says why."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"has {len(content)} bytes, more than {MAX_BYTES}")
    found = msgspec.json.decode(content, type=SavedLoad)
    if (found.vm, found.uid) != (vm.name, vm.pod_uid):
        raise ValueError(f"is of the VM {found.vm} with the UID {found.uid}")
    age_s = max(0.0, unix_s - found.saved_at_s)
    if age_s > MAX_AGE_S:
        raise ValueError(f"is {age_s / 3600:.0f} hours old")
    by_s, most_s = now_s - age_s - found.saved_at_s, now_s - age_s
    surge = Surge(
        rises=_peaks(found.memory_rises, how.surges.span, by_s, most_s),
        highest=_peaks(found.memory_highest, how.surges.span, by_s, most_s),
    )
    return Remembered(
        Smoothed(*(_track(each, by_s, most_s) for each in (found.busy, found.load, found.memory))),
        _peaks(found.cpu_peaks, how.tail.span, by_s, most_s),
        _peaks(found.memory_peaks, how.tail.span, by_s, most_s),
        memory_surge=surge,
        goals=DownWindow(_goals(found.cpu_goals, by_s, most_s), _goals(found.memory_goals, by_s, most_s)),
    )


def _saved_track(track: Track | None, by_s: float) -> SavedTrack | None:
    """None also for sums that no sound guest comes to."""
    if track is None or track.total > MAX_MEMORY_BYTES:
        return None
    times = (track.began_s + by_s, track.seen_s + by_s)
    return SavedTrack(track.mean, *times, track.low, track.high, track.total, track.count)


def _track(saved: SavedTrack | None, by_s: float, most_s: float) -> Track | None:
    if saved is None:
        return None
    seen_s = min(saved.seen_s + by_s, most_s)
    began_s = min(saved.began_s + by_s, seen_s)
    return Track(saved.mean, began_s, seen_s, saved.low, saved.high, saved.total, saved.count)


def _saved_peaks(peaks: Peaks, span: Span, by_s: float) -> SavedPeaks:
    return SavedPeaks(peaks.last * span.period_s + by_s, peaks.values)


def _peaks(saved: SavedPeaks, span: Span, by_s: float, most_s: float) -> Peaks:
    return Peaks(
        span.number(min(saved.began_s + by_s, most_s)), saved.values[max(0, len(saved.values) - span.count) :]
    )


def _saved_goals(goals: PastGoals, by_s: float) -> tuple[SavedGoal, ...]:
    return tuple(
        SavedGoal(each.at_s + by_s, min(each.amount, MAX_MEMORY_BYTES), each.reason) for each in goals
    )


def _goals(saved: tuple[SavedGoal, ...], by_s: float, most_s: float) -> PastGoals:
    found = tuple(PastGoal(min(each.at_s + by_s, most_s), each.amount, each.reason) for each in saved)
    if any(before.amount <= after.amount or before.at_s > after.at_s for before, after in pairwise(found)):
        raise ValueError("has goals that are not in order")
    return found
