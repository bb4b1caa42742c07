"""What happens to the guest's size and limits (past tense), and what its shell is to do (imperative).

Each action ends as exactly one event, at once; a slow `Write` ends as `WriteBegun` at once, and as `WriteDone` or
`WriteFailed` later.
"""

from dataclasses import dataclass
from typing import TypeAlias

from informant.core.limits import Control, Write
from informant.core.report import CgroupReading, Reading
from informant.core.shortage import Shortage
from protocol.values import Resources
from protocol.wire import DownscaleResult, MoreResources


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """`PUT /downscale`, or `PUT /upscale` where `is_upscale`. Each request has a `number` of its own."""

    number: int
    size: Resources
    is_upscale: bool = False


# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class ReadGuest:
    """Read the machine and the group, for the request that is being decided."""


@dataclass(frozen=True, slots=True)
class AdoptSize:
    """The guest lives in `size` from now on: keep it over restarts. Wishes for the resources that have `grown` are met."""

    size: Resources
    hidden_bytes: int
    grown: MoreResources


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Answer a request. `error` names a fault that kept the limits from following; empty where there was none."""

    request: SizeRequest
    result: DownscaleResult
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportShortage:
    """Wish for more of what is short."""

    shortage: Shortage


GuestAction: TypeAlias = Write | ReadGuest | AdoptSize | AnswerRequest | ReportShortage

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class GroupFound:
    """The program has started and found the workload's group. `size` and `hidden_bytes` are what an earlier life kept."""

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
    """An agent sent a request."""

    request: SizeRequest


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


@dataclass(frozen=True, slots=True)
class GuestRead:
    """The outcome of `ReadGuest`."""

    reading: Reading


@dataclass(frozen=True, slots=True)
class GuestUnreadable:
    """The guest could not be read for a request."""

    error: str


@dataclass(frozen=True, slots=True)
class WriteBegun:
    """A slow write is under way: the value counts from here on, only to free what lies above it takes its time."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteDone:
    """A control file was written."""

    write: Write


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A control file could not be written. `is_gone` where the group was removed: an ended workload needs no limit."""

    write: Write
    error: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class SizeAdopted:
    """The outcome of `AdoptSize`: the resources that had been wished for."""

    met: MoreResources


@dataclass(frozen=True, slots=True)
class ShortageReported:
    """The outcome of `ReportShortage`."""


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """The outcome of `AnswerRequest`."""

    answer: AnswerRequest


GuestEvent: TypeAlias = (
    GroupFound
    | GuestSampled
    | SizeRequested
    | RequestWithdrawn
    | TimePassed
    | ProgramEnding
    | GuestRead
    | GuestUnreadable
    | WriteBegun
    | WriteDone
    | WriteFailed
    | SizeAdopted
    | ShortageReported
    | RequestAnswered
)
