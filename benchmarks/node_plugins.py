"""The cost of a node's strategies and plugins: resizes beside strategies that misbehave, metrics of 110 pods, calls over gRPC.

`benchmarks/node_plugins.py [--short]`:

* resizes: the real agent over 100 simulated VMs, metrics read every second, with no strategy, with one that
  only waits, and with one that raises, one that blocks for ever, one that computes for ever; the collectors run over 110 pods beside
  each of them. At random moments a guest's urgent wish
  (`/try-upscale`), then more load on another guest; a latency counts until the change log has the size. The agent and the
  scheduler share one core. Without --short the smallest figures of three rounds; with it only those strategies that misbehave.
* metrics: the cache with five minutes of all series of 110 pods of three containers at 1 Hz, and a process with nothing but an event
  loop that the collectors run beside: their CPU time, and how late the loop is. As root on a machine whose cgroup v1 can be written,
  the groups are real.
* calls: the plugins of `examples/node-plugins` in processes of their own, registered as with an agent, and an informant's page, each asked
  once a second for each of 100 VMs by the agent's own clients. CPU is that of the asking process beyond the cost of waiting alone.

Figures are shown and not judged, those that a busy machine leaves out are null: wishes without a size are counted in `missing`, calls without
an answer in time in `failures`. The exit code is 1 if no VM is resized at all, a strategy is not at work, or no call is answered.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load.figures import Faults, machine, table
from benchmarks.load.program import ROOT, Program, free_port, run
from benchmarks.node_plugins_parts import groups, resizing
from benchmarks.node_plugins_parts.misbehaving import STRATEGIES, Waits
from hosting import logs


async def part(name: str, *arguments: object) -> dict[str, Any]:
    """The figures of a part that runs in a process of its own. Raises `SystemExit` if it fails."""
    command = (sys.executable, "-P", "-m", f"benchmarks.node_plugins_parts.{name}", *map(str, arguments))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    try:
        found, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
            await process.wait()
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}")
    figures: dict[str, Any] = json.loads(found.splitlines()[-1])
    return figures


async def calls(directory: Path, seconds: float) -> dict[str, Any]:
    """The cost of calls to plugins, beside that of an informant's page."""
    config = directory / "informant.json"
    config.write_text(json.dumps({"state": str(directory / "informant-state")}))
    with Program.informant(free_port(), config) as informant:
        await informant.ready()
        return await part("calls", directory, informant.port, informant.pid, seconds)


def show(rows: list[resizing.Row], kind: str, metrics: dict[str, Any], asked: dict[str, Any]) -> None:
    """Tables for people."""
    table(
        (
            f"{resizing.VMS} VMs beside",
            "wish to size: p50 ms",
            "p99 ms",
            "load to size: p50 ms",
            "p99 ms",
            "CPU %",
        ),
        [
            (
                row.strategy,
                row.wish["p50_ms"],
                row.wish["p99_ms"],
                row.load["p50_ms"],
                row.load["p99_ms"],
                row.cpu_percent,
            )
            for row in rows
        ],
    )
    print()
    print(
        f"metric cache, {metrics['cache_series']} series of {groups.PODS} pods: {metrics['cache_mb']} MB "
        f"(never above {metrics['cache_bound_mb']} MB); p99 of one pod over 5 min in {metrics['query_pod_p99_ms']} ms, "
        f"of each pod in {metrics['query_all_pods_p99_ms']} ms"
    )
    print(
        f"collectors, {metrics['collected_pods']} pods, {kind}: {metrics['collectors_cpu_percent']} % of a core at "
        f"{metrics['collectors_rounds_per_s']} Hz; the loop beside them is late by p99 {metrics['loop_late_collecting_p99_ms']} ms "
        f"(without: {metrics['loop_late_p99_ms']} ms)"
    )
    print()
    names = {
        "exporter": "informant's page",
        "metrics_source": "metrics source, gRPC",
        "policy": "policy, gRPC",
    }
    idle = asked["nothing"]["agent_cpu_percent"]
    table(
        ("100 calls a second", "p50 ms", "p99 ms", "CPU %", "server's CPU %"),
        [
            (
                text,
                asked[name]["p50_ms"],
                asked[name]["p99_ms"],
                round(asked[name]["agent_cpu_percent"] - idle, 2),
                asked[name]["server_cpu_percent"],
            )
            for name, text in names.items()
        ],
    )


async def measure(strategies: tuple[str, ...], count: int, rounds: int, seconds: float) -> int:
    """All of it; the exit code."""
    faults = Faults()
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as name:
        directory = Path(name)
        with groups.made(directory / "cgroup") as (kind, root):
            rows = await resizing.measure(directory, root, strategies, count, rounds, faults)
            metrics = await part("collecting", root, seconds)
        asked = await calls(directory, seconds)
    for way, found in asked.items():
        if not found["calls"]:
            faults.add(f"no call of {way} was answered")
    show(rows, kind, metrics, asked)
    load = round(os.getloadavg()[0], 2)
    print(f"load average {load}; errors: {faults.count}")
    flat: dict[str, Any] = {"groups": kind, **metrics}
    for row in rows:
        key = row.strategy.lower().replace(" ", "_")
        flat |= {f"{key}_wish_{part}": value for part, value in row.wish.items()}
        flat |= {f"{key}_load_{part}": value for part, value in row.load.items()}
        flat |= {f"{key}_cpu_percent": row.cpu_percent, f"{key}_missing": row.missing}
    for way, found in asked.items():
        flat |= {f"{way}_{part}": value for part, value in found.items()}
    head = {"benchmark": "node_plugins", "machine": machine(), "vms": resizing.VMS, "pods": groups.PODS}
    print(json.dumps({**head, "load_average_1min": load, **flat, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line, measure, print tables and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer wishes and strategies, shorter windows")
    is_short = parser.parse_args().short
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the programs inherit it
    logs.configure("error")
    names = tuple(each.__name__ for each in STRATEGIES)
    short = tuple(name for name in names if name != Waits.__name__)
    sys.exit(run(lambda: measure(short, 20, 1, 2.0) if is_short else measure(names, 50, 3, 20.0)))


if __name__ == "__main__":
    main()
