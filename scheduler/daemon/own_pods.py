"""The mode `full`: the pods that name one of our profiles as their scheduler, from the watch of them to what people are told."""

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Final

from hosting import logs, metrics
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.recorder import EventRecorder
from hosting.supervisor import Child
from scheduler.clusters.kubernetes.changes import ClusterChanges
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.outcomes import PodOutcomes
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.clusters.kubernetes.unscheduled import UnscheduledPods
from scheduler.core.core import Core
from scheduler.framework.cycle.attempt import Extenders
from scheduler.framework.cycle.scheduler import PodScheduler
from scheduler.ports import LeadershipGuard

LOOK_S: Final = 0.25
"""How often the ledger is asked whether room became free."""


class OwnPods:
    """One for each time that this process leads."""

    def __init__(  # noqa: PLR0913 - what is around the cycles
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        core: Core,
        view: PlacingView,
        extenders: Extenders,
        *,
        recorder: EventRecorder,
        guard: LeadershipGuard,
        rng: random.Random,
    ) -> None:
        log = logs.logger("scheduling")
        self._outcomes = PodOutcomes(api, recorder, rng=rng, log=log)
        self._changes = ClusterChanges(cluster, core, view)
        self._scheduler = PodScheduler(
            extenders, view, self._outcomes, clock=time.monotonic, rng=rng, guard=guard
        )
        self._pods = UnscheduledPods(api, view, self._scheduler, clock=time.monotonic, rng=rng, log=log)

    def use(self, extenders: Extenders) -> Mapping[str, Child]:
        """The profiles are these from now on. Returns what must run besides, for names that are new."""
        self._scheduler.use(extenders)
        return self._pods.follow(extenders.frameworks)

    def children(self) -> Mapping[str, Child]:
        """What runs from the beginning, beside what `use` returns."""
        return {
            "scheduler": self._scheduler.run,
            "room that became free": self._follow_room,
            "conditions of pods": self._outcomes.run,
        }

    def refreshed(self) -> None:
        """The ledger has taken what the watches have shown."""
        self._scheduler.happened(self._changes.take())
        self._pods.offer_again()

    def families(self) -> tuple[metrics.AnyFamily, ...]:
        """The metrics."""
        return self._scheduler.families()

    async def _follow_room(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._scheduler.happened(self._changes.take_freed())
