"""How fast the permit server decides, and how long an agent waits: single requests, batches, and a steady pace.

`benchmarks/permits.py [--short] [--journal] [--vms N] [--nodes N] [--connections N]`: starts the real scheduler over a
cluster file of 10,000 VMs on 100 nodes, pinned to one core with all its threads; the load comes from another core.
Every VM has an agent of its own. First each one names its use, which settles its VM and warms everything up; then 3 of
4 requests are unchanged renewals and 1 of 4 changes the permit (one unit up and one unit down in turn), so that the
ledger really posts. Nodes are large enough for every growth to be granted in full.

* singles: 32 keep-alive connections in a closed loop.
* batches: `POST /batch` with 100 requests of one node each, 8 connections in a closed loop.
* paced: 2,000 requests a second, evenly spaced, over 32 connections. A latency counts from the moment at which the
  request was due, so that a stall of the server counts against every request that fell into it.

An answer that is no full permit is an error, and any error makes the exit code 1. Of the single requests every 17th
answer is read in full (sequence number, instance, permit); of all others the status counts. `--journal` measures
single requests once more with the journal on; `--published` measures requests without the extension, each of which takes
a look at the cluster, and nothing else; `--sizes` lets the cluster file show the VMs' sizes, which then are read
again every 2 s; `--trivial` puts a server that decides nothing in the scheduler's place and so measures the generator.

`--peer COMMAND` measures any other permit server beside ours, and nothing else: both on one core, alternately, in `--rounds N` of ours, the peer,
the peer and ours again (benchmarks/load/peer.py). In COMMAND `{port}` stands for the port that the peer has to listen at, on loopback, and
`{cluster}` for the path of the cluster file; its VMs are `bench/vm-00000` and so on. `POST /` with a published request has to permit what was
asked for; any HTTP answer to a `GET` means that it is ready. The peer is never asked with the extension, for it knows none, nor in batches: beside its
rate of single requests it shows those of ours with the extension (singles, batches) and without it (published), with `--journal` the same once more with the journal on.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import agents, cluster, drive, figures, http, peer, program, workloads
from benchmarks.load.agents import Agent
from benchmarks.load.workloads import Batches, Published, Singles

ABSENT = (400, 404, 405, 413)


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    shape: cluster.Shape
    connections: int
    rate: float
    measure_s: float
    warm_s: float
    sizes: bool
    journal: bool
    trivial: bool
    published: bool
    peer: str | None
    rounds: int


class Bench:
    """One server and its figures."""

    def __init__(self, options: Options, server: program.Program) -> None:
        self._options = options
        self._server = server
        self._fleet = [Agent(index) for index in range(options.shape.vms)]
        self._instance = agents.NOBODY
        self.faults = figures.Faults()
        self.rows: list[tuple[object, ...]] = []

    async def settle(self) -> dict[str, object]:
        """Let every agent name its use; this is also the warm-up. Its first request learns who the scheduler is."""
        self._instance, run = await workloads.settle(
            self._server.port, self._fleet, self.faults, self._options.connections
        )
        return {"settled_s": round(run.seconds, 2)}

    async def singles(self, prefix: str = "singles") -> dict[str, object]:
        singles = Singles(self._fleet, self._instance, self.faults)
        return await self._closed(prefix, f"{prefix}_per_s", singles, self._options.connections)

    async def published(self) -> dict[str, object]:
        """Requests without the extension in a closed loop, after one of each VM."""
        run = await workloads.settle_published(
            self._server.port, self._fleet, self.faults, self._options.connections
        )
        published = Published(self._fleet, self.faults)
        found = await self._closed("published", "published_per_s", published, self._options.connections)
        return {"settled_s": round(run.seconds, 2), **found}

    async def batches(self) -> dict[str, object]:
        """Batches in a closed loop; figures of None if the server takes none."""
        if not await self._takes_batches():
            names = ("batched_decisions_per_s", "batch_p50_ms", "batch_p99_ms", "batch_max_ms")
            return dict.fromkeys(names)
        groups = workloads.by_node(self._fleet, self._options.shape.per_node)
        batches = Batches(groups, self._instance, self.faults)
        connections = min(workloads.BATCH_CONNECTIONS, len(groups))
        return await self._closed("batch", "batched_decisions_per_s", batches, connections)

    async def _takes_batches(self) -> bool:
        agent = self._fleet[0]
        one = agents.batch([agent], [agent.ask(agent.held, self._instance)])
        status, body = await http.call(self._server.port, one)
        if status in ABSENT:
            print(f"batches are not there: POST /batch is answered with {status} {body[:100]!r}")
            return False
        if status != 200:
            self.faults.add(f"status {status} of a batch of one: {body!r}")
        return status == 200

    async def _closed(
        self, prefix: str, rate_name: str, workload: drive.Workload, connections: int
    ) -> dict[str, object]:
        await drive.Closed(workload, self.faults, self._options.warm_s).over(self._server.port, connections)
        before_s = self._server.cpu_s()
        load = drive.Closed(workload, self.faults, self._options.measure_s)
        run = await load.over(self._server.port, connections)
        cpu_s = self._server.cpu_s() - before_s
        found = figures.in_ms(run.latencies_s)
        own = round(run.generator_cpu_s / run.seconds * 100)
        each_us = round(cpu_s / run.decisions * 1e6, 1) if run.decisions else None
        share = round(cpu_s / run.seconds * 100)
        self.rows.append((prefix, round(run.per_s), *found.values(), share, each_us, own))
        return {
            rate_name: round(run.per_s),
            **{f"{prefix}_{name}": value for name, value in found.items()},
            f"{prefix}_server_cpu_percent": share,
            f"{prefix}_server_cpu_us": each_us,
            f"{prefix}_generator_cpu_percent": own,
        }

    async def paced(self) -> dict[str, object]:
        """A steady pace in an open loop."""
        rate = self._options.rate
        singles = Singles(self._fleet, self._instance, self.faults)
        before_s = self._server.cpu_s()
        load = drive.Paced(singles, self.faults, rate, self._options.measure_s)
        run = await load.over(self._server.port, self._options.connections)
        cpu_s = self._server.cpu_s() - before_s
        found, late = figures.in_ms(run.latencies_s), figures.in_ms(run.late_s)
        each_us = round(cpu_s / run.decisions * 1e6, 1) if run.decisions else None
        share = round(cpu_s / run.seconds * 100)
        self.rows.append((f"paced {rate:g}/s", round(run.per_s), *found.values(), share, each_us, None))
        self.rows.append(("  load's own delay", None, *late.values(), None, None, None))
        return {
            "paced_offered_per_s": rate,
            "paced_per_s": round(run.per_s),
            **{f"paced_{name}": value for name, value in found.items()},
            "paced_server_cpu_percent": share,
            "paced_generator_late_p99_ms": late["p99_ms"],
            "paced_generator_late_max_ms": late["max_ms"],
        }


def _server(options: Options, directory: Path, *arguments: str) -> program.Program:
    port = program.free_port()
    if options.trivial:
        output = directory / "trivial.log"
        return program.Program(port, output, "benchmarks.load.trivial", "--port", str(port))
    count = options.shape.vms
    sizes = tuple(map(agents.initial_units, range(count))) if options.sizes or options.published else None
    if options.published:
        arguments = (*arguments, "--published-agents", "*")
    path = cluster.write(directory / "cluster.yaml", options.shape, sizes)
    return program.Program.scheduler(port, path, *arguments)


async def _measure(options: Options, directory: Path) -> tuple[dict[str, object], Bench]:
    with _server(options, directory) as server:
        print(f"starting over {options.shape.vms} VMs …", flush=True)
        found: dict[str, object] = {"startup_s": round(await server.ready(), 2)}
        bench = Bench(options, server)
        found["resident_ready_mb"] = server.resident_mb()
        steps = (bench.settle, bench.singles, bench.batches, bench.paced)
        for step in (bench.published,) if options.published else steps:
            found.update(await step())
        found["resident_mb"] = server.resident_mb()
    return found, bench


async def _with_journal(options: Options, directory: Path) -> tuple[dict[str, object], Bench]:
    with _server(options, directory, "--journal", str(directory / "journal")) as server:
        print("starting once more, with the journal …", flush=True)
        await server.ready()
        bench = Bench(options, server)
        await bench.settle()
        found = await bench.singles("journal_singles")
        found["journal_lost"] = await workloads.journal_lost(server.port)
    return found, bench


async def _beside(options: Options, command: str, directory: Path) -> int:
    print(f"{_setting(options)}; {options.rounds} rounds of ours, the peer, the peer, ours")
    given = peer.Options(
        command=command,
        shape=options.shape,
        connections=options.connections,
        rounds=options.rounds,
        slice_s=options.measure_s / 2,
        warm_s=options.warm_s,
        journal=options.journal,
    )
    found, errors = await peer.compare(given, directory)
    print(json.dumps({**_head("permits-peer", options), "command": command, **found, "errors": errors}))
    return 1 if errors else 0


def _setting(options: Options) -> str:
    pinned = program.CORES
    where = f"server on core {pinned[0]}, load on core {pinned[1]}" if pinned else "all on one core"
    return f"{options.shape.vms} VMs on {options.shape.nodes} nodes; {where}; {agents.MIX}"


def _head(benchmark: str, options: Options) -> dict[str, object]:
    shape = {"vms": options.shape.vms, "nodes": options.shape.nodes, "connections": options.connections}
    return {"benchmark": benchmark, "machine": figures.machine(), **shape}


async def _main(options: Options) -> int:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        if options.peer is not None:
            return await _beside(options, options.peer, Path(directory))
        found, bench = await _measure(options, Path(directory))
        rows, errors = bench.rows, bench.faults.count
        if options.journal:
            more, other = await _with_journal(options, Path(directory))
            found.update(more)
            rows, errors = rows + other.rows, errors + other.faults.count
    print(_setting(options))
    header = ("", "decisions/s", "p50 ms", "p99 ms", "max ms", "server CPU %", "µs CPU each", "load CPU %")
    figures.table(header, rows)
    print(
        f"start-up {found['startup_s']} s, all settled in {found['settled_s']} s, "
        f"resident {found['resident_mb']} MB, errors {errors}"
    )
    print(json.dumps({**_head("permits", options), **found, "errors": errors}))
    return 1 if errors else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="3 s for each mode instead of 10 s")
    parser.add_argument("--journal", action="store_true", help="single requests with the journal on, too")
    parser.add_argument("--sizes", action="store_true", help="let the cluster file show the VMs' sizes")
    parser.add_argument(
        "--published", action="store_true", help="requests without the extension, nothing else"
    )
    parser.add_argument("--trivial", action="store_true", help="measure the generator, not the scheduler")
    parser.add_argument("--peer", metavar="COMMAND", help="another permit server, to measure ours beside")
    parser.add_argument("--rounds", type=int, default=3, help="rounds beside the peer")
    parser.add_argument("--vms", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second of the paced run")
    given = parser.parse_args()
    if min(given.vms, given.nodes, given.connections, given.rounds) < 1 or given.rate <= 0:
        parser.error("VMs, nodes, connections, rounds and the rate must be above zero")
    options = Options(
        shape=cluster.Shape(given.vms, min(given.nodes, given.vms)),
        connections=min(given.connections, given.vms),
        rate=given.rate,
        measure_s=3.0 if given.short else 10.0,
        warm_s=0.3 if given.short else 1.0,
        sizes=given.sizes,
        journal=given.journal and not given.trivial,
        trivial=given.trivial,
        published=given.published,
        peer=given.peer,
        rounds=given.rounds,
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
