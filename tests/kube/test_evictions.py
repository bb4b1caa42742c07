"""Evictions of strategies on a real API server: nobody goes under the name of somebody else."""

import asyncio
import json
import random
import time

from agent.node.qos.core.actions import EvictOutcome, EvictResult
from agent.node.qos.core.states import PodState
from agent.node.qos.evictor import PodEvictor
from agent.node.qos.pods import pod_state
from hosting import logs
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.recorder import EventRecorder
from hosting.threads import in_own_thread
from labs.clusters.control_plane import ControlPlane
from tests.support.kube.objects import Objects, pod

LOG = logs.logger("test")


async def evicted(plane: ControlPlane, victim: PodState) -> EvictOutcome:
    """The outcome in a strategy's thread."""
    async with KubernetesApi(ApiCredentials(plane.kubeconfig), user_agent="parley-agent") as api:
        recorder = EventRecorder(api, "parley.dev/agent", clock=time.monotonic, rng=random.Random(), log=LOG)
        evictor = PodEvictor(api, recorder, log=LOG)
        return await in_own_thread(lambda: evictor.evict(victim, "memory"))


def waiting(objects: Objects, name: str) -> PodState:
    manifest = pod(name) | {"spec": pod(name)["spec"] | {"schedulerName": "nobody"}}
    return pod_state(
        json.loads(objects.plane.call("POST", f"/api/v1/namespaces/{objects.namespace}/pods", manifest))
    )


def test_another_pod_under_the_name_of_a_victim_stays(control_plane: ControlPlane, objects: Objects) -> None:
    victim = waiting(objects, "again")
    objects.delete("pods", "again")
    new = waiting(objects, "again")
    assert asyncio.run(evicted(control_plane, victim)).result is EvictResult.GONE
    assert objects.get("pods", "again")["metadata"]["uid"] == new.uid
