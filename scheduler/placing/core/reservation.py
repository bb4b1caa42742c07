"""Which reservation serves a pod best: scores from 0 to 100, the best one, and a node with its room given back.

Source: reference/koordinator.md 1.7 and 2.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.values import Resources
from scheduler.placing.core.objects import NodeInfo
from scheduler.placing.core.plugin import MAX_NODE_SCORE, MIN_NODE_SCORE
from scheduler.placing.core.plugin_points import Reservation


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
