"""The cost of an extender for kube-scheduler: pods placed a second by itself, with an extender that does nothing, and with Parley.

`benchmarks/extender.py [--short]`: nodes without kubelets (500; fewer with --short) on a control plane of this machine. For each figure
the pods are made while kube-scheduler is stopped; then it is started with the extender, and the rate is that from the first to
the last binding that a watch shows. Each set-up gets its turn once in every round, in an order that is reversed from round to
round; the median of the rounds is shown.

* ours: pods that request `parley.dev/managed`, for which the extender is asked. kube-scheduler alone places none of these.
* others: all other pods. The extender is never asked for them. But kube-scheduler 1.35 places pods that are alike in batches, and
  leaves that as soon as any extender is configured; "alone, unbatched" is without these batches, and the rate that the others should have.
* do-nothing: filter keeps every node, prioritize gives 0 to each (`benchmarks/load/idle_extender.py`). "binds" has the verb bind
  as well, and makes the binding at the API server as Parley does: Parley is compared with that.

kube-scheduler's own limit of calls to the API server is set far above what it reaches. Everything shares this machine's cores.
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kube_parts.bindings import Bindings
from benchmarks.kube_parts.programs import awaited, programs
from benchmarks.load.figures import machine, table
from benchmarks.load.program import ROOT, free_port
from labs.clusters.control_plane import ControlPlane
from labs.clusters.programs import ClusterError, ClusterProcess, Programs
from labs.clusters.scheduling import MANAGED, create_node, extender_at, kubeless_plane

NAMESPACE: Final = "bench"
CALLS_PER_SECOND: Final = 5000
CREATORS: Final = 4
UNBATCHED: Final = "--feature-gates=OpportunisticBatching=false"
NODE: Final = {"cpu": "32", "memory": "128Gi"}
REQUESTS: Final = {"cpu": "100m", "memory": "128Mi"}
PLACED_S: Final = 180.0
QUICK_RETRIES: Final = {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1}


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything; `pods` are placed for each figure of each round."""

    nodes: int
    pods: int
    rounds: int


SHORT: Final = Extent(100, 300, 1)
FULL: Final = Extent(500, 1500, 3)


@dataclass(frozen=True, slots=True)
class Extender:
    """An extender that runs: its place, its process, and the verbs that it is asked for (none: all)."""

    port: int
    process: psutil.Process
    verbs: tuple[str, ...] = ()

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


SetUp = Callable[[ControlPlane, Path], AbstractContextManager[Extender | None]]
"""Starts what places pods beside kube-scheduler, for the length of a `with` block."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Pods placed a second, and the extender's processor time for each of them."""

    pods_per_s: float
    extender_ms_per_pod: float


# ---------------------------------------------------------------- the set-ups


@contextmanager
def _alone(_: ControlPlane, __: Path) -> Iterator[None]:
    yield None


def _do_nothing(*verbs: str) -> SetUp:
    @contextmanager
    def start(plane: ControlPlane, directory: Path) -> Iterator[Extender]:
        port = free_port()
        module = ("-P", "-m", "benchmarks.load.idle_extender", "--port", str(port))
        command = (sys.executable, *module, "--kubeconfig", str(plane.kubeconfig))
        child = ClusterProcess("do-nothing", command, directory, {"PYTHONPATH": str(ROOT)})
        try:
            awaited("the extender that does nothing", lambda: _listens(port))
            yield Extender(port, psutil.Process(child.pid), verbs)
        finally:
            child.end()

    return start


@contextmanager
def _parley(plane: ControlPlane, directory: Path) -> Iterator[Extender]:
    port = free_port()
    with programs(plane, directory) as found:
        found.scheduler("--extender-port", str(port))
        awaited("a leading scheduler", found.is_led)
        awaited("the extender", lambda: _listens(port))
        yield Extender(port, found.process("scheduler"))


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


SET_UPS: Final[dict[str, tuple[SetUp, tuple[str, ...]]]] = {
    "alone": (_alone, ("others",)),
    "alone_unbatched": (_alone, ("others",)),
    "do_nothing": (_do_nothing("filter", "prioritize"), ("ours", "others")),
    "do_nothing_binds": (_do_nothing("filter", "prioritize", "bind"), ("ours",)),
    "parley": (_parley, ("ours", "others")),
}
"""By name, with the kinds of pods that each places."""


# ---------------------------------------------------------------- measuring


class Bench:
    """A control plane with nodes and extenders, of which one after the other gets its turn."""

    def __init__(self, plane: ControlPlane, extent: Extent) -> None:
        self._plane = plane
        self._extent = extent
        self._count = 0
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda number: create_node(plane, f"node-{number}", **NODE), range(extent.nodes)))
        plane.kubectl("create", "namespace", NAMESPACE)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        awaited("the service account", lambda: plane.call("GET", account))
        self._bindings = Bindings(plane, NAMESPACE)
        plane.stop_scheduler()

    def place(self, name: str, extender: Extender | None, *, are_ours: bool) -> Turn:
        """Let kube-scheduler place pods, with the extender if there is one."""
        self._count += 1
        names = [f"pod-{self._count}-{number}" for number in range(self._extent.pods)]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda name: self._plane.call("POST", path, _pod(name, are_ours=are_ours)), names))
        awaited("all pods are there", lambda: self._bindings.are_there(names))
        extenders = [extender_at(extender.port, *extender.verbs)] if extender else []
        before_s = extender.cpu_s() if extender else 0.0
        options = (UNBATCHED,) if name == "alone_unbatched" else ()
        self._plane.start_scheduler(
            *options, calls_per_second=CALLS_PER_SECOND, extenders=extenders, **QUICK_RETRIES
        )
        try:
            awaited("all pods are bound", lambda: self._bindings.are_bound(names), PLACED_S)
        finally:
            self._plane.stop_scheduler()
        spent_s = extender.cpu_s() - before_s if extender else 0.0
        moments_s = sorted(self._bindings.bound_s[name] for name in names)
        self._bindings.clear()
        rate = (len(names) - 1) / (moments_s[-1] - moments_s[0])
        return Turn(rate, spent_s * 1000 / len(names))


def _pod(name: str, *, are_ours: bool) -> dict[str, Any]:
    amounts = {**REQUESTS, MANAGED: "1"} if are_ours else REQUESTS
    container = {
        "name": "main",
        "image": "local.test/any:1",
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def measure(plane: ControlPlane, directory: Path, extent: Extent, names: Sequence[str]) -> dict[str, Any]:
    """The medians of all rounds."""
    bench = Bench(plane, extent)
    turns: defaultdict[str, list[Turn]] = defaultdict(list)
    for number in range(extent.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            start, kinds = SET_UPS[name]
            with start(plane, directory) as extender:
                for kind in kinds:
                    found = bench.place(name, extender, are_ours=kind == "ours")
                    print(f"round {number + 1}: {name}, {kind}: {found.pods_per_s:.0f} pods/s", flush=True)
                    turns[f"{name}_{kind}"].append(found)
    figures: dict[str, Any] = {"nodes": extent.nodes, "pods": extent.pods, "rounds": extent.rounds}
    for name, each in turns.items():
        figures[f"{name}_pods_per_s"] = round(statistics.median(turn.pods_per_s for turn in each), 1)
        figures[f"{name}_extender_ms_per_pod"] = round(
            statistics.median(turn.extender_ms_per_pod for turn in each), 3
        )
    return figures


def show(figures: Mapping[str, Any]) -> None:
    rows: list[tuple[object, ...]] = []
    for name in SET_UPS:
        rates = (figures.get(f"{name}_{kind}_pods_per_s") for kind in ("ours", "others"))
        rows.append((name, *rates, figures.get(f"{name}_ours_extender_ms_per_pod")))
    table(("extender", "ours, pods/s", "others, pods/s", "its CPU, ms a pod of ours"), rows)


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer nodes and pods, one round")
    parser.add_argument("--only", nargs="+", choices=SET_UPS, default=list(SET_UPS), help="these set-ups")
    options = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "extender", "short": options.short, "machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        plane = kubeless_plane(Programs(), Path(name) / "plane", free_port)
        try:
            extent = SHORT if options.short else FULL
            found |= measure(plane.start(), Path(name), extent, options.only)
        except ClusterError as error:
            print(f"left out: {error}", flush=True)
            found["pods"] = None
        finally:
            plane.stop()
    show(found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
