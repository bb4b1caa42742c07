"""Why a decision fell as it did: typed codes, shown to users and counted in metrics, never parsed from text."""

import enum
from dataclasses import dataclass


class ReasonCode(enum.StrEnum):
    """Why a permit is what it is. The value is the code on the wire; new codes may be added, none changes meaning."""

    STOPPED = "stopped"
    """Growth is switched off by configuration."""
    RECOMMEND_ONLY = "recommend-only"
    """Recommendations are reported and nothing grows."""
    VM_BOUNDS = "vm-bounds"
    """The request lies above the VM's own maximum."""
    MIGRATING = "migrating"
    """The VM is being migrated away and keeps its size."""
    UNSETTLED = "unsettled"
    """This scheduler has just started and does not know yet what the VM may still use; ask again, naming it."""
    COMPUTE_UNIT = "compute-unit"
    """No usable compute unit is known for the VM."""
    NODE_HEADROOM = "node-headroom"
    """The node has no more room."""
    POOL = "pool"
    """The VM's pool admits no more: its limit, or a quota behind it."""
    POOL_SATURATED = "pool-saturated"
    """The VM's pool admitted no more a short while ago, and is not asked for more before its cool-down is over."""
    POOL_PARKED = "pool-parked"
    """A plugin finds the pool, or the VM, wrong at any size; it is not asked again before that is changed."""
    POOL_FAILED = "pool-failed"
    """A plugin of the pool failed or did not answer; nothing is granted, and nothing is known to be full."""
    PROBE_DEADLINE = "probe-deadline"
    """The time for asking the pool was over; what it had admitted by then is granted."""
    BYSTANDER = "bystander"
    """Another agent with the extension owns this VM."""
    LOWERED = "lowered"
    """The request is a repeated one, and what it was permitted was lowered meanwhile; ask anew."""
    PLACED_ELSEWHERE = "placed-elsewhere"
    """The holder is on another node already."""
    OTHER = "other"
    """A code of a later version that this program does not know."""

    @classmethod
    def _missing_(cls, value: object) -> "ReasonCode | None":
        return cls.OTHER if isinstance(value, str) else None


class ErrorCode(enum.StrEnum):
    """Why a request was answered with an error. The value is the `code` of the JSON error body."""

    MALFORMED = "malformed"
    UNSUPPORTED_VERSION = "unsupported-version"
    METRICS_REQUIRED = "metrics-required"
    WRONG_METHOD = "wrong-method"
    PUBLISHED_AGENT_NOT_ALLOWED = "published-agent-not-allowed"
    UNKNOWN_POD = "unknown-pod"
    WRONG_POD_UID = "wrong-pod-uid"
    SEQUENCE_REUSED = "sequence-reused"
    SEQUENCE_STALE = "sequence-stale"
    AGENT_SUPERSEDED = "agent-superseded"
    OVERLOADED = "overloaded"
    NOT_LEADER = "not-leader"
    CLUSTER_UNREACHABLE = "cluster-unreachable"
    INTERNAL = "internal"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "ErrorCode | None":
        return cls.OTHER if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a decision. `retry_after_s` (seconds) tells when asking again may help."""

    code: ReasonCode
    message: str
    resource: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return f"{self.code.value}{f' ({self.resource})' if self.resource else ''}: {self.message}"
