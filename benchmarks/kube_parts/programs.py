"""Parley's programs beside a cluster, as child processes whose CPU and memory are read."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from parley.clusters.control_plane import ControlPlane

ROOT: Final = Path(__file__).resolve().parent.parent.parent
CRDS: Final = ROOT / "deploy" / "base" / "crds"
NAMESPACE: Final = "parley-system"
PATIENCE_S: Final = 90.0
POLL_S: Final = 0.05
NOT_YET: Final = (OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program has used so far."""

    cpu_s: float
    resident_bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.cpu_s + other.cpu_s, self.resident_bytes + other.resident_bytes)


class Programs:
    """Started children by name."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self._plane = plane
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Start `python -m module`; its output goes to a file."""
        with (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                env=dict(os.environ, PYTHONPATH=str(ROOT)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def scheduler(self, port: int) -> None:
        """A scheduler that leads at once."""
        lease = ("--lease", f"{NAMESPACE}/parley-scheduler", "--lease-duration", "2")
        where = ("--port", str(port), "--handover", "5", "--first-start", "--log-level", "warning")
        self.start(
            "scheduler",
            "scheduler",
            "--kubernetes",
            "--kubeconfig",
            str(self._plane.kubeconfig),
            *lease,
            *where,
        )

    def agent(self, node: str, port: int, scheduler: int, informant: int, **settings: Any) -> None:
        """The agent of a node."""
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
        self.start(
            f"agent-{node}", "agent", "--config", str(file), "--port", str(port), "--log-level", "warning"
        )

    def cost(self, prefix: str) -> Cost:
        """What all programs whose name begins so have used."""
        total = Cost(0.0, 0)
        for name, child in self._running.items():
            if name.startswith(prefix):
                process = psutil.Process(child.pid)
                used = process.cpu_times()
                total += Cost(used.user + used.system, process.memory_info().rss)
        return total

    def end(self) -> None:
        """End all of them."""
        for child in self._running.values():
            child.send_signal(signal.SIGTERM)
        for child in self._running.values():
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextlib.contextmanager
def programs(plane: ControlPlane, directory: Path) -> Iterator[Programs]:
    """Programs for the length of a `with` block, with their types of objects in the cluster."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))
    plane.kubectl("apply", f"--filename={CRDS}")
    found = Programs(plane, directory)
    try:
        yield found
    finally:
        found.end()


def awaited(what: str, look: Any) -> Any:
    """What `look` gives, as soon as that is something. Raises `SystemExit` where that takes too long."""
    limit, last = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < limit:
        try:
            found = look()
        except NOT_YET as error:
            found, last = None, repr(error)
        if found:
            return found
        time.sleep(POLL_S)
    sys.exit(f"never seen: {what} {last}")


def page(port: int, path: str) -> bytes:
    """A page of a program. Raises `OSError`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
        text: bytes = response.read()
        return text
