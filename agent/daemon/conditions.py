"""Conditions in a pod's own status, if its needs are denied or its control groups differ from its size: for `kubectl get`,
`kubectl wait` and other controllers.

The status is compared with the present state at each look, so that a restart of the agent leaves nothing behind.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from agent.core.notices import Topic
from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.errors import KubernetesError, RefusedError
from hosting.kubernetes.names import CGROUP_MISMATCH, DENIED
from hosting.kubernetes.resources import PODS, STRATEGIC_PATCH, Manifest
from hosting.logs import Logger

if TYPE_CHECKING:  # the client library is an extra
    from hosting.kubernetes.api import KubernetesApi

AFTER_FAULT_S: Final = 60.0
TYPES: Final[Mapping[Topic, str]] = {Topic.DENIED: DENIED, Topic.MISMATCH: CGROUP_MISMATCH}
"""The topics that are told as conditions, by their types."""


def differs(pod: Manifest, type_: str, told: str | None) -> bool:
    """Whether the pod's condition differs from `told`: why it is so, None if it is not."""
    stands = objects.condition(pod, type_)
    if told is None:
        return stands is not None and stands.get("status") == "True"
    return stands is None or (stands.get("status"), stands.get("message")) != ("True", told)


class Conditions:
    """Writes the conditions of pods."""

    def __init__(self, api: "KubernetesApi", log: Logger) -> None:
        self._api = api
        self._faults = FaultLog(
            log, "conditions of pods cannot be written", "conditions of pods can be written again"
        )
        self._not_before_s = 0.0
        self._refused: dict[str, float] = {}
        """The pods whose condition was refused, by UID, and until when it is not tried again."""

    async def write(self, wanted: Iterable[tuple[Manifest, Topic, str | None]], now_s: float) -> None:
        """Write those that differ; each is a topic of `TYPES`, with the text or None if it is not so. One that is refused rests for a
        while; after another fault, all do. Never raises for the API server's sake."""
        if now_s < self._not_before_s:
            return
        self._refused = {uid: until_s for uid, until_s in self._refused.items() if now_s < until_s}
        for pod, topic, told in wanted:
            if objects.uid(pod) in self._refused or not differs(pod, TYPES[topic], told):
                continue
            try:
                await self._write(pod, topic, told)
            except KubernetesError as error:
                if isinstance(error, RefusedError) and (error.is_not_found or error.is_conflict):
                    continue  # another pod has its name by now
                self._faults.failed(error)
                if not isinstance(error, RefusedError) or error.is_overloaded or error.status >= 500:
                    self._not_before_s = now_s + AFTER_FAULT_S
                    return
                self._refused[objects.uid(pod)] = now_s + AFTER_FAULT_S
            else:
                if not self._refused:
                    self._faults.worked()

    async def _write(self, pod: Manifest, topic: Topic, told: str | None) -> None:
        condition = {
            "type": TYPES[topic],
            "status": "False" if told is None else "True",
            "reason": topic.value.over if told is None else topic.value.reason,
            "message": told or "",
            "lastTransitionTime": objects.time_written(datetime.now(UTC)),
        }
        await self._api.patch(
            PODS,
            objects.namespace(pod),
            objects.name(pod),
            {"metadata": {"uid": objects.uid(pod)}, "status": {"conditions": [condition]}},
            content_type=STRATEGIC_PATCH,
            subresource="status",
        )
