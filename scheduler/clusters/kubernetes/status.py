"""The status of our objects: conditions as the API has them, written only if something has changed, and not too often; and that of
ScalingPolicies, which is the number of pods that each finds, and its faults.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hosting.fault_log import FaultLog
from hosting.kubernetes import objects
from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.core.known import Key, key_of
from hosting.kubernetes.resources import SCALING_POLICIES, Manifest, ResourceType
from hosting.logs import Logger
from protocol.texts import clean
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.reading import Description

INTERVAL_S: Final = 5.0
"""Between two writes to one object."""
MAX_WRITES: Final = 20
"""At one time, for all objects of a type."""
MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class StatusCondition:
    """A condition of an object, without when it came to be."""

    type: str
    is_true: bool | None
    """None if it is not known."""
    reason: str
    message: str


def conditions_of(
    manifest: Manifest, wanted: Iterable[StatusCondition], wall: datetime
) -> list[dict[str, Any]]:
    """The conditions as they are written. One whose status is as before keeps the time of its transition."""
    found = []
    for each in wanted:
        status = "Unknown" if each.is_true is None else str(each.is_true)
        before = objects.condition(manifest, each.type) or {}
        is_same = before.get("status") == status and before.get("lastTransitionTime")
        since = before["lastTransitionTime"] if is_same else objects.time_written(wall)
        found.append(
            {
                "type": each.type,
                "status": status,
                "reason": each.reason,
                "message": clean(each.message, MAX_MESSAGE),
                "observedGeneration": manifest["metadata"].get("generation", 0),
                "lastTransitionTime": since,
            }
        )
    return found


class StatusWriter:
    """Writes the status of objects of one type. `clock` is monotonic."""

    def __init__(
        self, api: KubernetesApi, type_: ResourceType, clock: Callable[[], float], log: Logger
    ) -> None:
        self._api = api
        self._type = type_
        self._clock = clock
        self._written_s: dict[Key, float] = {}
        self._faults = FaultLog(
            log, f"status of {type_.plural} not written", f"status of {type_.plural} written"
        )

    async def write(self, wanted: Collection[tuple[Manifest, Mapping[str, Any]]]) -> None:
        """Bring objects' status in line: those that differ and were not written just now. The rest waits for the next call."""
        now_s, writes = self._clock(), 0
        here = {key_of(manifest) for manifest, _ in wanted}
        self._written_s = {key: at_s for key, at_s in self._written_s.items() if key in here}
        for manifest, status in wanted:
            key = key_of(manifest)
            last_s = self._written_s.get(key, -math.inf)
            if (manifest.get("status") or {}) == status or now_s < last_s + INTERVAL_S:
                continue
            if writes == MAX_WRITES:
                return
            writes += 1
            self._written_s[key] = now_s
            over = dict.fromkeys((manifest.get("status") or {}).keys() - status.keys())
            await self._write_one(key, {**over, **status})

    async def _write_one(self, key: Key, status: Mapping[str, Any]) -> None:
        """Merge into the status; a field that is None goes."""
        about = "/".join(part for part in key if part)
        try:
            await self._api.patch(
                self._type, key[0] or None, key[1], {"status": status}, subresource="status"
            )
        except KubernetesError as error:
            self._faults.failed(error, about, object=about)
        else:
            self._faults.worked(about, object=about)


LOOK_S: Final = 5.0
MAX_FAULTS: Final = 16


def policy_status(
    manifest: Manifest, own: tuple[str, ...], pods: Iterable[tuple[Key, Description]], wall: datetime
) -> dict[str, Any]:
    """The status of a policy; `own` is what is wrong with the policy itself, `pods` are those that it counts for."""
    matched, faults = 0, list(own)
    for (_, name), description in pods:
        matched += 1
        faults += (f"pod {name}: {fault}" for fault in description.faults)
    shown = [clean(fault, MAX_MESSAGE) for fault in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        shown.append(f"and {len(faults) - MAX_FAULTS} more")
    if faults:
        ready = StatusCondition("Ready", False, "Faults", faults[0])
    elif not matched:
        ready = StatusCondition("Ready", True, "NoPods", "no pod with a node is scaled by this policy")
    else:
        ready = StatusCondition("Ready", True, "PodsFound", f"pods that this policy scales: {matched}")
    return {
        "observedGeneration": manifest["metadata"].get("generation", 0),
        "matchedPods": matched,
        "faults": shown,
        "conditions": conditions_of(manifest, (ready,), wall),
    }


class PolicyStatus:
    """Keeps the status of all ScalingPolicies in line with the cluster. The leader runs it."""

    def __init__(
        self,
        api: KubernetesApi,
        cluster: KubernetesCluster,
        clock: Callable[[], float],
        log: Logger,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._wall = wall
        self._writer = StatusWriter(api, SCALING_POLICIES, clock, log)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.write()

    async def write(self) -> None:
        policies = self._cluster.policies()
        if not policies:
            return
        pods: dict[Key, list[tuple[Key, Description]]] = {key: [] for key in policies}
        for key, description in self._cluster.descriptions():
            found = pods.get((key[0], description.policy)) if description.policy is not None else None
            if found is not None:
                found.append((key, description))
        wall, faults = self._wall(), self._cluster.faults
        wanted = []
        for key, manifest in policies.items():
            own = faults.get(f"ScalingPolicy {key[0]}/{key[1]}", ())
            wanted.append((manifest, policy_status(manifest, own, pods[key], wall)))
        await self._writer.write(wanted)
