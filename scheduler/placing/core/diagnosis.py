"""Why a pod could not be given a node, in groups for programs and as one text for people; and which cycles take too long.

Authors of plugins may switch on more: the scores of the best nodes as a table, and why each node was rejected, in the log.
The text is worded as kube-scheduler words it: `0/5 nodes are available: 3 Insufficient cpu, …`. Source: reference/koordinator.md 1.9.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import Code, NodePluginScores, RejectionClass, Status

DIAGNOSIS_KEY: Final = "parley.dev/diagnosis"
"""The key of the `Diagnosis` in the context of a cycle."""
MOST_FAILURES: Final = 50
"""A diagnosis keeps no more groups; the largest ones stay."""
MOST_PODS: Final = 1000
"""So many pods' diagnoses are kept; the oldest one goes."""
MOST_IN_FULL: Final = 3
"""With more different reasons than that, a text for people has of each what stands before its first colon."""
NO_NODES: Final = "no nodes available to schedule pods"
"""The text where the cluster has no node. Source: kube-scheduler."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Nodes that were rejected for one reason by one plugin."""

    reason: str
    plugin: str
    code: Code | int
    nodes: int
    rejection: RejectionClass = RejectionClass.CAPACITY

    @property
    def preemption_might_help(self) -> bool:
        """It was not said to be unresolvable."""
        return self.code == Code.UNSCHEDULABLE


@dataclass(slots=True)
class Diagnosis:
    """The findings of one cycle about its pod. Plugins may add a suggestion; the first one stays. `first_s` is when the first cycle
    in a row began that found no node for it."""

    pod: PodInfo
    begun_s: float
    first_s: float = field(init=False)
    node_count: int = 0
    nominated_node: str = ""
    pre_filter_message: str = ""
    post_filter_message: str = ""
    failures: tuple[Failure, ...] = field(default=())
    suggestion: str = ""

    def __post_init__(self) -> None:
        self.first_s = self.begun_s

    def suggest(self, suggestion: str) -> bool:
        """Suggest what somebody could do, such as `evict a pod of the same owner`. Whether the text was taken: the first one is."""
        if self.suggestion or not suggestion:
            return False
        self.suggestion = suggestion
        return True

    def rejected(self, statuses: Mapping[str, Status], node_count: int) -> None:
        """No node was left of `node_count`, because of `statuses`, by node."""
        self.node_count = node_count
        self.failures = grouped(statuses.values())

    @property
    def rejection(self) -> RejectionClass:
        """The class of the rejection as a whole: `CAPACITY` if that is missing anywhere, because another node would help then; else that of
        the most nodes."""
        nodes = Counter[RejectionClass]()
        for failure in self.failures:
            nodes[failure.rejection] += failure.nodes
        if not nodes or RejectionClass.CAPACITY in nodes:
            return RejectionClass.CAPACITY
        return min(nodes, key=lambda each: (-nodes[each], each))

    @property
    def text(self) -> str:
        """One text for an event: `0/5 nodes are available: 3 Insufficient cpu, 2 Insufficient memory.` and what follows."""
        parts = [part for part in (_nodes_text(self), self.post_filter_message, self.suggestion) if part]
        sentences = [f"{part.removesuffix('.')}." for part in parts[:-1]]
        return " ".join((*sentences, *parts[-1:]))


def grouped(statuses: Iterable[Status]) -> tuple[Failure, ...]:
    """The failures of nodes by (reason, plugin, code, class), the most frequent first.

    Reasons may name amounts and holders of their node. If that makes too many groups, what stands before the first colon of a
    reason counts as the reason, so that no node is left out.
    """
    found = [
        (
            reason,
            status.plugin,
            status.code,
            status.rejection or RejectionClass.CAPACITY,
        )
        for status in statuses
        for reason in status.reasons or (str(status.code),)
    ]
    counts = Counter(found)
    if len(counts) > MOST_FAILURES:
        counts = Counter((brief(reason), by, code, of) for reason, by, code, of in found)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Failure(reason, plugin, code, count, rejection)
        for (reason, plugin, code, rejection), count in ordered[:MOST_FAILURES]
    )


def _nodes_text(diagnosis: Diagnosis) -> str:
    """The reasons that kept the pod from each node; the pre-filter's word if that kept it from all of them."""
    if not diagnosis.node_count:
        return NO_NODES
    head = f"0/{diagnosis.node_count} nodes are available"
    if diagnosis.pre_filter_message:
        return f"{head}: {diagnosis.pre_filter_message}."
    counts = Counter[str]()
    for failure in diagnosis.failures:
        counts[failure.reason] += failure.nodes
    if len(counts) > MOST_IN_FULL:
        heads = Counter[str]()
        for reason, count in counts.items():
            heads[brief(reason)] += count
        counts = heads
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"{head}: {reasons}." if reasons else f"{head}:"


def brief(reason: str) -> str:
    """A reason without what is peculiar to its node: the part before its first colon."""
    return reason.partition(": ")[0]


class DiagnosisStore:
    """The last diagnosis of each pod that is unschedulable, by namespace and name."""

    def __init__(self, most_pods: int = MOST_PODS) -> None:
        self._most = most_pods
        self._kept: OrderedDict[str, Diagnosis] = OrderedDict()

    def keep(self, diagnosis: Diagnosis) -> None:
        """In place of the pod's older one."""
        name = diagnosis.pod.name
        older = self._kept.get(name)
        if older is not None and older.pod.uid == diagnosis.pod.uid:
            diagnosis.first_s = older.first_s
        self._kept[name] = diagnosis
        self._kept.move_to_end(name)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def drop(self, pod: PodInfo) -> None:
        """The pod got its node, or is gone."""
        self._kept.pop(pod.name, None)

    def of(self, namespace: str, name: str) -> Diagnosis | None:
        return self._kept.get(f"{namespace}/{name}")

    def newest(self, most: int) -> tuple[Diagnosis, ...]:
        return tuple(list(reversed(self._kept.values()))[:most])


MOST_NODES: Final = 100
"""A table of scores has no more rows."""


@dataclass(slots=True)
class DebugFlags:
    """The switches. `scores` is the number of nodes in the table of scores, 0 for no table; `filters` logs rejections."""

    scores: int = 0
    filters: bool = False


def score_table(pod: str, scores: Sequence[NodePluginScores], most_nodes: int) -> str:
    """The scores of the best nodes, a row for each, the best one first. Columns are the sum and the plugins, with their weights."""
    best = sorted(scores, key=lambda node: (-node.total, node.name))[:most_nodes]
    plugins = [plugin for plugin, _ in best[0].scores] if best else []
    head = ("#", "node", "score", *plugins)
    rows = [
        (str(place), node.name, str(node.total), *(str(dict(node.scores).get(name, "")) for name in plugins))
        for place, node in enumerate(best)
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)
    )
    return "\n".join((f"scores for {pod}", *(line.rstrip() for line in lines)))


PERIOD_S: Final = 10.0
"""How often the monitor looks."""
SCHEDULING_TIMEOUT_S: Final = 30.0
"""A cycle that takes longer is slow."""
DROP_UNHANDLED_S: Final = 5.0
"""A pod that left the queue, and for which no cycle began within that time, is not watched any more."""


@dataclass(frozen=True, slots=True)
class SlowCycle:
    """A cycle that took `took_s` so far, or, where it `has_ended`, in all."""

    pod: str
    uid: str
    took_s: float
    has_ended: bool


@dataclass(frozen=True, slots=True)
class _Watched:
    pod: str
    dequeued_s: float
    started_s: float | None = None


class SchedulingMonitor:
    """The pods between the queue and the end of their cycle, by UID.

    A cycle counts in `timeouts` each time it is found to be slow, and once more when it ends: a count that grows says that cycles
    are slow now. A pod that was dequeued and whose cycle never began counts in `drops`.
    """

    def __init__(
        self, *, timeout_s: float = SCHEDULING_TIMEOUT_S, drop_unhandled_s: float = DROP_UNHANDLED_S
    ) -> None:
        self.timeouts = 0
        self.drops = 0
        self._timeout_s = timeout_s
        self._drop_s = drop_unhandled_s
        self._watched: dict[str, _Watched] = {}

    def dequeued(self, uid: str, pod: str, now_s: float) -> None:
        self._watched[uid] = _Watched(pod, now_s)

    def started(self, uid: str, pod: str, now_s: float) -> None:
        self._watched[uid] = _Watched(pod, now_s, now_s)

    def completed(self, uid: str, now_s: float) -> SlowCycle | None:
        """The pod was bound, failed or is gone; its cycle, where that was slow."""
        watched = self._watched.pop(uid, None)
        slow = self._slow(uid, watched, now_s, has_ended=True) if watched is not None else None
        self.timeouts += slow is not None
        return slow

    def check(self, now_s: float) -> tuple[SlowCycle, ...]:
        """The cycles that are slow now. Those that never began are dropped."""
        unhandled = [
            uid
            for uid, watched in self._watched.items()
            if watched.started_s is None and now_s - watched.dequeued_s > self._drop_s
        ]
        for uid in unhandled:
            del self._watched[uid]
        self.drops += len(unhandled)
        found = (self._slow(uid, watched, now_s) for uid, watched in self._watched.items())
        slow = tuple(cycle for cycle in found if cycle is not None)
        self.timeouts += len(slow)
        return slow

    def _slow(
        self, uid: str, watched: _Watched, now_s: float, *, has_ended: bool = False
    ) -> SlowCycle | None:
        if watched.started_s is None or now_s - watched.started_s <= self._timeout_s:
            return None
        return SlowCycle(watched.pod, uid, now_s - watched.started_s, has_ended)

    def __len__(self) -> int:
        return len(self._watched)
