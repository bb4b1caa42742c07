"""Tells kube-scheduler that there may be room now for pods that it was refused: by a condition of the pod, which is an event there."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from hosting import logs
from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import names, objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.resources import Manifest
from protocol.values import ZERO
from scheduler.clusters.kubernetes.changes import LedgerChanges
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.outcomes import is_final, write_condition
from scheduler.permits.core.core import Core
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.kube_extender.refused import RefusedPods, largest_room

LOOK_S: Final = 0.25
"""How often the ledger is asked whether room became free."""
MOST_AT_ONCE: Final = 5
"""Pods that kube-scheduler is told of after one look: 20 in a second at most."""
WRITE_S: Final = 3.0
"""How long the API server has for one of them."""
_BACKOFF: Final = Backoff(base_s=0.5, cap_s=10.0)


class RoomFreed:
    """Follows the ledger while `run` runs, and writes the condition `parley.dev/RoomFreed` to pods that have no node yet."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        core: Core,
        refused: RefusedPods,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        date: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._ledger = LedgerChanges(core)
        self._core = core
        self._seen_generation, self._largest = -1, ZERO
        self._refused = refused
        self._clock, self._rng, self._date = clock, rng, date
        self._faults = FaultLog(
            logs.logger("extender"),
            "kube-scheduler cannot be told of room that became free",
            "kube-scheduler is told of room that became free again",
        )

    async def run(self) -> None:
        """Follow the ledger for ever."""
        self._refused.recover(self._clock())
        failures = 0
        while True:
            await asyncio.sleep(_BACKOFF.delay_s(failures, self._rng.random()) if failures else LOOK_S)
            failures = 0 if await self._look() else failures + 1

    async def _look(self) -> bool:
        """Tell of the pods that are due; whether the API server took it."""
        events, now_s = self._ledger.take(), self._clock()
        if not self._refused.is_waiting and not events:
            return True
        generation = self._core.ledger.generation
        if generation != self._seen_generation:
            self._seen_generation, self._largest = generation, largest_room(self._core)
        self._refused.happened(events, self._largest, now_s)
        due = self._refused.due(MOST_AT_ONCE, now_s)
        for number, pod in enumerate(due):
            try:
                await self._tell(pod)
            except KubernetesError as error:
                self._faults.failed(error)
                if is_final(error):
                    self._refused.gone(pod.uid)
                self._refused.failed((each.uid for each in due[number:]), self._clock())
                return False
            self._faults.worked()
        return True

    async def _tell(self, pod: PodInfo) -> None:
        if (
            pod.pod.namespace,
            pod.pod.name,
        ) in self._cluster.pods():  # it has a node, or another pod of its name has
            self._refused.gone(pod.uid)
            return
        condition: Manifest = {
            "type": names.ROOM_FREED,
            "status": "True",
            "reason": "RoomFreed",
            "message": "Parley's ledger may have room for the pod since this moment",
            "lastTransitionTime": objects.time_written(self._date()),
        }
        await write_condition(self._api, pod, condition, deadline_s=WRITE_S)
        self._refused.told(pod.uid, self._clock())
