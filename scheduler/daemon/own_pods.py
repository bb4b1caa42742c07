"""The mode `full`: the pods that name one of our profiles as their scheduler, from the watch of them to what people are told."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from hosting import logs, metrics
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.recorder import EventRecorder
from hosting.supervisor import Supervisor
from scheduler.clusters.kubernetes.changes import ClusterChanges, LedgerChanges
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.outcomes import PodOutcomes
from scheduler.clusters.kubernetes.placing import PlacingView
from scheduler.clusters.kubernetes.unscheduled import UnscheduledPods
from scheduler.permits.core.core import Core
from scheduler.placing.cycle.attempt import Extenders
from scheduler.placing.cycle.scheduler import PodScheduler
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
        supervisor: Supervisor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        log = logs.logger("scheduling")
        self._supervisor = supervisor
        self._names: tuple[str, ...] = ()
        self._has_started = False
        self._outcomes = PodOutcomes(api, recorder, rng=rng, log=log)
        self._changes, self._ledger = ClusterChanges(cluster, view), LedgerChanges(core)
        self._scheduler = PodScheduler(extenders, view, self._outcomes, clock=clock, rng=rng, guard=guard)
        self._pods = UnscheduledPods(api, view, self._scheduler, clock=clock, rng=rng, log=log)

    def use(self, extenders: Extenders) -> None:
        """The profiles are these from now on."""
        self._scheduler.use(extenders)
        self._names = tuple(extenders.frameworks)
        if self._has_started:
            self._watch()

    def start(self) -> None:
        """Begin to place pods."""
        self._has_started = True
        self._supervisor.start("scheduler", self._scheduler.run)
        self._supervisor.start("room that became free", self._follow_room)
        self._supervisor.start("conditions of pods", self._outcomes.run)
        self._watch()

    def _watch(self) -> None:
        for name, child in self._pods.follow(self._names).items():
            self._supervisor.start(name, child)

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
            self._scheduler.happened(self._ledger.take())
