"""Pods, nodes and reservations as plugins see them, the snapshot of all nodes that one scheduling cycle goes by, and nominated pods.

A snapshot never changes. Points after Reserve (Permit, PreBind, Bind) must not rely on it: they ask the ledger
(`scheduler.ports.Placements`). Reservations are read from the ledger. Source of what they are: reference/koordinator.md 1.7 and 2.6.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from protocol.explaining import AmountShown
from protocol.pages import ReservationShown
from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Holder, Kind, ReservationOwner
from scheduler.permits.core.state import CoreState, ReservationAccount

NO_MANIFEST: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod that has, or looks for, a node.

    `amount` is what the ledger keeps for the pod on its node. `bounds` are those of its growth, None for a pod that does not
    grow; `pool` is the pool that it belongs to. One that `is_reservation` never exists: it stands for a Reservation that looks for
    a node. `manifest` is the whole object as the API server shows it: plugins read what
    they need there, and change nothing.
    """

    pod: PodName
    uid: str
    amount: Resources = ZERO
    bounds: Bounds | None = None
    pool: str | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: NO_MANIFEST)
    manifest: Mapping[str, Any] = field(default_factory=lambda: NO_MANIFEST)
    is_reservation: bool = False

    @property
    def holder(self) -> Holder:
        if self.is_reservation:
            return Holder(Kind.RESERVATION, self.uid)
        return Holder(Kind.VM if self.bounds is not None else Kind.POD, self.uid)

    @property
    def name(self) -> str:
        """`namespace/name`, as people name it."""
        return self.pod.full_name


@dataclass(frozen=True, slots=True)
class RowInfo:
    """A row of the ledger on a node: whose, what it keeps, what it was denied for want of room, and how far it may grow."""

    holder: Holder
    name: str
    reserved: Resources
    pressure: Resources = ZERO
    bounds: Bounds | None = None
    pool: str | None = None
    is_migrating: bool = False


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node: what may be reserved on it, what is, for whom, and its pods and its object where the cluster shows them.

    `generation` is that of its last change: two infos of one node with one generation are equal.
    """

    name: str
    reservable: Resources = ZERO
    reserved: Resources = ZERO
    rows: Mapping[Holder, RowInfo] = field(default_factory=dict)
    pods: tuple[PodInfo, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=lambda: NO_MANIFEST)
    compute_unit: Resources | None = None
    generation: int = 0

    @property
    def free(self) -> Resources:
        """The amount that is left to reserve; negative on a node that is over-full."""
        return self.reservable - self.reserved

    def room_for(self, holder: Holder) -> Resources:
        """The amount that the other rows leave to `holder`; may be negative."""
        own = self.rows.get(holder)
        return self.free + own.reserved if own is not None else self.free


class NodeSnapshot(Mapping[str, NodeInfo]):
    """All nodes at one moment, by name. Source: seed 001, `NodeInfoSnapshot`.

    `generation` is that of the newest of its nodes' changes. Like any mapping it is read; nothing can be written.
    """

    __slots__ = ("_nodes", "generation")

    def __init__(self, nodes: Mapping[str, NodeInfo] = NO_MANIFEST, generation: int = 0) -> None:
        self._nodes: Final = dict(nodes)
        self.generation: Final = generation

    def named(self, names: Iterable[str]) -> list[NodeInfo]:
        """The nodes of these names, in that order, without those that there are not."""
        nodes = self._nodes
        return [nodes[name] for name in names if name in nodes]

    def with_changes(self, changed: Mapping[str, NodeInfo], generation: int) -> "NodeSnapshot":
        """These nodes at a later moment: some of them have changed since."""
        return NodeSnapshot({**self._nodes, **changed}, generation)

    def __contains__(self, name: object) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> NodeInfo:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def values(self) -> ValuesView[NodeInfo]:
        """As of any mapping. Every cycle walks over all nodes: those of the dict take a tenth of the time of a `Mapping`'s own."""
        return self._nodes.values()

    def items(self) -> ItemsView[str, NodeInfo]:
        """As of any mapping, and as fast as `values`."""
        return self._nodes.items()


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod in the queue: since when (s), how often it was tried, and which plugins rejected it last."""

    pod: PodInfo
    since_s: float
    attempts: int = 0
    rejected_by: frozenset[str] = frozenset()


class NominatedPods:
    """The pods that are nominated for nodes. Source: reference/kubernetes.md 1.9, `PodNominator`."""

    def __init__(self) -> None:
        self._node_of: dict[str, str] = {}
        self._on: dict[str, dict[str, PodInfo]] = {}

    def nominate(self, pod: PodInfo, node_name: str) -> None:
        """The pod hopes for that node, and for no other one."""
        self.remove(pod.uid)
        self._node_of[pod.uid] = node_name
        self._on.setdefault(node_name, {})[pod.uid] = pod

    def remove(self, uid: str) -> None:
        """The pod hopes for no node any more: it was bound, is gone, or nobody makes room for it."""
        node_name = self._node_of.pop(uid, None)
        if node_name is not None:
            pods = self._on[node_name]
            del pods[uid]
            if not pods:
                del self._on[node_name]

    def __len__(self) -> int:
        return len(self._node_of)

    def node_of(self, uid: str) -> str | None:
        return self._node_of.get(uid)

    def on(self, node_name: str) -> Sequence[PodInfo]:
        """The pods that hope for a node, in the order of nomination."""
        return tuple(self._on.get(node_name, {}).values())

    def ahead_of(self, pod: PodInfo, node_name: str) -> Sequence[PodInfo]:
        """Those for whose room on the node `pod` has to leave: others of its priority or a higher one."""
        return tuple(
            other
            for other in self._on.get(node_name, {}).values()
            if other.uid != pod.uid and other.priority >= pod.priority
        )


def with_pod(node: NodeInfo, pod: PodInfo) -> NodeInfo:
    """The node as if the pod were there. A pod that has a row there already takes no more room."""
    if pod.holder in node.rows:
        return node
    row = RowInfo(pod.holder, pod.name, pod.amount, bounds=pod.bounds, pool=pod.pool)
    return replace(
        node,
        reserved=node.reserved + row.reserved,
        rows={**node.rows, pod.holder: row},
        pods=(*node.pods, pod),
    )


def without_pods(node: NodeInfo, pods: Sequence[PodInfo]) -> NodeInfo:
    """The node as if these pods had left it."""
    holders = {pod.holder for pod in pods}
    left = tuple(pod for pod in node.pods if pod.holder not in holders)
    rows = {holder: row for holder, row in node.rows.items() if holder not in holders}
    freed = sum((node.rows[holder].reserved for holder in holders & node.rows.keys()), ZERO)
    return replace(node, reserved=node.reserved - freed, rows=rows, pods=left)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that a `RESERVATION` holder of the ledger keeps on a node for pods that match one of `owners`.

    `allocatable` is what it was made for, `allocated` what pods have taken of it by now; the rest is its row. A reservation to
    `allocate_once` serves one pod only. Those with an `order` above 0 are taken before others, the lowest one first.
    """

    uid: str
    name: str
    node: str
    allocatable: Resources
    allocated: Resources = ZERO
    owners: tuple[ReservationOwner, ...] = ()
    allocate_once: bool = True
    is_available: bool = True
    order: int = 0

    @property
    def holder(self) -> Holder:
        return Holder(Kind.RESERVATION, self.uid)

    @property
    def available(self) -> Resources:
        """The amount that pods can still take."""
        return (self.allocatable - self.allocated).max(ZERO)

    @property
    def is_matchable(self) -> bool:
        """Whether any pod can use it now."""
        return self.is_available and not (self.allocate_once and self.allocated != ZERO)

    def matches(self, pod: PodInfo) -> bool:
        return self.is_matchable and any(_is_owner(owner, pod) for owner in self.owners)


def _is_owner(owner: ReservationOwner, pod: PodInfo) -> bool:
    has_labels = all(pod.labels.get(key) == value for key, value in owner.labels)
    return has_labels and owner.namespace in {None, pod.pod.namespace}


class LedgerReservations:
    """The reservations whose room the ledger keeps. A reservation without a row has no room to give."""

    def __init__(self, core: CoreState) -> None:
        self._core = core

    def are_any(self) -> bool:
        return next(iter(self._core.reservations), None) is not None

    def on(self, node_name: str) -> Sequence[Reservation]:
        """Those of a node now, in the order of their rows."""
        account = self._core.ledger.node(node_name)
        if account is None:
            return ()
        held = (
            self._core.reservations.find(holder.uid)
            for holder in account.rows
            if holder.kind is Kind.RESERVATION
        )
        return tuple(each for each in map(_shown, held) if each is not None)


def _shown(account: ReservationAccount | None) -> Reservation | None:
    """None for a row that was assumed for a reservation which the cluster does not show yet."""
    if account is None or account.spec is None:
        return None
    spec = account.spec
    return Reservation(
        uid=spec.uid,
        name=spec.name,
        node=spec.node,
        allocatable=spec.allocatable,
        allocated=account.allocated,
        owners=spec.owners,
        allocate_once=spec.allocate_once,
        is_available=account.is_open and not (spec.is_pre_allocated and account.reason is not None),
        order=spec.order,
    )


def shown_reservation(reservation: Reservation) -> ReservationShown:
    return ReservationShown(
        name=reservation.name,
        uid=reservation.uid,
        allocatable=AmountShown(**reservation.allocatable.written()),
        allocated=AmountShown(**reservation.allocated.written()),
        available=reservation.is_matchable,
    )


def best_reservation(
    candidates: Sequence[Reservation], scores: Mapping[str, Mapping[str, int]]
) -> Reservation | None:
    """The one with the lowest order, where any has an order; else the one with the highest sum of scores, by plugin and UID.

    The UID decides between equals, so that the same question has the same answer.
    """
    ordered = [reservation for reservation in candidates if reservation.order > 0]
    if ordered:
        return min(ordered, key=lambda reservation: (reservation.order, reservation.uid))
    return min(
        candidates,
        key=lambda reservation: (-sum(by.get(reservation.uid, 0) for by in scores.values()), reservation.uid),
        default=None,
    )


def restored(node: NodeInfo, reservation: Reservation) -> NodeInfo:
    """The node as if what pods can still take of the reservation were free."""
    row = node.rows.get(reservation.holder)
    if row is None:
        return node
    given_back = reservation.available.min(row.reserved)
    rows = {**node.rows, row.holder: replace(row, reserved=row.reserved - given_back)}
    return replace(node, reserved=node.reserved - given_back, rows=rows)
