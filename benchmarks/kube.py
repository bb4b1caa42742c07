"""Parley on Kubernetes: how fast a throttled pod of a real node grows, and the cost of 1,000 pods for the API server and the machine.

`benchmarks/kube.py [--short]`: first one real node (as root): pods whose load jumps at random moments, from the first throttled period
to the larger limit in the cgroup file, also on a full node, on which an idle neighbour must give its comfort first; and how many resizes
a sevenfold growth takes. Beside it stands the time of a Vertical Pod
Autoscaler by its published timings alone, which is computed and not measured. Then 1,000 pods on 20 hollow nodes with one agent each,
one scheduler, and one node informant for all of them over made-up cgroups: calls to the API server for each resize, and the CPU time
and memory of scheduler and agents. A part is left out, and its figures are null, if this machine lacks its requirements.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kube_parts import hollow, real
from benchmarks.load.figures import machine, table
from benchmarks.load.program import free_port
from labs.clusters.control_plane import NEEDED, ControlPlane
from labs.clusters.node.real_node import RealNode
from labs.clusters.programs import ClusterError, Programs

Part = Callable[[ControlPlane, Programs], dict[str, Any]]
LATENCIES: Final = {
    "throttled_to_limit": "real node: throttled to larger limit",
    "throttled_to_patch": "  of that until the API server has it",
    "patch_to_limit": "  of that the kubelet's part",
    "full_node_throttled_to_limit": "full node, idle neighbour: throttled to larger limit",
    "full_node_throttled_to_patch": "  of that until the API server has it",
    "reference_vpa": "reference: VPA's published timings",
    "patch_to_done": "hollow nodes: patch to done",
}


def on_real_node(programs: Programs, *, is_short: bool) -> dict[str, Any]:
    """Raises `ClusterError` if this machine cannot have a real node."""
    RealNode.check(programs)
    return _beside_plane(programs, lambda plane, found: real.measure(plane, found, is_short=is_short))


def on_hollow_nodes(programs: Programs, *, is_short: bool) -> dict[str, Any]:
    """Raises `ClusterError` if programs are missing."""
    programs.check(("hollow",))
    return _beside_plane(programs, lambda plane, found: hollow.measure(plane, found, is_short=is_short))


def _beside_plane(programs: Programs, part: Part) -> dict[str, Any]:
    """The figures of a part, on a control plane of its own: the leftovers of one part do not cost the next."""
    programs.check(NEEDED)
    with tempfile.TemporaryDirectory() as name:
        plane = ControlPlane(programs, Path(name) / "plane", free_port)
        try:
            return part(plane.start(), programs)
        finally:
            plane.stop()


def show(found: dict[str, Any]) -> None:
    """The figures for people."""
    rows = [
        (text, *(found.get(f"{name}_{each}_ms") for each in ("p50", "p99", "max")))
        for name, text in LATENCIES.items()
    ]
    table(("latency", "p50 ms", "p99 ms", "max ms"), rows)
    if found.get("sevenfold_resizes") is not None:
        print(f"from 100m to 700m or more: {found['sevenfold_resizes']:g} resizes, {found['sevenfold_s']} s")
    if found.get("pods") is not None:
        print(
            f"{found['pods']} pods on {found['nodes']} nodes: {found['resizes']} resizes with {found['writes_per_resize']} writes and "
            f"{found['reads_per_resize']} reads each; {found['idle_reads_per_s']} reads/s where nothing happens"
        )
        rows = [
            (name, *(found[f"{name}_{kind}_core_share"] for kind in ("idle", "busy")), found[memory])
            for name, memory in (("scheduler", "scheduler_resident_mb"), ("agent", "agent_resident_mb_each"))
        ]
        table(("program (agent: CPU of all)", "idle cores", "busy cores", "MB each"), rows)


def main() -> None:
    """Measure, and print a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer jumps, pods and nodes")
    is_short = parser.parse_args().short
    programs = Programs()
    figures: dict[str, Any] = {"benchmark": "kube", "short": is_short, "machine": machine()}
    for figure, part in (("jumps", on_real_node), ("pods", on_hollow_nodes)):
        try:
            figures |= part(programs, is_short=is_short)
        except ClusterError as error:
            print(f"left out: {error}", flush=True)
            figures[figure] = None
    show(figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
