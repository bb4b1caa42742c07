"""Which nodes a pod can be on, and how good they are: the passes over the nodes, for scheduling cycles and the kube extender alike; and
by them the nodes that could take a VM which is to leave its own.

The daemon answers agents between two nodes: a pass gives the event loop its turn every few milliseconds.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

from scheduler.permits.core.events import MigrationWanted
from scheduler.placing.core import runs
from scheduler.placing.core.diagnosis import Diagnosis
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.values import (
    Code,
    Status,
    is_rejected,
    is_success,
    message_of,
    new_status,
)
from scheduler.placing.cycle.calls import LoopTurns
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.ports import MigratorError

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
    kept = framework.verdicts.of(context, pod, context.skip_filter_plugins or NOBODY)
    by_node = kept.by_node if kept is not None else {}
    for examined, node in enumerate(_from(nodes, first), 1):
        if wanted is not None and node.name not in wanted:
            statuses[node.name] = not_wanted
            continue
        known = by_node.get(node.name)
        if known is not None and known[0] == node.generation:
            status = known[1]
        else:
            if turns.is_due:
                await turns.give()
            status = await framework.run_filter_plugins(context, pod, node)
            if kept is not None and (status is None or is_rejected(status)):
                kept.keep(node, status)
        if status is None or is_success(status):
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


CHOICE_DEADLINE_S: Final = 2.0
"""How long the plugins may take for one VM."""


class MigrationTargets:
    """Chooses nodes for a VM that is to leave its own, by a profile's plugins and the nodes as `snapshot` shows them.

    The VM counts with what it keeps now, and scores by its likely growth. Nothing is kept on the node that is chosen: the pod that
    takes the VM up is placed like any other. `framework_of` takes the name of a scheduler.
    """

    def __init__(
        self, framework_of: Callable[[str], SchedulingFramework], snapshot: Callable[[], NodeSnapshot]
    ) -> None:
        self._framework_of = framework_of
        self._snapshot = snapshot

    async def choose(self, wanted: MigrationWanted) -> tuple[str, ...]:
        """The nodes that could take the VM, the best one first. Raises `MigratorError`, which says why there is none."""
        nodes = self._snapshot()
        pod = leaving(nodes, wanted)
        others = [node for node in nodes.values() if node.name != wanted.node]
        framework = self._framework_of(str((pod.manifest.get("spec") or {}).get("schedulerName", "")))
        framework.set_snapshot(nodes)
        try:
            async with asyncio.timeout(CHOICE_DEADLINE_S):
                return await _ranked(framework, pod, others)
        except TimeoutError:
            raise MigratorError(f"no node was chosen within {CHOICE_DEADLINE_S:g} s") from None
        except MigratorError:
            raise
        except Exception as error:  # a plugin's
            raise MigratorError(f"no node can be chosen: {error!r}") from error


async def _ranked(framework: SchedulingFramework, pod: PodInfo, nodes: Sequence[NodeInfo]) -> tuple[str, ...]:
    context = CycleState()
    found = await find_nodes(framework, context, pod, nodes)
    if not found.feasible:
        diagnosis = Diagnosis(pod, 0.0)
        diagnosis.rejected(found.statuses, len(nodes))
        why = message_of(found.status) if found.status is not None else diagnosis.text
        raise MigratorError(f"no other node can take {pod.name} of {pod.amount}: {why}")
    scored = await score_nodes(framework, context, pod, found.feasible)
    if scored.status is not None:
        raise MigratorError(f"no node can be chosen: {scored.status.message}")
    return tuple(sorted(scored.scores, key=lambda name: (-scored.scores[name], name)))


def leaving(nodes: Mapping[str, NodeInfo], wanted: MigrationWanted) -> PodInfo:
    """The VM's pod as one that looks for a node: without its node, and without its pool, which goes on counting the VM once.

    Raises `MigratorError` where the pod is not on the node that it should leave.
    """
    source = nodes.get(wanted.node)
    for pod in source.pods if source is not None else ():
        if pod.uid == wanted.uid:
            spec: dict[str, Any] = dict(pod.manifest.get("spec") or {})
            spec.pop("nodeName", None)
            return replace(pod, pool=None, manifest={**pod.manifest, "spec": spec})
    raise MigratorError(f"pod {wanted.pod} is not on node {wanted.node} any more")
