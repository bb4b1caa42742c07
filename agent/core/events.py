"""Events (past tense) and actions (imperative). Each action ends as exactly one event.

`chance` in an event is a random number in [0, 1) drawn by the shell, for jitter; `now_s` comes with `apply`.
"""

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from agent.core.model import Sample, Vm
from agent.core.policies.values import Load, PluginAnswer, Sizing
from agent.core.policies.windows import WindowLimits
from agent.core.state import PermitRequest
from protocol.codec import ReadErrorBody
from protocol.reasons import Reason
from protocol.values import ComputeUnit, Observation, Resources
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Fence:
    """Make sure that no command of an earlier life can take effect any more."""


@dataclass(frozen=True, slots=True)
class Observe:
    """Look at the VM's size and target; if `checks_fence`, also whether this life may still command the VM."""

    checks_fence: bool = False


@dataclass(frozen=True, slots=True)
class RequestPermit:
    """Ask the scheduler for a permit."""

    request: PermitRequest


@dataclass(frozen=True, slots=True)
class Resize:
    """Set the VM's target, if the target that was `seen` still stands and `not_after_s` has not passed."""

    target: Resources
    seen: Resources
    not_after_s: float


@dataclass(frozen=True, slots=True)
class Register:
    """Register with the informant."""


@dataclass(frozen=True, slots=True)
class AskDownscale:
    amount: Resources


@dataclass(frozen=True, slots=True)
class AnnounceUpscale:
    """Tell the informant that the VM has `amount` now."""

    amount: Resources


@dataclass(frozen=True, slots=True)
class ReadMetrics:
    """Read the exporter."""

    port: int


@dataclass(frozen=True, slots=True)
class AskPolicies:
    load: Load
    sizing: Sizing


Action: TypeAlias = (
    Fence
    | Observe
    | RequestPermit
    | Resize
    | Register
    | AskDownscale
    | AnnounceUpscale
    | ReadMetrics
    | AskPolicies
)

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Started:
    """An action was started. This event is applied before any other, so that no action is started twice."""

    action: Action
    registration: UUID | None = None
    """The ID made for a `Register`."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """No command of an earlier life can take effect any more."""


@dataclass(frozen=True, slots=True)
class FenceFailed:
    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class Observed:
    """The VM was looked at. `is_fenced` says that after the look had begun this life could still command the VM."""

    observation: Observation
    chance: float = 0.0
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class ObserveFailed:
    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class PermitGranted:
    """The scheduler answered with a permit. `sent_s` is when the answered attempt was sent.

    `echoed_number` and `instance` are None from a peer without the extension.
    """

    number: int
    permit: Resources
    unit: ComputeUnit
    sent_s: float
    reasons: tuple[Reason, ...] = ()
    echoed_number: int | None = None
    instance: UUID | None = None
    epoch: int = 0
    migrate: bool = False
    chance: float = 0.0
    token: str | None = None


@dataclass(frozen=True, slots=True)
class PermitRefused:
    """The scheduler answered with an error status; `body` is its JSON, None from a published peer."""

    number: int
    status: int
    body: ReadErrorBody | None
    retry_after_s: float | None
    chance: float


@dataclass(frozen=True, slots=True)
class PermitFailed:
    """No usable answer came: a time-out, a cut connection, garbage."""

    number: int
    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class ResizeAccepted:
    """The back end took the new target."""


@dataclass(frozen=True, slots=True)
class ResizeFailed:
    """The back end has not taken the target, or may not have; the target counts until a later look."""

    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class ResizeRefused:
    """The target was refused for a reason that lasts; nothing was accepted, and nothing is on its way."""

    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class ResizePostponed:
    """The VM cannot be resized now; nothing was accepted, and nothing is on its way. A look will show when it can."""

    why: str
    chance: float


@dataclass(frozen=True, slots=True)
class FencedOff:
    """A later life has fenced the VM: no command of this one takes effect any more."""


@dataclass(frozen=True, slots=True)
class Registered:
    registration: UUID
    version: InformantProtoVersion
    metrics_port: int


@dataclass(frozen=True, slots=True)
class RegisterFailed:
    error: str
    chance: float


@dataclass(frozen=True, slots=True)
class DownscaleApproved:
    """The informant lives with `amount`."""

    amount: Resources


@dataclass(frozen=True, slots=True)
class DownscaleDenied:
    """The informant needs more than `amount`."""

    amount: Resources
    status: str


@dataclass(frozen=True, slots=True)
class UpscaleAnnounced:
    """The informant knows of `amount`."""

    amount: Resources


@dataclass(frozen=True, slots=True)
class InformantFailed:
    """A call to the informant failed; `is_lost` says that no informant is there any more."""

    error: str
    is_lost: bool
    chance: float


@dataclass(frozen=True, slots=True)
class InformantHeard:
    """The informant asked for our ID."""

    registration: UUID


@dataclass(frozen=True, slots=True)
class Resumed:
    """The informant uses this agent."""

    registration: UUID


@dataclass(frozen=True, slots=True)
class Suspended:
    """The informant uses another agent."""

    registration: UUID


@dataclass(frozen=True, slots=True)
class TryUpscaleReceived:
    """The informant called `/try-upscale`: the guest cannot wait for more. With no resource named, an earlier call is
    cancelled. `why` is the informant's reason, for people; empty if it gives none."""

    registration: UUID
    more_resources: MoreResources
    why: str = ""


@dataclass(frozen=True, slots=True)
class WindowsMoved:
    """A time window opened or closed: these floors and ceilings hold now."""

    limits: WindowLimits


@dataclass(frozen=True, slots=True)
class VmChanged:
    """The same VM is described otherwise: bounds, compute unit or memory slot."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class VmMoved:
    """The back end has told that the VM is not as it was, or that it is out of reach: the last look is out of date."""


@dataclass(frozen=True, slots=True)
class RoomNoticed:
    """The scheduler says that a request would be permitted `amount` now."""

    amount: Resources


@dataclass(frozen=True, slots=True)
class YieldNoticed:
    """The scheduler asks the VM to shrink to `keep`, because `waiter`, of `priority`, needs the rest. Without a priority it is the VM's own
    quota that has to give back, to whomever it borrowed from."""

    keep: Resources
    waiter: str
    priority: int | None


@dataclass(frozen=True, slots=True)
class EpochNoticed:
    """Another scheduler process answers than before."""

    chance: float


@dataclass(frozen=True, slots=True)
class MetricsRead:
    """The load was read: from the metrics plugin `source`, or from the VM's exporter (empty). `fault` says why a plugin
    that should have told the load did not."""

    sample: Sample
    source: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class MetricsFailed:
    """The exporter did not answer usefully; `is_lost` says that nothing listens there."""

    error: str
    is_lost: bool
    chance: float


@dataclass(frozen=True, slots=True)
class PoliciesAnswered:
    """The policies in processes of their own were asked: one answer for each, or why there is none."""

    answers: tuple[PluginAnswer, ...]


Event: TypeAlias = (
    Started
    | Fenced
    | FenceFailed
    | Observed
    | ObserveFailed
    | PermitGranted
    | PermitRefused
    | PermitFailed
    | ResizeAccepted
    | ResizeFailed
    | ResizeRefused
    | ResizePostponed
    | FencedOff
    | Registered
    | RegisterFailed
    | DownscaleApproved
    | DownscaleDenied
    | UpscaleAnnounced
    | InformantFailed
    | InformantHeard
    | Resumed
    | Suspended
    | TryUpscaleReceived
    | WindowsMoved
    | VmChanged
    | VmMoved
    | RoomNoticed
    | YieldNoticed
    | EpochNoticed
    | MetricsRead
    | MetricsFailed
    | PoliciesAnswered
)
