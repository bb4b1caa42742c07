"""Parley's programs beside a cluster on this machine, as a test starts, kills and asks them."""

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from labs.clusters.control_plane import ControlPlane
from tests.support.processes import Program, fetch, free_port, write_json
from tests.support.waiting import shown_blocking
from tests.tidy.repository import ROOT

CRDS: Final = ROOT / "deploy" / "base" / "crds"
NAMESPACE: Final = "parley-system"
LEASE: Final = f"{NAMESPACE}/parley-scheduler"
FORGETFUL: Final = {
    "name": "utilisation",
    "args": {"window": 2, "tailWindow": 0, "surgeWindow": 0, "memoryMargin": "8Mi"},
}
"""The load of a minute ago does not count, so that a test sees a pod shrink."""
HANDOVER_S: Final = "3"
"""Shorter than agents may hold what they were permitted: a test for which that matters says so."""


class ParleyPrograms:
    """The programs that a test has started, by name; everything is ended with the `with` block of `parley_programs`."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        self.plane = plane
        self.directory = directory
        self.kubeconfig = plane.kubeconfig
        """The way to the API server of programs that are started from now on."""
        self.running: dict[str, Program] = {}
        self.ports: dict[str, int] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}

    # ------------------------------------------------------------ start and end

    def start(self, name: str, module: str, *arguments: str) -> Program:
        """Start a program under `name`; `again` starts it as before."""
        self._arguments[name] = (module, *arguments)
        return self.again(name)

    def again(self, name: str) -> Program:
        """Start what has ended, with the same command line."""
        module, *arguments = self._arguments[name]
        self.running[name] = Program(module, *arguments, output=self.directory / f"{name}.log")
        return self.running[name]

    def kill(self, name: str) -> None:
        """kill -9."""
        self.running.pop(name).end(signal.SIGKILL)

    def pause(self, name: str) -> None:
        """SIGSTOP: connections stay open."""
        os.kill(self.running[name].process.pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        os.kill(self.running[name].process.pid, signal.SIGCONT)

    def end_all(self) -> None:
        """End everything that still runs."""
        for program in self.running.values():
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()

    # ------------------------------------------------------------ the programs

    def scheduler(self, name: str = "scheduler", *options: str, handover_s: str = HANDOVER_S) -> int:
        """A scheduler with a port of its own; the first is asked to be there as after a first start."""
        port = self.ports[name] = free_port()
        kubeconfig = ("--kubernetes", "--kubeconfig", str(self.kubeconfig), "--lease", LEASE)
        where = ("--host", "127.0.0.1", "--port", str(port), "--handover", handover_s)
        self.start(name, "scheduler", *kubeconfig, *where, *options)
        return port

    def agent(self, node: str, schedulers: list[int], *, informant: int = 0, **settings: Any) -> int:
        """An agent for a node, which asks the schedulers at these ports."""
        name, port = f"agent-{node}", free_port()
        self.ports[name] = port
        urls = [f"http://127.0.0.1:{each}/" for each in schedulers]
        content = {
            "node": node,
            "source": "kubernetes",
            "backend": "kubernetes",
            "kubernetes": {
                "kubeconfig": str(self.kubeconfig),
                "informant": f"http://127.0.0.1:{informant or 10302}",
            },
            "scheduler": urls[0],
            "otherSchedulers": urls[1:],
            "stateDirectory": str(self.directory / f"state-{node}"),
            "periods": {"metrics": 0.5, "tick": 2, "downWindow": 3},
            "policies": [FORGETFUL],
            **settings,
        }
        file = write_json(self.directory / f"{name}.yaml", content)
        self.start(name, "agent", "--config", str(file), "--host", "127.0.0.1", "--port", str(port))
        return port

    def node_informant(self, root: Path = Path("/sys/fs/cgroup")) -> int:
        """The informant of this machine's pods."""
        port = self.ports["informant"] = free_port()
        where = ("--host", "127.0.0.1", "--port", str(port))
        self.start("informant", "informant", "--node", "--cgroup-root", str(root), *where)
        return port

    def load(
        self,
        pod: Mapping[str, Any],
        port: int,
        *,
        cpus: float,
        memory: str = "64Mi",
        most_cpus: float = 0.2,
        wave: tuple[str, ...] = (),
    ) -> None:
        """An informant at a pod's own address that shows a steady load; called again, another one.

        With `most_cpus` the load goes up to there and down again; `wave` are the options `--period` and `--began`.
        """
        name = f"load-{pod['metadata']['name']}"
        if name in self.running:
            self.kill(name)
        where = ("--host", pod["status"]["podIP"], "--port", str(port), "--plain-http", "--approve-all")
        shown = ("--workload", "step", "--low", str(cpus), "--high", str(max(cpus, most_cpus)), *wave)
        self.start(name, "informant", *where, *shown, "--memory", memory, memory)

    # ------------------------------------------------------------ what they say

    def page(self, name: str, path: str) -> Any:
        """A JSON page of a program. Raises `OSError`."""
        return json.loads(fetch(self.ports[name], path))

    def vms(self, node: str) -> dict[str, dict[str, Any]]:
        """The agent's VMs by name. Raises `OSError` while there is no agent."""
        return {vm["vm"]: vm for vm in self.page(f"agent-{node}", "/v1/vms")["vms"]}

    def text(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")


@contextmanager
def parley_programs(plane: ControlPlane, directory: Path) -> Iterator[ParleyPrograms]:
    """Programs for the length of a `with` block, with their types of objects and their namespace in the cluster."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    plane.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))
    plane.kubectl("apply", f"--filename={CRDS}")
    shown_blocking("the CRDs are served", lambda: plane.call("GET", "/apis/parley.dev/v1alpha1/pools"))
    found = ParleyPrograms(plane, directory)
    try:
        yield found
    finally:
        found.end_all()
