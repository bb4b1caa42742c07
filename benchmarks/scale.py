"""The permit server from 1,000 to 100,000 VMs: memory, start, time per request, and how long whole-state work holds requests up.

`benchmarks/scale.py [--short] [--vms N]`: servers for each size (1,000, 10,000, 50,000 and 100,000 VMs on 100 to 1,000 nodes; --short:
the first two), with the VMs' sizes in the cluster file. The agents of a node name the use of all its VMs in one batch, as
ours do; then single requests of all VMs in turn, 3 of 4 unchanged renewals and 1 of 4 changes the permit.

* start: from the start of the process until /readyz answers 200, wall clock and CPU; again: the same after SIGKILL. Nothing is
  restored from the journal: the cluster file is read, and agents tell the rest.
* ready MB, settled MB: resident memory then. Bytes a VM: what is resident beyond a server with ten VMs, by the number of VMs.
* µs, p50, p99, max: CPU for each request and latency at 2,000 a second over 32 connections, from the moment when a request was due.
* stalls: the longest latency at 1,000 requests a second beside a scrape of /metrics, /v1/audit, every page of /v1/state one after the other and
  /v1/nodes, a new file of the journal with its snapshot, a cluster file that has changed, and the expiry of all VMs at once (nobody was heard since the start).
  Each is the smallest of several rounds' longest latencies (of the snapshot and the expiry: of one round), because the machine's
  other work is in some rounds and not in all; "idle" is the same beside nothing.

The generator keeps 5 bytes for each VM. Any answer that is not 200 is an error, and makes the exit code 1.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.load import agents, cluster, drive, figures, http, program

RATE = 2000.0
BESIDE_RATE = 1000.0
BESIDE_S = 1.5
LEAD_S = 0.25
CONNECTIONS = 32
BATCH = 100
SIZES = ((1_000, 100), (10_000, 100), (50_000, 500), (100_000, 1_000))
ROTATE_BYTES = 64 * 2**20
LAST_BYTES = 4e6
FASTEST_BYTES_PER_S = 4 * BESIDE_RATE * 3000
"""Of lines of the journal, each of which has less than 3 kB."""
HANDOVER_S = 15.0
NEVER_S = 36_000.0
PAGE_S = 60.0
"""An audit takes a second of processor time at 100,000 VMs, beside everything else."""


class Fleet:
    """The agents of all VMs: a number and a size for each. An `Agent` is made for one request."""

    def __init__(self, vms: int) -> None:
        self.numbers = array("I", bytes(4 * vms))
        self.held = bytearray(map(agents.initial_units, range(vms)))
        self.instance = agents.NOBODY

    def ask(self, index: int, *, is_first: bool = False) -> tuple[agents.Agent, bytes]:
        """The agent of a VM, and the body of its next request."""
        agent = agents.Agent(index)
        agent.number, agent.held = self.numbers[index], self.held[index]
        changes = not is_first and (index + agent.number) & 3 == 0
        want = agents.LOW + agents.HIGH - agent.held if changes else agent.held
        return agent, agent.ask(want, self.instance)

    def took(self, agent: agents.Agent) -> None:
        self.numbers[agent.index], self.held[agent.index] = agent.number, agent.want


class Firsts:
    """The first request of each VM, those of a node in batches."""

    def __init__(self, fleet: Fleet, per_node: int, faults: figures.Faults) -> None:
        vms = len(fleet.held)
        self._left = [
            range(begin, min(begin + BATCH, node + per_node, vms))
            for node in range(0, vms, per_node)
            for begin in range(node, min(node + per_node, vms), BATCH)
        ][::-1]
        self._fleet, self._faults = fleet, faults

    def next(self) -> tuple[bytes, list[agents.Agent]] | None:
        if not self._left:
            return None
        asked = [self._fleet.ask(index, is_first=True) for index in self._left.pop()]
        group = [agent for agent, _ in asked]
        return agents.batch(group, [body for _, body in asked]), group

    def done(self, token: list[agents.Agent], status: int, body: bytes) -> int:
        items = json.loads(body) if status == 200 else []
        for agent, item in zip(token, items, strict=False):
            if item["status"] == 200:
                self._fleet.took(agent)
        wrong = next((item for item in items if item["status"] != 200), None)
        if wrong is not None or len(items) != len(token):
            self._faults.add(f"a batch was answered with {status}: {wrong or body!r}")
        return len(items)


class Singles:
    """Requests of all VMs in turn, one at a time."""

    def __init__(self, fleet: Fleet, faults: figures.Faults) -> None:
        self._fleet, self._faults = fleet, faults
        self._next = 0

    def next(self) -> tuple[bytes, agents.Agent]:
        agent, body = self._fleet.ask(self._next)
        self._next = (self._next + 1) % len(self._fleet.held)
        return agent.http(body), agent

    def done(self, token: agents.Agent, status: int, body: bytes) -> int:
        if status != 200:
            self._faults.add(f"status {status}: {body!r}")
            return 0
        self._fleet.took(token)
        return 1


@dataclass(slots=True)
class Scale:
    """One size: its server and its fleet. `rounds` of each kind of work are measured."""

    shape: cluster.Shape
    directory: Path
    rounds: int
    measure_s: float
    base_mb: float
    faults: figures.Faults

    async def run(self) -> dict[str, object]:
        sizes = tuple(map(agents.initial_units, range(self.shape.vms)))
        path = cluster.write(self.directory / "cluster.yaml", self.shape, sizes)
        port = program.free_port()
        found: dict[str, object] = {"vms": self.shape.vms, "nodes": self.shape.nodes}
        silent = ("--handover", f"{NEVER_S:g}")
        with program.Program.scheduler(port, path, *silent) as server:
            found |= await self._started(server, "start")
            found["ready_mb"] = server.resident_mb()
            fleet = Fleet(self.shape.vms)
            found["settle_s"] = await self._settle(server, fleet)
            found |= await self._paced(server, fleet)
            settled_mb = found["settled_mb"] = server.resident_mb()
            found["bytes_per_vm"] = round((settled_mb - self.base_mb) * 1e6 / self.shape.vms)
            found |= await self._stalls(server, fleet, path)
            found["most_mb"] = server.resident_mb()
            server.kill()
        with program.Program.scheduler(port, path, "--handover", f"{HANDOVER_S:g}") as server:
            found |= await self._started(server, "again")
            found["stall_expiry_ms"] = await self._expiry(server)
        journal = self.directory / "journal"
        with program.Program.scheduler(port, path, "--journal", str(journal), *silent) as server:
            await server.ready()
            found["stall_snapshot_ms"] = await self._snapshot(server, Fleet(self.shape.vms), journal)
            found["journal_mb"] = server.resident_mb()
            found["journal_lost"] = await self._lost(server)
        return found

    async def _lost(self, server: program.Program) -> float:
        """Inputs that the journal could not take."""
        page = (await self._get(server, "/metrics")).decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in page if line.startswith("parley_scheduler_journal_lost")
        )

    async def _started(self, server: program.Program, name: str) -> dict[str, object]:
        ready_s = await server.ready()
        return {f"{name}_s": round(ready_s, 2), f"{name}_cpu_s": round(server.cpu_s(), 2)}

    async def _settle(self, server: program.Program, fleet: Fleet) -> float:
        """The first agent's request learns who the scheduler is, which all others name with their use."""
        agent, body = fleet.ask(0, is_first=True)
        status, answer = await http.call(server.port, agent.http(body), patience_s=PAGE_S)
        if status != 200:
            raise SystemExit(f"the first request was answered with status {status}: {answer!r}")
        fleet.took(agent)
        fleet.instance = agents.read(json.loads(answer)).instance
        firsts = Firsts(fleet, self.shape.per_node, self.faults)
        run = await drive.Closed(firsts, self.faults).over(server.port, 4)
        return round(run.seconds, 2)

    async def _paced(self, server: program.Program, fleet: Fleet) -> dict[str, object]:
        before_s = server.cpu_s()
        load = drive.Paced(Singles(fleet, self.faults), self.faults, RATE, self.measure_s)
        run = await load.over(server.port, CONNECTIONS)
        each_us = round((server.cpu_s() - before_s) / max(run.decisions, 1) * 1e6, 1)
        return {"us_each": each_us, **figures.in_ms(run.latencies_s)}

    async def _beside(
        self, server: program.Program, fleet: Fleet, work: Awaitable[object], seconds: float = BESIDE_S
    ) -> float:
        """The longest latency (ms) beside some work, which begins after a moment."""
        load = drive.Paced(Singles(fleet, self.faults), self.faults, BESIDE_RATE, seconds)
        driving = asyncio.create_task(load.over(server.port, CONNECTIONS))
        await asyncio.sleep(LEAD_S)
        await work
        run = await driving
        return round(max(run.latencies_s) * 1000, 1)

    async def _stalls(self, server: program.Program, fleet: Fleet, path: Path) -> dict[str, object]:
        kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "idle": _nothing,
            "scrape": lambda: self._get(server, "/metrics"),
            "audit": lambda: self._get(server, "/v1/audit"),
            "pages": lambda: self._pages(server),
        }
        found: dict[str, object] = {
            f"stall_{name}_ms": min([await self._beside(server, fleet, work()) for _ in range(self.rounds)])
            for name, work in kinds.items()
        }
        seconds = BESIDE_S + self.shape.vms / 5000
        _change(path)
        found["stall_reading_ms"] = await self._beside(server, fleet, _nothing(), seconds)
        return found

    async def _get(self, server: program.Program, path: str) -> bytes:
        status, body = await http.get(server.port, path, patience_s=PAGE_S)
        if status != 200:
            self.faults.add(f"status {status} of {path}: {body[:200]!r}")
        if path == "/v1/audit" and json.loads(body)["faults"]:
            self.faults.add(f"the audit found {body[:200]!r}")
        return body

    async def _pages(self, server: program.Program) -> None:
        """Everything, page by page, as far as one round goes."""
        await self._get(server, "/v1/nodes")
        until_s, place = asyncio.get_running_loop().time() + BESIDE_S / 2, ""
        while asyncio.get_running_loop().time() < until_s:
            body = await self._get(server, f"/v1/state?continue={place}" if place else "/v1/state")
            place = json.loads(body)["continue"] or ""

    async def _snapshot(self, server: program.Program, fleet: Fleet, journal: Path) -> float | None:
        """Beside a new file of the journal, with its snapshot. None if none came.

        Every VM is settled first. A file ends after as many bytes as its snapshot has, or 64 MiB.
        """
        await self._settle(server, fleet)
        load = Singles(fleet, self.faults)
        while (left := _bytes_left(journal)) > LAST_BYTES:
            seconds = min(left / 2 / FASTEST_BYTES_PER_S, 5.0)  # never beyond the file's end
            await drive.Paced(load, self.faults, 4 * BESIDE_RATE, seconds).over(server.port, CONNECTIONS)
        count, worst = _count(journal), []
        for _ in range(30):
            run = drive.Paced(load, self.faults, BESIDE_RATE, 2.0)
            worst.append(round(max((await run.over(server.port, CONNECTIONS)).latencies_s) * 1000, 1))
            if _count(journal) > count:
                return max(worst[-2:])
        return None

    async def _expiry(self, server: program.Program) -> float:
        """Beside the moment when all VMs that nobody has asked for since the start count as silent."""
        return await self._beside(server, Fleet(min(self.shape.vms, 100)), _nothing(), HANDOVER_S + 8.0)


async def _nothing() -> None:
    pass


def _change(path: Path) -> None:
    """The cluster file has changed in one place."""
    text = path.read_text()
    other = path.with_name("other.yaml")
    other.write_text(text.replace('max: {cpu: "8", memory: 8Gi}', 'max: {cpu: "9", memory: 9Gi}', 1))
    other.replace(path)


def _count(journal: Path) -> int:
    return len(list(journal.glob("journal-*")))


def _bytes_left(journal: Path) -> int:
    """The bytes of inputs that the journal's present file still takes."""
    path = max(journal.glob("journal-*"))
    with path.open("rb") as file:
        first = file.readline()
    snapshot = len(first) if first.startswith(b'{"snapshot"') else 0
    return max(ROTATE_BYTES, snapshot) - (path.stat().st_size - snapshot)


async def _base_mb(directory: Path) -> float:
    path = cluster.write(directory / "small.yaml", cluster.Shape(10, 1))
    with program.Program.scheduler(program.free_port(), path) as server:
        await server.ready()
        return server.resident_mb()


COLUMNS = {
    "start_s": "start s",
    "start_cpu_s": "CPU s",
    "again_s": "again s",
    "ready_mb": "ready MB",
    "settled_mb": "settled MB",
    "most_mb": "most MB",
    "journal_mb": "with journal",
    "bytes_per_vm": "bytes a VM",
    "us_each": "µs",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "max_ms": "max ms",
}
STALLS = ("idle", "scrape", "audit", "pages", "reading", "snapshot", "expiry")


async def _main(sizes: list[tuple[int, int]], rounds: int, measure_s: float) -> int:
    faults = figures.Faults()
    rows = []
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as directory:
        base_mb = await _base_mb(Path(directory))
        for vms, nodes in sizes:
            print(f"{vms} VMs on {nodes} nodes …", flush=True)
            place = Path(directory) / str(vms)
            place.mkdir()
            scale = Scale(cluster.Shape(vms, nodes), place, rounds, measure_s, base_mb, faults)
            rows.append(await scale.run())
    figures.table(("VMs", *COLUMNS.values()), [(row["vms"], *map(row.get, COLUMNS)) for row in rows])
    stalls = [(row["vms"], *(row[f"stall_{name}_ms"] for name in STALLS)) for row in rows]
    figures.table(("longest latency, ms", *STALLS), stalls)
    print(f"a server with ten VMs: {base_mb} MB; errors {faults.count}")
    head = {"benchmark": "scale", "machine": figures.machine(), "base_mb": base_mb}
    print(json.dumps({**head, "sizes": rows, "errors": faults.count}))
    return 1 if faults.count else 0


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="1,000 and 10,000 VMs, fewer rounds")
    parser.add_argument("--vms", type=int, help="only this size, on a hundredth as many nodes")
    given = parser.parse_args()
    if given.vms is not None and given.vms < 100:
        parser.error("VMs must be 100 or more")
    sizes = list(SIZES[:2] if given.short else SIZES)
    if given.vms is not None:
        sizes = [(given.vms, given.vms // 100)]
    run = _main(sizes, 3 if given.short else 5, 5.0 if given.short else 15.0)
    sys.exit(program.run(lambda: run))


if __name__ == "__main__":
    main()
