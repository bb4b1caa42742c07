"""A scheduler's documents about its decisions, nodes, VMs and pools, for people and tools: `/v1/explain`, `/v1/decisions`, `/v1/nodes`,
`/v1/pods`, `/v1/state` and `/v1/audit`.

The scheduler encodes these structs, the commands and the OpenAPI document read them. Amounts are quantities as they are written
(`{"cpu": "250m", "memory": "1Gi"}`), durations are seconds, moments are RFC 3339 in UTC. Readers leave out fields that they do not know, so
that a field may be added; none changes its meaning.
"""

import enum
import functools

import msgspec

from protocol import quantities
from protocol.values import Resources


class Document(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A document, or a part of one."""


@functools.lru_cache(4096)
def _worth(cpu: str, memory: str) -> tuple[int, int] | None:
    try:
        return quantities.parse(cpu).nanos, quantities.parse(memory).nanos
    except quantities.QuantityError:
        return None


class AmountShown(Document, frozen=True):
    """CPUs and memory."""

    cpu: str
    memory: str

    @property
    def worth(self) -> tuple[int, int] | None:
        """Both amounts in billionths, to be compared; None if one is no quantity."""
        return _worth(self.cpu, self.memory)

    @classmethod
    def of(cls, amount: Resources) -> "AmountShown":
        return cls(**amount.written())

    def __str__(self) -> str:
        return f"{self.cpu or '?'}/{self.memory or '?'}"


class DecisionOutcome(enum.StrEnum):
    """The outcome of a request, or an act of the scheduler itself."""

    PERMITTED = "permitted"
    """All that was asked for."""
    PARTIAL = "partial"
    """More than before, and less than was asked for."""
    DENIED = "denied"
    """Nothing more."""
    HELD = "held"
    """No permit yet: the answer waits, for a look at the cluster or for the VM's pool."""
    REFUSED = "refused"
    """An error status, or the connection was closed without an answer: the request could not be judged."""
    MIGRATION = "migration"
    """The VM was chosen to leave its node, or its migration has started, failed or ended."""
    NEGOTIATION = "negotiation"
    """The VM waits for room on its full node, or was asked to give back some for another."""


class ProgressCode(enum.StrEnum):
    """Why a decision is none yet, or what goes on beside requests: the codes that are neither a `ReasonCode` nor an `ErrorCode`."""

    POOL_ASKED = "pool-asked"
    """The plugins of the VM's pool have been asked, and have not answered yet."""
    CLUSTER_LOOK = "cluster-look"
    """A look at the cluster has to show the VM first; the last one did not help."""
    CONNECTION_CLOSED = "connection-closed"
    """The connection of a caller without the extension was closed, because any other answer would end its runner."""
    MIGRATION_WANTED = "migration-wanted"
    """The VM was chosen to leave its node, which is under pressure."""
    MIGRATION_STARTED = "migration-started"
    """The VM's migration is under way; the VM keeps its size until it has arrived."""
    MIGRATION_FAILED = "migration-failed"
    """The VM's migration could not be started; none is tried on the node for a while."""
    MIGRATION_ENDED = "migration-ended"
    """The VM's migration was given up, and the VM stays."""
    WAITS_FOR_ROOM = "waits-for-room"
    """Neighbours of the VM were asked to give back room for it."""
    ROOM_OFFERED = "room-offered"
    """There is room on its node for what the VM waits for, in full or in part."""
    OFFER_LAPSED = "offer-lapsed"
    """Room was kept for the VM, and its agent did not ask for it."""
    YIELD_ASKED = "yield-asked"
    """The VM was asked to give back room for another VM of its node."""
    YIELDED = "yielded"
    """The VM has given back what it was asked for, or a part of it."""
    YIELD_REFUSED = "yield-refused"
    """The VM was asked to give back room, and has given none."""


class Presence(enum.StrEnum):
    """The existence of a VM."""

    LIVE = "live"
    GONE = "gone"
    """The VM has gone; only remembered facts are shown."""
    UNKNOWN = "unknown"
    """The cluster shows no such VM, and an agent has asked for one."""


class PoolCondition(enum.StrEnum):
    """Whether a pool is asked for growth."""

    OPEN = "open"
    SATURATED = "saturated"
    """It was full a short while ago, and is not asked for more before `reason.retryAfterSeconds` are over."""
    PARKED = "parked"
    """A plugin finds it, or the VM, wrong at any size: it is not asked before that is changed."""
    FAILED = "failed"
    """Its plugins failed when they were asked last; the next request asks again."""
    FULL = "full"
    """It holds all of its own limit, or more."""
    DELETING = "deleting"
    """It is being deleted, and nothing grows."""
    UNKNOWN = "unknown"
    """There is no pool of that name, and nothing grows."""


class ReasonShown(Document, frozen=True):
    """A limit below the request, or the error of a refused request. `code` is a `ReasonCode`, an `ErrorCode` or a `ProgressCode`; the message
    has the limit's numbers. `retry_after_seconds` is when asking again may help, null if only a change can."""

    code: str
    message: str
    resource: str | None = None
    retry_after_seconds: float | None = None


class DecisionShown(Document, frozen=True):
    """One decision. A decision that is repeated with the same outcome, permit and reason codes is one of these: `times` counts them, `last_at` is the latest.

    `number` rises from decision to decision of one scheduler process. `limits` has every limit below the request, the one that binds first.
    `before` and `permit` are the permits before and after. `load` is the load average of one minute that the VM's agent reported with the request, or up to 15 s
    before the answer; null if it reported none, and for all that is no permit.
    """

    number: int
    at: str
    last_at: str
    vm: str
    uid: str
    node: str
    outcome: DecisionOutcome
    requested: AmountShown | None = None
    before: AmountShown | None = None
    permit: AmountShown | None = None
    unit: AmountShown | None = None
    sequence_number: int | None = None
    limits: tuple[ReasonShown, ...] = ()
    load: float | None = None
    times: int = 1


class FloorShown(Document, frozen=True, omit_defaults=True):
    """An amount below which a reservation may not fall yet, and why. `about` tells floors of one cause apart, `ends_in_seconds` is there where the
    clock ends it."""

    cause: str
    amount: AmountShown
    about: str | None = None
    ends_in_seconds: float | None = None


class HolderShown(Document, frozen=True):
    """Somebody who holds room of a node or of a pool. `kind` is vm, pod or reservation. `reserved` is at least `current`, the permit."""

    kind: str
    name: str
    current: AmountShown
    reserved: AmountShown


class Room(Document, frozen=True):
    """The room of a node and its largest holders beside the VM, the largest part of the node first; `more_holders` is the number of others.

    `over_full_because_of` names the causes where more is reserved than may be. `is_known` is false if the cluster shows no such node.
    """

    node: str
    reservable: AmountShown
    reserved: AmountShown
    free: AmountShown
    is_known: bool = True
    over_full_because_of: tuple[str, ...] = ()
    holders: tuple[HolderShown, ...] = ()
    more_holders: int = 0


class PoolRoom(Document, frozen=True):
    """The room of the VM's pool, in units of the pool. `most_units` is its own limit, `most_units_per_vm` that of each VM, null if it has
    none; `vm_units` is what this VM holds of it. `state` says whether it is asked at all, with `reason`."""

    pool: str
    held_units: int
    vm_units: int = 0
    unit: AmountShown | None = None
    most_units: int | None = None
    most_units_per_vm: int | None = None
    state: PoolCondition = PoolCondition.OPEN
    reason: ReasonShown | None = None
    holders: tuple[HolderShown, ...] = ()
    more_holders: int = 0


class Explanation(Document, frozen=True):
    """`GET /v1/explain/{namespace}/{name}`: the reasons for a VM's permit.

    `permit` is the amount that the VM may have, `reserved` the amount that is kept for it, `size` its size by the cluster (null if the
    cluster shows no sizes). `wanted` is its agent's latest request, `asked_seconds_ago` its age; both null before the first. `limits` are
    those of the latest decision that still stand, the binding one first; empty if everything that is wanted is permitted. `waiting` names
    the event that the answer to its request waits for now. `decisions` are the last ones, the newest first.

    Of a VM that has gone (`presence`), and of a pod for which an agent has asked in vain, there are only `waiting`, `limits` and
    `decisions`; it holds nothing, so all amounts are zero. `target` is the amount that it is resized to, `resize_refusal` the reason why
    the resize is refused; `condition` is a fault that stands, such as two kinds of agents on one VM. `refusal` is the error of a request
    that was refused lately, perhaps that of another agent; it is the first of `limits`, too, unless an agent was answered since.
    `migration` is the latest state of the wish that the VM leaves its node: it is wanted, could not be started or was given up; null
    while one is under way, which is `is_migrating`. `negotiation` says what the VM waits for on its full node, or what it was asked to give
    back for another; null if it is neither now nor a moment ago.
    """

    vm: str
    uid: str
    node: str
    at: str
    instance: str
    epoch: int
    permit: AmountShown
    reserved: AmountShown
    maximum: AmountShown
    minimum: AmountShown
    is_settled: bool
    is_migrating: bool
    is_growth_stopped: bool
    is_recommend_only: bool
    is_recommend_only_everywhere: bool = False
    presence: Presence = Presence.LIVE
    gone_seconds_ago: float | None = None
    size: AmountShown | None = None
    target: AmountShown | None = None
    resize_refusal: str | None = None
    unit: AmountShown | None = None
    wanted: AmountShown | None = None
    asked_seconds_ago: float | None = None
    condition: str | None = None
    waiting: ReasonShown | None = None
    refusal: ReasonShown | None = None
    migration: ReasonShown | None = None
    negotiation: ReasonShown | None = None
    limits: tuple[ReasonShown, ...] = ()
    floors: tuple[FloorShown, ...] = ()
    room: Room | None = None
    pool: PoolRoom | None = None
    decisions: tuple[DecisionShown, ...] = ()


class Decisions(Document, frozen=True):
    """`GET /v1/decisions?after=N`: the decisions after number N that match the filters, the oldest first; for N = 0 only the newest ones, but
    with `oldest=true` all that are remembered.

    Ask again with `after` = `next`, and with `oldest=true` if that is 0, to miss none. `are_lost` says that decisions after N have been
    forgotten already; it says nothing of remembered decisions that are older than the newest ones. With another `instance` the numbers
    begin anew. One that only repeats itself is not told again.
    """

    instance: str
    next: int
    are_lost: bool
    decisions: tuple[DecisionShown, ...]


class NodeShown(Document, frozen=True):
    """The sums of a node. `over_full_because_of` names the causes where more is reserved than may be."""

    node: str
    reservable: AmountShown
    reserved: AmountShown
    free: AmountShown
    buffer: AmountShown
    pressure: AmountShown
    pressure_accounted_for: AmountShown
    watermark: AmountShown
    compute_unit: AmountShown | None
    over_full_because_of: tuple[str, ...]


class Nodes(Document, frozen=True):
    """`GET /v1/nodes`: the sums of every node. `configuration_fault` says why the present configuration is not used and the
    one before stays in force; empty if the present one is used."""

    nodes: tuple[NodeShown, ...]
    configuration_fault: str = ""


class GrowthShown(Document, frozen=True):
    """Whether growth is stopped, or only recommended, everywhere."""

    stop: bool
    recommend_only: bool


class RowShown(Document, frozen=True, omit_defaults=True):
    """The line of a VM, another pod or a reservation (`kind`) on its node. `reserved` is at least `current`, by its floors; `pressure` is
    the amount that was denied for want of room. The fields from `settled` on are there for VMs, and those from `pool` on if they apply.

    A VM is `settled` once this process knows the amount that it may use. `last_request` is the last request of its agent, `last_reasons`
    why it got less.
    """

    kind: str
    uid: str
    name: str
    current: AmountShown
    reserved: AmountShown
    pressure: AmountShown
    is_migrating: bool = msgspec.field(name="migrating")
    floors: tuple[FloorShown, ...] = msgspec.field()
    is_settled: bool | None = msgspec.field(name="settled", default=None)
    maximum: AmountShown | None = msgspec.field(name="max", default=None)
    is_recommend_only: bool | None = msgspec.field(name="recommendOnly", default=None)
    pool: str | None = None
    pool_units: int | None = None
    last_request: AmountShown | None = None
    last_reasons: tuple[ReasonShown, ...] | None = None


class NodeInFull(NodeShown, frozen=True, kw_only=True):
    """`GET /v1/nodes/{node}`: the sums of a node, and the line of everybody who holds room there."""

    growth: GrowthShown
    rows: tuple[RowShown, ...]


class PodInFull(RowShown, frozen=True, omit_defaults=True, kw_only=True):
    """`GET /v1/pods/{namespace}/{name}`: the line of one pod, and its node."""

    node: str


class Audit(Document, frozen=True):
    """`GET /v1/audit`: the faults of the accounts; there must never be one."""

    faults: tuple[str, ...]


class VmShown(Document, frozen=True):
    """A VM in short. `outcome` and `limit` are those of its latest decision; `recent` are its latest permits, the oldest first, each with the
    seconds since 1970 at which it began. `recent_loads` are the load averages of one minute that its agent reported lately, the oldest first, each with
    the seconds since 1970 at which it came: as many CPUs were busy, or were waited for, as the guest's kernel counts (of a pod, as its informant counts)."""

    vm: str
    uid: str
    node: str
    permit: AmountShown
    reserved: AmountShown
    maximum: AmountShown
    is_settled: bool
    is_migrating: bool
    size: AmountShown | None = None
    wanted: AmountShown | None = None
    pool: str | None = None
    outcome: DecisionOutcome | None = None
    limit: ReasonShown | None = None
    asked_seconds_ago: float | None = None
    recent: tuple[tuple[float, AmountShown], ...] = ()
    recent_loads: tuple[tuple[float, float], ...] = ()


class PodShown(Document, frozen=True):
    """A pod that is no VM, or a reservation, with the amount that is reserved for it."""

    kind: str
    name: str
    uid: str
    node: str
    reserved: AmountShown


class StatePage(Document, frozen=True):
    """`GET /v1/state`: a page of everything, in the order nodes, VMs, others, each by name. `continue_` (in JSON `continue`) asks for the next page;
    null on the last one. A page may hold less than was asked for, and even nothing, before that."""

    instance: str
    epoch: int
    at: str
    nodes: tuple[NodeShown, ...] = ()
    vms: tuple[VmShown, ...] = ()
    others: tuple[PodShown, ...] = ()
    continue_: str | None = msgspec.field(name="continue", default=None)
