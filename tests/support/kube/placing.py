"""kube-scheduler with Parley's scheduler as its extender, on nodes without kubelets."""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from hosting.kubernetes import objects as fields
from hosting.kubernetes import pods
from hosting.kubernetes.resources import NODES, PODS, Manifest
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import Programs
from labs.clusters.scheduling import MANAGED, create_node, extender_at, kubeless_plane
from protocol import quantities
from tests.support.kube.objects import Objects, pod
from tests.support.kube.parley import ParleyPrograms
from tests.support.kube.schedulers import create_pod, leads, start_scheduler
from tests.support.processes import fetch, free_port
from tests.support.waiting import PATIENCE_S, shown_blocking

QUICK_RETRIES: Final[Mapping[str, Any]] = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}
"""Fields of kube-scheduler's configuration: a pod that found no node is tried again soon."""
TIMEOUT_S: Final = 2
"""How long kube-scheduler waits for an answer of the extender."""
SHOWN_LINES: Final = 30
CREATORS: Final = 4


@contextmanager
def started_kubeless_plane(programs: Programs, directory: Path) -> Iterator[ControlPlane]:
    """A control plane for the length of a `with` block whose nodes need no kubelet."""
    plane = kubeless_plane(programs, directory, free_port)
    try:
        yield plane.start()
    finally:
        plane.stop()


def ours(name: str, milli: int, **others: Any) -> Manifest:
    """A pod that the extender is asked for; the other arguments are those of `objects.pod`."""
    manifest = pod(name, requests={"cpu": f"{milli}m", "memory": "256Mi"}, **others)
    sizes = manifest["spec"]["containers"][0]["resources"]
    for each in ("requests", "limits"):
        sizes[each] = {**sizes[each], MANAGED: "1"}
    manifest["spec"]["terminationGracePeriodSeconds"] = 0  # nobody is there to say that its end was in order
    return manifest


class PlacingScene:
    """Nodes of one namespace's test, its pods, and the schedulers that place them."""

    def __init__(self, parley: ParleyPrograms, objects: Objects) -> None:
        self.parley, self.objects, self.plane = parley, objects, objects.plane
        self.nodes: list[str] = []
        self.port = 0
        """The port at which Parley's scheduler gives permits."""

    # ------------------------------------------------------------ beginning and end

    def add_nodes(self, count: int, milli: int) -> list[str]:
        """Nodes with so much CPU and enough memory; their names."""
        added = [f"{self.objects.namespace}-{len(self.nodes) + number}" for number in range(count)]
        for name in added:
            create_node(self.plane, name, cpu=f"{milli}m", memory="64Gi")
        self.nodes += added
        return added

    def start_parley(self, *options: str) -> int:
        """Parley's scheduler as an extender, unless the options say otherwise, when it leads; the port of the extender."""
        port = free_port()
        extender = ("--mode", "extender", "--extender-port", str(port))
        self.port = start_scheduler(self.parley, self.objects, "a", "--first-start", *extender, *options)
        self.await_parley()
        return port

    def await_parley(self) -> None:
        """Wait until Parley's scheduler leads, also again after it was killed or paused."""

        def look() -> bool:
            program = self.parley.running["a"]
            assert program.process.poll() is None, f"Parley's scheduler has ended: {program.text()[-2000:]}"
            return leads(self.port)

        shown_blocking("Parley's scheduler leads", look)

    def start_kube_scheduler(self, port: int, **fields_: Any) -> None:
        """kube-scheduler with the extender at a port, in the place of the one that runs; `fields_` are those of the extender."""
        self.plane.stop_scheduler()
        extender = extender_at(port, httpTimeout=f"{TIMEOUT_S}s", **fields_)
        self.plane.start_scheduler(extenders=[extender], **QUICK_RETRIES)

    def end(self) -> None:
        """Take nodes and pods away, and print what the programs logged: a test that fails shows that."""
        self.plane.stop_scheduler()
        path = PODS.path(self.objects.namespace)
        self.plane.call("DELETE", path, {"gracePeriodSeconds": 0}, within_s=PATIENCE_S)
        for name in self.nodes:
            self.plane.call("DELETE", NODES.path(name=name))
        logs = {name: self.parley.text(name) for name in self.parley.running}
        logs["kube-scheduler"] = (self.plane.logs / "kube-scheduler.log").read_text(errors="replace")
        for name, text in logs.items():
            sys.stdout.write("\n".join([f"--- {name}", *text.splitlines()[-SHOWN_LINES:], ""]))

    # ------------------------------------------------------------ pods

    def create(self, *manifests: Manifest) -> list[Manifest]:
        """Make pods, several at once."""
        with ThreadPoolExecutor(CREATORS) as pool:
            return list(pool.map(lambda each: create_pod(self.objects, each), manifests))

    def node_of(self, name: str) -> str:
        """The node of a pod; empty if it has none."""
        return str(self.objects.get("pods", name)["spec"].get("nodeName", ""))

    def placed(self, name: str) -> str:
        """The node of a pod, as soon as it has one."""
        return shown_blocking(f"{name} is placed", lambda: self.node_of(name))

    def refusals(self) -> dict[str, str]:
        """Why pods have no node, by their names, as their conditions say it."""
        found = {}
        for each in self.objects.list("pods"):
            word = fields.condition(each, "PodScheduled") or {}
            if word.get("status") == "False" and not each["spec"].get("nodeName"):
                found[fields.name(each)] = str(word.get("message", ""))
        return found

    def refused(self, name: str, text: str = "") -> str:
        """Why a pod has no node, as soon as its condition says that with this text."""

        def look() -> str | None:
            message = self.refusals().get(name)
            return message if message and text in message else None

        return shown_blocking(f"{name} is refused: {text}", look)

    def refused_by_event(self, name: str) -> str:
        """The text of the Event of a pod that could not be placed, as soon as there is one."""

        def look() -> str:
            found = self.objects.list("events")
            texts = [
                each["message"]
                for each in found
                if each["involvedObject"]["name"] == name and each["reason"] == "FailedScheduling"
            ]
            return str(texts[0]) if texts else ""

        return shown_blocking(f"an Event of {name}", look)

    # ------------------------------------------------------------ the ledger

    def explained(self, name: str) -> dict[str, Any]:
        """The scheduler's page of one VM or pod."""
        found: dict[str, Any] = json.loads(fetch(self.port, f"/v1/explain/{self.objects.namespace}/{name}"))
        return found

    def rows(self, node: str) -> dict[str, int]:
        """The milli-CPU that the ledger has reserved on a node, by the holder's UID."""
        page = json.loads(fetch(self.port, f"/v1/nodes/{node}"))
        return {row["uid"]: quantities.parse(row["reserved"]["cpu"]).milli_value() for row in page["rows"]}

    def audit(self) -> list[str]:
        """The faults that Parley's scheduler finds in its ledger."""
        faults: list[str] = json.loads(fetch(self.port, "/v1/audit"))["faults"]
        return faults

    def ledger_is_right(self) -> bool:
        """Whether the ledger has exactly the pods that the API server has, each with its size, and its own audit finds nothing."""
        truth: dict[str, dict[str, int]] = {node: {} for node in self.nodes}
        for each in self.objects.list("pods"):
            if node := each["spec"].get("nodeName"):
                truth[node][each["metadata"]["uid"]] = pods.holds(each).vcpu_milli
        return not self.audit() and all(self.rows(node) == found for node, found in truth.items())

    def await_right_ledger(self) -> None:
        """Wait until `ledger_is_right`: the room that was kept for pods that never came is freed with a later look at the cluster."""
        shown_blocking("the ledger has the pods of the API server", self.ledger_is_right)


@pytest.fixture
def scene(parley: ParleyPrograms, objects: Objects) -> Iterator[PlacingScene]:
    """Where Parley's scheduler places pods, and kube-scheduler is away."""
    found = PlacingScene(parley, objects)
    found.plane.stop_scheduler()
    yield found
    found.end()
