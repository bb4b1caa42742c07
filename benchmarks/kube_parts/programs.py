"""Parley's programs beside a cluster, as child processes whose CPU, memory and metrics are read."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.load.program import ROOT, free_port
from labs.clusters.control_plane import ControlPlane

CRDS: Final = ROOT / "deploy" / "base" / "crds"
SYSTEM: Final = "parley-system"
PATIENCE_S: Final = 90.0
POLL_S: Final = 0.05
END_S: Final = 10.0
NOT_YET: Final = (OSError, ValueError, KeyError)
READS: Final = ("GET",)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of programs so far, and their calls to the API server."""

    cpu_s: float = 0.0
    resident_bytes: int = 0
    reads: float = 0.0
    writes: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.cpu_s + other.cpu_s,
            self.resident_bytes + other.resident_bytes,
            self.reads + other.reads,
            self.writes + other.writes,
        )


@dataclass(frozen=True, slots=True)
class Child:
    """A started program, and the port of its pages."""

    process: "subprocess.Popen[bytes]"
    port: int


class ParleyPrograms:
    """Parley's programs by name, started beside a control plane; they write to `directory`."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self._running: dict[str, Child] = {}

    def _start(self, name: str, module: str, *arguments: str) -> int:
        port = free_port()
        where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning")
        with (self._directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments, *where],
                env=dict(os.environ, PYTHONPATH=str(ROOT)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._running[name] = Child(process, port)
        return port

    def scheduler(self, *options: str) -> int:
        """A scheduler that leads at once; its port."""
        kubernetes = ("--kubernetes", "--kubeconfig", str(self._plane.kubeconfig))
        lease = ("--lease", f"{SYSTEM}/parley-scheduler", "--first-start")
        return self._start("scheduler", "scheduler", *kubernetes, *lease, *options)

    def node_informant(self, root: Path) -> int:
        """The informant of the pods below `root`; its port."""
        return self._start("informant", "informant", "--node", "--cgroup-root", str(root))

    def agent(self, node: str, scheduler: int, informant: int, **settings: Any) -> int:
        """The agent of a node; its port."""
        content = {
            "node": node,
            "source": "kubernetes",
            "backend": "kubernetes",
            "kubernetes": {
                "kubeconfig": str(self._plane.kubeconfig),
                "informant": f"http://127.0.0.1:{informant}",
            },
            "scheduler": f"http://127.0.0.1:{scheduler}/",
            "stateDirectory": str(self._directory / f"state-{node}"),
            **settings,
        }
        file = self._directory / f"agent-{node}.yaml"
        file.write_text(json.dumps(content))
        return self._start(f"agent-{node}", "agent", "--config", str(file))

    def page(self, name: str, path: str) -> Any:
        """A JSON page of a program. Raises `OSError`."""
        return json.loads(page(self._running[name].port, path))

    def figures(self, prefix: str, name: str) -> list[tuple[dict[str, str], float]]:
        """The samples `name` of all programs whose names begin with `prefix`. Raises `OSError`."""
        return [
            (sample.labels, sample.value)
            for each, child in self._running.items()
            if each.startswith(prefix)
            for family in text_string_to_metric_families(page(child.port, "/metrics").decode())
            for sample in family.samples
            if sample.name == name
        ]

    def is_led(self) -> bool:
        """Whether the scheduler leads. Raises `OSError` while there is none."""
        return self.figures("scheduler", "parley_scheduler_leading") == [({}, 1.0)]

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._running[name].process.pid)

    def cost(self, prefix: str) -> Cost:
        """The cost of all programs whose names begin with `prefix`. Raises `OSError`."""
        total = Cost()
        for name, child in self._running.items():
            if name.startswith(prefix):
                process = psutil.Process(child.process.pid)
                used = process.cpu_times()
                total += Cost(used.user + used.system, process.memory_info().rss)
        for labels, count in self.figures(prefix, "parley_kubernetes_calls_total"):
            if labels["method"] != "WATCH":
                total += Cost(reads=count) if labels["method"] in READS else Cost(writes=count)
        return total

    def end(self) -> None:
        for child in self._running.values():
            child.process.send_signal(signal.SIGTERM)
        for child in self._running.values():
            try:
                child.process.wait(END_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


@contextlib.contextmanager
def programs(plane: ControlPlane, directory: Path) -> Iterator[ParleyPrograms]:
    """Programs for the length of a `with` block, with their types of objects in the cluster."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))
    plane.kubectl("apply", f"--filename={CRDS}")
    found = ParleyPrograms(plane, directory)
    try:
        yield found
    finally:
        found.end()


def awaited(what: str, look: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """The result of `look`, as soon as it is true. Raises `TimeoutError` if that takes too long."""
    limit_s, last = time.monotonic() + within_s, ""
    while time.monotonic() < limit_s:
        try:
            found = look()
        except NOT_YET as error:
            found, last = None, repr(error)
        if found:
            return found
        time.sleep(POLL_S)
    raise TimeoutError(f"never seen: {what} {last}")


def page(port: int, path: str) -> bytes:
    """A page of a program. Raises `OSError`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        text: bytes = response.read()
        return text
