"""All that a runner knows, frozen, split by counterpart. Optional means "not known yet".

`in_use` and `held_at` are the two amounts that everything rests on (design section 4): the amount that may be in use now, and the amount
that the agent may use.
"""

import enum
from typing import Final
from uuid import UUID

from msgspec import field

from agent.core.model import (
    NO_CONTAINERS,
    ContainersSeen,
    Denial,
    PerResource,
    RefusedResizes,
    Sample,
    Vm,
    amounts,
    containers_of,
)
from agent.core.policies.remembered import Remembered
from agent.core.policies.values import Goal, Load, PluginAnswer, Sizing
from agent.core.policies.windows import NO_LIMITS, WindowLimits
from agent.core.timing import Rivalry
from protocol.reasons import ErrorCode, Reason
from protocol.sequence import Life, SequenceSource
from protocol.values import ZERO, ComputeUnit, Observation, Resources, Value
from protocol.versions import InformantProtoVersion, Negotiation, PluginProtoVersion
from protocol.wire import Metrics

NO_DENIALS: Final[PerResource[Denial | None]] = PerResource(None, None)


class PermitRequest(Value, frozen=True):
    """One request to the scheduler, complete: a retry sends the same value, so the same bytes.

    `in_use` is the amount in use when it was made; `claim` is max(held, in use) before it. `is_apart` asks the scheduler to
    take the VM's resources apart. `token` proves to a scheduler that nobody else holds anything of the VM. `told` travels only to a
    scheduler that has echoed the extension.
    """

    life: Life
    number: int
    version: PluginProtoVersion
    resources: Resources
    claim: Resources
    in_use: Resources
    metrics: Metrics | None
    instance: UUID | None
    seen_epoch: int
    is_apart: bool = False
    token: str | None = None
    told: "Means | None" = None

    @property
    def is_growth(self) -> bool:
        """Whether it may be growth to the scheduler: more than it is told that we have."""
        return self.resources.exceeds(self.claim)


class Means(Value, frozen=True):
    """A VM's need without comfort, and the amounts that it could give to others on its node: to any, and to one of higher priority."""

    need: Resources
    spare: Resources = ZERO
    spare_to_higher: Resources = ZERO


class RefusedRequest(Value, frozen=True):
    """An error status in answer to a request; `code` is None if no word of ours came with it. `supported` are the lowest and
    the highest version that the scheduler speaks, if it said so."""

    status: int
    code: ErrorCode | None = None
    supported: tuple[int, int] | None = None


class Yielding(Value, frozen=True):
    """Until `until_s` the VM has no more than `keep`, as far as it needs no more, for the sake of `waiter`, of `priority`;
    without one, because its own quota has to give back."""

    keep: Resources
    waiter: str
    priority: int | None
    until_s: float


class SchedulerState(Value, frozen=True):
    """The scheduler, as this life of the runner knows it.

    `held` is the last permit, lowered by later requests; it is worth something until `lease_until_s`.
    `request` is the latest request; `is_requesting` says that an attempt is under way, `is_answered` that a reply came.
    `unit` is the unit of a peer without the extension, to whom requests must be whole, equal multiples of it. `is_tied` says
    that the last reply took the VM's resources as tied: from such a peer, or although the request asked for apart.
    `denied` is the part of each resource that was not granted; tied, of both at once.
    `fault` says why the last attempt came to nothing, `refusal` has its answer, if one came.
    `is_migrating` says that the VM is being moved away. After an answer `unsettled` at `look_after_s` the VM is looked at
    anew before the next request: somebody may have shrunk it since our last look, and its room be somebody else's.
    `token` names that answer, and `is_fenced` says that such a look has found this life's fence in force: no later life was
    permitted anything before. Nor does an earlier life hold anything from `alone_after_s` on.
    """

    source: SequenceSource = field(default_factory=SequenceSource)
    negotiation: Negotiation = field(default_factory=Negotiation)
    instance: UUID | None = None
    seen_epoch: int = 0
    request: PermitRequest | None = None
    is_requesting: bool = False
    is_answered: bool = False
    has_succeeded: bool = False
    is_unsettled: bool = False
    look_after_s: float = 0.0
    token: str | None = None
    is_fenced: bool = False
    alone_after_s: float = 0.0
    answered_s: float = 0.0
    is_migrating: bool = False
    held: Resources = ZERO
    lease_until_s: float = 0.0
    permit: Resources | None = None
    reasons: tuple[Reason, ...] = ()
    unit: Resources | None = None
    is_tied: bool = False
    denied: PerResource[Denial | None] = NO_DENIALS
    next_tick_s: float = 0.0
    retry_at_s: float = 0.0
    failures: int = 0
    fault: str = ""
    refusal: RefusedRequest | None = None

    def is_alone(self, now_s: float) -> bool:
        """Whether no earlier life of the VM's agent can hold anything any more, by the permit of any scheduler."""
        return self.instance is not None and now_s >= self.alone_after_s

    def proof(self, now_s: float) -> str | None:
        """The token to name in a request, if no other life can hold anything; else None (docs/decisions/0041)."""
        return self.token if self.is_fenced and self.is_alone(now_s) else None

    def denied_until_s(self, wanted: Resources) -> float:
        """Until when a request for `wanted` has to wait, because all growth in it was denied lately; 0 if it need not."""
        waits_s: list[float] = []
        for denial, want, have in zip(self.denied, amounts(wanted), amounts(self.held), strict=True):
            if denial is None and want == have:
                continue
            if denial is None or want < have or want < denial.amount:
                return 0.0
            waits_s.append(denial.until_s)
        return min(waits_s, default=0.0)


class RegistrationPhase(enum.Enum):
    UNREGISTERED = "unregistered"
    REGISTERING = "registering"
    SUSPENDED = "suspended"
    ACTIVE = "active"


class WishPhase(enum.Enum):
    STANDS = "stands"
    KEPT = "kept"
    """The guest can wait again: no more comes, and the gain stays for a while."""
    NEEDED = "needed"
    """It was given back once and missed: it stays as long as the load does."""
    GIVEN_BACK = "given back"
    """The gain may go again. A wish that follows soon says that it was needed."""


class UrgentGrowth(Value, frozen=True):
    """The guest should have `amount` of one resource until `until_s`; `before` was in use at the first of its calls in a row.

    If the guest can wait again, no more comes, and the amount in use stays until then, however small it is: the next call would meet
    the same limits. A gain that was given back and soon wished for again (`relapses` times in a row) stays longer, and as long as the
    load is within a tenth of `peak`, its highest reading while the wish stood or its gain was kept (millionths of a CPU, bytes).
    Of a gain that was given back, `amount` is the size before that.
    """

    amount: int
    until_s: float
    before: int
    phase: WishPhase = WishPhase.STANDS
    peak: int | None = None
    relapses: int = 0

    @property
    def is_over(self) -> bool:
        return self.phase is not WishPhase.STANDS

    def least(self, in_use: int) -> int:
        """The least amount that there should be if `in_use` is in use."""
        match self.phase:
            case WishPhase.STANDS:
                return self.amount
            case WishPhase.KEPT | WishPhase.NEEDED:
                return min(self.amount, in_use)
            case WishPhase.GIVEN_BACK:
                return 0

    def has_same_load(self, load: int | None) -> bool:
        """Whether the load is still what it was with the wish: at that load less was too little."""
        return load is not None and self.peak is not None and 0 < self.peak * 9 <= load * 10 <= self.peak * 11


NO_WISHES: Final[PerResource[UrgentGrowth | None]] = PerResource(None, None)


class InformantState(Value, frozen=True):
    """The informant, as this life of the runner knows it. `known_size` is the last size that was announced to it or approved by it,
    `denied` the downscale that it refused of each resource (tied, of both at once), `wishes` is the urgent growth of the guest.

    `registration` is the ID of this agent there; `resumed_early` notes a `/resume` that came before the answer to
    `/register`.
    """

    phase: RegistrationPhase = RegistrationPhase.UNREGISTERED
    registration: UUID | None = None
    version: InformantProtoVersion | None = None
    metrics_port: int | None = None
    resumed_early: bool = False
    known_size: Resources | None = None
    is_calling: bool = False
    denied: PerResource[Denial | None] = NO_DENIALS
    retry_at_s: float = 0.0
    failures: int = 0
    heard_s: float = 0.0
    wishes: PerResource[UrgentGrowth | None] = NO_WISHES
    fault: str = ""

    @property
    def is_registered(self) -> bool:
        """Whether the informant has accepted the registration, even if it uses another agent."""
        return self.phase in (RegistrationPhase.ACTIVE, RegistrationPhase.SUSPENDED)


class SentResize(Value, frozen=True):
    """A resize that was decided at `sent_s`, and sent not earlier. It counts until a look begun later has shown its
    target, or a look begun after `until_s`, when it can no longer be accepted, is in."""

    target: Resources
    sent_s: float
    until_s: float
    is_seen: bool = False


class ResizeFaults(Value, frozen=True):
    """Resizes that failed since one worked: how many, since when, the last error, and when to try again."""

    failures: int = 0
    since_s: float = 0.0
    fault: str = ""
    retry_at_s: float = 0.0


class Mending(Value, frozen=True):
    """Resizes that were sent to mend control groups which differ from the size: how many in a row, and when the next may be sent."""

    times: int = 0
    next_s: float = 0.0


class BackendState(Value, frozen=True):
    """The VM's back end. `moved_s` is when a look showed another size or target than the one before, `told_s` when the back end told that the
    VM has moved.

    Looks and resizes fail each for themselves: `fault` is that of fences and looks, and a look ends it; the fields of
    `resizing` are those of resizes, and only a resize that works ends them. `refused` are the latest targets that the VM's node did
    not take. `judged` is the result of the last look that compared a pod's control groups with its size.
    """

    is_fenced: bool = False
    is_fencing: bool = False
    observation: Observation | None = None
    is_observing: bool = False
    next_observe_s: float = 0.0
    moved_s: float = 0.0
    told_s: float = 0.0
    sent: SentResize | None = None
    is_resizing: bool = False
    resizing: ResizeFaults = field(default_factory=ResizeFaults)
    refused: RefusedResizes = ()
    judged: ContainersSeen = NO_CONTAINERS
    mending: Mending = field(default_factory=Mending)
    retry_at_s: float = 0.0
    failures: int = 0
    fault: str = ""

    @property
    def containers(self) -> ContainersSeen:
        """The containers of a pod at the last look."""
        return containers_of(self.observation)

    def is_mending_due(self, now_s: float) -> bool:
        """Whether a resize may mend the control groups now: they differ from the size, and the last try is some time ago."""
        return bool(self.containers.mismatched) and now_s >= self.mending.next_s


class LoadReading(Value, frozen=True):
    """A sample, with the plugin that told it (empty for the exporter), and the most that was in use since the reading before."""

    source: str
    sample: Sample
    had: Resources


class MetricsState(Value, frozen=True):
    """The exporter, and the results of the policies. `history` are the readings of the last minute, oldest first; `remembered` has the
    memory of those before, and the goals of the down window. `need` is the last goal without comfort. `had` is the most that was in use since the last reading."""

    is_reading: bool = False
    next_read_s: float = 0.0
    history: tuple[LoadReading, ...] = ()
    had: Resources = ZERO
    remembered: Remembered = field(default_factory=Remembered)
    need: Goal | None = None
    load: Load | None = None
    read_s: float | None = None
    failures: int = 0
    fault: str = ""

    @property
    def source(self) -> str:
        """The plugin that told the last sample; empty for the exporter, and before the first sample."""
        return self.history[-1].source if self.history else ""


class PolicyQuestion(Value, frozen=True):
    """A question to policies in processes of their own: a goal for this load."""

    load: Load
    sizing: Sizing


class PluginPoliciesState(Value, frozen=True):
    """The policies in processes of their own. `asked` is the present question, `next` the one after it: always the newest.
    `answers` came at `answered_s` and count in steps of `step`."""

    asked: PolicyQuestion | None = None
    next: PolicyQuestion | None = None
    answers: tuple[PluginAnswer, ...] = ()
    step: Resources = ZERO
    answered_s: float | None = None

    @property
    def fault(self) -> str:
        """The fault of the answers, or why there were none; empty if all is well."""
        return "; ".join(each.error for each in self.answers if each.error)

    def fresh(self, step: Resources, now_s: float, stale_s: float) -> tuple[PluginAnswer, ...]:
        """The answers that count now, in steps of `step`."""
        answered_s = self.answered_s
        is_fresh = answered_s is not None and now_s - answered_s <= stale_s and step == self.step
        return self.answers if is_fresh else ()


class RunnerState(Value, frozen=True):
    """One life of one runner, begun at `began_s`.

    `superseded_at_ms` is set when another agent owns the VM, or has fenced it: the runner does nothing more.
    `rivalry` is what earlier lives of the runner met.
    """

    vm: Vm
    life: Life
    began_s: float = 0.0
    scheduler: SchedulerState = field(default_factory=SchedulerState)
    informant: InformantState = field(default_factory=InformantState)
    backend: BackendState = field(default_factory=BackendState)
    metrics: MetricsState = field(default_factory=MetricsState)
    policies: PluginPoliciesState = field(default_factory=PluginPoliciesState)
    limits: WindowLimits = NO_LIMITS
    """The windows that are open now."""
    yielding: Yielding | None = None
    superseded_at_ms: int | None = None
    rivalry: Rivalry = field(default_factory=Rivalry)

    @property
    def unit(self) -> ComputeUnit:
        """The VM's compute unit now: tied if the VM is, or if the scheduler's last reply took it so."""
        return self.vm.unit.tied() if self.scheduler.is_tied else self.vm.unit

    def in_use(self) -> Resources:
        """max(size, target, a resize that was sent and whose target is not seen yet); zero before the first look."""
        amount, seen = ZERO, self.backend.observation
        if seen is not None:
            amount = seen.size if seen.is_at_rest else seen.use
        if self.backend.sent is not None:
            amount = amount.max(self.backend.sent.target)
        return amount

    def is_calm(self, now_s: float, stall_s: float) -> bool:
        """Whether nothing moves: the VM is at rest, its node refuses the target or says falsely that it is reached, or the VM has not come
        nearer to its target for `stall_s`.

        A guest may keep a part of its memory for ever; that must not keep everything else waiting.
        """
        link = self.backend
        if link.observation is None or link.sent is not None:
            return False
        seen = link.observation
        is_over = seen.is_at_rest or seen.refusal is not None or bool(link.containers.mismatched)
        return is_over or now_s >= link.moved_s + stall_s

    def refused_at(self, now_s: float) -> RefusedResizes:
        """The targets that the VM's node did not take, as long as they are not tried again."""
        return tuple(each for each in self.backend.refused if now_s < each.until_s)

    def held_at(self, now_s: float) -> Resources:
        """The amount that the agent may use now: nothing once the lease has run out."""
        return self.scheduler.held if now_s < self.scheduler.lease_until_s else ZERO

    def claim_at(self, now_s: float) -> Resources:
        return self.held_at(now_s).max(self.in_use())
