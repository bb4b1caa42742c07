"""The writes of the scheduler of pods: a Binding for each pod (the `Binder` port, over the subresource `pods/binding`), and the messages
to people, which are Events and the condition PodScheduled, worded as kube-scheduler's.

A pod gets its node once, and never another one, so a Binding may be posted again: whether the pod is bound is what its object says.
While an earlier request may still be carried out, a pod without a node may have one a moment later.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from hosting.backoff import Backoff
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import CALL_DEADLINE_S, KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.koordinator import PUBLISHED_RESERVATIONS
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import NODES, PODS, STRATEGIC_PATCH, Manifest
from hosting.logs import Logger
from protocol.texts import clean
from protocol.wire import PodName
from scheduler.clusters.kubernetes import reading
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.values import RejectionClass
from scheduler.placing.cycle.attempt import CycleFailure
from scheduler.ports import BINDING_SETTLES_S, NotBound

BIND_DEADLINE_S: Final = 3.0
"""How long a call that binds may take, with the read that follows a refusal."""


class KubernetesBinder:
    """Binds pods through the API server."""

    def __init__(self, api: KubernetesApi, deadline_s: float = BIND_DEADLINE_S) -> None:
        self._api = api
        self._deadline_s = deadline_s
        self._lost: dict[str, float] = {}
        """By UID, until when (s, of the loop's clock) a request whose answer was lost may bind the pod."""

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        """Bind the pod. A server that fails, or does not answer, may have bound the pod; after a refusal its object is read."""
        now_s = asyncio.get_running_loop().time()
        self._lost = {each: until_s for each, until_s in self._lost.items() if until_s > now_s}
        lost_until_s = self._lost.pop(uid, None)
        is_known = False
        try:
            async with asyncio.timeout(self._deadline_s):
                outcome = await self._bind(pod, uid, node, annotations, lost_until_s)
            is_known = outcome is None or not outcome.may_be_bound
        except TimeoutError:
            outcome = NotBound(f"no answer within {self._deadline_s:g} s", may_be_bound=True)
        finally:
            if not is_known:  # cancelled, too
                self._lost.setdefault(uid, asyncio.get_running_loop().time() + BINDING_SETTLES_S)
        return outcome

    async def _bind(
        self,
        pod: PodName,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        lost_until_s: float | None,
    ) -> NotBound | None:
        try:
            await self._api.create(
                PODS,
                pod.namespace,
                _binding(pod, uid, node, annotations),
                name=pod.name,
                subresource="binding",
                deadline_s=self._deadline_s,
            )
        except RefusedError as error:
            if error.is_not_found or error.status >= 500:
                return NotBound(str(error), may_be_bound=not error.is_not_found)
            return await self._as_shown(pod, uid, node, error, lost_until_s)
        except KubernetesError as error:
            return NotBound(str(error), may_be_bound=True)
        return None

    async def _as_shown(
        self, pod: PodName, uid: str, node: str, refused: RefusedError, lost_until_s: float | None
    ) -> NotBound | None:
        """After a refusal the pod's object says whether an earlier call has bound the pod; it may do so until `lost_until_s`."""
        try:
            found = await self._api.get(PODS, pod.namespace, pod.name, deadline_s=self._deadline_s)
        except RefusedError as error:
            return NotBound(
                str(error if error.is_not_found else refused), may_be_bound=not error.is_not_found
            )
        except KubernetesError as error:
            return NotBound(str(error), may_be_bound=True)
        if objects.uid(found) != uid:
            return NotBound("another pod has that name now")
        name = reading.node_name(found)
        if name == node:
            return None
        if name:
            return NotBound(f"it is on node {name} already")
        if lost_until_s is not None:
            self._lost[uid] = lost_until_s
        return NotBound(str(refused), may_be_bound=lost_until_s is not None)


def _binding(pod: PodName, uid: str, node: str, annotations: Mapping[str, str]) -> Manifest:
    metadata: Manifest = {"name": pod.name, "namespace": pod.namespace, "uid": uid}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": PODS.api_version,
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node},
    }


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
        text = clean(failure.text, MAX_NOTE)
        if failure.rejection is not None and failure.rejection_class is not RejectionClass.CAPACITY:
            text = f"{text} (class of the rejection: {failure.rejection_class})"  # a cluster autoscaler cannot help
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
    if pod.is_reservation:
        await _write_scheduled(api, pod, condition, deadline_s)
        return
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


async def _write_scheduled(api: KubernetesApi, pod: PodInfo, condition: Manifest, deadline_s: float) -> None:
    """The same of a Reservation that looks for a node, as its condition `Scheduled`. Its others are those that it had when it was seen."""
    mine = {**condition, "type": "Scheduled", "reason": "Unschedulable"}
    others = (pod.manifest.get("status") or {}).get("conditions") or ()
    conditions = [*(each for each in others if each.get("type") != mine["type"]), mine]
    body = {"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}}
    try:
        await api.patch(
            PUBLISHED_RESERVATIONS, None, pod.pod.name, body, subresource="status", deadline_s=deadline_s
        )
    except RefusedError as error:
        if not (error.is_not_found or error.is_conflict):
            raise


def is_final(error: KubernetesError) -> bool:
    return isinstance(error, RefusedError) and not error.is_overloaded and error.status < 500


def _regarding(pod: PodInfo) -> Manifest:
    if pod.is_reservation:
        metadata = {"name": pod.pod.name, "uid": pod.uid}
        return {
            "apiVersion": PUBLISHED_RESERVATIONS.api_version,
            "kind": PUBLISHED_RESERVATIONS.kind,
            "metadata": metadata,
        }
    return {"apiVersion": PODS.api_version, "kind": PODS.kind, **pod.manifest}


def _shown(pod: PodInfo) -> tuple[str, str] | None:
    found = objects.condition(dict(pod.manifest), CONDITION)
    return (found.get("reason", ""), found.get("message", "")) if found is not None else None
