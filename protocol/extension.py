"""Parley's extension of the agent ↔ scheduler messages: extra fields that published peers ignore.

They are present together or not at all. `raw` carries exact amounts and wins over the integers of the published
fields, which hold it rounded up in a request and down in a permit, saturating. Source: design section 4.
"""

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from protocol import values, wire
from protocol.fields import PodUid, Positive64, Text, Uint64, WireQuantity
from protocol.fields import wire as named
from protocol.reasons import Reason, ReasonCode
from protocol.wire import RequestExtension as RequestExtension

AGENT_HEADER = "Parley-Agent"
"""Request header with the agentID, so that overload can be answered before the body is parsed."""


@dataclass(frozen=True, slots=True)
class RawAmount(wire.Message):
    """Exact amounts as quantities: whole milli-CPU and whole bytes, neither negative."""

    cpu: Annotated[WireQuantity, named("cpu")]
    memory: Annotated[WireQuantity, named("memory")]

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
        """The amount as it travels."""
        return cls(*amount.as_quantities())


class ExactAmount:
    """Marks a `values.Resources` that travels as a `RawAmount`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(RawAmount.to_resources, handler(RawAmount))


class TypedReason:
    """Marks a `Reason` that travels as a `WireReason`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(WireReason.to_reason, handler(WireReason))


WireAmount = Annotated[values.Resources, ExactAmount()]


@dataclass(frozen=True, slots=True)
class WireReason(wire.Message):
    """A `Reason` as it travels; `resource` and `retryAfterSeconds` are left out when there is none."""

    OMITTED_WHEN_NONE = frozenset({"resource", "retryAfterSeconds"})

    code: Annotated[str, Text(64, low=1), named("code")]
    message: Annotated[str, Text(1024), named("message")]
    resource: Annotated[str | None, named("resource")] = None
    retry_after_s: Annotated[float | None, named("retryAfterSeconds")] = None

    def to_reason(self) -> Reason:
        """The typed reason; an unknown code becomes `OTHER` and keeps its text in the message."""
        code = ReasonCode(self.code)
        message = f"{self.code}: {self.message}" if code is ReasonCode.OTHER else self.message
        return Reason(code, message, self.resource, self.retry_after_s)

    @classmethod
    def from_reason(cls, reason: Reason) -> "WireReason":
        """The reason as it travels."""
        return cls(reason.code.value, reason.message, reason.resource, reason.retry_after_s)


@dataclass(frozen=True, slots=True)
class RawRequest(wire.Message):
    """Exact amounts of a request. `last_permit` is the claim: max(held, in use) before this request."""

    resources: Annotated[WireAmount, named("resources")]
    last_permit: Annotated[WireAmount | None, named("lastPermit")]
    compute_unit: Annotated[WireAmount | None, named("computeUnit")]


@dataclass(frozen=True, slots=True)
class RawReply(wire.Message):
    """Exact amounts of a reply."""

    permit: Annotated[WireAmount, named("permit")]
    compute_unit: Annotated[WireAmount, named("computeUnit")]


@dataclass(frozen=True, slots=True)
class ExtendedRequest(wire.AgentRequest):
    """An `AgentRequest` of a caller with the extension."""

    agent_id: Annotated[UUID, named("agentID")]
    """UUID of this runner's life."""
    agent_started_at_ms: Annotated[Uint64, named("agentStartedAtMs")]
    """When that life began, in milliseconds of Unix time; a later one supersedes."""
    pod_uid: Annotated[PodUid, named("podUID")]
    sequence_number: Annotated[Positive64, named("sequenceNumber")]
    """From 1, rising by at least one with each new request of this life."""
    seen_epoch: Annotated[Uint64, named("seenEpoch")]
    """The highest scheduler epoch that this agent process has seen; 0 = none."""
    scheduler_instance: Annotated[UUID | None, named("schedulerInstance")]
    """The scheduler process last heard from; None at first."""
    raw: Annotated[RawRequest, named("raw")]

    @property
    def extension(self) -> wire.RequestExtension:
        """Interim."""
        return wire.RequestExtension(
            self.agent_id,
            self.agent_started_at_ms,
            self.pod_uid,
            self.sequence_number,
            self.seen_epoch,
            self.scheduler_instance,
            self.raw.resources,
            self.raw.last_permit,
            self.raw.compute_unit,
        )


@dataclass(frozen=True, slots=True)
class ExtendedResponse(wire.PluginResponse):
    """A `PluginResponse` to a caller with the extension."""

    sequence_number: Annotated[Positive64, named("sequenceNumber")]
    """The number of the request that this answers."""
    scheduler_instance: Annotated[UUID, named("schedulerInstance")]
    """The scheduler process that answered; it tells restarts."""
    scheduler_epoch: Annotated[Uint64, named("schedulerEpoch")]
    """Fencing epoch; 0 for a standalone scheduler."""
    raw: Annotated[RawReply, named("raw")]
    reasons: Annotated[tuple[Annotated[Reason, TypedReason()], ...], named("reasons")]
    """Why the permit is below the request; the binding reason first."""
