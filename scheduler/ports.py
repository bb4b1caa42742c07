"""The needs of the permit service: interfaces to the world. Implementations are adapters; the core sees their events only."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from protocol.reasons import Reason
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.permits.core import events
from scheduler.permits.core.model import Holder

LOOK_DEADLINE_S: Final = 2.0
"""How long a request may wait for a fresh look at the cluster."""
ADMISSION_DEADLINE_S: Final = 2.0
"""How long a request may wait for its pool, from its arrival."""
MIGRATE_DEADLINE_S: Final = 5.0
"""How long starting a migration may take."""
BINDING_SETTLES_S: Final = 60.0
"""So long after it was sent, a request to bind a pod takes no effect any more: the API server ends requests by then."""


class ClusterUnreachableError(Exception):
    """The cluster cannot be read now; the earlier state stays in force."""


class Cluster(Protocol):
    """A view of nodes, VMs and pods. All implementations pass one conformance suite (tests/conformance/test_cluster.py).

    **Calls** may overlap, fail and be cancelled. Their results count in the order in which they return. Each change is told
    once, and states in between may be left out; a call that fails or is cancelled takes nothing with it, so nobody else
    may run between the decision what to tell and the return.

    **Versions.** The description of one object is never older than that told of it before: if lists, reads and a
    watch race, the adapter goes by the object's resourceVersion. An older description is never told after a newer one,
    and the deletion of a pod never after the pod that was made anew under its name; an object that is made anew has
    another UID, and the end of the old one is told first. An object that a list does not hold has gone only if nothing
    newer than the list is known of it.

    **`begun_s`** of a `Reading`: no change of that object that the cluster accepted before that moment is missing. For a list
    or a read it is when that was sent. For an event of a watch it is when the last list was sent whose own
    resourceVersion is not above the event's: at first the list that the watch began at. A list of a few objects, or of
    none, will do, if it is consistent and not from a cache; a read of one object will not, because its resourceVersion is that
    of the object's last change, and says nothing of others. For sizes in a source that others write as they please
    (a file) it is when the source was last written, until that happens while this process runs. It never goes back for
    one object.

    **`begun_s`** of `ClusterRead`: every change of any object that the cluster accepted before that moment has been told. For a
    list it is when that was sent; for a watch it is when the last list was sent whose resourceVersion the watch has
    reached, with an event or a bookmark. A file says itself which objects there are: there it is when the read of it began.
    """

    async def refresh(self) -> tuple[events.Input, ...]:
        """Bring the view up to date and return what changed since the last call of either kind, ready to apply.

        `ClusterRead` comes last, if everything that it stands for has been told; if nothing changes, one whose moment
        is later comes after a while. Raises `ClusterUnreachableError`, or `SettingsError` with every fault of what was read;
        then everything that was told before stays in force.
        """

    async def read(self, pods: Collection[PodName]) -> tuple[events.Input, ...]:
        """A fresh look at these pods, begun after the call: one `VmSeen` for each VM that is there, changed or not, with
        sizes or without, and the other changes. As in `refresh`, a `ClusterRead` comes last.

        A source that can read one object reads no more than these; one that is watched answers from what it has seen as
        soon as that is known to be later than the call. Ends within `LOOK_DEADLINE_S`, or of the end of an older call that it
        has to wait for. Raises as `refresh` does.
        """

    def look(self, pod: PodName) -> events.Look:
        """The state of one VM's pod that `refresh` or `read` told last; not found if that has gone or ended.

        It `is_watched` if a watch that works has shown nothing of the VM since.
        """


class Pools(Protocol):
    """The plugins that have a say before the VMs of a pool grow. `scheduler.pools.chain.admission_queue.PoolAdmissionQueue` is it."""

    def call_admission(
        self,
        needed: events.AdmissionCallNeeded,
        deadline_s: float,
        answer: Callable[[events.PoolVerdict], object],
    ) -> None:
        """Ask the pool. `answer` is called exactly once, now or by `deadline_s` (monotonic), unless `cancel` comes first.

        Verdicts of one pool are given in the order in which they count.
        """

    def cancel(self, ticket: int) -> None:
        """Nobody waits for the verdict on the request of `ticket` any more."""

    def applied(self, ticket: int) -> None:
        """The verdict that was answered for the request of `ticket` counts in the ledger from now on."""

    async def close(self) -> None:
        """End every question. Callers that still wait are not answered."""


class NoPools:
    """Nobody has a say."""

    def call_admission(
        self,
        needed: events.AdmissionCallNeeded,
        deadline_s: float,
        answer: Callable[[events.PoolVerdict], object],
    ) -> None:
        del needed, deadline_s
        answer(events.PoolVerdict())

    def cancel(self, ticket: int) -> None:
        """Nobody waits."""

    def applied(self, ticket: int) -> None:
        """Nothing follows."""

    async def close(self) -> None:
        """Nothing is under way."""


class MigratorError(Exception):
    """A migration could not be started. The text is for a person."""


class Migrator(Protocol):
    """Moves VMs to other nodes."""

    async def start(self, wanted: events.MigrationWanted) -> None:
        """Start the migration of a VM and return when it is under way.

        Raises `MigratorError`; then nothing has happened. Cancelled after `MIGRATE_DEADLINE_S`.
        """


class Journal(Protocol):
    """The record of everything that goes through the core. Calls never wait and never fail."""

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """An input that is no request, and its outcome."""

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        """A request with the bytes that it came as, and its outcome."""


class NoJournal:
    """Records nothing."""

    def input(self, event: events.Input, outputs: tuple[events.Output, ...]) -> None:
        """Nothing."""

    def request(
        self, arrived: events.RequestArrived, body: bytes, outputs: tuple[events.Output, ...]
    ) -> None:
        """Nothing."""


class NotLeadingError(Exception):
    """This process must not decide now, because another one does, or may. `leader` is the address of that, if it is known."""

    def __init__(self, leader: str | None = None) -> None:
        super().__init__("another scheduler leads")
        self.leader = leader


class LeadershipGuard(Protocol):
    """Says before each decision whether this process may make it."""

    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        """Raises `NotLeadingError` if it may not. `seen_epoch` is the highest one that the caller has met; 0 if it has met none.
        `witness` are the nodes of a caller that must show who it is."""


class SoleScheduler:
    """The only scheduler there is."""

    def check(self, seen_epoch: int, witness: tuple[str, ...] | None = None) -> None:
        """It always decides."""
        del seen_epoch, witness


class Placements(Protocol):
    """Room in the ledger, as those who place pods may change it. Live, unlike a snapshot; nothing is awaited.

    The answers are those of the core (`scheduler/permits/core/placement.py`): None if it worked, else the reason.
    """

    def assume(
        self,
        holder: Holder,
        name: str,
        node: str,
        amount: Resources,
        *,
        until_s: float,
        pool: str | None = None,
        reservation: str | None = None,
    ) -> Reason | None:
        """Keep room on a node, all of it or nothing, also in the pool. `reservation` is the UID of one whose room is used.

        It is kept until the cluster shows the pod on that node, until `forget`, or until a read of the cluster that was begun
        after `until_s` does not show the pod. Repeated, it changes nothing. Raises `NotLeadingError`.
        """

    def forget(self, holder: Holder) -> None:
        """The pod will not be bound. The cluster itself ends a row that it shows."""

    def place_of(self, holder: Holder) -> str | None:
        """The node where room is kept for the holder now."""

    def headroom(self, node: str, holder: Holder) -> Resources:
        """The amount that the others leave to `holder` on a node now; may be negative."""

    def ask_back(self, quota: str, excess: Resources, uids: Sequence[str]) -> None:
        """The pods of a quota, of these UIDs, hold `excess` too much: those that grow are asked to give it back, as far as they can spare it
        (docs/decisions/0048). A hint to their agents, which a process that does not lead leaves out. May be repeated as often as one likes:
        nobody is asked for more than that."""


class OwnCpus(Protocol):
    """Growth of VMs that have CPUs of their own: they are permitted no more than these. Live; nothing is awaited."""

    def may_decide(self) -> bool:
        """Whether this process leads, by all that it knows."""

    def wanted_milli(self, uid: str) -> int | None:
        """The CPU that the VM's agent asked for last, at most its declared maximum; None for a VM whose agent is not heard."""

    def hold(self, uid: str, most_milli: int | None = None, why: str = "") -> None:
        """`events.CpusHeld`, unless that was told last."""


class PlacementAdmission(Protocol):
    """The say that `pre_create_pod` of a pool's plugins, and the pool's own limits, have before a pod of the pool is placed."""

    async def admit(
        self, pod: Mapping[str, Any], pool: str, amount: Resources, deadline_s: float
    ) -> Reason | None:
        """None if the pool takes a pod of that amount, else why not. Has no effects, and ends by `deadline_s` (monotonic).

        `pod` is its manifest. The ledger keeps the amount for the pod (`Placements.assume`).
        """


@dataclass(frozen=True, slots=True)
class NotBound:
    """Why a pod was not bound, as a text for a person.

    `may_be_bound` says that the answer was lost: the pod may be bound for all that is known, so what is kept for it stays.
    """

    message: str
    may_be_bound: bool = False


class Binder(Protocol):
    """Binds pods to nodes."""

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        """Bind the pod of that UID; None if it is bound to that node now, by this call or an earlier one.

        The API server copies `annotations` to the pod. Ends within the implementation's own deadline, and raises nothing
        but cancellation: then the pod may be bound.
        """
