"""Events (past tense) and actions (imperative). Each action ends as exactly one event.

`chance` in an event is a random number in [0, 1) drawn by the shell, for jitter; `now_s` comes with `apply`.
"""

from typing import TypeAlias
from uuid import UUID

from agent.core.model import Sample, Vm
from agent.core.policies.values import Load, PluginAnswer, Sizing
from agent.core.policies.windows import WindowLimits
from agent.core.state import PermitRequest
from protocol.codec import ReadErrorBody
from protocol.reasons import Reason
from protocol.values import ComputeUnit, Observation, Resources, Value
from protocol.versions import InformantProtoVersion
from protocol.wire import MoreResources

# ---------------------------------------------------------------- actions


class Fence(Value, frozen=True):
    """Make sure that no command of an earlier life can take effect any more."""


class Observe(Value, frozen=True):
    """Look at the VM's size and target; if `checks_fence`, also whether this life may still command the VM."""

    checks_fence: bool = False


class RequestPermit(Value, frozen=True):
    """Ask the scheduler for a permit."""

    request: PermitRequest


class Resize(Value, frozen=True):
    """Set the VM's target, if the target that was `seen` still stands and `not_after_s` has not passed."""

    target: Resources
    seen: Resources
    not_after_s: float


class Register(Value, frozen=True):
    """Register with the informant."""


class AskDownscale(Value, frozen=True):
    amount: Resources


class AnnounceUpscale(Value, frozen=True):
    """Tell the informant that the VM has `amount` now."""

    amount: Resources


class ReadMetrics(Value, frozen=True):
    """Read the exporter."""

    port: int


class AskPolicies(Value, frozen=True):
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


class Started(Value, frozen=True):
    """An action was started. This event is applied before any other, so that no action is started twice."""

    action: Action
    registration: UUID | None = None
    """The ID made for a `Register`."""


class Fenced(Value, frozen=True):
    """No command of an earlier life can take effect any more."""


class FenceFailed(Value, frozen=True):
    error: str
    chance: float


class Observed(Value, frozen=True):
    """The VM was looked at. `is_fenced` says that after the look had begun this life could still command the VM."""

    observation: Observation
    chance: float = 0.0
    is_fenced: bool = False


class ObserveFailed(Value, frozen=True):
    error: str
    chance: float


class PermitGranted(Value, frozen=True):
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


class PermitRefused(Value, frozen=True):
    """The scheduler answered with an error status; `body` is its JSON, None from a published peer."""

    number: int
    status: int
    body: ReadErrorBody | None
    retry_after_s: float | None
    chance: float


class PermitFailed(Value, frozen=True):
    """No usable answer came: a time-out, a cut connection, garbage."""

    number: int
    error: str
    chance: float


class ResizeAccepted(Value, frozen=True):
    """The back end took the new target."""


class ResizeFailed(Value, frozen=True):
    """The back end has not taken the target, or may not have; the target counts until a later look."""

    error: str
    chance: float


class ResizeRefused(Value, frozen=True):
    """The target was refused for a reason that lasts; nothing was accepted, and nothing is on its way."""

    error: str
    chance: float


class ResizePostponed(Value, frozen=True):
    """The VM cannot be resized now; nothing was accepted, and nothing is on its way. A look will show when it can."""

    why: str
    chance: float


class FencedOff(Value, frozen=True):
    """A later life has fenced the VM: no command of this one takes effect any more."""


class Registered(Value, frozen=True):
    registration: UUID
    version: InformantProtoVersion
    metrics_port: int


class RegisterFailed(Value, frozen=True):
    error: str
    chance: float


class DownscaleApproved(Value, frozen=True):
    """The informant lives with `amount`."""

    amount: Resources


class DownscaleDenied(Value, frozen=True):
    """The informant needs more than `amount`."""

    amount: Resources
    status: str


class UpscaleAnnounced(Value, frozen=True):
    """The informant knows of `amount`."""

    amount: Resources


class InformantFailed(Value, frozen=True):
    """A call to the informant failed; `is_lost` says that no informant is there any more."""

    error: str
    is_lost: bool
    chance: float


class InformantHeard(Value, frozen=True):
    """The informant asked for our ID."""

    registration: UUID


class Resumed(Value, frozen=True):
    """The informant uses this agent."""

    registration: UUID


class Suspended(Value, frozen=True):
    """The informant uses another agent."""

    registration: UUID


class TryUpscaleReceived(Value, frozen=True):
    """The informant called `/try-upscale`: the guest cannot wait for more. With no resource named, an earlier call is
    cancelled. `why` is the informant's reason, for people; empty if it gives none."""

    registration: UUID
    more_resources: MoreResources
    why: str = ""


class WindowsMoved(Value, frozen=True):
    """A time window opened or closed: these floors and ceilings hold now."""

    limits: WindowLimits


class VmChanged(Value, frozen=True):
    """The same VM is described otherwise: bounds, compute unit or memory slot."""

    vm: Vm


class VmMoved(Value, frozen=True):
    """The back end has told that the VM is not as it was, or that it is out of reach: the last look is out of date."""


class RoomNoticed(Value, frozen=True):
    """The scheduler says that a request would be permitted `amount` now."""

    amount: Resources


class YieldNoticed(Value, frozen=True):
    """The scheduler asks the VM to shrink to `keep`, because `waiter`, of `priority`, needs the rest. Without a priority it is the VM's own
    quota that has to give back, to whomever it borrowed from."""

    keep: Resources
    waiter: str
    priority: int | None


class EpochNoticed(Value, frozen=True):
    """Another scheduler process answers than before."""

    chance: float


class MetricsRead(Value, frozen=True):
    """The load was read: from the metrics plugin `source`, or from the VM's exporter (empty). `fault` says why a plugin
    that should have told the load did not."""

    sample: Sample
    source: str = ""
    fault: str = ""


class MetricsFailed(Value, frozen=True):
    """The exporter did not answer usefully; `is_lost` says that nothing listens there."""

    error: str
    is_lost: bool
    chance: float


class PoliciesAnswered(Value, frozen=True):
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
