"""The messages of seed 004 as they travel: field by field the published shapes, frozen, without behaviour.

Names on the wire are the aliases (`vCPUs`, `resourceUnit`, `Ok`). `SlotResources` here is the *wire* form, whole vCPUs
and memory slots; decisions are made in `protocol.values.SlotResources`. `protocol.codec` reads and writes these types,
`docs/protocol.md` lists every published name beside ours.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Generic, TypeVar
from uuid import UUID

from pydantic import ConfigDict

from protocol import quantities
from protocol.fields import UINT16_MAX, UINT32_MAX, Float32, Uint, Uint16, Uint64, WireQuantity, wire
from protocol.quantities import Quantity
from protocol.values import Resources, Value
from protocol.versions import InformantProtoVersion, PluginProtoVersion, VersionRange

NIL_UUID: Final = UUID(int=0)

T = TypeVar("T")

WirePluginVersion = Annotated[PluginProtoVersion, Uint(UINT32_MAX)]
WireInformantVersion = Annotated[InformantProtoVersion, Uint(UINT32_MAX)]


class Message:
    """Base of every type that travels: read strictly, unknown fields refused, left out where `OMITTED_WHEN_NONE`."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    OMITTED_WHEN_NONE: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class PodName(Message):
    """The namespaced name of a pod. Source: seed 004."""

    name: Annotated[str, wire("name")]
    namespace: Annotated[str, wire("namespace")]

    def __str__(self) -> str:
        """`namespace:name`."""
        return f"{self.namespace}:{self.name}"


@dataclass(frozen=True, slots=True)
class MoreResources(Message):
    """Which resources are wanted. Source: seed 004."""

    cpu: Annotated[bool, wire("cpu")]
    memory: Annotated[bool, wire("memory")]

    def not_(self) -> "MoreResources":
        """The field-wise logical "not". Source: seed 004, Not."""
        return MoreResources(not self.cpu, not self.memory)

    def and_(self, other: "MoreResources") -> "MoreResources":
        """The field-wise logical "and". Source: seed 004, And."""
        return MoreResources(self.cpu and other.cpu, self.memory and other.memory)


@dataclass(frozen=True, slots=True)
class RawResources(Message):
    """Raw amounts, as the informant understands them: `cpu` in CPUs, `memory` in bytes. Source: seed 004."""

    cpu: Annotated[WireQuantity | None, wire("cpu")]
    memory: Annotated[WireQuantity | None, wire("memory")]


@dataclass(frozen=True, slots=True)
class SlotResources(Message):
    """Whole vCPUs and memory slots, each a uint16; the slot size comes from the VM. Source: seed 004."""

    vcpu: Annotated[Uint16, wire("vCPUs")]
    mem: Annotated[Uint16, wire("mem")]

    def __post_init__(self) -> None:
        for name, amount in (("vcpu", self.vcpu), ("mem", self.mem)):
            if not 0 <= amount <= UINT16_MAX:
                raise ValueError(f"{name} must lie in 0..{UINT16_MAX}, not {amount}")

    def validate_non_zero(self) -> None:
        """Raise `ValueError` naming the first field that is zero. Source: seed 004, ValidateNonZero."""
        for name, amount in (("vCPUs", self.vcpu), ("mem", self.mem)):
            if amount == 0:
                raise ValueError(f"{name} must be non-zero")

    def has_field_greater_than(self, other: "SlotResources") -> bool:
        """Whether any field exceeds the other's. Source: seed 004."""
        return self.vcpu > other.vcpu or self.mem > other.mem

    def has_field_less_than(self, other: "SlotResources") -> bool:
        """Whether any field is below the other's. Source: seed 004."""
        return other.has_field_greater_than(self)

    def min(self, other: "SlotResources") -> "SlotResources":
        """The minimum of each field. Source: seed 004."""
        return SlotResources(min(self.vcpu, other.vcpu), min(self.mem, other.mem))

    def max(self, other: "SlotResources") -> "SlotResources":
        """The maximum of each field. Source: seed 004."""
        return SlotResources(max(self.vcpu, other.vcpu), max(self.mem, other.mem))

    def mul(self, factor: int) -> "SlotResources":
        """Each field times `factor`. Raises `ValueError` beyond uint16, where the published one wraps."""
        return SlotResources(self.vcpu * factor, self.mem * factor)

    def increase_from(self, old: "SlotResources") -> MoreResources:
        """Which fields are above `old`. Source: seed 004, IncreaseFrom."""
        return MoreResources(self.vcpu > old.vcpu, self.mem > old.mem)

    def convert_to_raw(self, mem_slot_size: Quantity) -> RawResources:
        """The raw amounts, memory being slots times the slot's whole bytes. Source: seed 004, ConvertToRaw."""
        memory = Quantity(mem_slot_size.value() * self.mem * quantities.NANO, quantities.Format.BINARY_SI)
        return RawResources(quantities.from_value(self.vcpu), memory)


@dataclass(frozen=True, slots=True)
class Metrics(Message):
    """Load averages of the VM, float32, finite. Source: seed 004."""

    load_average_1min: Annotated[Float32, wire("loadAvg1M")]
    load_average_5min: Annotated[Float32, wire("loadAvg5M")]


class RequestExtension(Value, frozen=True):
    """Interim."""

    agent_id: UUID
    agent_started_at_ms: int
    pod_uid: str
    sequence_number: int
    seen_epoch: int
    scheduler_instance: UUID | None
    resources: Resources
    last_permit: Resources | None
    compute_unit: Resources | None


@dataclass(frozen=True, slots=True)
class AgentRequest(Message):
    """An agent's request for a permit, or its notice of a decrease. Source: seed 004."""

    proto_version: Annotated[WirePluginVersion, wire("protoVersion")]
    pod: Annotated[PodName, wire("pod")]
    resources: Annotated[SlotResources, wire("resources")]
    metrics: Annotated[Metrics | None, wire("metrics")]

    @property
    def extension(self) -> "RequestExtension | None":
        """Parley's extension, where the caller has it."""
        return None

    def protocol_range(self) -> VersionRange[PluginProtoVersion]:
        """The range that holds exactly the request's version. Source: seed 004, ProtocolRange."""
        return VersionRange(self.proto_version, self.proto_version)


@dataclass(frozen=True, slots=True)
class MigrateResponse(Message):
    """Present when the VM is being migrated away: its resources must not change any more. Source: seed 004."""


@dataclass(frozen=True, slots=True)
class PluginResponse(Message):
    """The scheduler's permit: the upper bound that the VM may use now. Source: seed 004."""

    OMITTED_WHEN_NONE: ClassVar[frozenset[str]] = frozenset({"migrate"})

    permit: Annotated[SlotResources, wire("permit")]
    migrate: Annotated[MigrateResponse | None, wire("migrate")] = field(default=None, kw_only=True)
    compute_unit: Annotated[SlotResources, wire("resourceUnit")]


@dataclass(frozen=True, slots=True)
class AgentDesc(Message):
    """What an agent says of itself in `/register`. Source: seed 004."""

    agent_id: Annotated[UUID, wire("agentID")]
    server_addr: Annotated[str, wire("agentServeAddr")]
    min_proto_version: Annotated[WireInformantVersion, wire("minProtoVersion")]
    max_proto_version: Annotated[WireInformantVersion, wire("maxProtoVersion")]

    def protocol_range(self) -> VersionRange[InformantProtoVersion]:
        """From `min_proto_version` to `max_proto_version`. Source: seed 004, ProtocolRange."""
        return VersionRange(self.min_proto_version, self.max_proto_version)


@dataclass(frozen=True, slots=True)
class AgentIdentification(Message):
    """An agent's affirmation of its ID. Source: seed 004."""

    agent_id: Annotated[UUID, wire("agentID")]


@dataclass(frozen=True, slots=True)
class Empty(Message):
    """`{}`: the answer to `/upscale`, and the body of the informant's `GET /id`."""


@dataclass(frozen=True)  # with slots, `AgentIdentificationMessage(...)` could not be called (typing, 3.11)
class AgentMessage(Message, Generic[T]):
    """`data` with a number that rises by one with every answer of one agent ID. Source: seed 004."""

    data: Annotated[T, wire("data")]
    sequence_number: Annotated[Uint64, wire("sequenceNumber")]


AgentIdentificationMessage = AgentMessage[AgentIdentification]


@dataclass(frozen=True, slots=True)
class MetricsMethodPrometheus(Message):
    """Metrics in the Prometheus text format on `port`. Source: seed 004."""

    port: Annotated[Uint16, wire("port")]


@dataclass(frozen=True, slots=True)
class InformantMetricsMethod(Message):
    """The ways in which metrics can be read; at least one is given. Source: seed 004."""

    OMITTED_WHEN_NONE: ClassVar[frozenset[str]] = frozenset({"prometheus"})

    prometheus: Annotated[MetricsMethodPrometheus | None, wire("prometheus")]


@dataclass(frozen=True, slots=True)
class InformantDesc(Message):
    """What an informant answers to `/register`. Source: seed 004."""

    proto_version: Annotated[WireInformantVersion, wire("protoVersion")]
    metrics_method: Annotated[InformantMetricsMethod, wire("metricsMethod")]


@dataclass(frozen=True, slots=True)
class DownscaleResult(Message):
    """Whether the informant approves a downscale. The keys are capitalised on the wire. Source: seed 004."""

    ok: Annotated[bool, wire("Ok")]
    status: Annotated[str, wire("Status")]


@dataclass(frozen=True, slots=True)
class MoreResourcesRequest(Message):
    """The body of `/try-upscale`; the `MoreResources` is flattened into it. Source: seed 004."""

    cpu: Annotated[bool, wire("cpu")]
    memory: Annotated[bool, wire("memory")]
    expected_id: Annotated[UUID, wire("expectedID")]

    def more_resources(self) -> MoreResources:
        """The embedded `MoreResources`."""
        return MoreResources(self.cpu, self.memory)


@dataclass(frozen=True, slots=True)
class ResumeAgent(Message):
    """The informant resumes contact with a suspended agent. Source: seed 004."""

    expected_id: Annotated[UUID, wire("expectedID")]


@dataclass(frozen=True, slots=True)
class SuspendAgent(Message):
    """The informant turns to another agent and keeps this one in reserve. Source: seed 004."""

    expected_id: Annotated[UUID, wire("expectedID")]


@dataclass(frozen=True, slots=True)
class UnregisterAgent(Message):
    """The answer to `/unregister`: whether the agent was the one in use. Source: seed 004."""

    was_active: Annotated[bool, wire("wasActive")]
