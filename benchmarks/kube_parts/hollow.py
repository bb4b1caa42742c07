"""Many pods on hollow nodes: the cost of a resize for the API server, and that of scheduler and agents for a machine."""

import random
import resource
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kube_parts.loads import MadeLoads
from benchmarks.kube_parts.pods import BenchmarkPods, labelled
from benchmarks.kube_parts.programs import Cost, ParleyPrograms, awaited, page, programs
from benchmarks.load.figures import Faults, in_ms
from benchmarks.load.program import free_port
from labs.clusters.control_plane import ControlPlane
from labs.clusters.hollow_nodes import HollowNodes, NodeSize
from labs.clusters.programs import Programs

PODS_A_NODE: Final = 50
SIZE: Final = NodeSize(cpu="32", memory="64Gi")
REQUESTS: Final = {"cpu": "200m", "memory": "128Mi"}
IDLE_MILLI: Final = 120
LOADED_MILLI: Final = (150, 350, 500)
FORGETFUL: Final = {"name": "utilisation", "args": {"window": 2, "tailWindow": 0, "surgeWindow": 0}}
"""The load of a minute ago does not count, so that pods shrink within the benchmark, too."""
PERIODS: Final = {"downWindow": 10}
CREATORS: Final = 4
DONE_S: Final = 5.0
"""After the last change of load, the resizes under way end."""
START_S: Final = 240.0
PROGRAMS: Final = ("scheduler", "agent")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything: nodes, seconds without and with changes of load, and changes a second."""

    nodes: int
    pods_a_node: int
    idle_s: float
    busy_s: float
    changes_a_second: float


SHORT: Final = Extent(4, 25, 10.0, 10.0, 3.0)
FULL: Final = Extent(20, PODS_A_NODE, 30.0, 60.0, 5.0)


@dataclass(frozen=True, slots=True)
class Scene:
    """Nodes with pods and Parley at work."""

    pods: BenchmarkPods
    parley: ParleyPrograms
    loads: MadeLoads
    agents: tuple[str, ...]

    def costs(self) -> dict[str, Cost]:
        """The cost of the scheduler and all agents so far."""
        return {each: self.parley.cost(each) for each in PROGRAMS}

    def patched(self) -> int:
        """How often a pod has got another size."""
        return sum(len(each.patched_s) for each in self.pods.seen.values())

    def is_settled(self) -> bool:
        """Whether each agent knows its pods, and finds no fault with them. Raises `OSError`."""
        found = [vm["state"] for each in self.agents for vm in self.parley.page(each, "/v1/vms")["vms"]]
        return len(found) == len(self.pods.seen) and all(each == "ok" for each in found)


@contextmanager
def _scene(plane: ControlPlane, found: Programs, directory: Path, extent: Extent) -> Iterator[Scene]:
    nodes = HollowNodes(found, plane, free_port, extent.nodes, "bench-", SIZE)
    try:
        nodes.start()
        with programs(plane, directory) as parley:
            pods = BenchmarkPods(plane)
            pods.start()
            scheduler = parley.scheduler()
            manifests = [
                labelled(f"{node}-{number}", node, REQUESTS)
                for node in nodes.names
                for number in range(extent.pods_a_node)
            ]
            with ThreadPoolExecutor(CREATORS) as pool:
                list(pool.map(pods.create, manifests))
            awaited("all pods run", lambda: len(pods.running()) == len(manifests), START_S)
            loads = MadeLoads(directory / "cgroup", pods.seen, IDLE_MILLI)
            loads.start()
            informant = parley.node_informant(loads.root)
            awaited("a leading scheduler", parley.is_led)
            settings: dict[str, Any] = {"policies": [FORGETFUL], "periods": PERIODS}
            for node in nodes.names:
                port = parley.agent(node, scheduler, informant, **settings)
                # One after another: all at once, two cores would be busy with starting for minutes.
                awaited(f"the agent of {node}", lambda port=port: page(port, "/readyz"))  # type: ignore[misc] # bound now
            scene = Scene(pods, parley, loads, tuple(f"agent-{node}" for node in nodes.names))
            try:
                awaited("all pods are heard", scene.is_settled, START_S)
                yield scene
            finally:
                loads.end()
    finally:
        nodes.kill()


def _change(scene: Scene, extent: Extent, rng: random.Random) -> None:
    """Pods want more or less CPU, one after another, for the whole time."""
    names, end_s = list(scene.pods.seen), time.monotonic() + extent.busy_s
    while time.monotonic() < end_s:
        scene.loads.want(rng.choice(names), rng.choice(LOADED_MILLI))
        time.sleep(rng.expovariate(extent.changes_a_second))
    time.sleep(DONE_S)


def _spent(kind: str, before: dict[str, Cost], after: dict[str, Cost], seconds: float) -> dict[str, float]:
    """The shares of a core that scheduler and agents took."""
    return {
        f"{name}_{kind}_core_share": round((after[name].cpu_s - before[name].cpu_s) / seconds, 4)
        for name in PROGRAMS
    }


def measure(plane: ControlPlane, found: Programs, *, is_short: bool) -> dict[str, Any]:
    """All of it on one set of hollow nodes, which are ended afterwards."""
    extent, faults, rng = SHORT if is_short else FULL, Faults(), random.Random(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # the informant keeps eight files of each pod open
    with tempfile.TemporaryDirectory() as name, _scene(plane, found, Path(name), extent) as scene:
        pods = len(scene.pods.seen)
        print(f"{pods} pods on {extent.nodes} hollow nodes: nothing, then changes of load …", flush=True)
        first_s, first = time.monotonic(), scene.costs()
        time.sleep(extent.idle_s)
        idle_s, idle, resized = time.monotonic(), scene.costs(), scene.patched()
        _change(scene, extent, rng)
        busy_s, busy = time.monotonic(), scene.costs()
        resizes = scene.patched() - resized
        waits = [wait_s for each in scene.pods.seen.values() for wait_s in each.waits_s]
        stuck = sum(each.is_under_way for each in scene.pods.seen.values())
    if stuck:
        faults.add(f"{stuck} resizes were not done at the end")
    agents = busy["agent"], idle["agent"]
    idle_reads = (idle["agent"].reads - first["agent"].reads) / (idle_s - first_s)
    reads = agents[0].reads - agents[1].reads - idle_reads * (busy_s - idle_s)
    return {
        "pods": pods,
        "nodes": extent.nodes,
        "resizes": resizes,
        "writes_per_resize": _ratio(agents[0].writes - agents[1].writes, resizes),
        "reads_per_resize": _ratio(reads, resizes),
        "idle_reads_per_s": round(idle_reads, 2),
        **{f"patch_to_done_{name}": value for name, value in in_ms(waits).items()},
        **_spent("idle", first, idle, idle_s - first_s),
        **_spent("busy", idle, busy, busy_s - idle_s),
        "scheduler_resident_mb": round(busy["scheduler"].resident_bytes / 1e6, 1),
        "agent_resident_mb_each": round(busy["agent"].resident_bytes / 1e6 / extent.nodes, 1),
        "hollow_nodes_errors": faults.count,
    }


def _ratio(count: float, resizes: int) -> float | None:
    return round(count / resizes, 2) if resizes else None
