"""Inputs and outputs of the core. Inputs are facts in the past tense; the journal and the simulator speak them too.

`now_s` and every other time is in seconds of one monotonic clock, read by the shell. A `ticket` tells which caller an
output answers.
"""

from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from protocol.reasons import ErrorCode, Reason
from protocol.values import ComputeUnit, Observation, Resources, Value
from protocol.wire import AgentRequest, PodName
from scheduler.permits.core.model import (
    AgentIdentity,
    Beneficiary,
    Holder,
    NodeSpec,
    PodSpec,
    PoolSpec,
    ReservationSpec,
    VmSpec,
)
from scheduler.permits.core.rules import Rules

# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Configured:
    """The rules are these from now on."""

    rules: Rules


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """The cluster shows a node."""

    node: NodeSpec


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is no longer there."""

    name: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """The cluster shows a pod that is no VM."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod that is no VM has gone."""

    pod: PodSpec


@dataclass(frozen=True, slots=True)
class VmSeen:
    """The cluster shows a VM. `reading` is None if the cluster shows no sizes.

    `is_new` says that a consistent list made after this process began to serve did not hold it.
    """

    vm: VmSpec
    reading: Observation | None
    now_s: float
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class VmGone:
    """A VM's pod has gone."""

    pod: PodName
    uid: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod on `node` to which a VM migrates; the VM is still in `vm_pod`."""

    vm_pod: PodName
    node: str


@dataclass(frozen=True, slots=True)
class Look:
    """A fresh look at the cluster for one pod: whether it is there, and the size that it shows. A VM may be about to arrive in a
    pod that has none yet.

    One that `is_watched` was not made for a request: it is the state that a watch has shown by now, all of which was told. Looks
    are compared by their content, and not by how they came.
    """

    found: bool
    reading: Observation | None = None
    arrival: Arrival | None = None
    is_watched: bool = field(default=False, compare=False)


class RequestArrived(Value, frozen=True):
    """A request was read. `look` is the fresh look at the cluster that the core asked for, on each pass but the first, in which
    it may be the state that a watch shows; `since_s` is when the request arrived, None on its first pass. `identity` is who asks; None if
    nobody has to tell, as on this machine."""

    ticket: int
    request: AgentRequest
    now_s: float
    look: Look | None = None
    since_s: float | None = None
    identity: AgentIdentity | None = None


@dataclass(frozen=True, slots=True)
class AmountLimit:
    """How much of one resource (milli-CPU, or bytes) a pool's VMs may hold together, and why not more.

    `is_all` says that `most` holds all that was asked for.
    """

    resource: str
    most: int
    reason: Reason
    is_all: bool = False


@dataclass(frozen=True, slots=True)
class PoolVerdict:
    """The verdict of a pool's plugins on a growth: how many units (the pool's own) its VMs may hold together after it.

    `total` None admits all that was asked for, 0 nothing; `reason` says why if it is less. `generation` is that of the
    pool that was asked about, None if that does not matter. `is_all` says that `total` holds all that was asked for.
    If the plugins limit amounts, `amounts` has a limit for each resource; a verdict that admits nothing has none.
    """

    total: int | None = None
    reason: Reason | None = None
    generation: int | None = None
    is_all: bool = False
    amounts: tuple[AmountLimit, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmissionCallEnded:
    """The pool was asked for the request of `ticket`. `verdict` is None if that failed by our own fault."""

    ticket: int
    verdict: PoolVerdict | None
    now_s: float


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """There is such a pool, or it was changed."""

    spec: PoolSpec


@dataclass(frozen=True, slots=True)
class PoolGone:
    """A pool was deleted. VMs that name it do not grow."""

    name: str


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """Everything that a read of the whole cluster, begun at `begun_s`, has shown was told."""

    begun_s: float


@dataclass(frozen=True, slots=True)
class PlacementAssumed:
    """Somebody wants to place a holder on a node; the amount that it needs is kept for it until it is confirmed, or until a read of
    the cluster that was begun after `until_s` does not show it.

    It counts in `pool` meanwhile, which must have room for it, too. `reservation` is the UID of one on that node that
    gives what it has left.
    """

    ticket: int
    holder: Holder
    name: str
    node: str
    amount: Resources
    until_s: float
    now_s: float
    pool: str | None = None
    reservation: str | None = None


@dataclass(frozen=True, slots=True)
class PlacementConfirmed:
    """A placement that was assumed has happened."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class PlacementForgotten:
    """A placement will not happen, or its holder is done. Unknown holders are none of our business."""

    holder: Holder


@dataclass(frozen=True, slots=True)
class ReservationSeen:
    """The cluster shows a reservation, or a change of one."""

    reservation: ReservationSpec


@dataclass(frozen=True, slots=True)
class ReservationGone:
    """A reservation was deleted."""

    uid: str


@dataclass(frozen=True, slots=True)
class CpusHeld:
    """Of a VM with CPUs of its own: it is permitted no more than `most_milli` from now on (None: its bounds), because the others are being
    taken from it; or `why` it gets no more of them (empty: nothing stands against that)."""

    uid: str
    most_milli: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class MigrationStarted:
    """The migration of a VM that was wanted is under way."""

    uid: str


@dataclass(frozen=True, slots=True)
class MigrationFailed:
    """The migration of a VM that was wanted could not be started; none is tried on its node before `retry_at_s`."""

    uid: str
    retry_at_s: float


@dataclass(frozen=True, slots=True)
class MigrationEnded:
    """A migration was given up, and the VM stays; none is tried on its node before `retry_at_s`.

    When a migration succeeds, the VM's pod goes.
    """

    uid: str
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class QuotaExceeded:
    """The pods of `quota` hold `excess` more than it may use now, because others want back what it borrowed. `holders` are their UIDs."""

    quota: str
    excess: Resources
    holders: tuple[str, ...]
    now_s: float


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time has passed; floors that the clock ends may end. All VMs that are due are looked at, or those of `uids`; with `is_more` others
    are due as well, and the next tick follows at once."""

    now_s: float
    uids: tuple[str, ...] | None = None
    is_more: bool = False


Input: TypeAlias = (
    Configured
    | NodeSeen
    | NodeGone
    | PodSeen
    | PodGone
    | VmSeen
    | VmGone
    | RequestArrived
    | AdmissionCallEnded
    | PoolSeen
    | PoolGone
    | ClusterRead
    | PlacementAssumed
    | PlacementConfirmed
    | PlacementForgotten
    | ReservationSeen
    | ReservationGone
    | CpusHeld
    | MigrationStarted
    | MigrationFailed
    | MigrationEnded
    | QuotaExceeded
    | ClockTicked
)

# ---------------------------------------------------------------- outputs


class Echo(Value, frozen=True):
    """The fields that a reply to a caller with the extension carries beside the permit."""

    sequence_number: int
    instance: UUID
    epoch: int
    token: str | None = None


class Decided(Value, frozen=True):
    """A request is answered with a permit. `before` was the row's current permit, `changed` says that it moved; `echo`
    is None for a caller without the extension."""

    ticket: int
    pod: PodName
    node: str
    requested: Resources
    before: Resources
    permit: Resources
    unit: ComputeUnit
    slot_bytes: int
    reasons: tuple[Reason, ...] = ()
    echo: Echo | None = None
    migrate: bool = False
    changed: bool = False

    @property
    def sequence_number(self) -> int | None:
        """The number of the request that this answers, if it had one."""
        return self.echo.sequence_number if self.echo is not None else None


@dataclass(frozen=True, slots=True)
class Refused:
    """A request is answered with an error status."""

    ticket: int
    status: int
    code: ErrorCode
    message: str
    last_sequence_number: int | None = None
    current_started_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HungUp:
    """The connection is closed without a response, because any answer but 200 is fatal to this caller."""

    ticket: int
    pod: PodName
    why: str


@dataclass(frozen=True, slots=True)
class LookNeeded:
    """The request needs a fresh look at the cluster: make it and apply the request again with it.

    Asked for again after a look, it says that only a later one can help; that may be a little while away.
    """

    ticket: int
    pod: PodName


@dataclass(frozen=True, slots=True)
class AdmissionCallNeeded:
    """The growth waits for the pool's verdict: ask it, and report `AdmissionCallEnded`. `wanted` is kept meanwhile.

    `current` and `wanted` are the permit now and the one that everything but the pool's plugins allows, `unit` is the
    VM's compute unit.
    """

    ticket: int
    pod: PodName
    uid: str
    pool: str
    current: Resources
    wanted: Resources
    unit: ComputeUnit


@dataclass(frozen=True, slots=True)
class Joined:
    """The request is one that is in progress already; it is answered when that is."""

    ticket: int
    leader: int


@dataclass(frozen=True, slots=True)
class AdmissionCallCancelled:
    """Nobody waits for the pool's verdict on the request of `ticket` any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class ReadNeeded:
    """A floor can end once the cluster shows less: read the VM again when convenient and report `VmSeen`."""

    pod: PodName


@dataclass(frozen=True, slots=True)
class Placed:
    """There is room, and it is kept."""

    ticket: int


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """There is no room, and nothing is kept."""

    ticket: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class MigrationWanted:
    """The VM is chosen to leave its node: start its migration and report `MigrationStarted` or `MigrationFailed`."""

    pod: PodName
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class RoomOffered:
    """A VM that waits would be permitted `amount` now. A hint to its agent."""

    pod: PodName
    uid: str
    node: str
    amount: Resources


@dataclass(frozen=True, slots=True)
class YieldAsked:
    """A VM is asked to shrink to `keep`, so to give back `amount`, for `beneficiary`. A hint to its agent."""

    pod: PodName
    uid: str
    node: str
    keep: Resources
    amount: Resources
    beneficiary: Beneficiary


@dataclass(frozen=True, slots=True)
class YieldEnded:
    """A VM that was asked has given back `amount` for `beneficiary`, or nothing; `why` says why not all that it was asked for,
    empty if it has."""

    pod: PodName
    uid: str
    node: str
    amount: Resources
    beneficiary: Beneficiary
    why: str = ""


@dataclass(frozen=True, slots=True)
class OfferLapsed:
    """The agent of a VM has not asked for the `amount` that was kept for it; nobody keeps it any more."""

    pod: PodName
    uid: str
    node: str
    amount: Resources


Answer: TypeAlias = Decided | Refused | HungUp | LookNeeded | AdmissionCallNeeded | Joined
Output: TypeAlias = (
    Answer
    | AdmissionCallCancelled
    | ReadNeeded
    | Placed
    | NotPlaced
    | MigrationWanted
    | RoomOffered
    | YieldAsked
    | YieldEnded
    | OfferLapsed
)
Negotiated: TypeAlias = RoomOffered | YieldAsked | YieldEnded | OfferLapsed
