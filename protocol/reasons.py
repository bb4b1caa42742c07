"""Why a decision fell as it did: typed codes, shown to users and counted in metrics, never parsed from text."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


class ReasonCode(enum.StrEnum):
    """The reason for the size of a permit. The value is the code on the wire; new codes may be added, none changes meaning."""

    STOPPED = "stopped"
    """Growth is switched off by configuration."""
    RECOMMEND_ONLY = "recommend-only"
    """Recommendations are reported and nothing grows."""
    VM_BOUNDS = "vm-bounds"
    """The request lies above the VM's own maximum."""
    OWN_CPUS = "own-cpus"
    """The VM has CPUs of its own, and gets no more of them now."""
    MIGRATING = "migrating"
    """The VM is being migrated away and keeps its size."""
    UNSETTLED = "unsettled"
    """This scheduler has just started and does not know yet the amount that the VM may still use; ask again, naming it."""
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
    """The time for asking the pool was over; the growth that it had admitted by then is granted."""
    BYSTANDER = "bystander"
    """Another agent with the extension owns this VM."""
    LOWERED = "lowered"
    """The request is a repeated one, and its permit was lowered meanwhile; ask anew."""
    ROOM_ELSEWHERE = "room-elsewhere"
    """The VM's node has had no room for a while, and another one has room for the VM at the size that it asks for. Never the first reason."""
    PLACED_ELSEWHERE = "placed-elsewhere"
    """The holder is on another node already."""
    OTHER = "other"
    """A code of a later version that this program does not know."""

    @classmethod
    def _missing_(cls, value: object) -> "ReasonCode | None":
        return cls.OTHER if isinstance(value, str) else None


class RejectionClass(enum.StrEnum):
    """Who can help a pod that was rejected: those who add nodes or enlarge quotas, or nobody but time. Source: reference/koordinator.md 4.4."""

    CAPACITY = "capacity"
    """There is not enough of something: another node would help."""
    POLICY = "policy"
    """A rule forbids it, such as a quota: another node would not help."""
    PEERS = "peers"
    """The pod waits for others of its gang: room for all of them would help."""
    RESERVED = "reserved"
    """The room is kept for others."""
    STALE = "stale"
    """Too little is known, such as the load of a node: that changes by itself."""


REJECTION_OF_LIMIT: Final[Mapping[ReasonCode, RejectionClass]] = MappingProxyType(
    {
        ReasonCode.STOPPED: RejectionClass.POLICY,
        ReasonCode.RECOMMEND_ONLY: RejectionClass.POLICY,
        ReasonCode.VM_BOUNDS: RejectionClass.POLICY,
        ReasonCode.OWN_CPUS: RejectionClass.CAPACITY,
        ReasonCode.MIGRATING: RejectionClass.POLICY,
        ReasonCode.UNSETTLED: RejectionClass.STALE,
        ReasonCode.COMPUTE_UNIT: RejectionClass.POLICY,
        ReasonCode.NODE_HEADROOM: RejectionClass.CAPACITY,
        ReasonCode.POOL: RejectionClass.POLICY,
        ReasonCode.POOL_SATURATED: RejectionClass.POLICY,
        ReasonCode.POOL_PARKED: RejectionClass.POLICY,
        ReasonCode.POOL_FAILED: RejectionClass.STALE,
        ReasonCode.PROBE_DEADLINE: RejectionClass.STALE,
        ReasonCode.BYSTANDER: RejectionClass.POLICY,
        ReasonCode.LOWERED: RejectionClass.STALE,
        ReasonCode.ROOM_ELSEWHERE: RejectionClass.CAPACITY,
        ReasonCode.PLACED_ELSEWHERE: RejectionClass.STALE,
    }
)
"""The class of each limit of a permit. None is `PEERS` or `RESERVED`: a node that is full is full of whatever holds it, and who holds it is
told beside the code. `OTHER` has none."""


class ErrorCode(enum.StrEnum):
    """Why a request was answered with an error. The value is the `code` of a problem document; new codes may be added, none changes meaning.

    It is one list for all programs and pages. Agents act upon those of permit requests; all others are for people and scripts.
    """

    MALFORMED = "malformed"
    """The request, its body or a parameter breaks a rule; `faults` names each place."""
    UNSUPPORTED_VERSION = "unsupported-version"
    """The request's protocol version is none that the scheduler speaks; `supported` has those that it does."""
    METRICS_REQUIRED = "metrics-required"
    """The request's protocol version demands metrics, and there are none."""
    WRONG_METHOD = "wrong-method"
    """The path does not take this method; the header `Allow` names those that it takes."""
    PUBLISHED_AGENT_NOT_ALLOWED = "published-agent-not-allowed"
    """The caller has no extension, and such callers are not served on this node (`--published-agents`)."""
    UNKNOWN_POD = "unknown-pod"
    """The scheduler knows no live pod of this name."""
    WRONG_POD_UID = "wrong-pod-uid"
    """Another pod has the name by now; the one that is meant has gone."""
    WRONG_NODE = "wrong-node"
    """The cluster places the VM on another node than the one that the caller has shown to be the agent of."""
    SEQUENCE_REUSED = "sequence-reused"
    """The sequence number was used already, for another request."""
    SEQUENCE_STALE = "sequence-stale"
    """A request with a higher sequence number was decided already."""
    AGENT_SUPERSEDED = "agent-superseded"
    """A later life of the VM's agent has asked; this one must step back."""
    OVERLOADED = "overloaded"
    """Too many requests wait already; ask again after `Retry-After` seconds."""
    NOT_LEADER = "not-leader"
    """This scheduler does not lead; `leader` is the address of the one that does, if it is known."""
    CLUSTER_UNREACHABLE = "cluster-unreachable"
    """The cluster cannot be read now, and the answer needs a look at it."""
    INTERNAL = "internal"
    """A fault of the program, or a failure that passes; its log says more."""
    NOT_FOUND = "not-found"
    """The program serves nothing at this path."""
    TOO_LARGE = "too-large"
    """The body is longer than the path reads."""
    FORBIDDEN = "forbidden"
    """The caller may not do this from where it calls: from another machine, or from a web page."""
    UNAUTHORISED = "unauthorised"
    """A bearer token is needed, and none or a wrong one was shown."""
    UNKNOWN_NODE = "unknown-node"
    """The scheduler knows no node of this name."""
    UNKNOWN_VM = "unknown-vm"
    """The program knows no VM of this name."""
    VM_NOT_SCALED = "vm-not-scaled"
    """The agent knows the VM and does not scale it; `faults` says why."""
    UNKNOWN_POOL = "unknown-pool"
    """There is no pool of this name."""
    NOTHING_KNOWN = "nothing-known"
    """The name is well-formed, and nothing is remembered of it: no diagnosis of the pod, no content of a plugin's page."""
    CONFLICT = "conflict"
    """The object has changed meanwhile, or is there already; read it again."""
    INSUFFICIENT_RESOURCES = "insufficient-resources"
    """A pool plugin refuses the change: a quota or the cluster is full."""
    INVALID_SPEC = "invalid-spec"
    """A pool plugin finds the description wrong, for any size."""
    NOT_READY = "not-ready"
    """The program has not read everything that it needs yet."""
    PLUGIN_FAILED = "plugin-failed"
    """The page of a plugin failed, or is too large; the program's log says more."""
    OTHER = "other"
    """A code of a later version that this program does not know."""

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
