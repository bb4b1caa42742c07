"""Answers about nodes that are kept until the node changes: pods are often alike, and from one pod to the next a few nodes of many change.

Only plugins that declare it (`SteadyPlugin`) are passed over, and all plugins of a pass have to. Answers are kept under the generation of the
node, so a node of no snapshot (generation 0) is always judged. No answer lets a pod have room that there is not: what counts in the end is
Reserve, which asks the live ledger.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext, Plugin, SteadyPlugin
from scheduler.placing.core.values import ExtensionPoint, NodePluginScores, Status
from scheduler.placing.cycle.calls import PointCalls, weighted_scores
from scheduler.placing.cycle.context import CycleState

T = TypeVar("T")
MAX_KEPT: Final = 65_536
"""Answers that are kept of each kind: 131 shapes of pods on 500 nodes. Each takes some 150 bytes."""


class ShapeAnswers(Generic[T]):
    """The answers for pods of one shape."""

    def __init__(self, steady: Sequence[SteadyPlugin]) -> None:
        self._steady: Final = steady
        self.by_node: Final[dict[str, tuple[int, T]]] = {}
        """By name: the generation of the node, and the answer."""

    def keep(self, node: NodeInfo, answer: T) -> None:
        if node.generation > 0 and all(each.is_steady_on(node) for each in self._steady):
            self.by_node[node.name] = node.generation, answer


class KeptAnswers(Generic[T]):
    """The answers of these plugins together. Of a pod that `is_special` nothing is kept."""

    def __init__(self, plugins: Sequence[Plugin], is_special: Callable[[PodInfo], bool]) -> None:
        steady = [each for each in plugins if isinstance(each, SteadyPlugin)]
        self._steady: Final = steady if len(steady) == len(plugins) else []
        self._is_special: Final = is_special
        self._by_shape: Final[dict[Hashable, ShapeAnswers[T]]] = {}

    def of(self, context: CycleContext, pod: PodInfo, skipped: frozenset[str]) -> ShapeAnswers[T] | None:
        """The answers for pods like this one, to be read and added to; None if nothing may be kept. `skipped` are not asked in this cycle."""
        if not self._steady or self._is_special(pod):
            return None
        parts = [each.answers_by(context, pod) for each in self._steady]
        if None in parts:
            return None
        shape = (*parts, skipped)
        found = self._by_shape.pop(shape, None)
        if found is None:
            self._make_room()
            found = ShapeAnswers(self._steady)
        elif len(found.by_node) > MAX_KEPT:  # nodes of many names have come and gone
            found.by_node.clear()
        self._by_shape[shape] = found
        return found

    def _make_room(self) -> None:
        """The shape that was not asked for the longest goes first."""
        count = sum(len(each.by_node) for each in self._by_shape.values())
        while count > MAX_KEPT // 2:
            count -= len(self._by_shape.pop(next(iter(self._by_shape))).by_node)


class KeptScores:
    """The scores of nodes by the plugins of a profile. Those that no plugin compares with the scores of other nodes are kept."""

    def __init__(self, calls: PointCalls, is_special: Callable[[PodInfo], bool]) -> None:
        self._calls: Final = calls
        self._answers: Final[KeptAnswers[NodePluginScores]] = KeptAnswers(
            calls.plugins_at(ExtensionPoint.SCORE), is_special
        )
        self._changes_nodes: Final = bool(calls.methods(ExtensionPoint.SCORE, "before_score"))
        self._comparing: Final = calls.methods(ExtensionPoint.SCORE, "normalize_score")

    async def weighted(
        self, context: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[list[NodePluginScores], Status | None]:
        """As `weighted_scores`; only nodes that have changed are asked about."""
        skipped, kept = context.skip_score_plugins or frozenset(), None
        if not self._changes_nodes and all(name in skipped for name, _ in self._comparing):
            kept = self._answers.of(context, pod, skipped)
        if kept is None:
            return await weighted_scores(self._calls, context, pod, nodes)
        known, changed, places = kept.by_node, list[NodeInfo](), list[int]()
        found: list[Any] = []
        for place, node in enumerate(nodes):
            each = known.get(node.name)
            if each is not None and each[0] == node.generation:
                found.append(each[1])
            else:
                changed.append(node)
                places.append(place)
                found.append(None)
        scores, failure = await weighted_scores(self._calls, context, pod, changed)
        if failure is not None:
            return [], failure
        for place, node, weighed in zip(places, changed, scores, strict=True):
            kept.keep(node, weighed)
            found[place] = weighed
        return found, None
