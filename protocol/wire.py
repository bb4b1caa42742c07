"""The messages of seed 004 as they travel: field by field the published shapes, frozen; and exact resources as slots and back.

Attributes are named as Python names them, `field(name=…)` gives the name on the wire (`vCPUs`, `resourceUnit`, `Ok`).
`SlotResources` is the published `Resources`, whole vCPUs and memory slots; decisions are made in
`protocol.values.Resources`, and `from_slots`, `request_slots` and `permit_slots` turn one into the other. `protocol.codec` reads and writes these types.
"""

import functools
from typing import Annotated, Final, Generic, TypeVar
from uuid import UUID

from msgspec import field
from msgspec.structs import force_setattr

from protocol import fields, float32, quantities, values
from protocol.extension import ReplyExtension, RequestExtension
from protocol.fields import EMBEDDED, UINT16_MAX, Float32, Uint16, Uint64, WireQuantity
from protocol.quantities import Quantity
from protocol.versions import InformantProtoVersion, PluginProtoVersion, VersionRange

NIL_UUID: Final = UUID(int=0)

T = TypeVar("T")
Message = fields.Message


class PodName(Message, frozen=True):
    """The namespaced name of a pod. Source: seed 004."""

    name: str
    namespace: str

    def __str__(self) -> str:
        """`namespace:name`."""
        return f"{self.namespace}:{self.name}"

    @property
    def full_name(self) -> str:
        """`namespace/name`, as people name it."""
        return f"{self.namespace}/{self.name}"


class MoreResources(Message, frozen=True):
    """Which resources are wanted. Source: seed 004."""

    cpu: bool
    memory: bool

    def not_(self) -> "MoreResources":
        """The field-wise logical "not". Source: seed 004, Not."""
        return MoreResources(not self.cpu, not self.memory)

    def and_(self, other: "MoreResources") -> "MoreResources":
        """The field-wise logical "and". Source: seed 004, And."""
        return MoreResources(self.cpu and other.cpu, self.memory and other.memory)


class RawResources(Message, frozen=True):
    """Raw amounts, as the informant understands them: `cpu` in CPUs, `memory` in bytes. Source: seed 004."""

    cpu: WireQuantity | None
    memory: WireQuantity | None


class SlotResources(Message, frozen=True):
    """Whole vCPUs and memory slots, each a uint16; the slot size comes from the VM. Source: seed 004."""

    vcpu: Uint16 = field(name="vCPUs")
    mem: Uint16

    def __post_init__(self) -> None:
        if not (0 <= self.vcpu <= UINT16_MAX and 0 <= self.mem <= UINT16_MAX):
            raise ValueError(f"vcpu and mem must lie in 0..{UINT16_MAX}, not {self.vcpu} and {self.mem}")

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


class Metrics(Message, frozen=True):
    """Load averages of the VM, rounded to float32. Raises `ValueError` if one is none. Source: seed 004."""

    load_average_1min: Float32 = field(name="loadAvg1M")
    load_average_5min: Float32 = field(name="loadAvg5M")

    def __post_init__(self) -> None:
        one, five = self.load_average_1min, self.load_average_5min
        rounded = float32.round_pair(one, five)
        if rounded != (one, five):
            force_setattr(self, "load_average_1min", rounded[0])
            force_setattr(self, "load_average_5min", rounded[1])


class AgentRequest(Message, frozen=True):
    """An agent's request for a permit, or its notice of a decrease. Source: seed 004; `extension` is ours."""

    proto_version: PluginProtoVersion = field(name="protoVersion")
    pod: PodName
    resources: SlotResources
    metrics: Metrics | None
    extension: Annotated[RequestExtension | None, EMBEDDED] = None

    def protocol_range(self) -> VersionRange[PluginProtoVersion]:
        """The range that holds exactly the request's version. Source: seed 004, ProtocolRange."""
        return VersionRange(self.proto_version, self.proto_version)


class MigrateResponse(Message, frozen=True):
    """Present when the VM is being migrated away: its resources must not change any more. Source: seed 004."""


class PluginResponse(Message, frozen=True):
    """The scheduler's permit: the upper bound that the VM may use now. Source: seed 004; `extension` is ours."""

    OMITTED_WHEN_NONE = frozenset({"migrate"})
    PUBLISHED_ORDER = ("permit", "migrate", "resourceUnit")

    permit: SlotResources
    compute_unit: SlotResources = field(name="resourceUnit")
    migrate: MigrateResponse | None = None
    extension: Annotated[ReplyExtension | None, EMBEDDED] = None


class AgentDesc(Message, frozen=True):
    """An agent's description of itself in `/register`. Source: seed 004."""

    agent_id: UUID = field(name="agentID")
    server_addr: str = field(name="agentServeAddr")
    min_proto_version: InformantProtoVersion = field(name="minProtoVersion")
    max_proto_version: InformantProtoVersion = field(name="maxProtoVersion")

    def protocol_range(self) -> VersionRange[InformantProtoVersion]:
        """From `min_proto_version` to `max_proto_version`. Source: seed 004, ProtocolRange."""
        return VersionRange(self.min_proto_version, self.max_proto_version)


class AgentIdentification(Message, frozen=True):
    """An agent's affirmation of its ID. Source: seed 004."""

    agent_id: UUID = field(name="agentID")


class Empty(Message, frozen=True):
    """`{}`: the answer to `/upscale`, and the body of the informant's `GET /id`."""


class AgentMessage(Message, Generic[T], frozen=True):
    """`data` with a number that rises by one with every answer of one agent ID. Source: seed 004."""

    data: T
    sequence_number: Uint64 = field(name="sequenceNumber")


AgentIdentificationMessage = AgentMessage[AgentIdentification]


class MetricsMethodPrometheus(Message, frozen=True):
    """Metrics in the Prometheus text format on `port`. Source: seed 004."""

    port: Uint16


class InformantMetricsMethod(Message, frozen=True):
    """The ways in which metrics can be read; at least one is given. Source: seed 004."""

    OMITTED_WHEN_NONE = frozenset({"prometheus"})

    prometheus: MetricsMethodPrometheus | None


class InformantDesc(Message, frozen=True):
    """An informant's answer to `/register`. Source: seed 004."""

    proto_version: InformantProtoVersion = field(name="protoVersion")
    metrics_method: InformantMetricsMethod = field(name="metricsMethod")


class DownscaleResult(Message, frozen=True):
    """The informant's answer to a downscale. The keys are capitalised on the wire. Source: seed 004."""

    ok: bool = field(name="Ok")
    status: str = field(name="Status")


class MoreResourcesRequest(MoreResources, frozen=True, omit_defaults=True):
    """The body of `/try-upscale`: a `MoreResources`, embedded as Go embeds it, and the agent meant. Source: seed 004.

    `why` is our own: the shortage, for people. A published agent passes over it, and a published informant has none.
    """

    expected_id: UUID = field(name="expectedID")
    why: str = ""

    def more_resources(self) -> MoreResources:
        """The embedded `MoreResources`."""
        return MoreResources(self.cpu, self.memory)


class ResumeAgent(Message, frozen=True):
    """The informant resumes contact with a suspended agent. Source: seed 004."""

    expected_id: UUID = field(name="expectedID")


class SuspendAgent(Message, frozen=True):
    """The informant turns to another agent and keeps this one in reserve. Source: seed 004."""

    expected_id: UUID = field(name="expectedID")


class UnregisterAgent(Message, frozen=True):
    """The answer to `/unregister`: whether the agent was the one in use. Source: seed 004."""

    was_active: bool = field(name="wasActive")


@functools.lru_cache(maxsize=4096)
def from_slots(amount: SlotResources, slot_bytes: int) -> values.Resources:
    """The exact amount of `amount` with slots of `slot_bytes` (above zero)."""
    assert slot_bytes > 0, slot_bytes
    return values.Resources(amount.vcpu * 1000, amount.mem * slot_bytes)


@functools.lru_cache(maxsize=4096)
def request_slots(amount: values.Resources, slot_bytes: int) -> SlotResources:
    """`amount` rounded up to whole vCPUs and slots, saturating: the integers of a request."""
    vcpu, mem = -(-amount.vcpu_milli // 1000), -(-amount.memory_bytes // slot_bytes)
    return SlotResources(min(vcpu, UINT16_MAX), min(mem, UINT16_MAX))


@functools.lru_cache(maxsize=4096)
def permit_slots(amount: values.Resources, slot_bytes: int) -> SlotResources:
    """`amount` rounded down to whole vCPUs and slots, saturating: the integers of a permit."""
    vcpu, mem = amount.vcpu_milli // 1000, amount.memory_bytes // slot_bytes
    return SlotResources(min(vcpu, UINT16_MAX), min(mem, UINT16_MAX))


def is_whole(amount: values.Resources, slot_bytes: int) -> bool:
    """Whether `amount` travels unchanged without the extension."""
    return from_slots(request_slots(amount, slot_bytes), slot_bytes) == amount
