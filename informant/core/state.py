"""All that is known of the guest's size and limits: one frozen value, from which every plan is made anew."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from informant.core.events import SizeRequested, WriteFailed
from informant.core.guard import Guard
from informant.core.limits import Control, GroupLimits, Write
from informant.core.report import Reading
from informant.core.sessions import NOTHING
from informant.core.shortage import Shortage, ShortageDetector
from protocol.wire import MoreResources


class RequestPhase(enum.Enum):
    """How far the decision on a request is."""

    ASKED = "asked"
    """The guest is to be read."""
    JUDGED = "judged"
    """The smaller size fits by that reading; memory.high is to be lowered."""
    LOWERING = "lowering"
    """The kernel frees what lies above the lower limit."""
    LOWERED = "lowered"
    """The kernel has freed it; the guest is to be read again."""
    ON_TRIAL = "on trial"
    """Page cache was taken, and the workload is watched."""
    AGREED = "agreed"
    """All limits follow, and the request is answered."""
    TAKEN_BACK = "taken back"
    """The size before holds, its limits return, and the request is answered."""


_LOWERING = (RequestPhase.JUDGED, RequestPhase.LOWERING, RequestPhase.LOWERED, RequestPhase.ON_TRIAL)


@dataclass(frozen=True, slots=True)
class RequestInProgress:
    """The request that is being decided, and what its answer will say (`status`, `error`).

    `before` is the guard to which a downscale goes back. `lowered` is the slow write that it waits for, and `used_bytes`
    what the group used before. The kernel, or the trial, has time until `until_s`; the trial began at `trial_s` with the reading
    `trial`. `grown` is what an upscale brings, and `is_adopted` that the new size was kept.
    """

    request: SizeRequested
    phase: RequestPhase = RequestPhase.ASKED
    before: Guard | None = None
    lowered: Write | None = None
    used_bytes: int = 0
    until_s: float = float("inf")
    trial: Reading | None = None
    trial_s: float = 0.0
    grown: MoreResources = NOTHING
    is_adopted: bool = False
    status: str = ""
    error: str = ""

    @property
    def took_cache(self) -> bool:
        """Whether the lower limit has taken page cache from the workload, which is not on trial yet."""
        is_over = self.lowered is not None and self.used_bytes > (self.lowered.value or 0)
        return is_over and self.trial is None


@dataclass(frozen=True, slots=True)
class GuestStats:
    """What has happened since the start, for metrics."""

    hits: int = 0
    freezes: int = 0
    found_frozen: int = 0
    approved: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class GuestState:
    """The guard and the shortage detector, what the group's files say, and the requests of agents.

    `controls` are the files that can be written, none where there is no group; `written` is what they say. Slow writes `under_way`
    are kept by whether the limit falls, with the memory.high that was there before. Writes that were `refused` are tried
    again with the next event from outside. `shortage` is still to be reported, and `waiting` are requests behind the
    one that is `pending`: the server's bound on connections bounds them.
    """

    guard: Guard = field(default_factory=Guard)
    detector: ShortageDetector = field(default_factory=ShortageDetector)
    approves_all: bool = False
    controls: frozenset[Control] = frozenset()
    written: GroupLimits = field(default_factory=GroupLimits)
    current_bytes: int | None = None
    under_way: Mapping[bool, int | None] = field(default_factory=dict)
    refused: Mapping[Control, WriteFailed] = field(default_factory=dict)
    shortage: Shortage | None = None
    pending: RequestInProgress | None = None
    waiting: tuple[SizeRequested, ...] = ()
    stats: GuestStats = GuestStats()

    @property
    def is_lowering(self) -> bool:
        """Whether a limit is being lowered for a downscale that is not agreed on yet."""
        return self.pending is not None and self.pending.phase in _LOWERING

    def writes(self) -> Iterator[Write]:
        """The writes that are due, in order; none before the machine is known.

        Of either direction one slow write is under way at a time, and memory.max falls when memory.high has.
        """
        if not self.guard.total_bytes:
            return
        under_way = set(self.under_way)
        for write in self.written.writes(self.guard.limits(), self.current_bytes):
            waits = (write.is_slow or write.falls) and write.falls in under_way
            if write.control in self.controls and not waits and self._is_due(write):
                yield write
                under_way |= {write.falls} if write.is_slow else set()

    def _is_due(self, write: Write) -> bool:
        """While a downscale is not agreed on, only its slow write and the freeze are due."""
        if write.control in self.refused:
            return False
        is_open = not self.is_lowering or self.guard.is_over
        return is_open or write.is_slow or write.control is Control.FREEZE

    def fault(self) -> str:
        """Why the last of the due writes that failed could not be done; empty without any, or where the group is gone."""
        return next((each.error for each in reversed(list(self.refused.values())) if not each.is_gone), "")
