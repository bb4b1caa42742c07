"""Pods that hope for a node: room is being made for them there, and nobody of lower priority may take it meanwhile."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.placing.core.objects import NodeInfo, PodInfo, RowInfo


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
