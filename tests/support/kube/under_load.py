"""Pods whose loads go up and down on two hollow nodes, with Parley's programs around them, and an onlooker from outside.

Two things are looked at: the agents' change logs, and the pods as the API server shows them. Neither may ever show more than a
node has.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from hosting.kubernetes import names, pods
from hosting.kubernetes.objects import amounts
from hosting.kubernetes.pods import resources
from hosting.kubernetes.resources import NODES, Manifest
from labs.clusters.hollow_nodes import NodeSize
from parley.observer import Observer, Tail
from protocol.values import ZERO, Resources
from tests.support.kube.fixtures import MakeHollowNodes
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.schedulers import leads, start_scheduler
from tests.support.processes import fetch, free_port
from tests.support.waiting import shown_blocking

ROOM: Final = Resources(2200, 8 * 2**30)
SIZE: Final = NodeSize("3", "8Gi", allocatable_cpu="2200m")
EACH: Final = 2
"""Pods on each node. Together they want more than the node has, now and then."""
REQUESTS: Final = {"cpu": "800m", "memory": "256Mi"}
LEAST_CPUS: Final = 0.6
"""A pod grows by a unit (100m) every two seconds: from less than this a node would be full at the start only, if at all."""
MOST_CPUS: Final = 2.2
PERIOD_S: Final = 12.0
SHIFT_S: Final = PERIOD_S / 4
"""Between the loads of one node: now both are high, now one falls while the other one rises."""
LEASE_S: Final = "4"
HANDOVER_S: Final = "35"
"""As in production, longer than an agent may hold what it was permitted (30 s)."""
QUICK_HANDOVER_S: Final = "6"
"""For tests in which each VM has one agent, and nobody has to hear of its end."""
SHOWN_LINES: Final = 25


def is_nearly_full(used: Resources) -> bool:
    """Whether a node that has `ROOM` is so full that a wrong permit would show."""
    return used.vcpu_milli > ROOM.vcpu_milli * 0.85


class Onlooker:
    """Lists the pods of a namespace again and again. `faults` are moments in which pods were larger than their node."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)
        self.faults: list[str] = []
        self.looks = 0
        self._thread.start()

    def end(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                found = self._objects.list("pods")
            except (OSError, ValueError):  # the API server is away
                continue
            self.looks += 1
            self._judge(found)

    def _judge(self, found: list[Manifest]) -> None:
        sums: dict[str, Resources] = {}
        for each in found:
            node = each["spec"].get("nodeName", "")
            sums[node] = sums.get(node, ZERO) + pods.size(each).max(pods.target(each))
        for node, use in sums.items():
            if use.exceeds(ROOM):
                sizes = {
                    each["metadata"]["name"]: (str(pods.size(each)), str(pods.target(each))) for each in found
                }
                self.faults.append(f"{node}: {use} of {ROOM}: {sizes}")


class UnderLoad:
    """Two nodes, two pods on each, an agent for each, and a scheduler `a`."""

    def __init__(
        self,
        parley: ParleyPrograms,
        nodes: MakeHollowNodes,
        objects: Objects,
        seed: int,
        handover_s: str = QUICK_HANDOVER_S,
    ) -> None:
        self.parley, self.objects, self.seed = parley, objects, seed
        self.nodes = nodes(2, SIZE).names
        for node in self.nodes:
            found = json.loads(objects.plane.call("GET", NODES.path(name=node)))["status"]["allocatable"]
            assert resources(amounts(found)) == ROOM, found
        self.vms = {
            node: {f"{objects.namespace}/p{index}{number}" for number in range(EACH)}
            for index, node in enumerate(self.nodes)
        }
        self._options = ("--lease-duration", LEASE_S, "--handover", handover_s)
        self._schedulers = [start_scheduler(parley, objects, "a", "--first-start", *self._options)]
        shown_blocking("a leads", lambda: leads(self._schedulers[0]))
        informant, rng = free_port(), random.Random(seed)
        for index, node in enumerate(self.nodes):
            began_s = time.monotonic() - rng.uniform(0, PERIOD_S)
            for number in range(EACH):
                self._pod(f"p{index}{number}", node, informant, began_s + number * SHIFT_S)
        self.onlooker = Onlooker(objects)

    def _pod(self, name: str, node: str, informant: int, began_s: float) -> None:
        manifest = pod(
            name,
            node=node,
            requests=REQUESTS,
            labels={names.ENABLED: "true"},
            annotations={names.INFORMANT: str(informant)},
        )
        created = self.objects.create_pod(manifest)
        wave = ("--period", str(PERIOD_S), "--began", str(began_s))
        self.parley.load(created, informant, cpus=LEAST_CPUS, most_cpus=MOST_CPUS, wave=wave)

    # ------------------------------------------------------------ programs

    def second_scheduler(self) -> int:
        """One more, `b`; agents that are started from now on know it."""
        self._schedulers.append(start_scheduler(self.parley, self.objects, "b", *self._options))
        shown_blocking("b is ready", lambda: fetch(self._schedulers[1], "/readyz"))
        return self._schedulers[1]

    def agent(self, node: str, **settings: Any) -> str:
        """The agent of a node; an earlier one goes on. The name of its program."""
        name = f"agent-{node}"
        if name in self.parley.running:
            self.parley.running["earlier"] = self.parley.running.pop(name)
        self.parley.agent(node, self._schedulers, **settings)
        return name

    def pids(self) -> dict[str, int | None]:
        """The processes of ours that run."""
        return {
            name: program.process.pid if program.process.poll() is None else None
            for name, program in self.parley.running.items()
        }

    # ------------------------------------------------------------ what is seen

    def goes_on(self, *of: str) -> None:
        """Wait until each pod of the nodes (of both, if none is named) has been resized at least twice from now on."""
        since_s = time.monotonic()
        wanted = {vm for node in (of or self.nodes) for vm in self.vms[node]}

        def are_resized() -> bool:
            counts = dict.fromkeys(wanted, 0)
            for observer in self._observers().values():
                for change in observer.sizes:
                    if change.at_s >= since_s and change.vm in counts:
                        counts[change.vm] += 1
            return all(count >= 2 for count in counts.values())

        shown_blocking(f"{', '.join(sorted(wanted))} are resized", are_resized)

    def audit(self) -> list[str]:
        """The faults that the scheduler that leads finds in its ledger."""

        def told() -> list[list[str]]:
            return [
                json.loads(fetch(port, "/v1/audit"))["faults"] for port in self._schedulers if leads(port)
            ]

        (faults,) = shown_blocking("a scheduler leads", told)
        return faults

    def lines(self, node: str) -> list[Mapping[str, Any]]:
        """The log lines of all agents of a node, in the order of time."""
        logs = self.parley.directory.glob(f"state-{node}*/changes.jsonl")
        return sorted((line for log in logs for line in Tail(log).lines()), key=lambda line: line["at_s"])

    def held(self, node: str) -> Observer:
        """The amounts that agents of a node held by the word of all of them, also those that others have followed."""
        observer = Observer({node: ROOM})
        for line in self.lines(node):
            if line["kind"] == "held":
                observer.fold(line)
        return observer

    def _observers(self) -> dict[str, Observer]:
        found = {}
        for node in self.nodes:
            found[node] = observer = Observer({node: ROOM})
            for line in self.lines(node):
                observer.fold(line)
        return found

    def faults(self) -> list[object]:
        """Every moment in which a node had too little room, by the agents' word or by the API server's."""
        logged = [fault for observer in self._observers().values() for fault in observer.overcommits]
        return [*logged, *self.onlooker.faults]

    def most_used(self) -> Resources:
        """The largest use of a node by the agents' logs: it shows that a test has filled its nodes."""
        return max(
            (found.largest[node] for node, found in self._observers().items()),
            key=lambda each: each.vcpu_milli,
        )


@contextmanager
def watched(scene: UnderLoad) -> Iterator[None]:
    """Print the facts about a failure if something fails."""
    try:
        yield
    except BaseException:
        ends = {name: scene.parley.text(name).splitlines() for name in scene.parley.running}
        ends |= {node: [str(line) for line in scene.lines(node)] for node in scene.nodes}
        shown = [f"seed {scene.seed}"]
        for name, lines in ends.items():
            shown += [f"--- {name}", *lines[-SHOWN_LINES:]]
        sys.stdout.write("\n".join(shown))
        raise
    finally:
        scene.onlooker.end()
