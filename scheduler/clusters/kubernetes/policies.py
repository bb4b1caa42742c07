"""The status of ScalingPolicies: the number of pods that each finds, and its faults."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.core.known import Key
from hosting.kubernetes.resources import SCALING_POLICIES, Manifest
from hosting.logs import Logger
from protocol.texts import clean
from scheduler.clusters.kubernetes.cluster import KubernetesCluster
from scheduler.clusters.kubernetes.reading import Description
from scheduler.clusters.kubernetes.status import MAX_MESSAGE, StatusCondition, StatusWriter, conditions_of

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
        """Look at all of them from time to time."""
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
        await self._writer.write(
            [
                (manifest, _status(key, manifest, faults, pods[key], wall))
                for key, manifest in policies.items()
            ]
        )


def _status(
    key: Key,
    manifest: Manifest,
    faults: Mapping[str, tuple[str, ...]],
    pods: Iterable[tuple[Key, Description]],
    wall: datetime,
) -> dict[str, Any]:
    return policy_status(manifest, faults.get(f"ScalingPolicy {key[0]}/{key[1]}", ()), pods, wall)
