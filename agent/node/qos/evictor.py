"""Evicts pods for strategies: from their threads, through the API server, so that disruption budgets hold. Events tell the pods' owners."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol

from agent.node.qos.core.actions import EvictOutcome, EvictResult
from agent.node.qos.core.states import PodState
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.resources import PODS, Manifest
from hosting.logs import Logger

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

DEADLINE_S: Final = 5.0
"""How long a strategy waits."""
CALL_DEADLINE_S: Final = 4.5
"""How long an eviction may take in the loop, waiting for earlier ones included."""
REPEAT_S: Final = 120.0
"""A pod is not evicted again before so long. Source: reference/koordinator.md 3.3."""
MAX_REMEMBERED: Final = 1_000
"""Pods that were evicted; the oldest are forgotten first."""
ACTION: Final = "Evict"

EventType = Literal["Normal", "Warning"]


class Recorder(Protocol):
    """Writes Events, as `hosting.kubernetes.recorder.EventRecorder` does. Called in the loop."""

    def record(self, regarding: Manifest, type_: EventType, reason: str, action: str, note: str) -> None:
        """Tell of an object. Never waits."""


class PodEvictor:
    """Made inside the loop that serves `api`; None has every eviction end as unavailable. Methods may be called from any other thread.
    Evictions are sent one at a time."""

    def __init__(
        self,
        api: "KubernetesApi | None",
        events: Recorder | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        log: Logger,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._api, self._events = api, events
        self._clock, self._log = clock, log
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._evicted_s: dict[str, float] = {}
        """When each pod was evicted, by UID; the oldest first."""

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        """Have a pod evicted; its UID is compared. Blocks for 5 s at most. Raises `RuntimeError` in the loop's own thread."""
        self._check_thread()
        asked = self.send(pod, reason)
        try:
            future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # the loop has ended
            asked.close()
            return EvictOutcome(EvictResult.UNAVAILABLE, "the agent is ending")
        try:
            return future.result(self._deadline_s)
        except concurrent.futures.CancelledError:
            return EvictOutcome(EvictResult.FAILED, "the agent is ending")
        except TimeoutError:
            future.cancel()
            return EvictOutcome(EvictResult.FAILED, f"no answer within {self._deadline_s:g} s")

    def recommend(self, pod: PodState, reason: str) -> EvictOutcome:
        """Tell the pod's owner that it would be evicted. Never blocks."""
        try:
            self._loop.call_soon_threadsafe(self._tell, pod, "Normal", "EvictionRecommended", reason)
        except RuntimeError:
            return EvictOutcome(EvictResult.UNAVAILABLE, "the agent is ending")
        return EvictOutcome(EvictResult.RECOMMENDED, "not evicted: the strategy only recommends")

    def _check_thread(self) -> None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return
        if running is self._loop:
            raise RuntimeError("evict() blocks, and would wait for its own loop: call it from another thread")

    async def send(self, pod: PodState, reason: str) -> EvictOutcome:
        """Evict a pod; for callers in the loop."""
        if self._api is None:
            return EvictOutcome(EvictResult.UNAVAILABLE, "there is no API server in the settings")
        try:
            async with asyncio.timeout(CALL_DEADLINE_S), self._turn:
                now_s = self._clock()
                if now_s - self._evicted_s.get(pod.uid, -REPEAT_S) < REPEAT_S:
                    return EvictOutcome(EvictResult.EVICTED, f"evicted less than {REPEAT_S:g} s ago")
                is_there = await self._api.evict(pod.namespace, pod.name, pod.uid, deadline_s=CALL_DEADLINE_S)
                self._remember(pod.uid, now_s)
        except TimeoutError:
            return self._failed(pod, reason, f"no answer within {CALL_DEADLINE_S:g} s")
        except KubernetesError as error:
            return self._fault(pod, reason, error)
        if not is_there:
            return EvictOutcome(EvictResult.GONE, "the pod is gone")
        self._tell(pod, "Warning", "Evicted", reason)
        return EvictOutcome(EvictResult.EVICTED)

    def _remember(self, uid: str, now_s: float) -> None:
        self._evicted_s[uid] = now_s
        if len(self._evicted_s) > MAX_REMEMBERED:
            del self._evicted_s[next(iter(self._evicted_s))]

    def _fault(self, pod: PodState, reason: str, error: KubernetesError) -> EvictOutcome:
        """A clear no belongs to the pod; after anything else nobody knows whether the pod goes."""
        is_no = isinstance(error, RefusedError) and (error.is_budget or not error.is_overloaded)
        if not is_no:
            return self._failed(pod, reason, str(error))
        self._tell(pod, "Warning", "EvictionRefused", f"{error} (wanted because of {reason})")
        return EvictOutcome(EvictResult.REFUSED, str(error))

    def _failed(self, pod: PodState, reason: str, text: str) -> EvictOutcome:
        self._tell(pod, "Warning", "EvictionFailed", f"{text} (wanted because of {reason})")
        return EvictOutcome(EvictResult.FAILED, text)

    def _tell(self, pod: PodState, type_: EventType, reason: str, note: str) -> None:
        self._log.info("told a pod's owner", pod=pod.full_name, reason=reason, text=note)
        if self._events is None:
            return
        metadata = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        head: Manifest = {"apiVersion": PODS.api_version, "kind": PODS.kind, "metadata": metadata}
        self._events.record(head, type_, reason, ACTION, note)
