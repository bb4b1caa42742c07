"""The runs of transformers: they change what the native runs see. Source: reference/koordinator.md 1.4 and 1.5.

Each transformer sees what the ones before it made. A status that is no Success ends the run, as the word of its transformer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hosting.logs import Logger
from scheduler.placing.core.extended import (
    FilterTransformer,
    PostFilterTransformer,
    PreFilterTransformer,
    ScoreTransformer,
)
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext, ExtensionPoint, Plugin, PreFilterResult
from scheduler.placing.core.status import Status, is_success
from scheduler.placing.runtime.answers import answered, blaming, first_failure


@dataclass(frozen=True, slots=True)
class Transformers:
    """The transformers of a profile. A plugin takes part where it is enabled at the point itself, in that point's order."""

    pre_filter: tuple[PreFilterTransformer, ...] = ()
    filter: tuple[FilterTransformer, ...] = ()
    score: tuple[ScoreTransformer, ...] = ()
    post_filter: tuple[PostFilterTransformer, ...] = ()

    @classmethod
    def among(cls, plugins_at: Callable[[ExtensionPoint], Sequence[Plugin]]) -> "Transformers":
        """Those among the plugins of each point that have the methods."""
        points = ExtensionPoint
        return cls(
            tuple(each for each in plugins_at(points.PRE_FILTER) if isinstance(each, PreFilterTransformer)),
            tuple(each for each in plugins_at(points.FILTER) if isinstance(each, FilterTransformer)),
            tuple(each for each in plugins_at(points.SCORE) if isinstance(each, ScoreTransformer)),
            tuple(each for each in plugins_at(points.POST_FILTER) if isinstance(each, PostFilterTransformer)),
        )

    async def before_pre_filter(self, context: CycleContext, pod: PodInfo) -> tuple[PodInfo, Status | None]:
        """The pod that the pre-filter plugins see."""
        for transformer in self.pre_filter:
            with blaming(transformer, "before_pre_filter"):
                changed, status = await answered(transformer.before_pre_filter(context, pod))
            if status is not None and not is_success(status):
                return pod, status.by(transformer.name())
            pod = changed if changed is not None else pod
        return pod, None

    async def after_pre_filter(
        self, context: CycleContext, pod: PodInfo, result: PreFilterResult | None
    ) -> Status | None:
        """Whether the cycle goes on with the result of the pre-filter plugins."""
        return await first_failure(
            (transformer, transformer.after_pre_filter(context, pod, result))
            for transformer in self.pre_filter
        )

    async def before_score(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PodInfo, Sequence[NodeInfo], Status | None]:
        """The pod and the nodes that are scored."""
        for transformer in self.score:
            with blaming(transformer, "before_score"):
                changed, changed_nodes, status = await answered(transformer.before_score(context, pod, nodes))
            if status is not None and not is_success(status):
                return pod, nodes, status.by(transformer.name())
            pod = changed if changed is not None else pod
            nodes = changed_nodes if changed_nodes is not None else nodes
        return pod, nodes, None

    async def after_post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status], log: Logger
    ) -> None:
        """Tell each. What one raises is logged: it cannot change the outcome."""
        for transformer in self.post_filter:
            try:
                await answered(transformer.after_post_filter(context, pod, statuses))
            except Exception:
                log.exception("after_post_filter of a plugin failed", plugin=transformer.name(), pod=pod.name)
