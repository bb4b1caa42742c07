"""The scheduling framework with all plugins on: pods that a second places, by how many of the nodes are looked at, and by their number.

`benchmarks/framework.py [--short] [--nodes N] [--pods N] [--large N]`: 500 nodes in memory (100 with --short), each with 32 CPUs on two NUMA
nodes and 4 GPUs, and 5,000 pods (400 with --short), through the real queue, cycles and binding of full mode; the API server takes no
time. All default plugins are on, and with them Koordinator's (ten in all). Of the pods every fifth belongs to a gang of ten, every tenth has CPUs of its own,
every tenth half a GPU, every fifth one may grow; all have a quota. The figures:

* default plugins: the same pods without what only Koordinator's plugins read, without these plugins.
* 10 %: the search ends when a tenth of the nodes, at least 100, are feasible (`percentageOfNodesToScore`). The aim is 200 pods a second.
* own share: as many as kube-scheduler looks at: 46 % of 500, 10 % of 5,000.
* large: a tenth of the pods on ten times as many nodes.

A pod that is not bound in the end is an error, and so is a node with more than it has; both make the exit code 1.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import figures, program
from hosting import logs
from hosting.kubernetes.koordinator import (
    DEVICES,
    ELASTIC_QUOTAS,
    NODE_METRICS,
    NODE_RESOURCE_TOPOLOGIES,
    POD_GROUPS,
)
from hosting.kubernetes.resources import PODS, Manifest
from parley.testing import FakeCluster, amount, node, pod, quota
from protocol.wire import PodName
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.attempt import CycleFailure, Frameworks
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks
from scheduler.placing.cycle.scheduler import PodScheduler
from scheduler.placing.plugins.registry import FULL_PROFILE, SHIPPED
from scheduler.ports import NotBound

OURS: Final = "bench"
PUBLISHED: Final = tuple(
    name for name in SHIPPED if name not in {each.name for each in FULL_PROFILE.multi_point.enabled}
)
ARGS: Final[Mapping[str, Any]] = {
    "NodeResourcesFitPlus": {"resources": {"cpu": {"type": "LeastAllocated", "weight": 1}}},
    "ScarceResourceAvoidance": {"resources": ["nvidia.com/gpu"]},
}
QUOTAS: Final = 5
GANG: Final = 10
LIMIT_S: Final = 600.0
"""A run that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class Load:
    """Nodes and pods of one run."""

    nodes: int
    pods: int
    percent: int
    """Of the nodes that end the search; 0 for kube-scheduler's own share."""
    is_published: bool = True
    """Whether Koordinator's plugins are on."""


class Cluster(FakeCluster):
    """The view of the cycles, and what hears how they ended."""

    def __init__(self, load: Load) -> None:
        names = [f"node-{number:04}" for number in range(load.nodes)]
        more = {"koordinator.sh/gpu-core": "400", "koordinator.sh/gpu-memory-ratio": "400"}
        super().__init__(*(node(name, "32", "128Gi", more=more) for name in names))
        self.names = names
        self.pods: dict[str, PodInfo] = {}
        self.ended = asyncio.Event()
        self.failures = 0

    def pod_info(self, manifest: Mapping[str, Any]) -> PodInfo:
        return self.pods[manifest["metadata"]["uid"]]

    def create(self, made: PodInfo) -> None:
        self.pods[made.uid] = made
        self.informers.put(PODS, dict(made.manifest))

    async def bind(
        self, pod: PodName, uid: str, node: str, annotations: Mapping[str, str]
    ) -> NotBound | None:
        failure = await super().bind(pod, uid, node, annotations)
        manifest = self.manifests[pod.full_name]
        self.informers.put(PODS, {**manifest, "spec": {**manifest["spec"], "nodeName": node}})
        return failure

    def scheduled(self, bound: PodInfo, node_name: str) -> None:
        """As `OutcomeReporter`."""
        del bound, node_name
        if len(self.bound) == len(self.pods):
            self.ended.set()

    def failed(self, wanted: PodInfo, failure: CycleFailure) -> None:
        """As `OutcomeReporter`."""
        del wanted, failure
        self.failures += 1

    def overfull(self) -> list[str]:
        return [each.name for each in self.nodes.values() if not each.reserved.fits_in(each.reservable)]


def _topology(name: str) -> Manifest:
    """32 CPUs: two sockets, each a NUMA node, with eight cores of two threads."""
    detail = [{"id": cpu, "core": cpu % 16 // 2, "socket": cpu // 16, "node": cpu // 16} for cpu in range(32)]
    zones = [
        {
            "name": f"node-{numa}",
            "type": "Node",
            "resources": [
                {"name": resource, "capacity": each, "allocatable": each, "available": each}
                for resource, each in (("cpu", "16"), ("memory", "64Gi"))
            ],
        }
        for numa in range(2)
    ]
    annotations = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}
    return {"metadata": {"name": name, "annotations": annotations}, "topologyPolicies": [], "zones": zones}


def _metric(name: str, number: int) -> Manifest:
    """A node that is in use to a tenth, or up to a half."""
    usage = {"cpu": f"{3 + number % 13}", "memory": f"{10 + number % 50}Gi"}
    return {
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "updateTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "nodeMetric": {"nodeUsage": {"resources": usage}},
            "podsMetric": [],
        },
    }


def _device(name: str) -> Manifest:
    devices = [
        {
            "type": "gpu",
            "minor": minor,
            "id": f"{name}-{minor}",
            "health": True,
            "resources": {
                "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "16Gi",
            },
            "topology": {"socketID": minor // 2, "nodeID": minor // 2, "pcieID": str(minor)},
        }
        for minor in range(4)
    ]
    return {"metadata": {"name": name, "labels": {}, "annotations": {}}, "spec": {"devices": devices}}


def _describe(cluster: Cluster, load: Load) -> None:
    """The objects that Koordinator's plugins read."""
    put = cluster.informers.put
    for number, name in enumerate(cluster.names):
        put(NODE_METRICS, _metric(name, number))
        put(NODE_RESOURCE_TOPOLOGIES, _topology(name))
        put(DEVICES, _device(name))
    most = {"cpu": str(32 * load.nodes), "memory": f"{128 * load.nodes}Gi"}
    for number in range(QUOTAS):
        put(ELASTIC_QUOTAS, quota(f"quota-{number}", most=most, least={"cpu": "10", "memory": "10Gi"}))
    for number in range(load.pods // GANG):
        group = {"metadata": {"namespace": "default", "name": f"gang-{number}", "uid": f"gang-{number}"}}
        put(POD_GROUPS, {**group, "spec": {"minMember": GANG}})


def _pods(load: Load) -> list[PodInfo]:
    made = []
    for number in range(load.pods):
        labels = {"quota.scheduling.koordinator.sh/name": f"quota-{number % QUOTAS}"}
        more: dict[str, str] = {}
        cpu, kind = "500m", number // GANG % 10
        if kind in {0, 5}:
            labels["pod-group.scheduling.sigs.k8s.io"] = f"gang-{number // GANG}"
        elif kind == 1:
            cpu = "2"
            labels |= {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
        elif kind == 2:
            more = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        name = f"pod-{number:05}"
        if not load.is_published:
            labels, more = {}, {}
        grows = amount("4", "4Gi") if number % 5 == 4 and kind > 2 and kind != 5 else None
        made.append(
            pod(
                name,
                cpu,
                "512Mi",
                labels=labels,
                more=more,
                grows_to=grows,
                schedulerName=OURS,
            )
        )
    return made


def _framework(cluster: Cluster, load: Load) -> Frameworks:
    enabled = tuple(EnabledPlugin(name) for name in PUBLISHED) if load.is_published else ()
    args = tuple(PluginArgs(name, ARGS[name]) for name in ARGS) if load.is_published else ()
    profile = Profile(OURS, multi_point=PluginSet(enabled), args=args, nodes_percent=load.percent or None)
    ports = ExtenderPorts(cluster, cluster, time.monotonic, binder=cluster, informers=cluster.informers)
    shared = SharedHooks(ports, logs.logger("framework"))
    framework = SchedulingFramework(of_profile(profile, cluster.registry(), FULL_PROFILE), shared)
    return Frameworks({OURS: framework}, shared)


async def _placed(load: Load, faults: figures.Faults) -> float:
    """The pods a second of one run."""
    cluster = Cluster(load)
    if load.is_published:
        _describe(cluster, load)
    scheduler = PodScheduler(
        _framework(cluster, load), cluster, cluster, clock=time.monotonic, rng=random.Random(1)
    )
    made = _pods(load)
    for each in made:
        cluster.create(each)
    began_s = time.monotonic()
    for each in made:
        scheduler.pod_seen(each)
    running = asyncio.create_task(scheduler.run(), name="scheduler")
    try:
        async with asyncio.timeout(LIMIT_S):
            await cluster.ended.wait()
    except TimeoutError:
        faults.add(f"{len(made) - len(cluster.bound)} of {len(made)} pods are not bound after {LIMIT_S:g} s")
    took_s = time.monotonic() - began_s
    running.cancel()
    await asyncio.wait([running])
    for name in cluster.overfull():
        faults.add(f"node {name} has more than it has room for")
    return len(cluster.bound) / took_s


async def _main(options: argparse.Namespace) -> int:
    faults = figures.Faults()
    nodes, pods, large = options.nodes, options.pods, options.large
    runs = {
        "default_plugins": Load(nodes, pods, 10, is_published=False),
        "ten_percent": Load(nodes, pods, 10),
        "own_share": Load(nodes, pods, 0),
        "large": Load(large, pods // 10, 10),
    }
    found: dict[str, float] = {}
    for name, load in runs.items():
        print(f"{load.pods} pods on {load.nodes} nodes ({name.replace('_', ' ')}) …", flush=True)
        found[f"{name}_pods_per_s"] = round(await _placed(load, faults), 1)
    figures.table(
        ("plugins", "nodes", "pods", "pods/s"),
        [
            (name.replace("_", " "), load.nodes, load.pods, found[f"{name}_pods_per_s"])
            for name, load in runs.items()
        ],
    )
    print(f"errors: {faults.count}")
    head = {"benchmark": "framework", "machine": figures.machine(), "nodes": nodes, "pods": pods}
    print(json.dumps({**head, "large_nodes": large, **found, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="100 nodes, 400 pods, 1,000 nodes at most")
    parser.add_argument("--nodes", type=int, help="500, with --short 100")
    parser.add_argument("--pods", type=int, help="5,000, with --short 400")
    parser.add_argument("--large", type=int, help="nodes of the last run: 5,000, with --short 1,000")
    options = parser.parse_args()
    for name, usual, short in (("nodes", 500, 100), ("pods", 5000, 400), ("large", 5000, 1000)):
        if getattr(options, name) is None:
            setattr(options, name, short if options.short else usual)
        if getattr(options, name) < GANG:
            parser.error(f"--{name} must be {GANG} or more")
    logs.configure("error")
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
