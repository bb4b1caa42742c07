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
"""

import argparse
import json
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import agents, cluster, drive, figures, http, program
from benchmarks.load.agents import Agent

SAMPLE = 17  # no multiple of the mix's period, so that every kind of request is read
BATCH = 100
BATCH_CONNECTIONS = 8
ABSENT = (400, 404, 405, 413)


class Singles:
    """One request at a time for each VM, all VMs in turn."""

    def __init__(self, fleet: Sequence[Agent], instance: bytes, faults: figures.Faults) -> None:
        self._ready = deque(fleet)
        self._instance = instance
        self._faults = faults
        self._answers = 0

    def next(self) -> tuple[bytes, Agent] | None:
        """The request of the agent that has waited longest."""
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.ask(agent.next_units(), self._instance)), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        """Take the permit; every so often read it in full."""
        self._ready.append(token)
        if status != 200:
            self._faults.add(f"status {status}: {body!r}")
            return 0
        self._answers += 1
        if self._answers % SAMPLE == 0:
            _check(token, self._instance, json.loads(body), self._faults)
        token.held = token.want
        return 1


class Published:
    """One request without the extension at a time for each VM, all VMs in turn; the first of each names its use."""

    def __init__(self, fleet: Sequence[Agent], faults: figures.Faults, *, is_first: bool = False) -> None:
        self._ready = deque(fleet)
        self._faults = faults
        self._is_first = is_first

    def next(self) -> tuple[bytes, Agent] | None:
        """The request of the agent that has waited longest."""
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.plain(agent.held if self._is_first else agent.next_units())), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        if not self._is_first:
            self._ready.append(token)
        if status != 200 or json.loads(body)["permit"] != {"vCPUs": token.want, "mem": token.want}:
            self._faults.add(f"a request for {token.want} units was answered with {status}: {body!r}")
            return 0
        token.held = token.want
        return 1


class First(Singles):
    """The first request of each VM, which names its use; there is no second one."""

    def next(self) -> tuple[bytes, Agent] | None:
        if not self._ready:
            return None
        agent = self._ready.popleft()
        return agent.http(agent.ask(agent.held, self._instance)), agent

    def done(self, token: Agent, status: int, body: bytes) -> int:
        count = super().done(token, status, body)
        self._ready.pop()
        return count


class Batches:
    """Up to 100 VMs of one node in one request, all nodes in turn."""

    def __init__(self, groups: list[list[Agent]], instance: bytes, faults: figures.Faults) -> None:
        self._ready = deque(groups)
        self._instance = instance
        self._faults = faults

    def next(self) -> tuple[bytes, list[Agent]] | None:
        """The batch that has waited longest."""
        if not self._ready:
            return None
        group = self._ready.popleft()
        bodies = [agent.ask(agent.next_units(), self._instance) for agent in group]
        return agents.batch(group, bodies), group

    def done(self, token: list[Agent], status: int, body: bytes) -> int:
        """Look at the status of every item, and read every so many of them in full."""
        self._ready.append(token)
        if status != 200:
            self._faults.add(f"status {status} of a batch: {body!r}")
            return 0
        items = json.loads(body)
        if len(items) != len(token):
            self._faults.add(f"{len(items)} answers to a batch of {len(token)}")
            return 0
        good = 0
        for place, (agent, item) in enumerate(zip(token, items, strict=True)):
            if item["status"] != 200:
                self._faults.add(f"status {item['status']} in a batch: {item['body']}")
                continue
            good += 1
            if place % SAMPLE == 0:
                _check(agent, self._instance, item["body"], self._faults)
            agent.held = agent.want
        return good


def _check(agent: Agent, instance: bytes, content: Any, faults: figures.Faults) -> None:
    """Note an answer that is not the full permit that was asked for."""
    try:
        permit = agents.read(content)
    except ValueError as error:
        faults.add(str(error))
        return
    if permit != agents.Permit(agent.number, instance, agent.want, ()):
        faults.add(f"request {agent.number} for {agent.want} units was answered with {permit}")


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
        first = self._fleet[0]
        status, body = await http.call(self._server.port, first.http(first.ask(first.held, agents.NOBODY)))
        if status != 200:
            raise SystemExit(f"the first request was answered with status {status}: {body!r}")
        self._instance = agents.read(json.loads(body)).instance
        load = drive.Closed(First(self._fleet, self._instance, self.faults), self.faults)
        run = await load.over(self._server.port, self._options.connections)
        return {"settled_s": round(run.seconds, 2)}

    async def singles(self, prefix: str = "singles") -> dict[str, object]:
        singles = Singles(self._fleet, self._instance, self.faults)
        return await self._closed(prefix, f"{prefix}_per_s", singles, self._options.connections)

    async def published(self) -> dict[str, object]:
        """Requests without the extension in a closed loop, after one of each VM."""
        first = drive.Closed(Published(self._fleet, self.faults, is_first=True), self.faults)
        run = await first.over(self._server.port, self._options.connections)
        published = Published(self._fleet, self.faults)
        found = await self._closed("published", "published_per_s", published, self._options.connections)
        return {"settled_s": round(run.seconds, 2), **found}

    async def batches(self) -> dict[str, object]:
        """Batches in a closed loop; figures of None if the server takes none."""
        if not await self._takes_batches():
            names = ("batched_decisions_per_s", "batch_p50_ms", "batch_p99_ms", "batch_max_ms")
            return dict.fromkeys(names)
        per_node = self._options.shape.per_node
        nodes = [self._fleet[begin : begin + per_node] for begin in range(0, len(self._fleet), per_node)]
        groups = [node[begin : begin + BATCH] for node in nodes for begin in range(0, len(node), BATCH)]
        batches = Batches(groups, self._instance, self.faults)
        connections = min(BATCH_CONNECTIONS, len(groups))
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
        found["journal_lost"] = await _lost(server.port)
    return found, bench


async def _lost(port: int) -> float | None:
    """The inputs that the journal could not take, by the server's own metrics."""
    _, body = await http.get(port, "/metrics")
    values = [
        float(line.split()[-1])
        for line in body.decode().splitlines()
        if "journal" in line and "lost" in line and not line.startswith("#")
    ]
    return sum(values) if values else None


async def _main(options: Options) -> int:
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        found, bench = await _measure(options, Path(directory))
        rows, errors = bench.rows, bench.faults.count
        if options.journal:
            more, other = await _with_journal(options, Path(directory))
            found.update(more)
            rows, errors = rows + other.rows, errors + other.faults.count
    pinned = program.CORES
    where = f"server on core {pinned[0]}, load on core {pinned[1]}" if pinned else "all on one core"
    print(f"{options.shape.vms} VMs on {options.shape.nodes} nodes; {where}; {agents.MIX}")
    header = ("", "decisions/s", "p50 ms", "p99 ms", "max ms", "server CPU %", "µs CPU each", "load CPU %")
    figures.table(header, rows)
    print(
        f"start-up {found['startup_s']} s, all settled in {found['settled_s']} s, "
        f"resident {found['resident_mb']} MB, errors {errors}"
    )
    shape = {"vms": options.shape.vms, "nodes": options.shape.nodes, "connections": options.connections}
    head = {"benchmark": "permits", "machine": figures.machine(), **shape}
    print(json.dumps({**head, **found, "errors": errors}))
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
    parser.add_argument("--vms", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second of the paced run")
    given = parser.parse_args()
    if min(given.vms, given.nodes, given.connections) < 1 or given.rate <= 0:
        parser.error("VMs, nodes, connections and the rate must be above zero")
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
    )
    sys.exit(program.run(lambda: _main(options)))


if __name__ == "__main__":
    main()
