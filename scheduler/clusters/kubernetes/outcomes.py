"""The messages to people about pods that our own scheduler places: Events, and the condition PodScheduled. Wording: kube-scheduler's."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import CALL_DEADLINE_S, KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.patches import STRATEGIC_PATCH
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import PODS, Manifest
from hosting.logs import Logger
from protocol.texts import clean
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.cycle.attempt import CycleFailure

CONDITION: Final = "PodScheduled"
MAX_WAITING: Final = 1000
"""Pods whose condition waits to be written; with more, the oldest one is not written."""
MAX_NOTE: Final = 4096
"""Characters of a condition's message."""
_BACKOFF: Final = Backoff(base_s=0.5, cap_s=10.0)


class PodOutcomes:
    """Records Events, and writes conditions while `run` runs. Of a pod whose condition waits, the last one counts."""

    def __init__(
        self,
        api: KubernetesApi,
        recorder: EventRecorder,
        *,
        date: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random,
        log: Logger,
    ) -> None:
        self._api = api
        self._recorder = recorder
        self._date = date
        self._rng = rng
        self._faults = FaultLog(
            log, "conditions of pods cannot be written", "conditions of pods can be written again"
        )
        self._waiting: dict[str, tuple[PodInfo, Manifest]] = {}
        self._written: dict[str, tuple[str, str]] = {}
        """By UID: the last message of each pod, so that nothing is written twice."""
        self._has_more = asyncio.Event()

    def scheduled(self, pod: PodInfo, node_name: str) -> None:
        """The API server writes the condition of a pod that is bound."""
        self._forget(pod.uid)
        note = f"Successfully assigned {pod.name} to {node_name}"
        self._recorder.record(_regarding(pod), "Normal", "Scheduled", "Binding", note)

    def failed(self, pod: PodInfo, failure: CycleFailure) -> None:
        """Why the pod has no node."""
        text = clean(failure.text, MAX_NOTE)
        self._recorder.record(_regarding(pod), "Warning", "FailedScheduling", "Scheduling", text)
        said: tuple[str, str] = failure.reason, text
        if self._written.get(pod.uid) == said or _shown(pod) == said:
            return
        self._forget(pod.uid)
        self._written[pod.uid] = said
        condition = {"type": CONDITION, "status": "False", "reason": failure.reason, "message": text}
        if (objects.condition(dict(pod.manifest), CONDITION) or {}).get("status") != "False":
            condition["lastTransitionTime"] = objects.time_written(self._date())
        self._waiting[pod.uid] = pod, condition
        for kept in (self._waiting, self._written):
            if len(kept) > MAX_WAITING:
                del kept[next(iter(kept))]
        self._has_more.set()

    def _forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._written.pop(uid, None)

    async def run(self) -> None:
        failures = 0
        while True:
            await self._has_more.wait()
            if not self._waiting:
                self._has_more.clear()
                continue
            uid, (pod, condition) = next(iter(self._waiting.items()))
            try:
                await write_condition(self._api, pod, condition)
            except KubernetesError as error:
                self._faults.failed(error)
                failures += 1
                await asyncio.sleep(_BACKOFF.delay_s(failures, self._rng.random()))
                if is_final(error):
                    self._done(uid, condition)
            else:
                failures = 0
                self._faults.worked()
                self._done(uid, condition)

    def _done(self, uid: str, condition: Manifest) -> None:
        if (found := self._waiting.get(uid)) is not None and found[1] is condition:
            del self._waiting[uid]


async def write_condition(
    api: KubernetesApi, pod: PodInfo, condition: Manifest, deadline_s: float = CALL_DEADLINE_S
) -> None:
    """Write one condition of a pod; nothing if the pod is gone, or another one has its name. Raises `KubernetesError`."""
    try:
        await api.patch(
            PODS,
            pod.pod.namespace,
            pod.pod.name,
            {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}},
            content_type=STRATEGIC_PATCH,
            subresource="status",
            deadline_s=deadline_s,
        )
    except RefusedError as error:
        if not (error.is_not_found or error.is_conflict):
            raise


def is_final(error: KubernetesError) -> bool:
    return isinstance(error, RefusedError) and not error.is_overloaded and error.status < 500


def _regarding(pod: PodInfo) -> Manifest:
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, **pod.manifest}


def _shown(pod: PodInfo) -> tuple[str, str] | None:
    found = objects.condition(dict(pod.manifest), CONDITION)
    return (found.get("reason", ""), found.get("message", "")) if found is not None else None
