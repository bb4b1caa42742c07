"""Evictions of strategies on a real API server: who really goes, what a budget says, and what the pods' owners are told."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from agent.node.qos.core.actions import EvictOutcome, EvictResult
from agent.node.qos.core.metrics import NODE_MEMORY_USAGE, POD_MEMORY_USAGE
from agent.node.qos.core.states import PodState
from agent.node.qos.evictor import PodEvictor
from agent.node.qos.pods import pod_state
from agent.node.qos.strategies.evicting import MemoryEvict
from hosting import logs
from hosting.kubernetes import names
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.recorder import EventRecorder
from hosting.kubernetes.resources import Manifest
from hosting.threads import in_own_thread
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import NodeSize
from tests.support.evictions import GIB, FakeClient, FakeMetrics, FakeStates, Never, args_of
from tests.support.kube.events import events_of
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod

T = TypeVar("T")


class Client(FakeClient):
    """Really evicts."""

    def __init__(self, evictor: PodEvictor) -> None:
        super().__init__()
        self._evictor = evictor

    def evict(self, pod: PodState, reason: str) -> EvictOutcome:
        super().evict(pod, reason)
        return self._evictor.evict(pod, reason)


@contextlib.asynccontextmanager
async def evicting(plane: ControlPlane) -> AsyncIterator[PodEvictor]:
    log = logs.logger("test")
    async with KubernetesApi(ApiCredentials(plane.kubeconfig), user_agent="parley-agent") as api:
        recorder = EventRecorder(api, "parley.dev/agent", clock=time.monotonic, rng=random.Random(), log=log)
        writing = asyncio.create_task(recorder.run(), name="Events")
        try:
            yield PodEvictor(api, recorder, log=log)
        finally:
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


def with_evictor(plane: ControlPlane, call: Callable[[PodEvictor], T], told: Callable[[], object]) -> T:
    """The outcome of a call in a strategy's thread; waits until `told` holds, so that Events are written."""

    async def run() -> T:
        async with evicting(plane) as evictor:
            found = await in_own_thread(lambda: call(evictor))
            await in_own_thread(told)
            return found

    return asyncio.run(run())


def waiting(objects: Objects, name: str) -> PodState:
    manifest = pod(name) | {"spec": pod(name)["spec"] | {"schedulerName": "nobody"}}
    return pod_state(
        json.loads(objects.plane.call("POST", f"/api/v1/namespaces/{objects.namespace}/pods", manifest))
    )


def test_the_lowest_priority_goes_unless_its_budget_forbids_it(
    control_plane: ControlPlane, hollow_nodes: MakeHollowNodes, objects: Objects
) -> None:
    (node,) = hollow_nodes(1, NodeSize("4", "8Gi")).names
    allowed = {names.EVICTION_ENABLED: "true"}

    def made(name: str, priority: int, **labels: str) -> Manifest:
        note = {names.EVICTION_PRIORITY: str(priority)}
        return objects.create_pod(pod(name, node=node, labels=allowed | labels, annotations=note))

    objects.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "one"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"of": "budget"}}},
        }
    )
    pods = [made("guarded", -2, of="budget"), made("lowest", -1), made("higher", 5)]
    states = FakeStates(pods=tuple(map(pod_state, pods)))
    metrics = FakeMetrics()
    metrics.set(NODE_MEMORY_USAGE, 75 * GIB)
    for each in states.pods:
        metrics.set(POD_MEMORY_USAGE, 8 * GIB, each.uid)

    def round_(evictor: PodEvictor) -> Client:
        client, strategy = Client(evictor), MemoryEvict()
        strategy.init_flags(args_of(strategy))
        strategy.setup(client, metrics, states)
        strategy.round(Never())
        strategy.round(Never())
        return client

    def told() -> object:
        return objects.shown("Events", lambda: events_of(objects, "guarded") and events_of(objects, "lowest"))

    client = with_evictor(control_plane, round_, told)
    assert [name for name, _ in client.evicted] == ["guarded", "lowest"]
    assert [each.reason for each in client.decisions] == ["evicted", "releasing"]
    objects.shown(
        "the pod is gone",
        lambda: [each["metadata"]["name"] for each in objects.list("pods")] == ["guarded", "higher"],
    )
    assert "disruption budget" in events_of(objects, "guarded")["EvictionRefused"]
    assert events_of(objects, "lowest")["Evicted"].startswith(
        "MemoryEvict: memory in use 75.0 % (releasing until 68 %)"
    )


def test_another_pod_under_the_name_of_a_victim_stays(control_plane: ControlPlane, objects: Objects) -> None:
    victim = waiting(objects, "again")
    objects.delete("pods", "again")
    new = waiting(objects, "again")
    outcome = with_evictor(control_plane, lambda evictor: evictor.evict(victim, "memory"), lambda: None)
    assert outcome.result is EvictResult.GONE
    assert objects.get("pods", "again")["metadata"]["uid"] == new.uid


def test_a_recommendation_is_an_event_of_a_pod_that_stays(
    control_plane: ControlPlane, objects: Objects
) -> None:
    found = waiting(objects, "spared")

    def told() -> object:
        return objects.shown("the Event", lambda: events_of(objects, "spared"))

    outcome = with_evictor(control_plane, lambda evictor: evictor.recommend(found, "memory"), told)
    assert outcome.result is EvictResult.RECOMMENDED
    assert events_of(objects, "spared") == {"EvictionRecommended": "memory"}
    assert objects.get("pods", "spared")["metadata"].get("deletionTimestamp") is None
