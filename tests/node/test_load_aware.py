"""A decision that follows a real load: the agent measures a pod of a real kubelet and writes its node's NodeMetric, and `LoadAwareScheduling`,
whose shared informer watches the API server, keeps another pod off the node for as long as the load is there.

The use of prod pods is looked at, and not that of the machine, on which other tests may be running.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

from agent.node.qos.collectors import Collectors
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.node_metric import NodeMetricWriter
from agent.node.qos.pods import node_state, pod_state
from agent.node.qos.states_informer import StateCallbacks, States
from hosting.kubernetes import objects as manifests
from hosting.kubernetes.api import ApiCredentials, KubernetesApi
from hosting.kubernetes.koordinator import NODE_METRICS
from hosting.kubernetes.resources import Manifest, ResourceType
from hosting.logs import logger
from labs.clusters.node.real_node import RealNode
from protocol.values import Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes.informers import KubernetesInformers
from scheduler.placing.core.handle import ExtendedHandle
from scheduler.placing.core.informers import Informer
from scheduler.placing.core.objects import NodeInfo, PodInfo
from scheduler.placing.core.values import Status, message_of
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.plugins.load_aware.plugin import LoadAwareScheduling
from tests.support.kube.deployed import DEPLOY
from tests.support.kube.loads import Load
from tests.support.kube.objects import Objects
from tests.support.waiting import shown

BUSY_MILLI = 1500
LOG = logger("test")
ARGS = {"prodUsageThresholds": {"cpu": 25}, "usageThresholds": {"cpu": 100, "memory": 100}}
POLICY = {"reportIntervalSeconds": 1, "aggregateDurationSeconds": 2}
NEW = PodInfo(PodName("new", "default"), "new", Resources(10, 1 << 20))
TOO_BUSY = "node(s) cpu usage exceed threshold"


class Handle:
    """What the plugin asks for while it is made."""

    def __init__(self, informers: KubernetesInformers) -> None:
        self._informers = informers

    def shared_informer(self, type_: ResourceType) -> Informer:
        return self._informers.informer(type_)


async def test_a_load_aware_decision_follows_a_real_load(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    kind = f"--filename={DEPLOY / 'koordinator/nodemetrics.yaml'}"
    objects.plane.kubectl("apply", kind)
    objects.plane.kubectl("wait", "--for=condition=Established", kind, "--timeout=30s")
    load = Load(tmp_path / "load")
    wanted = load.pod("p", node=real_node.name, requests={"cpu": "100m", "memory": "64Mi"})
    for container in wanted["spec"]["containers"]:
        container["resources"].pop("limits", None)
    found = await asyncio.to_thread(objects.create_pod, wanted)
    node: Manifest = json.loads(objects.plane.call("GET", f"/api/v1/nodes/{real_node.name}"))
    async with KubernetesApi(ApiCredentials(objects.plane.kubeconfig), user_agent="test") as api:
        metric = {"metadata": {"name": real_node.name}, "spec": {"metricCollectPolicy": POLICY}}
        head = {"apiVersion": NODE_METRICS.api_version, "kind": NODE_METRICS.kind}
        await api.create(NODE_METRICS, None, {**head, **metric})
        tasks: list[asyncio.Task[Any]] = []

        def start(name: str, run: Callable[[], Coroutine[Any, Any, object]]) -> None:
            tasks.append(asyncio.create_task(run(), name=name))

        informers = KubernetesInformers(api, start, clock=time.monotonic, rng=random.Random(0), log=LOG)
        plugin = LoadAwareScheduling(ARGS, cast("ExtendedHandle", Handle(informers)))
        for each in agent_of(api, node, found):
            start("agent", each)
        there = NodeInfo(real_node.name, pods=(placed(found),), manifest=node)

        def judged() -> Status | None:
            context = CycleState()
            _, status = plugin.pre_filter(context, NEW, [there])
            return status if status is not None else plugin.filter(context, NEW, there)

        async def is_measured() -> bool:
            reported = await api.get(NODE_METRICS, None, real_node.name)
            pods = (reported.get("status") or {}).get("podsMetric") or ()
            return any(each["name"] == "p" for each in pods) and judged() is None

        async def is_rejected() -> bool:
            return message_of(judged()) == TOO_BUSY

        async def is_admitted() -> bool:
            return judged() is None

        try:
            await shown("the pod is measured, and the node has room", is_measured)
            load.set(cpu_milli=BUSY_MILLI)
            await shown("the node is too busy", is_rejected)
            load.set(cpu_milli=0)
            await shown("the node has room again", is_admitted)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            objects.plane.kubectl("delete", kind)


def agent_of(
    api: KubernetesApi, node: Manifest, found: Manifest
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What the agent runs to measure the pod and to write the report."""
    states = States(StateCallbacks(LOG, time.monotonic))
    states.publish_node(node_state(node))
    states.publish_pods([pod_state(found)], is_healthy=True)
    states.publish_vms(())
    states.publish_policies(())
    cache = TimeSeriesCache()
    collectors = Collectors(cache, ResourceExecutor().cgroups, states, LOG, interval_s=0.3)
    writer = NodeMetricWriter(api, lambda: node, cache, states, LOG, random.Random(0))
    return [collectors.run, writer.run]


def placed(manifest: Manifest) -> PodInfo:
    """The pod as if it had been bound long ago, so that its report counts at once."""
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    shown_as = {**manifest, "status": {**manifest["status"], "conditions": [bound]}}
    name = PodName(manifests.name(manifest), manifests.namespace(manifest))
    return PodInfo(name, manifests.uid(manifest), Resources(100, 64 << 20), manifest=shown_as)
