"""The runs of the plugins that work on reservations. Source: reference/koordinator.md 1.5 and 1.7.

`ReservationPlugins` holds them in the order in which the configuration first names them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.placing.core.extended import (
    PluginToReservationScores,
    Reservation,
    ReservationFilterPlugin,
    ReservationNominateFilterPlugin,
    ReservationNominator,
    ReservationRestorePlugin,
    ReservationScoreExtensions,
    ReservationScorePlugin,
)
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.plugin import CycleContext, Plugin
from scheduler.placing.core.reservation import out_of_range
from scheduler.placing.core.status import Code, Status, error_status, is_success, new_status
from scheduler.placing.runtime.answers import answered, first_failure


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
        """pre_restore_reservation of each, until one says anything but Success."""
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
        """filter_nominate_reservation of each, until one says anything but Success."""
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
        """The scores of one plugin, or how it failed."""
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
    """A failure while reservations were scored."""
    name = plugin.name()
    return error_status(f'plugin "{name}" failed with: {why}').by(name)
