"""CPU strategies with a real kubelet: best effort is held back while others are busy, and a throttled pod bursts; at the end all is as before.

The strategies run as in the agent, in threads of the QoS manager, with metrics from this machine's own files.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from agent.node.qos.client import StrategyPorts
from agent.node.qos.collectors import Collectors
from agent.node.qos.config import configured
from agent.node.qos.executor import ResourceExecutor
from agent.node.qos.manager import QosManager
from agent.node.qos.metric_cache import TimeSeriesCache
from agent.node.qos.pods import node_state, pod_state
from agent.node.qos.states_informer import StateCallbacks, States
from hosting.kubernetes.resources import Manifest
from hosting.logs import logger
from labs.clusters.node.claim import CGROUPS, is_v2
from labs.clusters.node.real_node import RealNode
from tests.support.kube.loads import Load, throttled_periods
from tests.support.kube.objects import Objects
from tests.support.waiting import shown

BUSY_MILLI = 1800
LOG = logger("test")


@contextlib.asynccontextmanager
async def strategy(
    name: str, objects: Objects, node: RealNode, pods: Sequence[Manifest], **args: object
) -> AsyncIterator[QosManager]:
    """One strategy at work on the pods of the node, until the end, which the daemon would ask for."""
    states = States(StateCallbacks(LOG, time.monotonic))
    states.publish_node(node_state(json.loads(objects.plane.call("GET", f"/api/v1/nodes/{node.name}"))))
    states.publish_pods([pod_state(each) for each in pods], is_healthy=True)
    states.publish_vms(())
    states.publish_policies(())
    executor, cache = ResourceExecutor(), TimeSeriesCache()
    config = configured({name: True}, {name: args})
    manager = QosManager(config, cache, states, StrategyPorts(executor), LOG, random.Random(0))
    collectors = Collectors(cache, executor.cgroups, states, LOG, interval_s=0.3)
    tasks = [asyncio.create_task(each.run()) for each in (manager, collectors)]
    try:
        yield manager
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def quota_us(group: Path) -> int | None:
    """The CPU quota of a group; None for none."""
    if is_v2():
        text = (group / "cpu.max").read_text().split()[0]
        return None if text == "max" else int(text)
    found = int((group / "cpu.cfs_quota_us").read_text())
    return None if found < 0 else found


async def made(objects: Objects, node: RealNode, load: Load, name: str, cpu: str) -> Manifest:
    """A running pod with a load; without an amount of CPU one of best effort."""
    manifest = load.pod(name, node=node.name, requests={"cpu": cpu or "1", "memory": "64Mi"})
    if not cpu:
        del manifest["spec"]["containers"][0]["resources"]
    return await asyncio.to_thread(objects.create_pod, manifest)


async def test_best_effort_is_held_back_while_others_are_busy_and_freed_afterwards(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    spins, works = Load(tmp_path / "spins"), Load(tmp_path / "works")
    pods = [
        await made(objects, real_node, spins, "spins", ""),
        await made(objects, real_node, works, "works", "1"),
    ]
    assert [each["status"]["qosClass"] for each in pods] == ["BestEffort", "Guaranteed"]
    group = f"{real_node.name}/kubepods/besteffort"
    root = (CGROUPS if is_v2() else CGROUPS / "cpu") / group
    inside = real_node.container_cgroup(pods[0], "cpu")
    for load in (spins, works):
        load.set(cpu_milli=BUSY_MILLI)
    assert quota_us(root) is None
    async with strategy("CPUSuppress", objects, real_node, pods, group=group, interval=0.3) as manager:

        async def held() -> bool:
            return (quota_us(root) or 10**6) < 100_000 and throttled_periods(root) > 5

        await shown("best effort held back", held)
        (status,) = (each for each in manager.statuses() if each.name == "CPUSuppress")
        assert status.state == "running", status
        assert any(each.action for each in status.decisions), status
    assert quota_us(root) is None
    assert quota_us(inside) is None


async def test_a_throttled_pod_bursts_above_its_limit_and_gets_it_back(
    objects: Objects, real_node: RealNode, tmp_path: Path
) -> None:
    """How far the quota grows depends on what else this machine does: a pod that does not get its quota's time is not throttled."""
    load = Load(tmp_path / "load")
    found = await made(objects, real_node, load, "p", "50m")
    groups = (real_node.pod_cgroup(found, "cpu"), real_node.container_cgroup(found, "cpu"))
    load.set(cpu_milli=800)
    assert [quota_us(each) for each in groups] == [5000, 5000]
    async with strategy(
        "CPUBurst",
        objects,
        real_node,
        [found],
        sharePoolPercent=1000,
        interval=0.3,
    ):

        async def grown() -> bool:
            return all((quota_us(each) or 0) > 5000 for each in groups)

        await shown("quotas above the limit", grown)
    assert [quota_us(each) for each in groups] == [5000, 5000]
