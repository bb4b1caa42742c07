"""Jumps of load on a real node: from the first throttled period to the larger limit in the cgroup file, and how many steps growth takes."""

import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.kube_parts import autoscaler
from benchmarks.kube_parts.pods import NAMESPACE, BenchmarkPods, labelled
from benchmarks.kube_parts.programs import ParleyPrograms, awaited, programs
from benchmarks.load.figures import Faults, in_ms
from benchmarks.load.program import free_port
from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.load_file import LoadFile
from labs.clusters.node.real_node import RealNode
from labs.clusters.programs import Programs
from protocol.quantities import parse

ALIVE: Final = 4
"""So many pods wait for their jump at the same time."""
REQUESTS: Final = {"cpu": "100m", "memory": "128Mi"}
SMALL_MILLI: Final = 100
IDLE_MILLI: Final = 20
JUMP_MILLI: Final = 350
LARGE_MILLI: Final = 700
ENDLESS_MILLI: Final = 2000
"""A load that no limit here satisfies: a smaller one would not be throttled while the machine is busy with other things."""
REST_S: Final = 3.0
"""A pod has its first requests behind it after so long."""
PHASE_S: Final = 3.0
JUMP_PATIENCE_S: Final = 15.0
STEPS_PATIENCE_S: Final = 20.0
LOOK_S: Final = 0.002
FULL_MILLI: Final = 500
"""The filler leaves so much of the node to the pod that gives and the one that takes."""
COMFORT_S: Final = 35.0
"""After so long the scheduler has heard that a VM can spare what its guest could not wait for: that shows in metrics within 15 s, and then in a tick."""
PARTS: Final = ("try-upscale-to-permit", "permit-to-size")
REFERENCE_JUMPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Jump:
    """How long the parts of the first growth took, in seconds: until the API server had the new size, and from there to the file."""

    to_patch_s: float
    to_limit_s: float

    @property
    def whole_s(self) -> float:
        """From the first throttled period to the larger limit."""
        return self.to_patch_s + self.to_limit_s


class LoadedPod:
    """A pod on the real node whose load is set, with its cgroups."""

    def __init__(self, node: RealNode, pods: BenchmarkPods, folder: Path, name: str) -> None:
        self._node, self._pods = node, pods
        self.name = name
        self._load = LoadFile(folder / name)
        self._load.set(cpu_milli=IDLE_MILLI)
        pods.create(self._load.given_to(labelled(name, node.name, REQUESTS)))
        self._groups: tuple[Path, ...] = ()

    def is_heard(self, parley: ParleyPrograms) -> bool:
        """Whether it runs and an agent is registered at the informant for it. Raises `OSError`."""
        seen = self._pods.seen.get(self.name)
        if seen is None or seen.pod["status"].get("phase") != "Running":
            return False
        container = self._node.container_cgroup(seen.pod, "cpu")
        self._groups = (container, container.parent)
        vms = {vm["vm"]: vm for vm in parley.page(f"agent-{self._node.name}", "/v1/vms")["vms"]}
        return bool(vms[f"{NAMESPACE}/{self.name}"]["state"] == "ok")

    def _throttled(self) -> int:
        texts = ((group / "cpu.stat").read_text() for group in self._groups)
        return sum(int(text.split("nr_throttled ")[1].split()[0]) for text in texts)

    def limit_milli(self) -> int:
        """The CPU limit in force for the container, in cgroup v1 and v2."""
        group = self._groups[0]
        if (group / "cpu.max").exists():
            quota_us, period_us = (group / "cpu.max").read_text().split()
        else:
            quota_us, period_us = ((group / f"cpu.cfs_{each}_us").read_text() for each in ("quota", "period"))
        return int(quota_us) * 1000 // int(period_us)

    def jump(self) -> Jump:
        """More load than the pod can carry; how long the first growth takes. Raises `TimeoutError`."""
        before, limit = self._throttled(), self.limit_milli()
        self._load.set(cpu_milli=JUMP_MILLI)
        _until(lambda: self._throttled() > before, "throttled")
        throttled_s = time.monotonic()
        _until(lambda: self.limit_milli() > limit, "larger")
        limit_s = time.monotonic()
        patched_s = awaited("patch", lambda: self._pods.seen[self.name].patched_s)[0]
        patched_s = min(max(patched_s, throttled_s), limit_s)
        return Jump(patched_s - throttled_s, limit_s - patched_s)

    def climb(self) -> tuple[int, float]:
        """An endless load: the resizes until the pod has seven times its first size, and the seconds. Raises `TimeoutError`."""
        before = self._throttled()
        self._load.set(cpu_milli=ENDLESS_MILLI)
        _until(lambda: self._throttled() > before, "throttled")
        began_s = time.monotonic()
        _until(lambda: self.limit_milli() >= LARGE_MILLI, "large enough", STEPS_PATIENCE_S)
        return len(self._pods.seen[self.name].patched_s), time.monotonic() - began_s

    def fill(self, milli: int) -> None:
        """An endless load until the pod has so much, and then nearly none. Raises `TimeoutError`."""
        self._load.set(cpu_milli=ENDLESS_MILLI)
        _until(lambda: self.limit_milli() >= milli, "large enough", STEPS_PATIENCE_S)
        self._load.set(cpu_milli=IDLE_MILLI)

    def end(self) -> None:
        self._load.set()
        with suppress(OSError):
            self._pods.remove(self.name)


def _until(is_there: Any, what: str, within_s: float = JUMP_PATIENCE_S) -> None:
    limit_s = time.monotonic() + within_s
    while not is_there():
        if time.monotonic() > limit_s:
            raise TimeoutError(f"not {what} within {within_s:g} s")
        time.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class Scene:
    """A node at work, with Parley on it."""

    plane: ControlPlane
    node: RealNode
    pods: BenchmarkPods
    parley: ParleyPrograms
    directory: Path

    def names(self) -> Iterator[LoadedPod]:
        for number in itertools.count():
            yield LoadedPod(self.node, self.pods, self.directory / "loads", f"p{number}")

    def mean_ms(self, part: str) -> float | None:
        """The mean of a part of growth, by the agent's own histogram."""
        found = {
            name: sum(
                value
                for labels, value in self.parley.figures("agent", f"parley_agent_growth_seconds_{name}")
                if labels["part"] == part
            )
            for name in ("sum", "count")
        }
        return round(found["sum"] / found["count"] * 1000, 1) if found["count"] else None


@contextmanager
def _scene(plane: ControlPlane, found: Programs, directory: Path) -> Iterator[Scene]:
    node = RealNode(found, plane, free_port)
    try:
        node.start()
        with programs(plane, directory) as parley:
            pods = BenchmarkPods(plane)
            pods.start()
            informant = parley.node_informant(Path("/sys/fs/cgroup"))
            scheduler = parley.scheduler()
            awaited("a leading scheduler", parley.is_led)
            parley.agent(node.name, scheduler, informant)
            yield Scene(plane, node, pods, parley, directory)
    finally:
        node.stop()


def jumps(scene: Scene, count: int, faults: Faults, rng: random.Random) -> list[Jump]:
    """So many pods jump, one after another, at a random phase of everything that goes by periods."""
    found: list[Jump] = []
    made = scene.names()
    waiting = [next(made) for _ in range(min(ALIVE, count))]
    for number in range(count):
        pod = waiting.pop(0)
        try:
            awaited(f"{pod.name} is heard", lambda pod=pod: pod.is_heard(scene.parley))  # type: ignore[misc] # bound now
            time.sleep(rng.uniform(0, PHASE_S))
            found.append(pod.jump())
        except TimeoutError as error:
            faults.add(f"{pod.name}: {error}")
        pod.end()
        if number + len(waiting) + 1 < count:
            waiting.append(next(made))
    return found


def climbs(scene: Scene, count: int, faults: Faults) -> list[tuple[int, float]]:
    """So many pods, one after another, need seven times what they have."""
    found = []
    for number in range(count):
        pod = LoadedPod(scene.node, scene.pods, scene.directory / "loads", f"large{number}")
        try:
            awaited("large pod is heard", lambda pod=pod: pod.is_heard(scene.parley))  # type: ignore[misc] # bound now
            time.sleep(REST_S)
            found.append(pod.climb())
        except TimeoutError as error:
            faults.add(f"{pod.name}: {error}")
        pod.end()
    return found


def yields(scene: Scene, count: int, faults: Faults, rng: random.Random) -> list[Jump]:
    """On a full node, one whose neighbour has kept what it needed a minute ago: so many pods jump, one after another, at a random phase."""
    node = json.loads(scene.plane.call("GET", f"/api/v1/nodes/{scene.node.name}"))
    room_milli = int(parse(node["status"]["allocatable"]["cpu"]).nanos) // 10**6
    filler = {"cpu": f"{room_milli - FULL_MILLI}m", "memory": "64Mi"}
    unscaled = LoadFile(scene.directory / "loads" / "filler").given_to(
        labelled("filler", scene.node.name, filler)
    )
    del unscaled["metadata"]["labels"]
    scene.pods.create(unscaled)
    found: list[Jump] = []
    for number in range(count):
        gives, takes = (
            LoadedPod(scene.node, scene.pods, scene.directory / "loads", f"{name}{number}")
            for name in ("gives", "takes")
        )
        try:
            for pod in (gives, takes):
                awaited(f"{pod.name} is heard", lambda pod=pod: pod.is_heard(scene.parley))  # type: ignore[misc] # bound now
            gives.fill(FULL_MILLI - SMALL_MILLI)
            time.sleep(COMFORT_S + rng.uniform(0, PHASE_S))
            found.append(takes.jump())
        except TimeoutError as error:
            faults.add(f"{takes.name}: {error}")
        takes.end()
        gives.end()
    return found


def measure(plane: ControlPlane, found: Programs, *, is_short: bool) -> dict[str, Any]:
    """All of it on one real node, which is ended afterwards."""
    faults, rng = Faults(), random.Random(1)
    count, large, full = (6, 1, 1) if is_short else (24, 3, 10)
    with tempfile.TemporaryDirectory() as name, _scene(plane, found, Path(name)) as scene:
        print(f"a real node: {count} jumps of load, one after another …", flush=True)
        seen = jumps(scene, count, faults, rng)
        means = {f"{part.replace('-', '_')}_mean_ms": scene.mean_ms(part) for part in PARTS}
        steps = climbs(scene, large, faults)
        print(f"a full node: {full} jumps of load beside an idle neighbour …", flush=True)
        given = yields(scene, full, faults, rng)
    told = {
        "throttled_to_limit": in_ms([each.whole_s for each in seen]),
        "throttled_to_patch": in_ms([each.to_patch_s for each in seen]),
        "patch_to_limit": in_ms([each.to_limit_s for each in seen]),
        "full_node_throttled_to_limit": in_ms([each.whole_s for each in given]),
        "full_node_throttled_to_patch": in_ms([each.to_patch_s for each in given]),
        "reference_vpa": in_ms(autoscaler.waits_s(REFERENCE_JUMPS, rng)),
    }
    return {
        "jumps": len(seen),
        **{f"{part}_{name}": value for part, each in told.items() for name, value in each.items()},
        **means,
        "sevenfold_resizes": median(each[0] for each in steps) if steps else None,
        "sevenfold_s": round(median(each[1] for each in steps), 1) if steps else None,
        "real_node_errors": faults.count,
    }
