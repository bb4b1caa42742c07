"""The guest's size and limits: events (past tense), actions for the shell (imperative), and all that is known, one frozen value from which
every plan is made anew.

Each action ends as one event at once: `Done`, unless another one is named here. A `Write` ends as `WriteEnded`; a slow one as
`WriteBegun`, and as `WriteEnded` later.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from informant.core.guard import Guard
from informant.core.limits import Control, GroupLimits, Write
from informant.core.report import CgroupReading, Reading
from informant.core.sessions import NOTHING
from informant.core.shortage import Shortage, ShortageDetector
from protocol.values import Resources
from protocol.wire import DownscaleResult, MoreResources


@dataclass(frozen=True, slots=True)
class GroupFound:
    """The program has started and found the workload's group. `size` and `hidden_bytes` were kept by an earlier life."""

    reading: CgroupReading
    controls: frozenset[Control]
    size: Resources | None = None
    hidden_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GuestSampled:
    """The guest was read because it was time, or because a file changed. `controls` can be written; None: as before."""

    reading: Reading
    controls: frozenset[Control] | None = None


@dataclass(frozen=True, slots=True)
class SizeRequested:
    """`PUT /downscale`, or `PUT /upscale` if `is_upscale`. Each request has a `number` of its own."""

    number: int
    size: Resources
    is_upscale: bool = False


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """Nobody waits for the answer to this request any more."""

    number: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The moment has come that the plan named."""


@dataclass(frozen=True, slots=True)
class ProgramEnding:
    """The program ends: nobody relieves a throttle or ends a freeze from now on."""


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class ReadGuest:
    """Read the machine and the group, for the request that is being decided; ends as `GuestRead`."""


@dataclass(frozen=True, slots=True)
class AdoptSize:
    """The guest lives in `size` from now on: keep it over restarts. Wishes for the resources that have `grown` are met.

    Ends as `SizeAdopted`.
    """

    size: Resources
    hidden_bytes: int
    grown: MoreResources


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer a request. `error` names a fault that kept the limits from following; empty if there was none."""

    request: SizeRequested
    result: DownscaleResult
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportShortage:
    """Wish for more of the resources that are short."""

    shortage: Shortage


GuestAction: TypeAlias = Write | ReadGuest | AdoptSize | AnswerRequest | ReportShortage

# ---------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Done:
    """An answer was given, or a shortage reported."""

    action: AnswerRequest | ReportShortage


@dataclass(frozen=True, slots=True)
class WriteBegun:
    """A slow write is under way: the value counts from here on, only freeing the memory above it takes time."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteEnded:
    """A control file was written, or `error` says why not. `is_gone` is true if the group was removed: an ended workload needs no limit."""

    write: Write
    error: str = ""
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class GuestRead:
    """The guest was read for a request; `reading` is None, with the `error`, if that was not possible."""

    reading: Reading | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SizeAdopted:
    """A size was adopted, and wishes for these resources were met by it."""

    met: MoreResources


GuestEvent: TypeAlias = (
    GroupFound
    | GuestSampled
    | SizeRequested
    | RequestWithdrawn
    | TimePassed
    | ProgramEnding
    | Done
    | WriteBegun
    | WriteEnded
    | GuestRead
    | SizeAdopted
)


_YES: Final = DownscaleResult(ok=True, status="")


class RequestPhase(enum.Enum):
    """How far the decision on a request is."""

    READING = "reading"
    """The guest is to be read: at first, when the kernel has freed memory, and at the end of a trial without page cache."""
    LOWERING = "lowering"
    """memory.high is lowered, and the kernel frees the memory above."""
    AGREED = "agreed"
    """All limits follow, and the size is to be adopted."""
    DECIDED = "decided"
    """The limits are as the result says, which is the answer."""


@dataclass(frozen=True, slots=True)
class RequestInProgress:
    """The request that is being decided, and its answer to be (`result`, `error`).

    The guest is read, or the kernel has time, until `due_s`. `before` is the guard to which a downscale goes back, known once the
    smaller size fits by a reading. `lowered` is the slow write that a downscale waits for, and `used_bytes` the group's use before.
    The trial began at `trial_s` with the reading `trial`. `grown` has the resources that an upscale brings.
    """

    request: SizeRequested
    phase: RequestPhase = RequestPhase.READING
    due_s: float = float("-inf")
    before: Guard | None = None
    lowered: Write | None = None
    used_bytes: int = 0
    trial: Reading | None = None
    trial_s: float = 0.0
    grown: MoreResources = NOTHING
    result: DownscaleResult = _YES
    error: str = ""

    @property
    def is_lowering(self) -> bool:
        """Whether a limit is being lowered for a downscale that is not agreed on yet."""
        return self.before is not None and self.phase in (RequestPhase.READING, RequestPhase.LOWERING)

    @property
    def took_cache(self) -> bool:
        """Whether the lower limit has taken page cache from the workload, which is not on trial yet."""
        is_over = self.lowered is not None and self.used_bytes > (self.lowered.value or 0)
        return is_over and self.trial is None


@dataclass(frozen=True, slots=True)
class GuestStats:
    """Counts since the start, for metrics."""

    hits: int = 0
    freezes: int = 0
    found_frozen: int = 0
    approved: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class GuestState:
    """The guard and the shortage detector, the values of the group's files, and the requests of agents.

    `controls` are the files that can be written, none if there is no group; `written` has their values. Slow writes `under_way`
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
    refused: Mapping[Control, WriteEnded] = field(default_factory=dict)
    shortage: Shortage | None = None
    pending: RequestInProgress | None = None
    waiting: tuple[SizeRequested, ...] = ()
    stats: GuestStats = GuestStats()

    @property
    def is_lowering(self) -> bool:
        """Whether a limit is being lowered for a downscale that is not agreed on yet."""
        return self.pending is not None and self.pending.is_lowering

    def writes(self) -> Iterator[Write]:
        """The writes that are due, in order; none before the machine is known, or if nothing can be written.

        Of either direction one slow write is under way at a time, and memory.max falls when memory.high has.
        """
        if not self.controls or not self.guard.total_bytes:
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
        """Why the last of the due writes that failed could not be done; empty without any, or if the group is gone."""
        return next((each.error for each in reversed(list(self.refused.values())) if not each.is_gone), "")
