"""Events of the guest's size and limits (past tense), and actions for its shell (imperative).

Each action ends as one event at once: `Done`, unless another one is named here. A `Write` ends as `WriteEnded`; a slow one as
`WriteBegun`, and as `WriteEnded` later.
"""

from dataclasses import dataclass
from typing import TypeAlias

from informant.core.limits import Control, Write
from informant.core.report import CgroupReading, Reading
from informant.core.shortage import Shortage
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
