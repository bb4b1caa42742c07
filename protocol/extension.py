"""Parley's extension of the agent ↔ scheduler messages: extra fields that published peers ignore.

They are present together or not at all: `wire.AgentRequest` and `wire.PluginResponse` embed them as one value. `raw`
carries exact amounts and wins over the integers of the published fields, which hold it rounded up in a request and down
in a permit, saturating. Source: design section 4.
"""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, field

from protocol import values
from protocol.fields import As, Float64, Message, PodUid, Positive64, Uint64, WireQuantity
from protocol.reasons import Reason, ReasonCode

AGENT_HEADER = "Parley-Agent"
"""Request header with the agentID, so that overload can be answered before the body is parsed."""

Token = Annotated[str, Meta(min_length=1, max_length=64)]
"""Names an answer. Opaque to agents."""
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
"""As of pods in Kubernetes: higher goes first."""


class RawAmount(Message, frozen=True):
    """Exact amounts as quantities: whole milli-CPU and whole bytes, neither negative."""

    MUST_BE_WHOLE = True

    cpu: WireQuantity
    memory: WireQuantity

    def to_resources(self) -> values.Resources:
        """The amount in decision units. Raises `ValueError` for fractions of a milli-CPU or a byte, and beyond range."""
        vcpu_milli, memory_bytes = self.cpu.exact_milli_value(), self.memory.exact_value()
        if vcpu_milli is None or not 0 <= vcpu_milli <= values.MAX_VCPU_MILLI:
            raise ValueError(f"cpu must be a whole number of milli-CPU, 0 or more, not {self.cpu}")
        if memory_bytes is None or not 0 <= memory_bytes <= values.MAX_MEMORY_BYTES:
            raise ValueError(f"memory must be a whole number of bytes, 0 to 2^63 - 1, not {self.memory}")
        return values.Resources(vcpu_milli, memory_bytes)

    @classmethod
    def from_resources(cls, amount: values.Resources) -> "RawAmount":
        return cls(*amount.as_quantities())


class RawUnit(Message, frozen=True):
    """A compute unit as it travels in a reply: `RawAmount` with the word whether its resources are apart; absent = tied."""

    MUST_BE_WHOLE = True
    OMITTED_WHEN_NONE = frozenset({"apart"})

    cpu: WireQuantity
    memory: WireQuantity
    apart: bool | None = None

    def to_unit(self) -> values.ComputeUnit:
        """The unit in decision units. Raises `ValueError` as `RawAmount.to_resources` does."""
        return values.ComputeUnit(RawAmount(self.cpu, self.memory).to_resources(), self.apart is True)

    @classmethod
    def from_unit(cls, unit: values.ComputeUnit) -> "RawUnit":
        return cls(*unit.step.as_quantities(), True if unit.is_apart else None)


class WireReason(Message, frozen=True):
    """A `Reason` as it travels; `resource` and `retryAfterSeconds` are left out when there is none."""

    MUST_BE_WHOLE = True
    OMITTED_WHEN_NONE = frozenset({"resource", "retryAfterSeconds"})

    code: Annotated[str, Meta(min_length=1, max_length=64)]
    message: Annotated[str, Meta(max_length=1024)]
    resource: str | None = None
    retry_after_s: Float64 | None = field(default=None, name="retryAfterSeconds")

    def to_reason(self) -> Reason:
        """The typed reason; an unknown code becomes `OTHER` and keeps its text in the message."""
        code = ReasonCode(self.code)
        message = f"{self.code}: {self.message}" if code is ReasonCode.OTHER else self.message
        return Reason(code, message, self.resource, self.retry_after_s)

    @classmethod
    def from_reason(cls, reason: Reason) -> "WireReason":
        return cls(reason.code.value, reason.message, reason.resource, reason.retry_after_s)


WireAmount = Annotated[
    values.Resources, As(RawAmount, RawAmount.to_resources, RawAmount.from_resources, is_kept=True)
]
WireUnit = Annotated[values.ComputeUnit, As(RawUnit, RawUnit.to_unit, RawUnit.from_unit, is_kept=True)]
TypedReason = Annotated[Reason, As(WireReason, WireReason.to_reason, WireReason.from_reason)]


class RawRequest(Message, frozen=True):
    """Exact amounts of a request."""

    MUST_BE_WHOLE = True
    IS_KEPT = True
    OMITTED_WHEN_NONE = frozenset({"apart"})

    resources: WireAmount
    last_permit: WireAmount | None = field(name="lastPermit")
    compute_unit: WireAmount | None = field(name="computeUnit")
    """The step of each resource."""
    apart: bool | None = None
    """Whether the resources are apart; absent, null and false say that they are tied."""


class RawReply(Message, frozen=True):
    """Exact amounts of a reply."""

    MUST_BE_WHOLE = True
    IS_KEPT = True

    permit: WireAmount
    compute_unit: WireUnit = field(name="computeUnit")


class RequestExtension(Message, frozen=True):
    """The fields that a caller with the extension adds to an `AgentRequest`."""

    MUST_BE_WHOLE = True
    OMITTED_WHEN_NONE = frozenset({"token", "need", "spare", "spareToHigher", "priority"})

    agent_id: UUID = field(name="agentID")
    """UUID of this runner's life."""
    agent_started_at_ms: Uint64 = field(name="agentStartedAtMs")
    """When that life began, in milliseconds of Unix time; a later one supersedes."""
    pod_uid: PodUid = field(name="podUID")
    sequence_number: Positive64 = field(name="sequenceNumber")
    """From 1, rising by at least one with each new request of this life."""
    seen_epoch: Uint64 = field(name="seenEpoch")
    """The highest scheduler epoch that this agent process has seen; 0 = none."""
    scheduler_instance: UUID | None = field(name="schedulerInstance")
    """The scheduler process last heard from; None at first."""
    raw: RawRequest
    token: Token | None = None
    """The token of the scheduler's last answer, by a life that has proved since then that nobody else holds anything of the VM
    (docs/decisions/0041); else left out."""
    # What follows travels only to a scheduler that has echoed the extension: a first request stays within 1,024 bytes.
    need: WireAmount | None = None
    """The amount that the VM's policies need now, without comfort (down window, tail, surge, target headroom); left out if they need all
    that is asked for."""
    spare: WireAmount | None = None
    """The amount that the VM could give back of `lastPermit` for another VM's need; left out for nothing."""
    spare_to_higher: WireAmount | None = field(default=None, name="spareToHigher")
    """The same towards a VM of higher priority, `spare` included; left out if it is no more."""
    priority: Priority | None = None
    """The VM's priority; left out for 0."""

    @property
    def resources(self) -> values.Resources:
        """The wanted amount, exactly."""
        return self.raw.resources

    @property
    def last_permit(self) -> values.Resources | None:
        """The claim: max(held, in use) before this request."""
        return self.raw.last_permit

    @property
    def is_apart(self) -> bool:
        """Whether the agent wants each resource to have its own number of units."""
        return self.raw.apart is True


class ReplyExtension(Message, frozen=True):
    """The fields that a `PluginResponse` to a caller with the extension adds."""

    MUST_BE_WHOLE = True
    OMITTED_WHEN_NONE = frozenset({"token"})

    sequence_number: Positive64 = field(name="sequenceNumber")
    """The number of the request that this answers."""
    scheduler_instance: UUID = field(name="schedulerInstance")
    """The scheduler process that answered; it tells restarts."""
    scheduler_epoch: Uint64 = field(name="schedulerEpoch")
    """Fencing epoch; 0 for a standalone scheduler."""
    raw: RawReply
    reasons: tuple[TypedReason, ...]
    """Why the permit is below the request; the binding reason first."""
    token: Token | None = None
    """Names this answer, if the VM's row is not settled yet."""

    @property
    def permit(self) -> values.Resources:
        """The permitted amount, exactly."""
        return self.raw.permit

    @property
    def compute_unit(self) -> values.ComputeUnit:
        return self.raw.compute_unit
