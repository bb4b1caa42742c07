"""Pods that grow and shrink by real permits on nodes without kubelets, and a watch from outside."""

import random
import threading
from typing import Any, Final, Self

from hosting.kubernetes import objects as fields
from hosting.kubernetes.resources import PODS, Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.watching import watch
from protocol import quantities
from tests.support.kube.asking import STEP_MILLI, Holdings, PodAgent
from tests.support.kube.objects import Objects
from tests.support.waiting import PATIENCE_S

CHANGERS: Final = 3
PAUSE_S: Final = 0.03


def requested_milli(pod: Manifest) -> int:
    """The part of its node that a pod takes: for each container the larger of its request in the spec and its allocated amount."""
    allocated = {
        each["name"]: each.get("allocatedResources") for each in pod["status"].get("containerStatuses", ())
    }
    total = 0
    for each in pod["spec"]["containers"]:
        amounts = (each["resources"]["requests"], allocated.get(each["name"]) or {"cpu": "0"})
        total += max(quantities.parse(amount["cpu"]).milli_value() for amount in amounts)
    return total


class RoomWatch(Holdings):
    """The room taken on each node, at every event of a watch and with every permit: for each pod the larger of its size and its agent's
    permit. `faults` are the moments in which that was more than a node has, and pods that changed their node.

    Permits are lowered only when the watch has shown the smaller size, so a binding that came before it is seen before it, too.
    """

    def __init__(self, plane: ControlPlane, namespace: str, room_milli: int) -> None:
        super().__init__(room_milli)
        self.events = 0
        self.most_milli: dict[str, int] = {}
        """The most that was taken of each node."""
        self._sizes: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._pods: dict[str, set[str]] = {}
        self._versions: dict[str, int] = {}
        self._changed = threading.Condition(self.lock)
        watch(plane, PODS.path(namespace), self._see)

    def node_of(self, name: str) -> str:
        """The node that a pod was seen on; empty if it was on none."""
        return self._nodes.get(name, "")

    def bound(self) -> list[str]:
        """The pods that were seen bound, in that order."""
        with self.lock:
            return list(self._nodes)

    def take(self, name: str, milli: int, who: str) -> None:
        """An agent holds so much from now on."""
        with self.lock:
            self.held[name] = milli
            self._judge(self._nodes.get(name, ""), who)

    def await_version(self, name: str, version: int) -> None:
        """Wait until the watch has shown this version of a pod, or a later one."""
        with self._changed:
            seen = self._changed.wait_for(lambda: self._versions.get(name, 0) >= version, PATIENCE_S)
        assert seen, f"the watch has not shown version {version} of {name}"

    def _see(self, kind: str, pod: Manifest, _: float) -> None:
        name, node = fields.name(pod), pod["spec"].get("nodeName", "")
        with self._changed:
            self.events += 1
            self._versions[name] = int(pod["metadata"]["resourceVersion"])
            before = self._nodes.get(name)
            if kind == "DELETED":
                self._pods.get(self._nodes.pop(name, ""), set()).discard(name)
                self.held.pop(name, None)
            elif node:
                if before not in {None, node}:
                    self.faults.append(f"{name} was on {before}, and is on {node}")
                self._nodes[name] = node
                self._pods.setdefault(node, set()).add(name)
                self._sizes[name] = requested_milli(pod)
                self._judge(node, f"{kind} {name}")
            self._changed.notify_all()

    def _judge(self, node: str, who: str) -> None:
        taken = {name: max(self._sizes[name], self.held.get(name, 0)) for name in self._pods.get(node, ())}
        total = sum(taken.values())
        self.most_milli[node] = max(total, self.most_milli.get(node, 0))
        if total > self.room_milli:
            self.faults.append(f"{who}: {total}m of {self.room_milli}m on {node}: {taken}")


class GrowingPod:
    """A pod on a node, its agent, and the stand-in for its kubelet: a size that the spec asks for is in force at once."""

    def __init__(self, objects: Objects, pod: Manifest, room: RoomWatch, ports: list[int]) -> None:
        self._objects, self._room = objects, room
        self.name = fields.name(pod)
        self.milli = requested_milli(pod)
        self.agent = PodAgent(pod, ports, room, self.milli)

    def become(self, milli: int) -> None:
        """Ask for more and take what is permitted, or become smaller and tell."""
        if milli > self.milli:
            self.agent.ask(milli)
            if self.agent.held > self.milli:
                self._resize(self.agent.held)
        elif milli < self.milli:
            self._room.await_version(self.name, self._resize(milli))
            self.agent.ask(milli)

    def _resize(self, milli: int) -> int:
        """The version of the pod when it has that size by spec and by status."""
        pod = self._objects.resize(self.name, cpu=f"{milli}m")
        requests = pod["spec"]["containers"][0]["resources"]["requests"]
        container = {
            "name": "main",
            "image": "local.test/any:1",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {}},
            "allocatedResources": requests,
            "resources": pod["spec"]["containers"][0]["resources"],
        }
        status: dict[str, Any] = {
            "phase": "Running",
            "observedGeneration": pod["metadata"]["generation"],
            "containerStatuses": [container],
        }
        after = self._objects.patch("pods", self.name, {"status": status}, "status")
        self.milli = milli
        return int(after["metadata"]["resourceVersion"])


class GrowingCrowd:
    """Pods that grow and shrink at random until the end of the `with` block. `adopt` adds one."""

    def __init__(self, most_milli: int, seed: int) -> None:
        self._most_steps = most_milli // STEP_MILLI
        self._pods: list[list[GrowingPod]] = [[] for _ in range(CHANGERS)]
        self._stop = threading.Event()
        self._seed = seed
        self.changes = 0
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"changer {number}")
            for number in range(CHANGERS)
        ]

    def adopt(self, pod: GrowingPod) -> None:
        """From now on this pod changes, too."""
        min(self._pods, key=len).append(pod)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, number: int) -> None:
        rng, mine = random.Random(self._seed + number), self._pods[number]
        while not self._stop.wait(PAUSE_S):
            if not mine:
                continue
            try:
                rng.choice(mine).become(rng.randint(1, self._most_steps) * STEP_MILLI)
                self.changes += 1
            except (OSError, ValueError, KeyError, AssertionError) as error:
                self.failures.append(repr(error))
                return
