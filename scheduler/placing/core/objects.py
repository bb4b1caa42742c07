"""Pods and nodes as plugins see them, the snapshot of all nodes that one scheduling cycle goes by, and the pods nominated for nodes.

A snapshot never changes. Points after Reserve (Permit, PreBind, Bind) must not rely on it: they ask the ledger
(`scheduler.ports.Placements`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from protocol.values import ZERO, Bounds, Resources
from protocol.wire import PodName
from scheduler.permits.core.model import Holder, Kind

NO_MANIFEST: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod that has, or looks for, a node.

    `amount` is what the ledger keeps for the pod on its node. `bounds` are those of its growth, None for a pod that does not
    grow; `pool` is the pool that it belongs to. `manifest` is the whole object as the API server shows it: plugins read what
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

    @property
    def holder(self) -> Holder:
        """The owner of the pod's row in the ledger."""
        return Holder(Kind.VM if self.bounds is not None else Kind.POD, self.uid)

    @property
    def name(self) -> str:
        """`namespace/name`, as people name it."""
        return f"{self.pod.namespace}/{self.pod.name}"


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
        """What is left to reserve; negative on a node that is over-full."""
        return self.reservable - self.reserved

    def room_for(self, holder: Holder) -> Resources:
        """What the other rows leave to `holder`; may be negative."""
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
