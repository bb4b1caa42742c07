"""What the verbs make of what the plugins said: computes only."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from protocol.texts import clean
from protocol.values import ZERO
from scheduler.permits.core.model import Kind
from scheduler.placing.core.diagnosis import brief
from scheduler.placing.core.objects import NodeInfo
from scheduler.placing.core.status import Code, Status, new_status
from scheduler.placing.kube_extender.messages import HostPriority

MAX_EXTENDER_SCORE: Final = 10
"""The best score of an extender; kube-scheduler stretches it to 100."""
MOST_NODES_IN_FULL: Final = 10
"""With more nodes than that, reasons are brief."""
MAX_TEXT: Final = 1024
"""Characters of a reason; kube-scheduler joins those of all nodes to one text."""
UNKNOWN_NODE: Final = new_status(
    Code.UNSCHEDULABLE_AND_UNRESOLVABLE, "node(s) are not in Parley's ledger yet"
).by("ledger")
"""Nothing may be placed where nobody counts, and no preemption would change that."""


def failed_nodes(
    asked: Sequence[str], known: Collection[str], statuses: Mapping[str, Status]
) -> dict[str, Status]:
    """The status of each node that was asked for and is dropped, in the order in which they were asked for."""
    found = {name: UNKNOWN_NODE if name not in known else statuses.get(name) for name in asked}
    return {name: status for name, status in found.items() if status is not None}


def texts(failed: Mapping[str, Status], *, are_resolvable: bool) -> dict[str, str]:
    """Why nodes are dropped: those where preemption may help, or the others.

    kube-scheduler counts nodes by their whole text and writes all of them to the pod's status: of many nodes each reason is
    told without what is peculiar to the node.
    """
    is_brief = len(failed) > MOST_NODES_IN_FULL
    return {
        name: clean(_text(status, is_brief=is_brief), MAX_TEXT)
        or f"rejected by {status.plugin or 'a plugin'}"
        for name, status in failed.items()
        if (status.code is not Code.UNSCHEDULABLE_AND_UNRESOLVABLE) is are_resolvable
    }


def _text(status: Status, *, is_brief: bool) -> str:
    return ", ".join(map(brief, status.reasons)) if is_brief else status.message


def priorities(asked: Iterable[str], totals: Mapping[str, int], best: int) -> list[HostPriority]:
    """The score of each node that was asked for, 0 to 10, where `best` is the highest total that there can be.

    Nodes without a total have 0, the same as kube-scheduler takes for hosts that are left out.
    """
    scores = {total: _scaled(total, best) for total in {0, *totals.values()}}  # many nodes are alike
    return [HostPriority(name, scores[totals.get(name, 0)]) for name in asked]


def _scaled(total: int, best: int) -> int:
    """`total` of `best` in tenths, halves up."""
    in_range = min(max(total, 0), best)
    return (2 * in_range * MAX_EXTENDER_SCORE + best) // (2 * best) if best > 0 else 0


def without_pods(node: NodeInfo, uids: Collection[str], generation: int) -> NodeInfo:
    """The node as if these pods had left it. `generation` is another one than that of any node that there is.

    A VM that is migrating frees nothing: the move keeps its room until it has ended.
    """
    gone = {
        holder
        for holder, row in node.rows.items()
        if holder.uid in uids and holder.kind is not Kind.RESERVATION and not row.is_migrating
    }
    freed = sum((node.rows[holder].reserved for holder in gone), start=ZERO)
    return replace(
        node,
        reserved=node.reserved - freed,
        rows={holder: row for holder, row in node.rows.items() if holder not in gone},
        pods=tuple(pod for pod in node.pods if pod.holder not in gone),
        generation=generation,
    )
