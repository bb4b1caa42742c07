"""The runs of the plugins that work on reservations. Source: reference/koordinator.md 1.5 and 1.7.

`ReservationPlugins` holds them in the order in which the configuration first names them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hosting.logs import Logger
from scheduler.placing.core.handle import PluginToReservationScores
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import (
    CycleContext,
    FilterTransformer,
    Plugin,
    PostFilterTransformer,
    PreFilterTransformer,
    ReservationFilterPlugin,
    ReservationNominateFilterPlugin,
    ReservationNominator,
    ReservationRestorePlugin,
    ReservationScoreExtensions,
    ReservationScorePlugin,
    ScoreTransformer,
)
from scheduler.placing.core.reservation import Reservation, out_of_range
from scheduler.placing.core.status import Code, Status, error_status, is_success, new_status
from scheduler.placing.core.values import ExtensionPoint, PreFilterResult
from scheduler.placing.cycle.calls import answered, blaming, first_failure


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


@dataclass(frozen=True, slots=True)
class ReservationPlugins:
    """The plugins of a profile that work on reservations."""

    restore: tuple[ReservationRestorePlugin, ...] = ()
    filter: tuple[ReservationFilterPlugin, ...] = ()
    nominate_filter: tuple[ReservationNominateFilterPlugin, ...] = ()
    score: tuple[ReservationScorePlugin, ...] = ()
    nominator: ReservationNominator | None = None

    @classmethod
    def among(cls, plugins: Sequence[Plugin]) -> "ReservationPlugins":
        """Those that have the methods. Of several nominators the last one counts."""
        nominators = [plugin for plugin in plugins if isinstance(plugin, ReservationNominator)]
        return cls(
            restore=tuple(plugin for plugin in plugins if isinstance(plugin, ReservationRestorePlugin)),
            filter=tuple(plugin for plugin in plugins if isinstance(plugin, ReservationFilterPlugin)),
            nominate_filter=tuple(
                plugin for plugin in plugins if isinstance(plugin, ReservationNominateFilterPlugin)
            ),
            score=tuple(plugin for plugin in plugins if isinstance(plugin, ReservationScorePlugin)),
            nominator=nominators[-1] if nominators else None,
        )

    async def run_pre_restore(self, context: CycleContext, pod: PodInfo) -> Status | None:
        return await first_failure(
            (plugin, plugin.pre_restore_reservation(context, pod)) for plugin in self.restore
        )

    async def run_restore(
        self,
        context: CycleContext,
        pod: PodInfo,
        matched: Sequence[Reservation],
        unmatched: Sequence[Reservation],
        node: NodeInfo,
    ) -> tuple[Mapping[str, Any], Status | None]:
        """restore_reservation of each, until one says anything but Success: what each keeps of the node, by plugin."""
        states: dict[str, Any] = {}
        for plugin in self.restore:
            state, status = await answered(plugin.restore_reservation(context, pod, matched, unmatched, node))
            if status is not None and not is_success(status):
                return states, status.by(plugin.name())
            states[plugin.name()] = state
        return states, None

    async def run_filter(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        """filter_reservation of each, until one says anything but Success."""
        return await first_failure(
            (plugin, plugin.filter_reservation(context, pod, reservation, node_name))
            for plugin in self.filter
        )

    async def run_nominate_filter(
        self, context: CycleContext, pod: PodInfo, reservation: Reservation, node_name: str
    ) -> Status | None:
        return await first_failure(
            (plugin, plugin.filter_nominate_reservation(context, pod, reservation, node_name))
            for plugin in self.nominate_filter
        )

    async def run_score(
        self, context: CycleContext, pod: PodInfo, reservations: Sequence[Reservation], node_name: str
    ) -> tuple[PluginToReservationScores, Status | None]:
        """The scores of each, normalised where the plugin does that. The weight of every plugin is 1, as in the source."""
        scores: dict[str, dict[str, int]] = {}
        for plugin in self.score:
            given, failure = await self._scores_of(plugin, context, pod, reservations, node_name)
            if failure is not None:
                return {}, failure
            scores[plugin.name()] = given
        return scores, None

    async def _scores_of(
        self,
        plugin: ReservationScorePlugin,
        context: CycleContext,
        pod: PodInfo,
        reservations: Sequence[Reservation],
        node_name: str,
    ) -> tuple[dict[str, int], Status | None]:
        scores = {}
        for reservation in reservations:
            score, status = await answered(plugin.score_reservation(context, pod, reservation, node_name))
            if status is not None and not is_success(status):
                return {}, _score_failure(plugin, status.message)
            scores[reservation.uid] = score
        if isinstance(plugin, ReservationScoreExtensions):
            status = await answered(plugin.normalize_reservation_score(context, pod, scores))
            if status is not None and not is_success(status):
                return {}, _score_failure(plugin, status.message)
        fault = out_of_range(scores)
        return scores, _score_failure(plugin, fault) if fault is not None else None

    async def run_nominate(
        self, context: CycleContext, pod: PodInfo, node_name: str
    ) -> tuple[Reservation | None, Status | None]:
        """The nominator's choice for the node that was chosen. Where it fails, the cycle has failed, and is tried again."""
        if self.nominator is None:
            return None, None
        reservation, status = await answered(self.nominator.nominate_reservation(context, pod, node_name))
        if status is None or is_success(status):
            return reservation, None
        name = self.nominator.name()
        text = f'plugin "{name}" failed to nominate a reservation of node {node_name}: {status.message}'
        return None, new_status(Code.ERROR, text).by(name)


def _score_failure(plugin: Plugin, why: str) -> Status:
    name = plugin.name()
    return error_status(f'plugin "{name}" failed with: {why}').by(name)
