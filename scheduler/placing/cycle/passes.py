"""Which nodes a pod can be on, and how good they are: the passes over the nodes that a scheduling cycle and the kube extender share.

The daemon answers agents between two nodes: a pass gives the event loop its turn every few milliseconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

from scheduler.placing.core import runs
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.status import (
    Code,
    Status,
    is_rejected,
    is_success,
    new_status,
)
from scheduler.placing.cycle.calls import LoopTurns
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework

NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class NodesFound:
    """The nodes where the pod can be, and why not on others, by name.

    `status` is None where every node was judged. Else it says why not: the pre-filter plugins reject the pod on every node, or
    something failed and nothing was found out. `narrowed_by` are the plugins that named the nodes worth a look. `examined` counts
    the nodes that were judged.
    """

    feasible: tuple[NodeInfo, ...] = ()
    statuses: Mapping[str, Status] = field(default_factory=dict)
    status: Status | None = None
    narrowed_by: frozenset[str] = frozenset()
    examined: int = 0

    def rejected_by(self, *codes: Code) -> frozenset[str]:
        """The plugins that keep the pod from any node; with `codes`, those of them that said one of these."""
        found = {each.plugin for each in self.statuses.values() if not codes or each.code in codes}
        return frozenset(found | (self.narrowed_by if not codes else set())) - {""}


async def find_nodes(
    framework: SchedulingFramework,
    context: CycleState,
    pod: PodInfo,
    nodes: Sequence[NodeInfo],
    *,
    enough: int | None = None,
    first: int = 0,
) -> NodesFound:
    """Run the pre-filter plugins, then the filters of one node after the other.

    The search begins with the node at index `first` and ends once `enough` feasible nodes are found (None: it sees all of them).
    Raises what a plugin raises.
    """
    result, status = await framework.run_pre_filter_plugins(context, pod, nodes)
    if not is_success(status):
        assert status is not None
        everywhere = dict.fromkeys((node.name for node in nodes), status) if is_rejected(status) else {}
        by = result.narrowed_by if result is not None else NOBODY
        return NodesFound(statuses=everywhere, status=status, narrowed_by=by)
    wanted, narrowed_by = (result.node_names, result.narrowed_by) if result is not None else (None, NOBODY)
    not_wanted = new_status(
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
        f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(narrowed_by))}]",
    )
    feasible: list[NodeInfo] = []
    statuses: dict[str, Status] = {}
    turns, examined = LoopTurns(), 0
    for node in _from(nodes, first):
        examined += 1
        if wanted is not None and node.name not in wanted:
            statuses[node.name] = not_wanted
            continue
        if turns.is_due:
            await turns.give()
        status = await framework.run_filter_plugins(context, pod, node)
        if is_success(status):
            feasible.append(node)
            if enough is not None and len(feasible) >= enough:
                break
            continue
        assert status is not None
        if not is_rejected(status):
            return NodesFound((), statuses, status, narrowed_by, examined)
        statuses[node.name] = status
    return NodesFound(tuple(feasible), statuses, None, narrowed_by, examined)


def _from(nodes: Sequence[NodeInfo], first: int) -> Iterator[NodeInfo]:
    """All nodes in their order, beginning with one of them."""
    start = first % len(nodes) if nodes else 0
    return chain(islice(nodes, start, None), islice(nodes, start))


@dataclass(frozen=True, slots=True)
class NodesScored:
    """The sum of the weighted scores of each node, by name; higher is better. Where `status` is a failure, there are none."""

    scores: Mapping[str, int] = field(default_factory=dict)
    status: Status | None = None


async def score_nodes(
    framework: SchedulingFramework, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
) -> NodesScored:
    """Run the pre-score and the score plugins. Fewer than two nodes are not scored: each has 0. Raises what a plugin raises."""
    if len(nodes) < 2:
        return NodesScored({node.name: 0 for node in nodes})
    status = await framework.run(runs.PRE_SCORE, context, pod, nodes)
    if not is_success(status):
        return NodesScored(status=status)
    found, status = await framework.run_score_plugins(context, pod, nodes)
    if not is_success(status):
        return NodesScored(status=status)
    return NodesScored({each.name: each.total for each in found})
