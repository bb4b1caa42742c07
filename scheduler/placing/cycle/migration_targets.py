"""Which nodes could take a VM that is to leave its own: the filters and scores that place pods say so.

The VM counts with what it keeps now, and scores by its likely growth. Nothing is kept on the node that is chosen: the pod that takes
the VM up is placed like any other.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scheduler.permits.core.events import MigrationWanted
from scheduler.placing.core.diagnosis import Diagnosis
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.status import message_of
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.passes import find_nodes, score_nodes
from scheduler.ports import MigratorError

CHOICE_DEADLINE_S: Final = 2.0
"""How long the plugins may take for one VM."""


class MigrationTargets:
    """Chooses by a profile's plugins and the nodes as `snapshot` shows them; `framework_of` takes the name of a scheduler."""

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
