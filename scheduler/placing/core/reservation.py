"""Reservations as plugins see them, read from the ledger; which of them serves a pod best, and a node with its room given back.

Source: reference/koordinator.md 1.7 and 2.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from protocol.explaining import AmountShown
from protocol.pages import ReservationShown
from protocol.values import ZERO, Resources
from scheduler.permits.core.model import Holder, Kind, ReservationOwner
from scheduler.permits.core.state import CoreState, ReservationAccount
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.values import MAX_NODE_SCORE, MIN_NODE_SCORE


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
        """The owner of its row."""
        return Holder(Kind.RESERVATION, self.uid)

    @property
    def available(self) -> Resources:
        """What pods can still take."""
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
        is_available=account.is_open,
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


def scale_scores(scores: dict[str, int], *, reverse: bool = False) -> None:
    """Scale the scores in place so that the highest one becomes 100; with `reverse` the highest one becomes 0.

    Where no score is above 0, all become 0, or with `reverse` 100. Source: the default normaliser of seed 002 and kube-scheduler.
    """
    highest = max(scores.values(), default=0)
    for key, score in scores.items():
        scaled = MAX_NODE_SCORE * score // highest if highest > 0 else 0
        scores[key] = MAX_NODE_SCORE - scaled if reverse else scaled


def out_of_range(scores: Mapping[str, int]) -> str | None:
    """What is wrong with scores that were normalised; None where each is from 0 to 100."""
    for uid, score in scores.items():
        if not MIN_NODE_SCORE <= score <= MAX_NODE_SCORE:
            return (
                f"returned an invalid score {score} for reservation {uid}: must be from {MIN_NODE_SCORE} to "
                f"{MAX_NODE_SCORE} after normalising"
            )
    return None


def most_allocated_score(reservation: Reservation, amount: Resources) -> int:
    """How full the reservation would be with `amount` more, from 0 to 100: the mean over what it reserves.

    A resource that would be over-full counts 0: the rest would come out of the node's free room.
    """
    parts = [
        MAX_NODE_SCORE * (wanted + allocated) // capacity if wanted + allocated <= capacity else 0
        for (_, capacity), (_, wanted), (_, allocated) in zip(
            reservation.allocatable.named(), amount.named(), reservation.allocated.named(), strict=True
        )
        if capacity > 0
    ]
    return sum(parts) // len(parts) if parts else 0


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
